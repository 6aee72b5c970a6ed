// SPDX-License-Identifier: Apache-2.0
// Plots as SVG text: no script, no outside files, the same input gives the same bytes. Colours come from CSS
// variables (light and dark), the palette is one that colour-blind readers can tell apart, and series differ
// by dash or marker as well. docs/fidelity.md#report shows them in use.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace rorqual::report {

enum class Scale : uint8_t { linear, logarithmic };

struct Axis {
  std::string label = {};
  Scale scale = Scale::linear;
  std::optional<double> min = {}, max = {};  // default: the data's range, widened to ticks
  std::vector<std::string> categories = {};  // x axis only: names at 0, 1, 2, …; the scale is linear then
};

enum class Mark : uint8_t {
  line,       // straight lines between points
  step,       // horizontal from each point to the next
  points,     // markers, with error bars where low and high are given
  histogram,  // x: n + 1 edges, y: n heights
  bars,       // at the categories; several bar series stand side by side
};

struct Series {
  std::string name = {};  // for the legend
  Mark mark = Mark::line;
  std::vector<double> x = {}, y = {};
  std::vector<double> low = {},
                      high = {};  // optional, as many as y: a band (line, step) or error bars (points, bars)
};

/// A horizontal line across the plot.
struct ReferenceLine {
  std::string name = {};
  double y = 0;
};

struct Chart {
  std::string title = {}, description = {};  // description: the text alternative, what a reader should see
  Axis x = {}, y = {};
  std::vector<Series> series = {};
  std::vector<ReferenceLine> lines = {};
  int width = 720, height = 320;  // px
};

/// One <svg> element for a page that has chart_css() (report/page.h does). Points that are not finite, or not
/// positive on a logarithmic axis, are left out.
std::string to_svg(const Chart& chart);

struct HeatMap {
  std::string title = {}, description = {};
  std::string x_label = {}, y_label = {}, value_label = {};
  std::vector<std::string> x_ticks = {}, y_ticks = {};  // one per column and row; empty strings are not drawn
  std::vector<double> values = {};                      // [rows, columns], row by row; not finite = no value
  Scale scale = Scale::linear;                          // of the colours
  int width = 720;                                      // px
};

std::string to_svg(const HeatMap& map);

/// Style rules that the elements of to_svg() need.
std::string_view chart_css();

/// A complete .svg file of what to_svg() gave.
std::string svg_file(const std::string& svg);

/// Positions of ticks from low to high, both included when they fall on one: 1, 2 or 5 times a power of ten;
/// on a logarithmic axis powers of ten (thinned out when there are many), with 2 and 5 when there are few.
std::vector<double> ticks(double low, double high, Scale scale, int at_most);

/// "0.0025", "1e-08", "20,000": at most four significant digits; the same on every machine.
std::string tick_text(double value);

}  // namespace rorqual::report
