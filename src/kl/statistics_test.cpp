// SPDX-License-Identifier: Apache-2.0
// The golden vectors run as `rorqual check stats`; here are the edges.
#include "kl/statistics.h"

#include <gtest/gtest.h>

#include <cmath>

namespace rorqual::kl {
namespace {

TEST(McNemar, IsOneWithoutDifferencesAndSymmetric) {
  EXPECT_EQ(mcnemar_exact(0, 0), 1);
  EXPECT_EQ(mcnemar_mid_p(0, 0), 1);
  EXPECT_EQ(mcnemar_exact(4, 9), mcnemar_exact(9, 4));
  EXPECT_DOUBLE_EQ(mcnemar_exact(0, 6), 0.03125);
  EXPECT_DOUBLE_EQ(mcnemar_mid_p(0, 6), 0.015625);
}

TEST(McNemar, AgreesWithItselfWhereTheMethodOfSummingChanges) {
  // 1000 trials are summed from below, 1001 from above; neighbours differ little.
  const double below = mcnemar_exact(480, 520), above = mcnemar_exact(480, 521);
  EXPECT_GT(below, above);
  EXPECT_NEAR(below, above, 0.02);
  // Normal approximation with continuity correction.
  const double z = (521 - 480 - 1) / std::sqrt(1001.0);
  EXPECT_NEAR(above, std::erfc(z / std::sqrt(2.0)), 1e-4);
  EXPECT_GT(mcnemar_exact(100000, 101000), 0);
}

TEST(Wilson, IntervalsStayInsideZeroAndOne) {
  EXPECT_EQ(wilson95(0, 10).low, 0);
  EXPECT_EQ(wilson95(10, 10).high, 1);
  const Share share = wilson95(5, 10);
  EXPECT_DOUBLE_EQ(share.estimate, 0.5);
  EXPECT_NEAR(share.low + share.high, 1, 1e-12);
}

TEST(BonettPrice, IntervalsAreCentredOnTheAdjustedDifference) {
  const Share share = bonett_price95(5, 3, 498);
  EXPECT_DOUBLE_EQ(share.estimate, -0.004);
  EXPECT_NEAR((share.low + share.high) / 2, share.estimate, 1e-15);
  EXPECT_EQ(bonett_price95(3, 3, 10).estimate, 0);
}

}  // namespace
}  // namespace rorqual::kl
