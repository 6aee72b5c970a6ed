// SPDX-License-Identifier: Apache-2.0
// Heat maps of report/svg.h: one rectangle per value, a colour bar on the right.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "base/check.h"
#include "report/characters.h"
#include "report/svg.h"
#include "report/svg_frame.h"

namespace rorqual::report {
namespace {

constexpr double kRowHeight = 14, kBarWidth = 12;

ScaleMap color_scale(const HeatMap& map) {
  ScaleMap scale{map.scale, 0, 0, 0, 1};
  bool has_value = false;
  for (const double value : map.values) {
    if (!std::isfinite(value) || (map.scale == Scale::logarithmic && value <= 0)) continue;
    scale.low = has_value ? std::min(scale.low, value) : value;
    scale.high = has_value ? std::max(scale.high, value) : value;
    has_value = true;
  }
  if (!has_value) scale.low = scale.high = 1;
  scale.ensure_span();
  return scale;
}

/// The low colour below and the high colour above it, as opaque as the value is high.
std::string cell(double x, double y, double width, double height, std::optional<double> share) {
  const auto place = fmt::format("x=\"{}\" y=\"{}\" width=\"{}\" height=\"{}\"", number(x), number(y),
                                 number(width), number(height));
  if (!share) return fmt::format("<rect class=\"none\" {}/>\n", place);
  return fmt::format("<rect class=\"high\" {} fill-opacity=\"{}\"/>\n", place, number(*share));
}

std::string color_bar(const Frame& frame, const HeatMap& map, const ScaleMap& scale) {
  constexpr int kSteps = 20;
  const double left = frame.right + 14, height = (frame.bottom - frame.top) / kSteps;
  std::string out =
      fmt::format("<rect class=\"low\" x=\"{}\" y=\"{}\" width=\"{}\" height=\"{}\"/>\n", number(left),
                  number(frame.top), number(kBarWidth), number(frame.bottom - frame.top));
  for (int step = 0; step < kSteps; ++step) {
    out += cell(left, frame.bottom - height * (step + 1), kBarWidth, height, (step + 0.5) / kSteps);
  }
  const auto text = [&](double y, const std::string& value) {
    return fmt::format("<text class=\"small\" x=\"{}\" y=\"{}\">{}</text>\n", number(left + kBarWidth + 4),
                       number(y), escaped(value));
  };
  out += text(frame.top + 9, fmt::format("{:.3g}", scale.high));
  out += text(frame.bottom, fmt::format("{:.3g}", scale.low));
  const double middle = (frame.top + frame.bottom) / 2;
  return out +
         fmt::format("<text class=\"small middle\" transform=\"translate({} {}) rotate(90)\">{}</text>\n",
                     number(left + kBarWidth + 8), number(middle), escaped(map.value_label));
}

std::string names(const HeatMap& map, const Frame& frame, double cell_width) {
  std::string out;
  for (size_t column = 0; column < map.x_ticks.size(); ++column) {
    if (map.x_ticks[column].empty()) continue;
    out += fmt::format("<text class=\"small middle\" x=\"{}\" y=\"{}\">{}</text>\n",
                       number(frame.left + (static_cast<double>(column) + 0.5) * cell_width),
                       number(frame.bottom + 16), escaped(map.x_ticks[column]));
  }
  for (size_t row = 0; row < map.y_ticks.size(); ++row) {
    if (map.y_ticks[row].empty()) continue;
    out += fmt::format("<text class=\"small end\" x=\"{}\" y=\"{}\">{}</text>\n", number(frame.left - 6),
                       number(frame.top + (static_cast<double>(row) + 0.5) * kRowHeight + 4),
                       escaped(map.y_ticks[row]));
  }
  return out;
}

}  // namespace

std::string to_svg(const HeatMap& map) {
  const size_t columns = map.x_ticks.size(), rows = map.y_ticks.size();
  RORQUAL_CHECK(map.values.size() == columns * rows);
  const auto scale = color_scale(map);
  double widest = 0;
  for (const auto& name : map.y_ticks) widest = std::max(widest, text_width(name));

  Frame frame;
  frame.left = kMargin + widest + 10 + (map.y_label.empty() ? 0 : 18);
  frame.right = map.width - 78;
  frame.top = 32;
  frame.bottom = frame.top + std::max(60.0, kRowHeight * static_cast<double>(rows));
  const int height = static_cast<int>(frame.bottom) + (map.x_label.empty() ? 26 : 44);
  const double cell_width = (frame.right - frame.left) / static_cast<double>(std::max<size_t>(columns, 1));

  std::string out = svg_begin(map.title, map.description, map.width, height);
  if (columns * rows > 0) {
    out += fmt::format("<rect class=\"low\" x=\"{}\" y=\"{}\" width=\"{}\" height=\"{}\"/>\n",
                       number(frame.left), number(frame.top), number(frame.right - frame.left),
                       number(kRowHeight * static_cast<double>(rows)));
  }
  for (size_t row = 0; row < rows; ++row) {
    for (size_t column = 0; column < columns; ++column) {
      const double value = map.values[row * columns + column];
      const bool has_value = std::isfinite(value) && (map.scale == Scale::linear || value > 0);
      out += cell(frame.left + cell_width * static_cast<double>(column),
                  frame.top + kRowHeight * static_cast<double>(row), cell_width, kRowHeight,
                  has_value ? std::optional(scale.pixel_clamped(value)) : std::nullopt);
    }
  }
  out += names(map, frame, cell_width) + color_bar(frame, map, scale) + frame_lines(frame);
  return out + axis_labels(frame, map.x_label, map.y_label) + "</svg>\n";
}

}  // namespace rorqual::report
