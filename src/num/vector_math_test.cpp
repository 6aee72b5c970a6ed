// SPDX-License-Identifier: Apache-2.0
// Accuracy of the shared functions against the C library in double, with flush-to-zero as in compute threads.
#include "num/vector_math.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "base/thread_pool.h"

namespace rorqual::num {
namespace {

/// Distance of `got` from `want` in units of the last place of an F32 near `want`.
double ulps(float got, double want) {
  if (std::abs(want) < 0x1.1p-126) return std::abs(got) < 0x1.2p-126 ? 0 : 1e9;
  const int exponent = std::ilogb(want);
  return std::abs(static_cast<double>(got) - want) / std::exp2(exponent - 23);
}

/// Largest error over every `step`-th F32 bit pattern of both signs within [low, high].
template <class Function, class Truth>
double worst_ulps(const Function& function, const Truth& truth, float low, float high, uint32_t step) {
  double worst = 0;
  for (const uint32_t sign : {0u, kSignMask}) {
    for (uint32_t abs = 0x00800000u; abs < kInfBits; abs += step) {
      const float x = float_of(sign | abs);
      if (x < low || x > high) continue;
      worst = std::max(worst, ulps(function(x), truth(static_cast<double>(x))));
    }
  }
  return worst;
}

constexpr uint32_t kStep = 1009;  // prime: no alignment with binades

TEST(VectorMath, ExpIsWithinOneUlp) {
  const ScopedFlushToZero flush;
  const double worst = worst_ulps(
      exp, [](double x) { return std::exp(x); }, -87.33f, 88.7228f, kStep);
  RecordProperty("worst_ulps", std::to_string(worst));
  EXPECT_LE(worst, 1.0);
  EXPECT_EQ(exp(0.0f), 1.0f);
  EXPECT_EQ(exp(-0.0f), 1.0f);
  EXPECT_EQ(exp(-88.0f), 0.0f);
  EXPECT_EQ(exp(-std::numeric_limits<float>::infinity()), 0.0f);
  EXPECT_EQ(exp(std::numeric_limits<float>::infinity()), std::numeric_limits<float>::infinity());
  EXPECT_EQ(exp(89.0f), std::numeric_limits<float>::infinity());
  EXPECT_TRUE(is_nan(exp(std::numeric_limits<float>::quiet_NaN())));
}

TEST(VectorMath, Log1pIsWithinTwoUlps) {
  const ScopedFlushToZero flush;
  const double worst = worst_ulps(
      log1p, [](double x) { return std::log1p(x); }, -0.9f, 3e38f, kStep);
  RecordProperty("worst_ulps", std::to_string(worst));
  EXPECT_LE(worst, 2.0);
  EXPECT_EQ(log1p(0.0f), 0.0f);
  EXPECT_EQ(log1p(std::numeric_limits<float>::infinity()), std::numeric_limits<float>::infinity());
  EXPECT_TRUE(is_nan(log1p(std::numeric_limits<float>::quiet_NaN())));
}

TEST(VectorMath, SigmoidAndSiluAndSoftplusAreWithinTheirBounds) {
  const ScopedFlushToZero flush;
  const auto sigmoid_true = [](double x) { return 1 / (1 + std::exp(-x)); };
  const auto silu_true = [](double x) { return x / (1 + std::exp(-x)); };
  const auto softplus_true = [](double x) { return x > 20 ? x : std::log1p(std::exp(x)); };
  EXPECT_LE(worst_ulps(sigmoid, sigmoid_true, -87.0f, 100.0f, kStep), 3.0);
  EXPECT_LE(worst_ulps(silu, silu_true, -87.0f, 1e30f, kStep), 3.0);
  EXPECT_LE(worst_ulps(softplus, softplus_true, -87.0f, 1e30f, kStep), 3.0);
  EXPECT_EQ(sigmoid(0.0f), 0.5f);
  EXPECT_EQ(silu(-200.0f), 0.0f);
  EXPECT_EQ(softplus(-200.0f), 0.0f);
  EXPECT_EQ(softplus(21.5f), 21.5f);
}

}  // namespace
}  // namespace rorqual::num
