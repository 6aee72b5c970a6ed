// SPDX-License-Identifier: Apache-2.0
// The functions of num/vector_math.h on eight lanes, operation by operation, and small register tools of the
// AVX2 operators. For sources compiled with AVX2, FMA and F16C only; everything has internal linkage.
#pragma once

#include <immintrin.h>

#include <cstdint>

namespace {

[[maybe_unused]] inline __m256 set8(float value) {
  return _mm256_set1_ps(value);
}

[[maybe_unused]] inline __m256i set8_bits(uint32_t bits) {
  return _mm256_set1_epi32(static_cast<int>(bits));
}

[[maybe_unused]] inline __m256 inf8() {
  return _mm256_castsi256_ps(set8_bits(0x7f800000u));
}

/// num::exp.
[[maybe_unused]] inline __m256 exp8(__m256 x) {
  const __m256 round = set8(0x1.8p23f);
  const __m256 t = _mm256_fmadd_ps(x, set8(0x1.715476p0f), round);
  const __m256 n = _mm256_sub_ps(t, round);
  __m256 r = _mm256_fmadd_ps(n, set8(-0x1.62e4p-1f), x);
  r = _mm256_fmadd_ps(n, set8(-0x1.7f7d1cp-20f), r);
  __m256 p = _mm256_fmadd_ps(set8(0x1.6a1a72p-10f), r, set8(0x1.123fc6p-7f));
  p = _mm256_fmadd_ps(p, r, set8(0x1.555916p-5f));
  p = _mm256_fmadd_ps(p, r, set8(0x1.55548ap-3f));
  p = _mm256_fmadd_ps(p, r, set8(0x1.fffffcp-2f));
  p = _mm256_fmadd_ps(p, _mm256_mul_ps(r, r), r);
  const __m256i power = _mm256_slli_epi32(_mm256_castps_si256(t), 23);
  const __m256i bits = _mm256_add_epi32(_mm256_castps_si256(_mm256_add_ps(set8(1.0f), p)), power);
  __m256 result = _mm256_castsi256_ps(bits);
  result = _mm256_andnot_ps(_mm256_cmp_ps(x, set8(-0x1.5d5p6f), _CMP_LT_OQ), result);
  result = _mm256_blendv_ps(result, inf8(), _mm256_cmp_ps(x, set8(0x1.62e42ep6f), _CMP_GT_OQ));
  return _mm256_blendv_ps(result, x, _mm256_cmp_ps(x, x, _CMP_UNORD_Q));
}

/// num::log1p.
[[maybe_unused]] inline __m256 log1p8(__m256 x) {
  const __m256 one = set8(1.0f);
  const __m256i sqrt_half = set8_bits(0x3f3504f3u);
  const __m256 u = _mm256_add_ps(one, x);
  const __m256i shifted = _mm256_add_epi32(_mm256_castps_si256(u), set8_bits(0x3f800000u - 0x3f3504f3u));
  const __m256 m =
      _mm256_castsi256_ps(_mm256_add_epi32(_mm256_and_si256(shifted, set8_bits(0x7fffffu)), sqrt_half));
  const __m256 k = _mm256_cvtepi32_ps(_mm256_sub_epi32(_mm256_srli_epi32(shifted, 23), set8_bits(127)));
  const __m256 near_one = _mm256_cmp_ps(k, _mm256_setzero_ps(), _CMP_EQ_OQ);
  const __m256 f = _mm256_blendv_ps(_mm256_sub_ps(m, one), x, near_one);
  const __m256 rest = _mm256_div_ps(_mm256_sub_ps(x, _mm256_sub_ps(u, one)), u);
  const __m256 lost = _mm256_andnot_ps(near_one, rest);
  const __m256 s = _mm256_div_ps(f, _mm256_add_ps(set8(2.0f), f));
  const __m256 z = _mm256_mul_ps(s, s);
  __m256 q = _mm256_fmadd_ps(set8(0x1.e38be2p-3f), z, set8(0x1.24351ap-2f));
  q = _mm256_fmadd_ps(q, z, set8(0x1.999a88p-2f));
  q = _mm256_fmadd_ps(q, z, set8(0x1.555554p-1f));
  const __m256 half_square = _mm256_mul_ps(_mm256_mul_ps(set8(0.5f), f), f);
  const __m256 low = _mm256_fmadd_ps(k, set8(0x1.7f7d1cp-20f), lost);
  const __m256 tail = _mm256_fmadd_ps(s, _mm256_fmadd_ps(z, q, half_square), low);
  const __m256 high = _mm256_sub_ps(f, _mm256_sub_ps(half_square, tail));
  const __m256 result = _mm256_fmadd_ps(k, set8(0x1.62e4p-1f), high);
  return _mm256_blendv_ps(x, result, _mm256_cmp_ps(x, inf8(), _CMP_LT_OQ));
}

[[maybe_unused]] inline __m256 negate8(__m256 x) {
  return _mm256_xor_ps(x, set8(-0.0f));
}

/// num::sigmoid.
[[maybe_unused]] inline __m256 sigmoid8(__m256 x) {
  return _mm256_div_ps(set8(1.0f), _mm256_add_ps(set8(1.0f), exp8(negate8(x))));
}

/// num::silu.
[[maybe_unused]] inline __m256 silu8(__m256 x) {
  return _mm256_div_ps(x, _mm256_add_ps(set8(1.0f), exp8(negate8(x))));
}

/// num::softplus.
[[maybe_unused]] inline __m256 softplus8(__m256 x) {
  return _mm256_blendv_ps(log1p8(exp8(x)), x, _mm256_cmp_ps(x, set8(20.0f), _CMP_GT_OQ));
}

/// num::bf16_round: nearest even, NaN stays NaN.
[[maybe_unused]] inline __m256 round_bf16_8(__m256 x) {
  const __m256i bits = _mm256_castps_si256(x);
  const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), set8_bits(1));
  const __m256i rounded = _mm256_add_epi32(_mm256_add_epi32(bits, set8_bits(0x7fffu)), odd);
  const __m256i quiet = _mm256_or_si256(bits, set8_bits(0x400000u));
  const __m256 nan = _mm256_cmp_ps(x, x, _CMP_UNORD_Q);
  const __m256i chosen = _mm256_blendv_epi8(rounded, quiet, _mm256_castps_si256(nan));
  return _mm256_castsi256_ps(_mm256_and_si256(chosen, set8_bits(0xffff0000u)));
}

/// Mask whose first `count` lanes (0..8) are set.
[[maybe_unused]] inline __m256i first_lanes(int64_t count) {
  const __m256i lane = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
  return _mm256_cmpgt_epi32(_mm256_set1_epi32(static_cast<int>(count)), lane);
}

}  // namespace
