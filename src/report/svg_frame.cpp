// SPDX-License-Identifier: Apache-2.0
#include "report/svg_frame.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "base/units.h"
#include "report/characters.h"

namespace rorqual::report {
namespace {

// Okabe and Ito's palette, darkened or lightened to stand out on white and on near-black; grey for frames.
constexpr std::string_view kChartCss = R"(svg.chart{
--c0:#0072b2;--c1:#d55e00;--c2:#008f68;--c3:#b0508c;--c4:#a87800;--c5:#2a8fc7;--c6:#555;
--ink:#1b1b1f;--faint:#e3e3e8;--axis:#8a8a94;--map-low:#f4f6fb;--map-high:#08306b;--none:#d9d9d9;
display:block;width:100%;height:auto;font:12px system-ui,sans-serif}
@media (prefers-color-scheme:dark){svg.chart{
--c0:#56b4e9;--c1:#ff8c42;--c2:#2fc79a;--c3:#e294c4;--c4:#e6b93c;--c5:#8fd3ff;--c6:#b5b5bd;
--ink:#e8e8ee;--faint:#33333b;--axis:#7d7d88;--map-low:#1d222b;--map-high:#9fd4ff;--none:#3a3a3a}}
@media print{svg.chart{
--c0:#0072b2;--c1:#d55e00;--c2:#008f68;--c3:#b0508c;--c4:#a87800;--c5:#2a8fc7;--c6:#555;
--ink:#000;--faint:#ddd;--axis:#777;--map-low:#f4f6fb;--map-high:#08306b;--none:#d9d9d9}}
.chart text{fill:var(--ink)}.chart .title{font-weight:600;font-size:14px}.chart .small{font-size:12px}
.chart .middle{text-anchor:middle}.chart .end{text-anchor:end}
.chart .grid{stroke:var(--faint);fill:none}.chart .frame{stroke:var(--axis);fill:none}
.chart .reference{stroke:var(--ink);stroke-dasharray:2 4;fill:none}
.chart .line{fill:none;stroke-width:1.8;stroke-linejoin:round}.chart .error{fill:none;stroke-width:1.3}
.chart .band{opacity:.2;stroke:none}.chart .bar{stroke:none;opacity:.85}
.chart .line.c0,.chart .error.c0{stroke:var(--c0)}.chart .line.c1,.chart .error.c1{stroke:var(--c1)}
.chart .line.c2,.chart .error.c2{stroke:var(--c2)}.chart .line.c3,.chart .error.c3{stroke:var(--c3)}
.chart .line.c4,.chart .error.c4{stroke:var(--c4)}.chart .line.c5,.chart .error.c5{stroke:var(--c5)}
.chart .line.c6,.chart .error.c6{stroke:var(--c6)}
.chart .band.c0,.chart .bar.c0,.chart .mark.c0{fill:var(--c0)}.chart .band.c1,.chart .bar.c1,.chart .mark.c1{fill:var(--c1)}
.chart .band.c2,.chart .bar.c2,.chart .mark.c2{fill:var(--c2)}.chart .band.c3,.chart .bar.c3,.chart .mark.c3{fill:var(--c3)}
.chart .band.c4,.chart .bar.c4,.chart .mark.c4{fill:var(--c4)}.chart .band.c5,.chart .bar.c5,.chart .mark.c5{fill:var(--c5)}
.chart .band.c6,.chart .bar.c6,.chart .mark.c6{fill:var(--c6)}
.chart .d1{stroke-dasharray:7 3}.chart .d2{stroke-dasharray:2 2.5}.chart .d3{stroke-dasharray:9 3 2 3}
.chart .d4{stroke-dasharray:4 2}.chart .d5{stroke-dasharray:12 4}.chart .d6{stroke-dasharray:1 3}
.chart .low{fill:var(--map-low)}.chart .high{fill:var(--map-high)}.chart .none{fill:var(--none)}
)";

constexpr double kMaxDecades = 400;  // more than doubles have

/// 1, 2 or 5 times a power of ten, so that about `at_most` steps cover `span`.
double nice_step(double span, int at_most) {
  const double raw = span / std::max(at_most, 1);
  const double power = std::pow(10.0, std::floor(std::log10(raw)));
  for (const double factor : {1.0, 2.0, 5.0}) {
    if (factor * power >= raw * (1 - 1e-9)) return factor * power;
  }
  return 10 * power;
}

/// 10^exponent, exact where a decimal literal is.
double power_of_ten(int exponent) {
  return exponent >= 0 ? std::pow(10.0, exponent) : 1 / std::pow(10.0, -exponent);
}

std::vector<double> log_ticks(double low, double high, int at_most) {
  const int first = static_cast<int>(std::floor(std::log10(low) + 1e-9));
  const int last = static_cast<int>(std::ceil(std::log10(high) - 1e-9));
  if (last - first > kMaxDecades) return {};
  const int every = std::max(1, (last - first + at_most) / std::max(at_most, 1));
  const bool with_between = (last - first) * 3 <= at_most;
  std::vector<double> places;
  for (int exponent = first; exponent <= last; ++exponent) {
    if (exponent % every != 0) continue;
    for (const int factor : {1, 2, 5}) {
      const double place = factor * power_of_ten(exponent);
      if ((factor == 1 || with_between) && place >= low * (1 - 1e-9) && place <= high * (1 + 1e-9))
        places.push_back(place);
    }
  }
  return places;
}

}  // namespace

std::vector<double> ticks(double low, double high, Scale scale, int at_most) {
  if (!std::isfinite(low) || !std::isfinite(high) || high < low) return {};
  if (scale == Scale::logarithmic) return low > 0 ? log_ticks(low, high, at_most) : std::vector<double>();
  if (high == low) return {low};
  const double step = nice_step(high - low, at_most);
  std::vector<double> places;
  const auto first = std::ceil(low / step - 1e-6), last = std::floor(high / step + 1e-6);
  for (double index = first; index <= last && places.size() < 1000; ++index)
    places.push_back(index == 0 ? 0 : index * step);
  return places;
}

std::string tick_text(double value) {
  if (value == 0) return "0";
  const double size = std::fabs(value);
  if (size >= 10000 && size < 1e9 && std::floor(value) == value) {
    const auto text = format_count(static_cast<int64_t>(size));
    return value < 0 ? "-" + text : text;
  }
  return fmt::format("{:.4g}", value);
}

bool ScaleMap::holds(double value) const {
  if (!std::isfinite(value) || (scale == Scale::logarithmic && value <= 0)) return false;
  const double span = pixel_high - pixel_low;
  const double share = (pixel(value) - pixel_low) / span;
  return share > -1e-6 && share < 1 + 1e-6;
}

double ScaleMap::pixel(double value) const {
  const double share = scale == Scale::logarithmic
                           ? (std::log10(value) - std::log10(low)) / (std::log10(high) - std::log10(low))
                           : (value - low) / (high - low);
  return pixel_low + share * (pixel_high - pixel_low);
}

double ScaleMap::pixel_clamped(double value) const {
  return value <= low ? pixel_low : value >= high ? pixel_high : pixel(value);
}

void ScaleMap::widen(bool low_is_free, bool high_is_free) {
  ensure_span();
  if (scale == Scale::linear) {
    const double step = nice_step(high - low, 8);
    if (low_is_free) low = std::floor(low / step + 1e-6) * step;
    if (high_is_free) high = std::ceil(high / step - 1e-6) * step;
    return;
  }
  const auto outward = [](double value, bool up) {
    const double power = std::pow(10.0, std::floor(std::log10(value) + 1e-9));
    double best = up ? 10 * power : power;
    for (const double factor : {2.0, 5.0}) {
      const double place = factor * power;
      if (up ? place >= value * (1 - 1e-9) && place < best : place <= value * (1 + 1e-9)) best = place;
    }
    return up && value <= power * (1 + 1e-9) ? power : best;
  };
  if (low_is_free) low = outward(low, false);
  if (high_is_free) high = outward(high, true);
}

void ScaleMap::ensure_span() {
  if (high > low) return;
  if (scale == Scale::logarithmic) {
    low /= 2;
    high = std::max(high * 2, low * 4);
  } else {
    const double half = low == 0 ? 0.5 : std::fabs(low) / 2;
    high = low + half;
    low -= half;
  }
}

void Frame::connect() {
  x.pixel_low = left;
  x.pixel_high = right;
  y.pixel_low = bottom;
  y.pixel_high = top;
}

std::string number(double pixels) {
  auto text = fmt::format("{:.2f}", pixels);
  text.erase(text.find_last_not_of('0') + 1);
  if (text.back() == '.') text.pop_back();
  return text == "-0" ? "0" : text;
}

double text_width(std::string_view text) {
  return 6.7 * static_cast<double>(display_width(visible(text)));
}

std::string svg_begin(const std::string& title, const std::string& description, int width, int height) {
  return fmt::format(
      "<svg class=\"chart\" xmlns=\"http://www.w3.org/2000/svg\" role=\"img\" viewBox=\"0 0 {} {}\">\n"
      "<title>{}</title>\n<desc>{}</desc>\n<text class=\"title\" x=\"{}\" y=\"18\">{}</text>\n",
      width, height, escaped(title), escaped(description), number(kMargin), escaped(title));
}

std::string frame_lines(const Frame& frame) {
  return fmt::format("<path class=\"frame\" d=\"M{} {}V{}H{}\"/>\n", number(frame.left), number(frame.top),
                     number(frame.bottom), number(frame.right));
}

std::string axis_labels(const Frame& frame, const std::string& x_label, const std::string& y_label) {
  std::string out;
  if (!x_label.empty()) {
    out += fmt::format("<text class=\"small middle\" x=\"{}\" y=\"{}\">{}</text>\n",
                       number((frame.left + frame.right) / 2), number(frame.bottom + 36), escaped(x_label));
  }
  if (!y_label.empty()) {
    const double middle = (frame.top + frame.bottom) / 2;
    out += fmt::format("<text class=\"small middle\" transform=\"translate({} {}) rotate(-90)\">{}</text>\n",
                       number(kMargin + 10), number(middle), escaped(y_label));
  }
  return out;
}

std::string marker(double x, double y, size_t color) {
  const auto path = [&](std::string_view shape) {
    return fmt::format("<path class=\"mark c{}\" d=\"M{} {}{}\"/>\n", color, number(x), number(y), shape);
  };
  switch (color % 4) {
    case 0:
      return fmt::format("<circle class=\"mark c{}\" cx=\"{}\" cy=\"{}\" r=\"3.5\"/>\n", color, number(x),
                         number(y));
    case 1:
      return path("m-3.5-3.5h7v7h-7z");
    case 2:
      return path("m0-4.5l4.5 8h-9z");
    default:
      return path("m0-5l5 5l-5 5l-5-5z");
  }
}

std::string_view chart_css() {
  return kChartCss;
}

std::string svg_file(const std::string& svg) {
  const auto end = svg.find('>');
  std::string out = "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n" + svg.substr(0, end + 1);
  out += "\n<style>\n" + std::string(kChartCss) + "</style>" + svg.substr(end + 1);
  return out;
}

}  // namespace rorqual::report
