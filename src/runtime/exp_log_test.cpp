// SPDX-License-Identifier: Apache-2.0
#include "runtime/exp_log.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>

namespace rorqual::runtime {
namespace {

TEST(ExpNonpositive, IsExactAtZeroAndEndsInZero) {
  EXPECT_EQ(exp_nonpositive(0.0), 1.0);
  EXPECT_EQ(exp_nonpositive(-0.0), 1.0);
  EXPECT_GT(exp_nonpositive(-700.0), 0.0);
  EXPECT_EQ(exp_nonpositive(-700.1), 0.0);
  EXPECT_EQ(exp_nonpositive(-HUGE_VAL), 0.0);
}

TEST(ExpNonpositive, IsWithinItsBoundOfTheMathLibrary) {
  const unsigned seed = 20260101;
  SCOPED_TRACE(seed);
  std::mt19937_64 random(seed);
  for (const double width : {1e-6, 0.4, 1.0, 20.0, 700.0}) {
    std::uniform_real_distribution<double> x_of(-width, 0.0);
    for (int i = 0; i < 20000; ++i) {
      const double x = x_of(random);
      const double expected = std::exp(x);
      ASSERT_NEAR(exp_nonpositive(x), expected, expected * 0x1p-50) << x;
    }
  }
}

TEST(ExpNonpositive, NeverDecreasesOverNeighbouringF32Values) {
  float x = -20.0f;
  double last = exp_nonpositive(static_cast<double>(x));
  for (int i = 0; i < 200000; ++i) {
    x = std::nextafter(x, 0.0f);
    const double value = exp_nonpositive(static_cast<double>(x));
    ASSERT_GE(value, last) << x;
    last = value;
  }
}

TEST(LogPositive, IsExactAtOneAndWithinItsBound) {
  EXPECT_EQ(log_positive(1.0), 0.0);
  const unsigned seed = 20260102;
  SCOPED_TRACE(seed);
  std::mt19937_64 random(seed);
  std::uniform_real_distribution<double> exponent(-300.0, 300.0);
  for (int i = 0; i < 50000; ++i) {
    const double x = i % 2 == 0 ? std::exp2(exponent(random)) : 1.0 + exponent(random) * 1e-3;
    const double expected = std::log(x);
    ASSERT_NEAR(log_positive(x), expected, std::max(1.0, std::abs(expected)) * 0x1p-50) << x;
  }
}

}  // namespace
}  // namespace rorqual::runtime
