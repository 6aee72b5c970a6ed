// SPDX-License-Identifier: Apache-2.0
#include "report/svg.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/units.h"
#include "report/characters.h"
#include "report/svg_frame.h"

namespace rorqual::report {
namespace {

/// Where a chart's marks are drawn, and how far across the bars of one category are spread.
struct Canvas {
  const Chart& chart;
  Frame frame;
  size_t num_bar_series = 0;
};

bool is_drawable(const Frame& frame, double x, double y) {
  return frame.x.holds(x) && frame.y.holds(y);
}

/// "M1 2L3 4", broken where a point cannot be drawn.
std::string line_path(const Frame& frame, const Series& series, bool stepped) {
  std::string path;
  bool is_open = false;
  double last_y = 0;
  for (size_t i = 0; i < std::min(series.x.size(), series.y.size()); ++i) {
    if (!is_drawable(frame, series.x[i], series.y[i])) {
      is_open = false;
      continue;
    }
    const double px = frame.x.pixel(series.x[i]), py = frame.y.pixel(series.y[i]);
    if (is_open && stepped) path += fmt::format("L{} {}", number(px), number(last_y));
    path += fmt::format("{}{} {}", is_open ? 'L' : 'M', number(px), number(py));
    is_open = true;
    last_y = py;
  }
  return path;
}

/// The area between low and high; one piece, so points that cannot be drawn are skipped.
std::string band_path(const Frame& frame, const Series& series) {
  std::string there, back;
  for (size_t i = 0; i < std::min(series.x.size(), series.y.size()); ++i) {
    if (!is_drawable(frame, series.x[i], series.low[i]) || !is_drawable(frame, series.x[i], series.high[i]))
      continue;
    const auto px = number(frame.x.pixel(series.x[i]));
    there += fmt::format("{}{} {}", there.empty() ? 'M' : 'L', px, number(frame.y.pixel(series.high[i])));
    back = fmt::format("L{} {}", px, number(frame.y.pixel(series.low[i]))) + back;
  }
  return there.empty() ? there : there + back + "Z";
}

bool has_range(const Series& series) {
  return !series.y.empty() && series.low.size() == series.y.size() && series.high.size() == series.y.size();
}

std::string draw_line(const Canvas& canvas, const Series& series, size_t color) {
  std::string out;
  if (has_range(series)) {
    const auto band = band_path(canvas.frame, series);
    if (!band.empty()) out += fmt::format("<path class=\"band c{}\" d=\"{}\"/>\n", color, band);
  }
  const auto path = line_path(canvas.frame, series, series.mark == Mark::step);
  if (!path.empty()) out += fmt::format("<path class=\"line c{} d{}\" d=\"{}\"/>\n", color, color, path);
  return out;
}

std::string error_bar(const Frame& frame, double px, double low, double high, size_t color) {
  if (!std::isfinite(low) || !std::isfinite(high)) return {};
  const double top = frame.y.pixel_clamped(high), bottom = frame.y.pixel_clamped(low);
  return fmt::format("<path class=\"error c{}\" d=\"M{} {}V{}M{} {}H{}M{} {}H{}\"/>\n", color, number(px),
                     number(top), number(bottom), number(px - 3), number(top), number(px + 3), number(px - 3),
                     number(bottom), number(px + 3));
}

/// Series with points at the same categories are set apart a little, so that their error bars do not overlap.
double category_shift(const Canvas& canvas, size_t index) {
  const auto& chart = canvas.chart;
  if (chart.x.categories.empty() || chart.series.size() < 2) return 0;
  const double middle = (static_cast<double>(chart.series.size()) - 1) / 2;
  return (static_cast<double>(index) - middle) * 0.5 / static_cast<double>(chart.series.size());
}

std::string draw_points(const Canvas& canvas, const Series& series, size_t index, size_t color) {
  const auto& frame = canvas.frame;
  std::string out;
  for (size_t i = 0; i < std::min(series.x.size(), series.y.size()); ++i) {
    const double x = series.x[i] + category_shift(canvas, index);
    if (!is_drawable(frame, x, series.y[i])) continue;
    const double px = frame.x.pixel(x);
    if (has_range(series)) out += error_bar(frame, px, series.low[i], series.high[i], color);
    out += marker(px, frame.y.pixel(series.y[i]), color);
  }
  return out;
}

std::string rectangle(double left, double right, double top, double bottom, size_t color) {
  if (right < left) std::swap(left, right);
  if (bottom < top) std::swap(top, bottom);
  return fmt::format("<rect class=\"bar c{}\" x=\"{}\" y=\"{}\" width=\"{}\" height=\"{}\"/>\n", color,
                     number(left), number(top), number(right - left), number(bottom - top));
}

std::string draw_histogram(const Canvas& canvas, const Series& series, size_t color) {
  const auto& frame = canvas.frame;
  std::string out;
  for (size_t i = 0; i + 1 < series.x.size() && i < series.y.size(); ++i) {
    const bool drawable = frame.x.holds(series.x[i]) && is_drawable(frame, series.x[i + 1], series.y[i]);
    if (!drawable || series.y[i] == 0) continue;
    out += rectangle(frame.x.pixel(series.x[i]), frame.x.pixel(series.x[i + 1]), frame.y.pixel(series.y[i]),
                     frame.y.pixel_clamped(0), color);
  }
  return out;
}

std::string draw_bars(const Canvas& canvas, const Series& series, size_t bar_index, size_t color) {
  const auto& frame = canvas.frame;
  const double width = 0.8 / static_cast<double>(canvas.num_bar_series);
  std::string out;
  for (size_t i = 0; i < std::min(series.x.size(), series.y.size()); ++i) {
    const double left = series.x[i] - 0.4 + width * static_cast<double>(bar_index);
    if (!is_drawable(frame, left, series.y[i])) continue;
    out += rectangle(frame.x.pixel(left), frame.x.pixel(left + width * 0.94), frame.y.pixel(series.y[i]),
                     frame.y.pixel_clamped(0), color);
    if (has_range(series))
      out += error_bar(frame, frame.x.pixel(left + width * 0.47), series.low[i], series.high[i], color);
  }
  return out;
}

std::string draw_series(const Canvas& canvas) {
  std::string out;
  size_t bar_index = 0;
  for (size_t i = 0; i < canvas.chart.series.size(); ++i) {
    const auto& series = canvas.chart.series[i];
    const size_t color = i % kNumColors;
    switch (series.mark) {
      case Mark::line:
      case Mark::step:
        out += draw_line(canvas, series, color);
        break;
      case Mark::points:
        out += draw_points(canvas, series, i, color);
        break;
      case Mark::histogram:
        out += draw_histogram(canvas, series, color);
        break;
      case Mark::bars:
        out += draw_bars(canvas, series, bar_index++, color);
        break;
    }
  }
  return out;
}

std::string draw_reference_lines(const Chart& chart, const Frame& frame) {
  std::string out;
  for (const auto& line : chart.lines) {
    if (!frame.y.holds(line.y)) continue;
    const auto py = number(frame.y.pixel(line.y));
    out += fmt::format("<path class=\"reference\" d=\"M{} {}H{}\"/>\n", number(frame.left), py,
                       number(frame.right));
    out += fmt::format("<text class=\"small end\" x=\"{}\" y=\"{}\">{}</text>\n", number(frame.right - 4),
                       number(frame.y.pixel(line.y) - 4), escaped(line.name));
  }
  return out;
}

struct Extent {
  double low = std::numeric_limits<double>::infinity(), high = -std::numeric_limits<double>::infinity();

