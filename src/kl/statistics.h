// SPDX-License-Identifier: Apache-2.0
// Tests and intervals for counts: two systems on the same items, and shares of right answers.
#pragma once

#include <cstdint>

namespace rorqual::kl {

/// Two-sided exact McNemar test of `b` and `c` discordant pairs. 1 when there are none.
double mcnemar_exact(int64_t b, int64_t c);

/// Lancaster's mid-p variant: half the probability of the observed split is taken off either tail.
double mcnemar_mid_p(int64_t b, int64_t c);

struct Share {
  double estimate = 0, low = 0, high = 0;
};

/// Wilson's 95 % interval for `x` of `n`; n > 0.
Share wilson95(int64_t x, int64_t n);

/// Bonett and Price (2012): 95 % interval for the difference of two dependent shares, second minus first,
/// from `b` pairs that only the first has right and `c` that only the second has, of `n` pairs. The estimate
/// is the adjusted one, (c - b) / (n + 2), as are both ends.
Share bonett_price95(int64_t b, int64_t c, int64_t n);

}  // namespace rorqual::kl
