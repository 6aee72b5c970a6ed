// SPDX-License-Identifier: Apache-2.0
// exp and log for distributions over the vocabulary: F64 polynomials of additions and products only, so the
// same bits on every machine and compiler (no libm, no fused operations). Not for model values: those have
// src/num.
#pragma once

#include <bit>
#include <cstdint>

namespace rorqual::runtime {

/// e^x for x in [-700, 0]; below -700 the result is 0. exp(0) is exactly 1.
/// Accuracy  relative error <= 2^-50.
inline double exp_nonpositive(double x) {
  constexpr double kLog2e = 0x1.71547652b82fep+0;
  constexpr double kLn2High = 0x1.62e42fee00000p-1;  // 32 bits: its products with |n| < 2^11 are exact
  constexpr double kLn2Low = 0x1.a39ef35793c76p-33;
  constexpr double kRoundToInteger =
      0x1.8p52;  // adding it leaves the nearest integer in the low mantissa bits
  const double clamped = x < -700.0 ? -700.0 : x;
  const double shifted = clamped * kLog2e + kRoundToInteger;
  const double n = shifted - kRoundToInteger;
  const double r = (clamped - n * kLn2High) - n * kLn2Low;  // |r| <= ln(2) / 2
  double p = 1.0 / 6227020800.0;
  p = p * r + 1.0 / 479001600.0;
  p = p * r + 1.0 / 39916800.0;
  p = p * r + 1.0 / 3628800.0;
  p = p * r + 1.0 / 362880.0;
  p = p * r + 1.0 / 40320.0;
  p = p * r + 1.0 / 5040.0;
  p = p * r + 1.0 / 720.0;
  p = p * r + 1.0 / 120.0;
  p = p * r + 1.0 / 24.0;
  p = p * r + 1.0 / 6.0;
  p = p * r + 0.5;
  p = p * r + 1.0;
  p = p * r + 1.0;
  const uint64_t scaled = std::bit_cast<uint64_t>(p) + (std::bit_cast<uint64_t>(shifted) << 52);
  const double value = std::bit_cast<double>(scaled);
  return x < -700.0 ? 0.0 : value;
}

/// ln(x) for normal x > 0. Accuracy: absolute error <= 2^-50 * max(1, |ln x|). log(1) is exactly 0.
inline double log_positive(double x) {
  constexpr double kLn2 = 0x1.62e42fefa39efp-1;
  const auto bits = std::bit_cast<uint64_t>(x);
  auto exponent = static_cast<int64_t>(bits >> 52) - 1023;
  double m = std::bit_cast<double>((bits & 0x000fffffffffffffu) | 0x3ff0000000000000u);
  if (m > 0x1.6a09e667f3bcdp+0) {  // sqrt(2)
    m *= 0.5;
    ++exponent;
  }
  const double s = (m - 1.0) / (m + 1.0);  // ln m = 2 atanh s, |s| < 0.172
  const double s2 = s * s;
  double p = 1.0 / 21.0;
  for (int k = 19; k >= 1; k -= 2) p = p * s2 + 1.0 / static_cast<double>(k);
  return static_cast<double>(exponent) * kLn2 + 2.0 * s * p;
}

}  // namespace rorqual::runtime
