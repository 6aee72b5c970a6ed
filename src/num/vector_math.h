// SPDX-License-Identifier: Apache-2.0
// exp, log1p and what is built on them, for model values: the one implementation of all tiers
// (docs/numerics.md). Only F32 add, multiply, divide, explicit fma and integer operations, in a fixed order
// and without branches on data, so that a vector lane does the same sequence (kernels/cpu/avx2/math_avx2.h).
// Subnormal results are zero, as compute threads flush them. The polynomials are least-maximum
// fits. Stated errors are upper bounds of what the test measures.
#pragma once

#include <cmath>

#include "num/bits.h"

namespace rorqual::num {

namespace math_constants {

inline constexpr float kRound =
    0x1.8p23f;  // adding it rounds to an integer, which then stands in the low bits
inline constexpr float kLog2e = 0x1.715476p0f;
inline constexpr float kLn2High = 0x1.62e4p-1f;    // short, so that n·kLn2High is exact
inline constexpr float kLn2Low = 0x1.7f7d1cp-20f;  // ln 2 - kLn2High
inline constexpr float kExpMax = 0x1.62e42ep6f;    // 88.72283: above, exp is infinite
inline constexpr float kExpMin = -0x1.5d5p6f;      // -87.328: below, exp is zero (2^-126 is at -87.337)
inline constexpr float kExp[5] = {0x1.fffffcp-2f, 0x1.55548ap-3f, 0x1.555916p-5f, 0x1.123fc6p-7f,
                                  0x1.6a1a72p-10f};
inline constexpr float kLog[4] = {0x1.555554p-1f, 0x1.999a88p-2f, 0x1.24351ap-2f, 0x1.e38be2p-3f};
inline constexpr uint32_t kSqrtHalfBits = 0x3f3504f3u;
inline constexpr float kSoftplusLinear = 20.0f;

}  // namespace math_constants

/// e^x, at most 1 ulp. exp(-inf) = 0, NaN stays NaN.
inline float exp(float x) {
  using namespace math_constants;
  const float t = std::fma(x, kLog2e, kRound);
  const float n = t - kRound;
  float r = std::fma(n, -kLn2High, x);
  r = std::fma(n, -kLn2Low, r);
  float p = std::fma(kExp[4], r, kExp[3]);
  p = std::fma(p, r, kExp[2]);
  p = std::fma(p, r, kExp[1]);
  p = std::fma(p, r, kExp[0]);
  p = std::fma(p, r * r, r);
  float result = float_of(bits_of(1.0f + p) + (bits_of(t) << 23));
  result = x < kExpMin ? 0.0f : result;
  result = x > kExpMax ? float_of(kInfBits) : result;
  return x != x ? x : result;
}

/// ln(1 + x) for x > -1, at most 2 ulp. log1p(inf) = inf, NaN stays NaN.
inline float log1p(float x) {
  using namespace math_constants;
  const float u = 1.0f + x;
  const uint32_t shifted = bits_of(u) + (0x3f800000u - kSqrtHalfBits);
  const float m = float_of((shifted & 0x7fffffu) + kSqrtHalfBits);  // u = 2^k·m, m in [sqrt(1/2), sqrt(2))
  const float k = static_cast<float>(static_cast<int32_t>(shifted >> 23) - 127);
  const bool near_one = k == 0.0f;
  const float f = near_one ? x : m - 1.0f;
  const float lost = near_one ? 0.0f : (x - (u - 1.0f)) / u;  // rounding of 1 + x, carried on to first order
  const float s = f / (2.0f + f);
  const float z = s * s;
  float q = std::fma(kLog[3], z, kLog[2]);
  q = std::fma(q, z, kLog[1]);
  q = std::fma(q, z, kLog[0]);
  const float half_square = (0.5f * f) * f;
  const float tail = std::fma(s, std::fma(z, q, half_square), std::fma(k, kLn2Low, lost));
  const float result = std::fma(k, kLn2High, f - (half_square - tail));
  return x < float_of(kInfBits) ? result : x;
}

/// 1 / (1 + e^-x), at most 3 ulp.
inline float sigmoid(float x) {
  return 1.0f / (1.0f + exp(-x));
}

/// x / (1 + e^-x), at most 3 ulp.
inline float silu(float x) {
  return x / (1.0f + exp(-x));
}

/// ln(1 + e^x), x itself above 20; at most 3 ulp where the result is normal.
inline float softplus(float x) {
  return x > math_constants::kSoftplusLinear ? x : log1p(exp(x));
}

}  // namespace rorqual::num
