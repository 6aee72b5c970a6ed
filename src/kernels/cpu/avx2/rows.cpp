// SPDX-License-Identifier: Apache-2.0
// Operators on rows of F32 values, eight lanes at a time. Inputs that the vector forms do not cover (NaN,
// scales at the edge of F32) go to the scalar law as a whole row.
#include <immintrin.h>

#include <cstdint>
#include <cstring>

#include "kernels/cpu/avx2/math_avx2.h"
#include "kernels/cpu/avx2/operators_avx2.h"
#include "kernels/ref/operators_ref.h"

namespace rorqual::kernels::avx2 {
namespace {

constexpr uint32_t kInfBits = 0x7f800000u;

/// c[j] += c[j+8], +4, +2, +1 over the chains 0..7 and 8..15.
float fold(__m256 low, __m256 high) {
  const __m256 c8 = _mm256_add_ps(low, high);
  const __m128 c4 = _mm_add_ps(_mm256_castps256_ps128(c8), _mm256_extractf128_ps(c8, 1));
  const __m128 c2 = _mm_add_ps(c4, _mm_movehl_ps(c4, c4));
  return _mm_cvtss_f32(_mm_add_ss(c2, _mm_shuffle_ps(c2, c2, 1)));
}

uint32_t bits_of(float value) {
  return static_cast<uint32_t>(_mm_cvtsi128_si32(_mm_castps_si128(_mm_set_ss(value))));
}

float float_of(uint32_t bits) {
  return _mm_cvtss_f32(_mm_castsi128_ps(_mm_cvtsi32_si128(static_cast<int>(bits))));
}

/// Bits of the largest magnitude of 8·vectors values, compared as integers.
uint32_t max_abs_bits(const float* x, int vectors) {
  const __m256i mask = set8_bits(0x7fffffffu);
  __m256i largest = _mm256_setzero_si256();
  for (int v = 0; v < vectors; ++v) {
    const __m256i bits = _mm256_castps_si256(_mm256_loadu_ps(x + 8 * v));
    largest = _mm256_max_epu32(largest, _mm256_and_si256(bits, mask));
  }
  __m128i m = _mm_max_epu32(_mm256_castsi256_si128(largest), _mm256_extracti128_si256(largest, 1));
  m = _mm_max_epu32(m, _mm_shuffle_epi32(m, 0x4e));
  m = _mm_max_epu32(m, _mm_shuffle_epi32(m, 0xb1));
  return static_cast<uint32_t>(_mm_cvtsi128_si32(m));
}

/// num::pow2_ceil_exponent of max(amax, floor) · factor.
int scale_exponent(uint32_t amax_bits, float floor, float factor) {
  const float amax = float_of(amax_bits);
  const uint32_t bits = bits_of((amax > floor ? amax : floor) * factor);
  return static_cast<int>(bits >> 23) - 127 + ((bits & 0x7fffffu) != 0 ? 1 : 0);
}

/// 2^n for -126 <= n <= 127.
__m256 power8(int n) {
  return _mm256_castsi256_ps(set8_bits(static_cast<uint32_t>(n + 127) << 23));
}

__m256 abs8(__m256 x) {
  return _mm256_andnot_ps(set8(-0.0f), x);
}

__m256 sign8(__m256 x) {
  return _mm256_and_ps(set8(-0.0f), x);
}

/// A small float format: where its normal numbers begin and how many mantissa bits they keep.
struct Grid {
  float max, min_normal;
  float magic;  // adding and subtracting it rounds to a multiple of the smallest value
  int drop;     // mantissa bits of F32 that are dropped
  float units;  // 1 / smallest value
  int code_bias;
};

constexpr Grid kE4m3 = {448.0f, 0x1p-6f, 0x1.8p14f, 20, 512.0f, 120 << 3};
constexpr Grid kE2m1 = {6.0f, 1.0f, 0x1.8p22f, 22, 2.0f, 126 << 1};

/// Nearest grid value of |v|, ties to even, saturating.
inline __m256 grid_round(const Grid& grid, __m256 v) {
  const __m256 a = _mm256_min_ps(abs8(v), set8(grid.max));
  const __m256i bits = _mm256_castps_si256(a);
  const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, grid.drop), set8_bits(1));
  const uint32_t half = (uint32_t{1} << (grid.drop - 1)) - 1;
  const __m256i up = _mm256_add_epi32(_mm256_add_epi32(bits, set8_bits(half)), odd);
  const __m256 normal =
      _mm256_castsi256_ps(_mm256_and_si256(up, set8_bits(~((uint32_t{1} << grid.drop) - 1))));
  const __m256 magic = set8(grid.magic);
  const __m256 small = _mm256_sub_ps(_mm256_add_ps(a, magic), magic);
  return _mm256_blendv_ps(small, normal, _mm256_cmp_ps(a, set8(grid.min_normal), _CMP_GE_OQ));
}