  void add(double value, Scale scale) {
    if (!std::isfinite(value) || (scale == Scale::logarithmic && value <= 0)) return;
    low = std::min(low, value);
    high = std::max(high, value);
  }

  bool is_empty() const { return low > high; }
};

/// Ends of the y axis: from the data, bars and histograms from zero up.
Extent y_extent(const Chart& chart) {
  Extent extent;
  for (const auto& series : chart.series) {
    for (const double value : series.y) extent.add(value, chart.y.scale);
    if (has_range(series)) {
      for (const double value : series.low) extent.add(value, chart.y.scale);
      for (const double value : series.high) extent.add(value, chart.y.scale);
    }
    const bool stands_on_zero = series.mark == Mark::bars || series.mark == Mark::histogram;
    if (stands_on_zero && chart.y.scale == Scale::linear) extent.add(0, chart.y.scale);
    if (stands_on_zero && chart.y.scale == Scale::logarithmic && !extent.is_empty())
      extent.low = extent.low / 2;  // the lowest bar must have a height
  }
  for (const auto& line : chart.lines) extent.add(line.y, chart.y.scale);
  return extent;
}

Extent x_extent(const Chart& chart) {
  Extent extent;
  if (!chart.x.categories.empty()) {
    extent.add(-0.5, Scale::linear);
    extent.add(static_cast<double>(chart.x.categories.size()) - 0.5, Scale::linear);
    return extent;
  }
  for (const auto& series : chart.series) {
    const double margin = series.mark == Mark::bars ? 0.5 : 0;
    for (const double value : series.x) {
      extent.add(value - margin, chart.x.scale);
      extent.add(value + margin, chart.x.scale);
    }
  }
  return extent;
}

ScaleMap scale_map(const Axis& axis, Extent extent, bool widen) {
  if (axis.min) extent.low = *axis.min;
  if (axis.max) extent.high = *axis.max;
  if (extent.is_empty()) extent = axis.scale == Scale::logarithmic ? Extent{1, 10} : Extent{0, 1};
  ScaleMap map{axis.scale, extent.low, extent.high};
  if (widen) map.widen(!axis.min, !axis.max);
  map.ensure_span();
  return map;
}

std::string x_ticks(const Chart& chart, const Frame& frame) {
  std::vector<std::pair<double, std::string>> marks;
  const auto& categories = chart.x.categories;
  for (size_t i = 0; i < categories.size(); ++i) marks.emplace_back(static_cast<double>(i), categories[i]);
  if (categories.empty()) {
    const int at_most = static_cast<int>((frame.right - frame.left) / 64);
    for (const double tick : ticks(frame.x.low, frame.x.high, frame.x.scale, at_most))
      marks.emplace_back(tick, tick_text(tick));
  }
  // Names that would run into each other: every second, third, … only.
  double widest = 1;
  for (const auto& mark : marks) widest = std::max(widest, text_width(mark.second) + 8);
  const double room = (frame.right - frame.left) / static_cast<double>(std::max<size_t>(marks.size(), 1));
  const auto every = categories.empty() ? size_t{1} : static_cast<size_t>(std::ceil(widest / room));
  std::string out;
  for (size_t i = 0; i < marks.size(); i += every) {
    const auto px = number(frame.x.pixel(marks[i].first));
    if (categories.empty())
      out += fmt::format("<path class=\"grid\" d=\"M{} {}V{}\"/>\n", px, number(frame.top),
                         number(frame.bottom));
    out += fmt::format("<text class=\"small middle\" x=\"{}\" y=\"{}\">{}</text>\n", px,
                       number(frame.bottom + 16), escaped(marks[i].second));
  }
  return out;
}

std::string y_ticks(const Frame& frame, const std::vector<double>& places) {
  std::string out;
  for (const double tick : places) {
    const double py = frame.y.pixel(tick);
    out += fmt::format("<path class=\"grid\" d=\"M{} {}H{}\"/>\n", number(frame.left), number(py),
                       number(frame.right));
    out += fmt::format("<text class=\"small end\" x=\"{}\" y=\"{}\">{}</text>\n", number(frame.left - 6),
                       number(py + 4), escaped(tick_text(tick)));
  }
  return out;
}

/// Names with their colours, in as many lines as they need. Moves `y` below itself.
std::string legend(const Chart& chart, double& y) {
  std::string out;
  if (chart.series.size() < 2) return out;
  double x = kMargin;
  for (size_t i = 0; i < chart.series.size(); ++i) {
    const auto& series = chart.series[i];
    const double width = 30 + text_width(series.name) + 16;
    if (x + width > chart.width && x > kMargin) {
      x = kMargin;
      y += 18;
    }
    const size_t color = i % kNumColors;
    if (series.mark == Mark::line || series.mark == Mark::step) {
      out += fmt::format("<path class=\"line c{} d{}\" d=\"M{} {}h22\"/>\n", color, color, number(x),
                         number(y - 4));
    } else if (series.mark == Mark::points) {
      out += marker(x + 11, y - 4, color);
    } else {
      out += rectangle(x + 5, x + 17, y - 10, y + 2, color);
    }
    out += fmt::format("<text class=\"small\" x=\"{}\" y=\"{}\">{}</text>\n", number(x + 28), number(y),
                       escaped(series.name));
    x += width;
  }
  y += 12;
  return out;
}

bool has_marks(const Canvas& canvas) {
  for (const auto& series : canvas.chart.series) {
    for (size_t i = 0; i < std::min(series.x.size(), series.y.size()); ++i) {
      if (is_drawable(canvas.frame, series.x[i], series.y[i])) return true;
    }
  }
  return false;
}

}  // namespace

std::string to_svg(const Chart& chart) {
  double top = 22;
  std::string out = svg_begin(chart.title, chart.description, chart.width, chart.height);
  top += 18;
  out += legend(chart, top);

  Frame frame;
  frame.y = scale_map(chart.y, y_extent(chart), true);
  frame.x = scale_map(chart.x, x_extent(chart), false);
  frame.top = top - 4;
  frame.bottom = chart.height - (chart.x.label.empty() ? 26 : 44);
  const auto places = ticks(frame.y.low, frame.y.high, chart.y.scale,
                            std::max(2, static_cast<int>((frame.bottom - frame.top) / 36)));
  double widest = 0;
  for (const double tick : places) widest = std::max(widest, text_width(tick_text(tick)));
  frame.left = kMargin + widest + 10 + (chart.y.label.empty() ? 0 : 18);
  frame.right = chart.width - 16;
  frame.connect();

  Canvas canvas{chart, frame, 0};
  for (const auto& series : chart.series) canvas.num_bar_series += series.mark == Mark::bars ? 1 : 0;
  out += y_ticks(frame, places) + x_ticks(chart, frame) + draw_series(canvas);
  out += draw_reference_lines(chart, frame) + frame_lines(frame) +
         axis_labels(frame, chart.x.label, chart.y.label);
  if (!has_marks(canvas)) {
    out += fmt::format("<text class=\"middle\" x=\"{}\" y=\"{}\">no values to draw</text>\n",
                       number((frame.left + frame.right) / 2), number((frame.top + frame.bottom) / 2));
  }
  return out + "</svg>\n";
}

}  // namespace rorqual::report
