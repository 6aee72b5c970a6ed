// SPDX-License-Identifier: Apache-2.0
// The best of many scores: every tier takes what the scalar law takes, however the scores are ordered.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>
#include <vector>

#include "kernels/operators.h"

namespace rorqual::kernels {
namespace {

std::vector<float> make_scores(std::mt19937_64& random, int64_t count, int kind) {
  std::vector<float> scores;
  std::normal_distribution<float> normal;
  for (int64_t i = 0; i < count; ++i) {
    const float value = normal(random);
    scores.push_back(kind == 1 ? std::round(value * 4) / 4 : value);  // 1: many ties
    if (random() % 500 == 0) scores.back() = std::nanf("");
    if (random() % 500 == 0) scores.back() = -std::numeric_limits<float>::infinity();
    if (random() % 50 == 0) scores.back() = random() % 2 == 0 ? 0.0f : -0.0f;
  }
  const auto less = [](float a, float b) { return std::isnan(b) ? false : std::isnan(a) || a < b; };
  if (kind == 2) std::sort(scores.begin(), scores.end(), less);  // each one is the best so far
  if (kind == 3) std::sort(scores.rbegin(), scores.rend(), less);
  if (kind == 4) std::fill(scores.begin(), scores.end(), -std::numeric_limits<float>::infinity());
  if (kind == 5) std::fill(scores.begin(), scores.end(), 0.5f);
  return scores;
}

TEST(TopK, OfManyScoresIsTheSameOnEveryTier) {
  const uint64_t seed = std::random_device{}();
  SCOPED_TRACE(testing::Message() << "seed " << seed);
  std::mt19937_64 random(seed);
  const OperatorTable& law = *available_operators().front();
  for (int round = 0; round < 120; ++round) {
    const int64_t count = 1 + static_cast<int64_t>(random() % 30'000);
    constexpr int64_t kChoices[] = {1, 7, 64, 512, 1024, 3000};
    const int64_t k = kChoices[random() % 6];
    const std::vector<float> scores = make_scores(random, count, round % 6);
    std::vector<int32_t> want(static_cast<size_t>(k), -1);
    const int64_t taken = law.top_k(scores.data(), count, k, want.data(), nullptr);
    for (const OperatorTable* table : available_operators()) {
      std::vector<int32_t> got(static_cast<size_t>(k), -1);
      ASSERT_EQ(table->top_k(scores.data(), count, k, got.data(), nullptr), taken);
      EXPECT_EQ(got, want) << table->name << " k " << k << " of " << count << ", kind " << round % 6;
    }
  }
}

}  // namespace
}  // namespace rorqual::kernels