/// Codes without sign of grid values.
inline __m256i grid_code(const Grid& grid, __m256 value) {
  const __m256i normal = _mm256_sub_epi32(_mm256_srli_epi32(_mm256_castps_si256(value), grid.drop),
                                          set8_bits(static_cast<uint32_t>(grid.code_bias)));
  const __m256i small = _mm256_cvtps_epi32(_mm256_mul_ps(value, set8(grid.units)));
  const __m256 is_normal = _mm256_cmp_ps(value, set8(grid.min_normal), _CMP_GE_OQ);
  return _mm256_blendv_epi8(small, normal, _mm256_castps_si256(is_normal));
}

/// Signed codes, sign in bit `sign_bit`.
inline __m256i signed_code(const Grid& grid, __m256 v, int sign_bit) {
  const __m256i code = grid_code(grid, grid_round(grid, v));
  const __m256i sign = _mm256_srli_epi32(_mm256_castps_si256(sign8(v)), 31 - sign_bit);
  return _mm256_or_si256(code, sign);
}

/// Eight nibbles of the low bits of each lane, lane 0 lowest.
uint32_t pack_nibbles(__m256i codes) {
  const __m256i shifted = _mm256_sllv_epi32(codes, _mm256_setr_epi32(0, 4, 8, 12, 16, 20, 24, 28));
  __m128i m = _mm_or_si128(_mm256_castsi256_si128(shifted), _mm256_extracti128_si256(shifted, 1));
  m = _mm_or_si128(m, _mm_shuffle_epi32(m, 0x4e));
  m = _mm_or_si128(m, _mm_shuffle_epi32(m, 0xb1));
  return static_cast<uint32_t>(_mm_cvtsi128_si32(m));
}

/// E2M1 values of eight nibbles: magnitude by table, sign by xor (as in linear.cpp).
__m256 unpack_nibbles(const std::byte* codes) {
  int word = 0;
  memcpy(&word, codes, sizeof word);
  const __m256i nibbles =
      _mm256_srlv_epi32(_mm256_set1_epi32(word), _mm256_setr_epi32(0, 4, 8, 12, 16, 20, 24, 28));
  const __m256i table = _mm256_setr_epi32(
      0x00000000, 0x3f000000 ^ 0x10000000, 0x3f800000 ^ 0x20000000, 0x3fc00000 ^ 0x30000000,
      0x40000000 ^ 0x40000000, 0x40400000 ^ 0x50000000, 0x40800000 ^ 0x60000000, 0x40c00000 ^ 0x70000000);
  const __m256i magnitude = _mm256_permutevar8x32_epi32(table, nibbles);
  return _mm256_castsi256_ps(_mm256_xor_si256(magnitude, _mm256_slli_epi32(nibbles, 28)));
}

/// E4M3 values of eight codes that are not NaN, through FP16, whose conversion ignores DAZ.
__m256 unpack_e4m3(__m128i codes) {
  const __m128i halves =
      _mm_and_si128(_mm_slli_epi16(_mm_cvtepi8_epi16(codes), 7), _mm_set1_epi16(static_cast<short>(0xbfff)));
  return _mm256_mul_ps(_mm256_cvtph_ps(halves), set8(256.0f));
}

uint8_t code_at(const std::byte* codes, int64_t i) {
  return static_cast<uint8_t>(codes[i]);
}

// Ranges in which scaling by a multiplication is exact and nothing is subnormal.
constexpr int kFp4MinExponent = -123;
constexpr int kMaxExponent = 120;

bool has_nan(uint32_t amax_bits) {
  return amax_bits >= kInfBits;
}

}  // namespace

void rms_norm(const float* x, const float* weight, float eps, int64_t width, bool round_bf16, float* y) {
  const float mean = sum_squares(x, width) / static_cast<float>(width);
  const __m256 scale = set8(_mm_cvtss_f32(_mm_div_ss(_mm_set_ss(1.0f), _mm_sqrt_ss(_mm_set_ss(mean + eps)))));
  for (int64_t i = 0; i < width; i += 8) {
    const bool whole = i + 8 <= width;
    const __m256i mask = first_lanes(whole ? 8 : width - i);
    const __m256 value = _mm256_mul_ps(_mm256_maskload_ps(weight + i, mask),
                                       _mm256_mul_ps(_mm256_maskload_ps(x + i, mask), scale));
    const __m256 rounded = round_bf16 ? round_bf16_8(value) : value;
    if (whole) {
      _mm256_storeu_ps(y + i, rounded);
    } else {
      _mm256_maskstore_ps(y + i, mask, rounded);
    }
  }
}

