// SPDX-License-Identifier: Apache-2.0
#include "kl/report_rows.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "kl/sample_dump.h"
#include "text/test_text.h"

namespace rorqual::kl {
namespace {

using testing::DoubleEq;
using testing::DoubleNear;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;

/// Windows of 4 + 4 and 2 + 3 tokens: 4 and 3 scored rows.
Dump uneven_dump(bool with_ids) {
  auto dump = sample::random_dump(1, {4, 3}, 12, 40);
  dump.token = {14, 15, 16, 17, 22, 23, 24};
  if (with_ids) {
    dump.window_ids = {10, 11, 12, 13, 14, 15, 16, 17, 20, 21, 22, 23, 24};
    dump.window_begin = {0, 8, 13};
    dump.window_first_scored = {4, 2};
  } else {
    dump.info.first_scored = 4;
  }
  return dump;
}

std::string shown(int32_t id) {
  return "#" + std::to_string(id) + " ";
}

TEST(Rows, AreFoundInTheirWindow) {
  const auto dump = uneven_dump(true);
  EXPECT_EQ(place_of(dump, 0).window, 0);
  EXPECT_EQ(place_of(dump, 0).position, 4);
  EXPECT_EQ(place_of(dump, 3).position, 7);
  EXPECT_EQ(place_of(dump, 4).window, 1);
  EXPECT_EQ(place_of(dump, 4).position, 2);
  EXPECT_EQ(place_of(dump, 6).position, 4);
}

TEST(Context, ComesFromTheWindowWhereItsIdsAreKnown) {
  const auto dump = uneven_dump(true);
  EXPECT_THAT(context_of(dump, 1, 3, 9).before, ElementsAre(12, 13, 14));
  EXPECT_THAT(context_of(dump, 1, 3, 9).after, ElementsAre(16, 17));
  EXPECT_THAT(context_of(dump, 4, 9, 1).before, ElementsAre(20, 21));
  EXPECT_THAT(context_of(dump, 4, 9, 1).after, ElementsAre(23));
  EXPECT_THAT(context_of(dump, 6, 1, 5).after, IsEmpty());
}

TEST(Context, ComesFromTheScoredTokensElse) {
  const auto dump = uneven_dump(false);
  EXPECT_THAT(context_of(dump, 0, 3, 2).before, IsEmpty());
  EXPECT_THAT(context_of(dump, 0, 3, 2).after, ElementsAre(15, 16));
  EXPECT_THAT(context_of(dump, 5, 3, 9).before, ElementsAre(22));
  EXPECT_THAT(context_of(dump, 5, 3, 9).after, ElementsAre(24));
}

TEST(PositionBins, AverageOverWindows) {
  const auto dump = sample::random_dump(1, {4, 4}, 2, 8);  // scored from 4 to 8
  const std::vector<double> kl = {1, 2, 3, 4, 3, 4, 5, 6};
  const auto bins = bin_by_position(dump, kl, 2);
  EXPECT_THAT(bins.edges, ElementsAre(4, 6, 8));
  EXPECT_THAT(bins.mean, ElementsAre(DoubleEq(2.5), DoubleEq(4.5)));
  // Deviation of 1, 2, 3, 4 is sqrt(5/3); half width 1.96 · sqrt(5/3) / 2.
  EXPECT_THAT(bins.high[0] - bins.mean[0], DoubleNear(1.96 * std::sqrt(5.0 / 3) / 2, 1e-12));
  EXPECT_THAT(bins.by_window, ElementsAre(ElementsAre(1.5, 3.5), ElementsAre(3.5, 5.5)));
}

TEST(PositionBins, AreNoMoreThanPositions) {
  const auto dump = sample::random_dump(1, {3, 3}, 2, 8);
  const auto bins = bin_by_position(dump, std::vector<double>{1, 2, 3, 1, 2, 3}, 32);
  EXPECT_THAT(bins.mean, ElementsAre(1, 2, 3));
  EXPECT_THAT(bins.edges, ElementsAre(3, 4, 5, 6));
}

TEST(PositionBins, OfUnevenWindowsLeaveGapsAsNan) {
  const auto dump = uneven_dump(true);  // window 1 has positions 2 to 4 only
  const auto bins = bin_by_position(dump, std::vector<double>(7, 1.0), 6);
  EXPECT_THAT(bins.edges, ElementsAre(2, 3, 4, 5, 6, 7, 8));
  EXPECT_EQ(bins.mean, std::vector<double>(6, 1.0));
  EXPECT_TRUE(std::isnan(bins.by_window[0][0]));
  EXPECT_TRUE(std::isnan(bins.by_window[1][5]));
}

TEST(Histogram, CountsEveryPositionOnce) {
  const auto histogram =
      histogram_of(std::vector<double>{0, -1e-9, 5e-9, 1e-8, 0.5, 0.56, 0.57, 3, std::nan("")});
  EXPECT_EQ(histogram.below, 4);
  double sum = 0;
  for (const double count : histogram.counts) sum += count;
  EXPECT_EQ(sum, 5);
  EXPECT_EQ(histogram.edges.size(), histogram.counts.size() + 1);
  EXPECT_THAT(histogram.edges.front(), DoubleNear(1e-8, 1e-20));
  EXPECT_GT(histogram.edges.back(), 3);
  EXPECT_EQ(histogram.counts.back(), 1);
}

TEST(Histogram, BeginsAtTheSmallestValueThereIs) {
  const auto histogram = histogram_of(std::vector<double>{0.2, 0.5});
  EXPECT_THAT(histogram.edges.front(), DoubleNear(std::pow(10.0, -0.75), 1e-12));
  EXPECT_TRUE(histogram_of(std::vector<double>{0, 0}).edges.empty());
  EXPECT_EQ(histogram_of(std::vector<double>{0, 0}).below, 2);
}

TEST(WorstRows, AreSortedWithTiesByNumber) {
  const std::vector<double> kl = {1, 5, 3, 5, 0};
  EXPECT_THAT(worst_rows(kl, 3), ElementsAre(1, 3, 2));
  EXPECT_THAT(worst_rows(kl, 50), ElementsAre(1, 3, 2, 0, 4));
  EXPECT_THAT(worst_rows(kl, 0), IsEmpty());
}

TEST(TokensHtml, ShowsIdsWithoutTokenizer) {
  EXPECT_EQ(tokens_html(nullptr, std::vector<int32_t>{5, 70}),
            "<span class=\"sign\">#5 </span><span class=\"sign\">#70 </span>");
}

TEST(TokensHtml, JoinsPiecesAndEscapes) {
  const text::Tokenizer& tokenizer = text::mini_tokenizer();
  const auto ids = tokenizer.encode("<b>世\n\x01", text::EncodeMode::plain);
  EXPECT_EQ(tokens_html(&tokenizer, ids),
            "&lt;b&gt;世<span class=\"sign\">\\n</span><span class=\"sign\">\\x01</span>");
  EXPECT_EQ(tokens_html(&tokenizer, std::vector<int32_t>{1 << 20}), "<span class=\"sign\">#1048576 </span>");
  // Bytes of a character in a token of their own are shown one by one.
  const auto cut = tokenizer.encode("\xE4", text::EncodeMode::plain);
  EXPECT_EQ(tokens_html(&tokenizer, cut), "<span class=\"sign\">\\xE4</span>");
}

TEST(WorstHtml, ShowsBothListsSideBySide) {
  const auto reference = uneven_dump(true);
  auto candidate = reference;
  candidate.top_ids[0] = reference.top_ids[1];
  candidate.top_ids[1] = reference.top_ids[0];
  Comparison comparison;
  comparison.positions.kl = {0.5, 0, 0, 0, 0, 0, 0};
  const auto html = worst_html(reference, candidate, comparison, nullptr, std::vector<int64_t>{0});
  EXPECT_THAT(html, HasSubstr("<details open><summary><b>1.</b> KL <b>0.5</b> · window 0, position 4"));
  const auto row = html.substr(html.find("<td>1</td>"));
  EXPECT_LT(row.find(shown(reference.top_ids[0])), row.find(shown(reference.top_ids[1])));
  EXPECT_THAT(html, Not(HasSubstr("<td>11</td>")));
}

}  // namespace
}  // namespace rorqual::kl
