// SPDX-License-Identifier: Apache-2.0
// What all plots share: scales, the frame, numbers and text sizes. Only src/report uses it.
#pragma once

#include <string>
#include <string_view>

#include "report/svg.h"

namespace rorqual::report {

inline constexpr size_t kNumColors = 7;
inline constexpr double kMargin = 8;  // px

/// One axis: values to pixels.
struct ScaleMap {
  Scale scale = Scale::linear;
  double low = 0, high = 1;                // of the values
  double pixel_low = 0, pixel_high = 100;  // where these two are drawn

  /// Finite, and positive on a logarithmic axis, and not far outside the ends.
  bool holds(double value) const;
  double pixel(double value) const;

  /// The nearest end for values outside (and for zero on a logarithmic axis).
  double pixel_clamped(double value) const;

  /// Moves the free ends outward to the next tick.
  void widen(bool low_is_free, bool high_is_free);

  /// Gives an axis of a single value a length.
  void ensure_span();
};

struct Frame {
  double left = 0, right = 0, top = 0, bottom = 0;  // px
  ScaleMap x, y;

  /// Sets the pixel ends of x and y from the four sides.
  void connect();
};

/// Two decimals at most, never "-0".
std::string number(double pixels);

/// Estimate for 12 px sans-serif text, in px.
double text_width(std::string_view text);

std::string svg_begin(const std::string& title, const std::string& description, int width, int height);
std::string frame_lines(const Frame& frame);
std::string axis_labels(const Frame& frame, const std::string& x_label, const std::string& y_label);

/// Shape and colour number `color` at a place.
std::string marker(double x, double y, size_t color);

}  // namespace rorqual::report