void round_bf16(const float* x, int64_t count, float* y) {
  int64_t i = 0;
  for (; i + 8 <= count; i += 8) _mm256_storeu_ps(y + i, round_bf16_8(_mm256_loadu_ps(x + i)));
  if (i < count) {
    const __m256i mask = first_lanes(count - i);
    _mm256_maskstore_ps(y + i, mask, round_bf16_8(_mm256_maskload_ps(x + i, mask)));
  }
}

void qdq_fp8(const float* x, int64_t width, float* y) {
  for (int64_t group = 0; group < width; group += 32) {
    const uint32_t amax = max_abs_bits(x + group, 4);
    const int n = scale_exponent(amax, 1e-4f, 1.0f / 448.0f);
    if (has_nan(amax)) return ref::qdq_fp8(x + group, width - group, y + group);
    const __m256 down = power8(-n);
    const __m256 up = power8(n);
    for (int64_t i = group; i < group + 32; i += 8) {
      const __m256 v = _mm256_loadu_ps(x + i);
      const __m256 value = _mm256_mul_ps(grid_round(kE4m3, _mm256_mul_ps(v, down)), up);
      _mm256_storeu_ps(y + i, _mm256_or_ps(value, sign8(v)));
    }
  }
}

void qdq_fp4_e8m0(const float* x, int64_t width, float* y) {
  for (int64_t group = 0; group < width; group += 32) {
    const uint32_t amax = max_abs_bits(x + group, 4);
    const int n = scale_exponent(amax, 6.0f * 0x1p-126f, 1.0f / 6.0f);
    if (has_nan(amax) || n < kFp4MinExponent || n > kMaxExponent) {
      ref::qdq_fp4_e8m0(x + group, 32, y + group);
      continue;
    }
    const __m256 down = power8(-n);
    const __m256 up = power8(n);
    for (int64_t i = group; i < group + 32; i += 8) {
      const __m256 v = _mm256_loadu_ps(x + i);
      const __m256 value = _mm256_mul_ps(grid_round(kE2m1, _mm256_mul_ps(v, down)), up);
      _mm256_storeu_ps(y + i, _mm256_or_ps(value, sign8(v)));
    }
  }
}

namespace {

/// Scale of 16 compressed values: E4M3 of max(amax, 6·2^-9) / 6, as code and as value.
struct KvScale {
  uint8_t code;
  float value;
};

KvScale kv_scale(uint32_t amax_bits) {
  const float floor = 6.0f * 0x1p-9f;
  const float amax = float_of(amax_bits);
  const __m256 value = grid_round(kE4m3, set8((amax > floor ? amax : floor) / 6.0f));
  const __m256i code = grid_code(kE4m3, value);
  return {static_cast<uint8_t>(_mm_cvtsi128_si32(_mm256_castsi256_si128(code))), _mm256_cvtss_f32(value)};
}

}  // namespace

void qdq_fp4_e4m3(const float* x, int64_t width, float* y) {
  for (int64_t group = 0; group < width; group += 16) {
    const uint32_t amax = max_abs_bits(x + group, 2);
    if (has_nan(amax)) return ref::qdq_fp4_e4m3(x + group, width - group, y + group);
    const __m256 scale = set8(kv_scale(amax).value);
    for (int64_t i = group; i < group + 16; i += 8) {
      const __m256 v = _mm256_loadu_ps(x + i);
      const __m256 value = _mm256_mul_ps(grid_round(kE2m1, _mm256_div_ps(v, scale)), scale);
      _mm256_storeu_ps(y + i, _mm256_or_ps(value, sign8(v)));
    }
  }
}

