// SPDX-License-Identifier: Apache-2.0
#include "report/svg.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace rorqual::report {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::Not;

size_t count(std::string_view text, std::string_view part) {
  size_t found = 0;
  for (size_t at = text.find(part); at != std::string_view::npos; at = text.find(part, at + 1)) ++found;
  return found;
}

Chart simple(Mark mark) {
  Chart chart{.title = "t", .description = "d"};
  chart.series = {{.name = "a", .mark = mark, .x = {0, 1, 2}, .y = {1, 4, 2}}};
  return chart;
}

TEST(Ticks, AreOneTwoOrFiveTimesAPowerOfTen) {
  EXPECT_THAT(ticks(0, 10, Scale::linear, 5), ElementsAre(0, 2, 4, 6, 8, 10));
  EXPECT_THAT(ticks(0, 1, Scale::linear, 4), ElementsAre(0, 0.5, 1));
  EXPECT_THAT(ticks(-3, 3, Scale::linear, 3), ElementsAre(-2, 0, 2));
  EXPECT_THAT(ticks(2048, 4096, Scale::linear, 6), ElementsAre(2500, 3000, 3500, 4000));
  EXPECT_THAT(ticks(5, 5, Scale::linear, 6), ElementsAre(5));
}

TEST(Ticks, OfLogarithmicAxesArePowersOfTen) {
  EXPECT_THAT(ticks(1, 1000, Scale::logarithmic, 5), ElementsAre(1, 10, 100, 1000));
  EXPECT_THAT(ticks(1, 10, Scale::logarithmic, 5), ElementsAre(1, 2, 5, 10));
  EXPECT_THAT(ticks(1e-8, 1e4, Scale::logarithmic, 5),
              ElementsAre(testing::DoubleNear(1e-6, 1e-15), 1e-3, 1, 1e3));
  EXPECT_THAT(ticks(0, 1, Scale::logarithmic, 5), ElementsAre());
}

TEST(Ticks, AreNeverEndless) {
  const double inf = std::numeric_limits<double>::infinity();
  EXPECT_TRUE(ticks(0, inf, Scale::linear, 5).empty());
  EXPECT_TRUE(ticks(std::nan(""), 1, Scale::linear, 5).empty());
  EXPECT_LE(ticks(-1e308, 1e308, Scale::linear, 5).size(), 1000U);
  EXPECT_LE(ticks(1e300, std::nextafter(1e300, inf), Scale::linear, 5).size(), 1000U);
  EXPECT_LE(ticks(5e-324, 1e308, Scale::logarithmic, 5).size(), 20U);
}

TEST(TickText, IsShortAndTheSameEverywhere) {
  EXPECT_EQ(tick_text(0), "0");
  EXPECT_EQ(tick_text(0.0025), "0.0025");
  EXPECT_EQ(tick_text(1e-8), "1e-08");
  EXPECT_EQ(tick_text(4000), "4000");
  EXPECT_EQ(tick_text(20000), "20,000");
  EXPECT_EQ(tick_text(-20000), "-20,000");
  EXPECT_EQ(tick_text(0.30000000000000004), "0.3");
}

TEST(Chart, HasATextAlternative) {
  const auto svg = to_svg(simple(Mark::line));
  EXPECT_THAT(svg, HasSubstr("role=\"img\""));
  EXPECT_THAT(svg, HasSubstr("<title>t</title>"));
  EXPECT_THAT(svg, HasSubstr("<desc>d</desc>"));
}

TEST(Chart, DrawsEachKindOfMark) {
  EXPECT_EQ(count(to_svg(simple(Mark::line)), "class=\"line c0 d0\""), 1U);
  EXPECT_EQ(count(to_svg(simple(Mark::step)), "class=\"line c0 d0\""), 1U);
  EXPECT_EQ(count(to_svg(simple(Mark::points)), "<circle"), 3U);
  EXPECT_EQ(count(to_svg(simple(Mark::bars)), "class=\"bar c0\""), 3U);
  auto histogram = simple(Mark::histogram);
  histogram.series[0].x.push_back(3);
  EXPECT_EQ(count(to_svg(histogram), "class=\"bar c0\""), 3U);
}

TEST(Chart, PlacesPointsOnTheScale) {
  auto chart = simple(Mark::points);
  chart.series[0] = {.name = "a", .mark = Mark::points, .x = {0, 5, 10}, .y = {0, 50, 100}};
  chart.x.min = 0;
  chart.x.max = 10;
  chart.y.min = 0;
  chart.y.max = 100;
  const auto svg = to_svg(chart);
  // Plot from x = 8 + 3 digits * 6.7 + 10 to 704, from y = 294 (320 - 26) up to 36.
  EXPECT_THAT(svg, HasSubstr("cx=\"38.1\" cy=\"294\""));
  EXPECT_THAT(svg, HasSubstr("cx=\"371.05\" cy=\"165\""));
  EXPECT_THAT(svg, HasSubstr("cx=\"704\" cy=\"36\""));
}

TEST(Chart, LogarithmicAxesSpaceDecadesEvenly) {
  auto chart = simple(Mark::points);
  chart.series[0] = {.name = "a", .mark = Mark::points, .x = {0, 1, 2}, .y = {1, 10, 100}};
  chart.y.scale = Scale::logarithmic;
  const auto svg = to_svg(chart);
  EXPECT_THAT(svg, HasSubstr("cy=\"294\""));
  EXPECT_THAT(svg, HasSubstr("cy=\"165\""));
  EXPECT_THAT(svg, HasSubstr("cy=\"36\""));
}

