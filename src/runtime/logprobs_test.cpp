// SPDX-License-Identifier: Apache-2.0
#include "runtime/logprobs.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <random>

namespace rorqual::runtime {
namespace {

std::vector<float> random_row(size_t size, unsigned seed, bool has_ties) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal(0.0f, 5.0f);
  std::vector<float> row(size);
  for (float& value : row) value = has_ties ? std::round(normal(random)) : normal(random);
  return row;
}

std::vector<int32_t> sorted_ids(const std::vector<float>& row) {
  std::vector<int32_t> ids(row.size());
  std::iota(ids.begin(), ids.end(), 0);
  std::stable_sort(ids.begin(), ids.end(), [&](int32_t a, int32_t b) {
    return row[static_cast<size_t>(a)] > row[static_cast<size_t>(b)];
  });
  return ids;
}

TEST(Logprobs, LogSumExpAgreesWithTheMathLibrary) {
  for (const size_t size : {1u, 2u, 15u, 16u, 17u, 129280u}) {
    const auto row = random_row(size, static_cast<unsigned>(size), false);
    long double sum = 0;
    for (const float value : row) sum += std::exp(static_cast<long double>(value));
    EXPECT_NEAR(log_sum_exp(row), static_cast<double>(std::log(sum)), 1e-12) << size;
  }
}

TEST(Logprobs, AreExactForAUniformRow) {
  const std::vector<float> row(64, 3.5f);
  const auto out = position_logprobs(row, {.chosen = 9, .top_k = 3});
  EXPECT_EQ(out.chosen.logprob, static_cast<float>(-6 * std::log(2.0)));
  EXPECT_EQ(out.chosen.rank, 10);  // of equals the lower ids are better
  ASSERT_EQ(out.top.size(), 3u);
  for (int32_t i = 0; i < 3; ++i) {
    EXPECT_EQ(out.top[static_cast<size_t>(i)].token, i);
    EXPECT_EQ(out.top[static_cast<size_t>(i)].rank, i + 1);
  }
}

TEST(Logprobs, BestIdsEqualASortForEveryLength) {
  for (const bool has_ties : {false, true}) {
    const auto row = random_row(300, 7, has_ties);
    const auto expected = sorted_ids(row);
    for (int64_t k = 0; k <= 300; ++k) {
      const auto ids = best_ids(row, k);
      ASSERT_TRUE(std::equal(ids.begin(), ids.end(), expected.begin())) << k;
      ASSERT_EQ(static_cast<int64_t>(ids.size()), k);
    }
  }
}

TEST(Logprobs, AllOfThemSumToOneAndCarryTheirRanks) {
  const auto row = random_row(2000, 3, true);
  const auto order = sorted_ids(row);
  const auto out = position_logprobs(row, {.chosen = 1234, .top_k = 2000});
  ASSERT_EQ(out.top.size(), 2000u);
  double sum = 0;
  for (size_t i = 0; i < out.top.size(); ++i) {
    EXPECT_EQ(out.top[i].token, order[i]);
    EXPECT_EQ(out.top[i].rank, static_cast<int32_t>(i) + 1);
    sum += std::exp(static_cast<double>(out.top[i].logprob));
    if (out.top[i].token == 1234) {
      EXPECT_EQ(out.chosen.rank, out.top[i].rank);
      EXPECT_EQ(out.chosen.logprob, out.top[i].logprob);
    }
  }
  EXPECT_NEAR(sum, 1.0, 1e-6);
}

TEST(Logprobs, MoreThanTheVocabularyMeansAll) {
  const auto row = random_row(10, 1, false);
  EXPECT_EQ(position_logprobs(row, {.chosen = 0, .top_k = 50}).top.size(), 10u);
}

TEST(Logprobs, AdditionalIdsFollowTheBestOnesInOrderWithoutRepetition) {
  const std::vector<float> row = {5, 1, 4, 2, 3};
  const std::vector<int32_t> ids = {1, 4, 0, 1, 99, -1};
  const auto out = position_logprobs(row, {.chosen = 3, .top_k = 2, .additional_ids = ids});
  std::vector<int32_t> tokens;
  for (const auto& entry : out.top) tokens.push_back(entry.token);
  EXPECT_EQ(tokens, (std::vector<int32_t>{0, 2, 4, 1}));
  EXPECT_EQ(out.top[2].rank, 3);
  EXPECT_EQ(out.top[3].rank, 5);
  EXPECT_EQ(out.chosen.rank, 4);
}

TEST(Logprobs, NotFiniteRowsAreSeen) {
  std::vector<float> row(100, -1e30f);
  row[3] = std::numeric_limits<float>::denorm_min();
  EXPECT_TRUE(is_finite_row(row));
  for (const float bad : {std::numeric_limits<float>::infinity(), -std::numeric_limits<float>::infinity(),
                          std::numeric_limits<float>::quiet_NaN()}) {
    row[99] = bad;
    EXPECT_FALSE(is_finite_row(row));
  }
}

}  // namespace
}  // namespace rorqual::runtime