void encode_fp8(const float* x, int64_t width, std::byte* record) {
  std::byte* scales = record + width;
  for (int64_t group = 0; group < width; group += 32) {
    const uint32_t amax = max_abs_bits(x + group, 4);
    const int n = scale_exponent(amax, 1e-4f, 1.0f / 448.0f);
    if (has_nan(amax)) return ref::encode_fp8(x, width, record);
    scales[group / 32] = static_cast<std::byte>(n + 127);
    const __m256 down = power8(-n);
    __m256i codes[4];
    for (int v = 0; v < 4; ++v) {
      codes[v] = signed_code(kE4m3, _mm256_mul_ps(_mm256_loadu_ps(x + group + 8 * v), down), 7);
    }
    const __m256i words_a = _mm256_packus_epi32(codes[0], codes[1]);
    const __m256i words_b = _mm256_packus_epi32(codes[2], codes[3]);
    const __m256i bytes = _mm256_packus_epi16(words_a, words_b);
    const __m256i ordered = _mm256_permutevar8x32_epi32(bytes, _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7));
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(record + group), ordered);
  }
}

void decode_fp8(const std::byte* record, int64_t width, float* y) {
  constexpr int kMinScale = 10;  // 2^-9 · 2^(10 - 127) is normal
  for (int64_t group = 0; group < width; group += 32) {
    const uint8_t scale = code_at(record + width, group / 32);
    const __m256i codes = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(record + group));
    const __m256i nan = _mm256_set1_epi8(0x7f);
    const int nans = _mm256_movemask_epi8(_mm256_cmpeq_epi8(_mm256_and_si256(codes, nan), nan));
    if (nans != 0 || scale < kMinScale || scale == 255) return ref::decode_fp8(record, width, y);
    const __m256 up = power8(scale - 127);
    for (int64_t i = group; i < group + 32; i += 8) {
      const __m128i eight = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(record + i));
      _mm256_storeu_ps(y + i, _mm256_mul_ps(unpack_e4m3(eight), up));
    }
  }
}

void encode_fp4_e8m0(const float* x, int64_t width, std::byte* record) {
  std::byte* scales = record + width / 2;
  for (int64_t group = 0; group < width; group += 32) {
    const uint32_t amax = max_abs_bits(x + group, 4);
    const int n = scale_exponent(amax, 6.0f * 0x1p-126f, 1.0f / 6.0f);
    if (has_nan(amax) || n < kFp4MinExponent || n > kMaxExponent)
      return ref::encode_fp4_e8m0(x, width, record);
    scales[group / 32] = static_cast<std::byte>(n + 127);
    const __m256 down = power8(-n);
    for (int64_t i = group; i < group + 32; i += 8) {
      const uint32_t word = pack_nibbles(signed_code(kE2m1, _mm256_mul_ps(_mm256_loadu_ps(x + i), down), 3));
      memcpy(record + i / 2, &word, sizeof word);
    }
  }
}

void decode_fp4_e8m0(const std::byte* record, int64_t width, float* y) {
  constexpr int kMinScale = 2;  // 0.5 · 2^(2 - 127) is normal
  for (int64_t group = 0; group < width; group += 32) {
    const uint8_t scale = code_at(record + width / 2, group / 32);
    if (scale < kMinScale || scale == 255) return ref::decode_fp4_e8m0(record, width, y);
    const __m256 up = power8(scale - 127);
    for (int64_t i = group; i < group + 32; i += 8) {
      _mm256_storeu_ps(y + i, _mm256_mul_ps(unpack_nibbles(record + i / 2), up));
    }
  }
}

void encode_fp4_e4m3(const float* x, int64_t width, std::byte* record) {
  std::byte* scales = record + width / 2;
  for (int64_t group = 0; group < width; group += 16) {
    const uint32_t amax = max_abs_bits(x + group, 2);
    if (has_nan(amax)) return ref::encode_fp4_e4m3(x, width, record);
    const KvScale scale = kv_scale(amax);
    scales[group / 16] = static_cast<std::byte>(scale.code);
    for (int64_t i = group; i < group + 16; i += 8) {
      const __m256 v = _mm256_div_ps(_mm256_loadu_ps(x + i), set8(scale.value));
      const uint32_t word = pack_nibbles(signed_code(kE2m1, v, 3));
      memcpy(record + i / 2, &word, sizeof word);
    }
  }
}

void decode_fp4_e4m3(const std::byte* record, int64_t width, float* y) {
  for (int64_t group = 0; group < width; group += 16) {
    const uint8_t code = code_at(record + width / 2, group / 16);
    if ((code & 0x7f) == 0x7f) return ref::decode_fp4_e4m3(record, width, y);
    const __m256 scale = unpack_e4m3(_mm_set1_epi8(static_cast<char>(code)));
    _mm256_storeu_ps(y + group, _mm256_mul_ps(unpack_nibbles(record + group / 2), scale));
    _mm256_storeu_ps(y + group + 8, _mm256_mul_ps(unpack_nibbles(record + group / 2 + 4), scale));
  }
}