TEST(Chart, LeavesOutWhatCannotBeDrawn) {
  auto chart = simple(Mark::points);
  chart.y.scale = Scale::logarithmic;
  chart.series[0].x = {0, 1, 2, 3, 4};
  chart.series[0].y = {0.5, std::nan(""), -1, 0, std::numeric_limits<double>::infinity()};
  const auto svg = to_svg(chart);
  EXPECT_EQ(count(svg, "<circle"), 1U);
  EXPECT_THAT(svg, Not(HasSubstr("nan")));
  EXPECT_THAT(svg, Not(HasSubstr("inf")));
}

TEST(Chart, BreaksALineAtAMissingValue) {
  auto chart = simple(Mark::line);
  chart.series[0].x = {0, 1, 2, 3, 4};
  chart.series[0].y = {1, 2, std::nan(""), 2, 1};
  const auto svg = to_svg(chart);
  const auto path = svg.substr(svg.find("class=\"line c0"));
  EXPECT_EQ(count(path.substr(0, path.find("/>")), "M"), 2U);
}

TEST(Chart, WithoutDataSaysSo) {
  Chart empty{.title = "t", .description = "d"};
  EXPECT_THAT(to_svg(empty), HasSubstr("no values to draw"));
  EXPECT_THAT(to_svg(simple(Mark::line)), Not(HasSubstr("no values to draw")));
}

TEST(Chart, ConstantDataHasAnAxis) {
  auto chart = simple(Mark::line);
  chart.series[0].y = {0, 0, 0};
  EXPECT_THAT(to_svg(chart), Not(HasSubstr("nan")));
  chart.series[0].y = {7, 7, 7};
  chart.y.scale = Scale::logarithmic;
  EXPECT_THAT(to_svg(chart), Not(HasSubstr("nan")));
}

TEST(Chart, ErrorBarsAndBandsAreDrawnWhereGiven) {
  auto chart = simple(Mark::points);
  chart.series[0].low = {0, 3, 1};
  chart.series[0].high = {2, 5, 3};
  EXPECT_EQ(count(to_svg(chart), "class=\"error c0\""), 3U);
  chart.series[0].mark = Mark::line;
  EXPECT_EQ(count(to_svg(chart), "class=\"band c0\""), 1U);
}

TEST(Chart, SeveralSeriesGetALegendAndDifferByDashAndMarker) {
  auto chart = simple(Mark::line);
  chart.series.push_back({.name = "b<b>", .mark = Mark::line, .x = {0, 1}, .y = {1, 1}});
  const auto svg = to_svg(chart);
  EXPECT_THAT(svg, HasSubstr("b&lt;b&gt;"));
  EXPECT_EQ(count(svg, "class=\"line c1 d1\""), 2U);  // the line and its sign in the legend
}

TEST(Chart, EscapesEveryText) {
  Chart chart{.title = "<t>", .description = "<d>"};
  chart.x.label = "<x>";
  chart.y.label = "<y>";
  chart.x.categories = {"<c>"};
  chart.series = {{.name = "<s>", .mark = Mark::bars, .x = {0}, .y = {1}},
                  {.name = "\x01\xFF", .mark = Mark::bars}};
  chart.lines = {{"<l>", 0.5}};
  const auto svg = to_svg(chart);
  for (const char* text : {"<t>", "<d>", "<x>", "<y>", "<c>", "<s>", "<l>", "\x01", "\xFF"})
    EXPECT_THAT(svg, Not(HasSubstr(text)));
  for (const char* text : {"&lt;t&gt;", "&lt;x&gt;", "&lt;c&gt;", "&lt;s&gt;", "&lt;l&gt;", "\\x01\\xFF"})
    EXPECT_THAT(svg, HasSubstr(text));
}

TEST(Chart, SameInputGivesSameBytes) {
  EXPECT_EQ(to_svg(simple(Mark::line)), to_svg(simple(Mark::line)));
}

TEST(HeatMap, DrawsOneCellPerValueAndMarksMissingOnes) {
  const HeatMap map{.title = "t",
                    .description = "d",
                    .x_label = "x",
                    .y_label = "y",
                    .value_label = "v",
                    .x_ticks = {"0", "1"},
                    .y_ticks = {"a", "<b>"},
                    .values = {1, 2, 3, std::nan("")}};
  const auto svg = to_svg(map);
  EXPECT_EQ(count(svg, "class=\"none\""), 1U);
  EXPECT_EQ(count(svg, "class=\"high\""), 3U + 20U);  // cells, and the colour bar's steps
  EXPECT_THAT(svg, HasSubstr("&lt;b&gt;"));
  EXPECT_THAT(svg, HasSubstr("fill-opacity=\"0\""));
  EXPECT_THAT(svg, HasSubstr("fill-opacity=\"1\""));
}

TEST(HeatMap, LogarithmicColoursIgnoreZero) {
  HeatMap map{
      .title = "t", .description = "d", .x_ticks = {"0", "1", "2"}, .y_ticks = {"a"}, .values = {0, 1, 100}};
  map.scale = Scale::logarithmic;
  EXPECT_EQ(count(to_svg(map), "class=\"none\""), 1U);
  map.values = {0, 0, 0};
  EXPECT_THAT(to_svg(map), Not(HasSubstr("nan")));
}

TEST(SvgFile, HasItsOwnStyleRules) {
  const auto file = svg_file(to_svg(simple(Mark::line)));
  EXPECT_EQ(file.rfind("<?xml", 0), 0U);
  EXPECT_EQ(count(file, "<style>"), 1U);
  EXPECT_THAT(file, HasSubstr("xmlns=\"http://www.w3.org/2000/svg\""));
}

}  // namespace
}  // namespace rorqual::report