void rope(const float* x, int64_t width, const float* cos, const float* sin, int64_t half, bool inverse,
          bool round_bf16, float* y) {
  const int64_t head = width - 2 * half;
  if (y != x) memmove(y, x, static_cast<size_t>(head) * sizeof(float));
  const __m256i twice = _mm256_setr_epi32(0, 0, 1, 1, 2, 2, 3, 3);
  const __m256 flip = set8(inverse ? -0.0f : 0.0f);
  for (int64_t i = 0; i < half; i += 4) {
    const int64_t pairs = half - i < 4 ? half - i : 4;
    const __m256i mask = first_lanes(2 * pairs);
    const __m128i pair_mask = _mm256_castsi256_si128(first_lanes(pairs));
    const __m256 v = _mm256_maskload_ps(x + head + 2 * i, mask);
    const __m256 c =
        _mm256_permutevar8x32_ps(_mm256_castps128_ps256(_mm_maskload_ps(cos + i, pair_mask)), twice);
    const __m256 s =
        _mm256_permutevar8x32_ps(_mm256_castps128_ps256(_mm_maskload_ps(sin + i, pair_mask)), twice);
    const __m256 cross = _mm256_mul_ps(_mm256_permute_ps(v, 0xb1), _mm256_xor_ps(s, flip));
    const __m256 value = _mm256_addsub_ps(_mm256_mul_ps(v, c), cross);
    _mm256_maskstore_ps(y + head + 2 * i, mask, round_bf16 ? round_bf16_8(value) : value);
  }
}

float sum(const float* x, int64_t count) {
  __m256 low = _mm256_setzero_ps();
  __m256 high = _mm256_setzero_ps();
  int64_t i = 0;
  for (; i + 16 <= count; i += 16) {
    low = _mm256_add_ps(low, _mm256_loadu_ps(x + i));
    high = _mm256_add_ps(high, _mm256_loadu_ps(x + i + 8));
  }
  if (i < count) {  // absent elements must not turn a chain of -0 into +0
    const int64_t left = count - i;
    const __m256i mask = first_lanes(left < 8 ? left : 8);
    low =
        _mm256_blendv_ps(low, _mm256_add_ps(low, _mm256_maskload_ps(x + i, mask)), _mm256_castsi256_ps(mask));
    if (left > 8) {
      const __m256i rest = first_lanes(left - 8);
      const __m256 added = _mm256_add_ps(high, _mm256_maskload_ps(x + i + 8, rest));
      high = _mm256_blendv_ps(high, added, _mm256_castsi256_ps(rest));
    }
  }
  return fold(low, high);
}

float sum_squares(const float* x, int64_t count) {
  __m256 low = _mm256_setzero_ps();
  __m256 high = _mm256_setzero_ps();
  int64_t i = 0;
  for (; i + 16 <= count; i += 16) {
    const __m256 a = _mm256_loadu_ps(x + i);
    const __m256 b = _mm256_loadu_ps(x + i + 8);
    low = _mm256_fmadd_ps(a, a, low);
    high = _mm256_fmadd_ps(b, b, high);
  }
  if (i < count) {  // absent elements add +0 to chains that are never negative
    const int64_t left = count - i;
    const __m256 a = _mm256_maskload_ps(x + i, first_lanes(left < 8 ? left : 8));
    low = _mm256_fmadd_ps(a, a, low);
    if (left > 8) {
      const __m256 b = _mm256_maskload_ps(x + i + 8, first_lanes(left - 8));
      high = _mm256_fmadd_ps(b, b, high);
    }
  }
  return fold(low, high);
}

float dot(const float* a, const float* b, int64_t count) {
  // Two scalar chains per block; blocks are independent, so the processor overlaps them.
  float acc = 0;
  for (int64_t block = 0; block < count; block += kBlockCols) {
    __m128 even = _mm_setzero_ps();
    __m128 odd = _mm_setzero_ps();
    for (int64_t k = block; k < block + kBlockCols; k += 2) {
      const __m128 zero = _mm_setzero_ps();
      even = _mm_fmadd_ss(k < count ? _mm_load_ss(a + k) : zero, k < count ? _mm_load_ss(b + k) : zero, even);
      odd = _mm_fmadd_ss(k + 1 < count ? _mm_load_ss(a + k + 1) : zero,
                         k + 1 < count ? _mm_load_ss(b + k + 1) : zero, odd);
    }
    acc = acc + _mm_cvtss_f32(_mm_add_ss(even, odd));
  }
  return acc;
}

}  // namespace rorqual::kernels::avx2
