// SPDX-License-Identifier: Apache-2.0
// Block quantisers of activations, caches and weights, one block or matrix at a time. Definitions:
// docs/formats.md and docs/numerics.md. Inputs are finite; results do not depend on flush-to-zero.
#pragma once

#include <cstdint>

#include "num/formats.h"

namespace rorqual::num {

constexpr int kFp8Group = 32;        // columns per scale of activations, window KV, Engram rows
constexpr int kFp4Group = 32;        // columns per E8M0 scale of E2M1 values
constexpr int kFp4KvGroup = 16;      // columns per E4M3 scale of compressed KV
constexpr int kFp8WeightBlock = 32;  // rows and columns per scale of dense weights

/// Largest magnitude of x[0, count).
constexpr float max_abs(const float* x, int64_t count) {
  uint32_t largest = 0;
  for (int64_t i = 0; i < count; ++i) {
    const uint32_t abs = bits_of(x[i]) & kAbsMask;
    largest = abs > largest ? abs : largest;
  }
  return float_of(largest);
}

constexpr float max_of(float a, float b) {
  return a > b ? a : b;
}

/// Exponent n of the E4M3 activation scale 2^n: the power of two at or above max(amax, 1e-4) · fl32(1/448).
constexpr int fp8_exponent(float amax) {
  return pow2_ceil_exponent(max_of(amax, 1e-4f) * (1.0f / kE4m3Max));
}

/// Exponent n of the scale of index queries and keys, and of MXFP4 weights: 2^n >= max(amax, 6·2^-126) ·
/// fl32(1/6).
constexpr int fp4_exponent(float amax) {
  return pow2_ceil_exponent(max_of(amax, 6.0f * 0x1p-126f) * (1.0f / kE2m1Max));
}

/// E4M3 code of the scale of compressed KV: max(amax, 6·2^-9) / 6, a rounding division.
constexpr uint8_t fp4_kv_scale(float amax) {
  return e4m3_encode(max_of(amax, 6.0f * 0x1p-9f) / kE2m1Max);
}

/// Codes of one value at a given scale, and back.
constexpr uint8_t fp8_code(float x, int exponent) {
  return e4m3_encode(scale_pow2(x, -exponent));
}

constexpr float fp8_value(uint8_t code, int exponent) {
  return scale_pow2(e4m3_decode(code), exponent);
}

constexpr uint8_t fp4_code(float x, int exponent) {
  return e2m1_encode(scale_pow2(x, -exponent));
}

constexpr float fp4_value(uint8_t code, int exponent) {
  return scale_pow2(e2m1_decode(code), exponent);
}

/// A real division: the scale is not a power of two. Values beyond 6 saturate.
constexpr uint8_t fp4_kv_code(float x, uint8_t scale) {
  return e2m1_encode(x / e4m3_decode(scale));
}

constexpr float fp4_kv_value(uint8_t code, uint8_t scale) {
  return e2m1_decode(code) * e4m3_decode(scale);
}

/// Dense weights: F32 [rows, cols] -> E4M3 codes [rows, cols] and E8M0 scales [ceil(rows/32), ceil(cols/32)];
/// the scale is the power of two at or above max(amax, 2^-100) / 448 of its 32 x 32 block.
constexpr void fp8_block_quantise(const float* w, int64_t rows, int64_t cols, uint8_t* codes,
                                  uint8_t* scales) {
  constexpr int64_t block = kFp8WeightBlock;
  const int64_t scale_cols = (cols + block - 1) / block;
  for (int64_t row = 0; row < rows; row += block) {
    for (int64_t col = 0; col < cols; col += block) {
      const int64_t row_end = row + block < rows ? row + block : rows;
      const int64_t width = col + block < cols ? block : cols - col;
      float amax = 0x1p-100f;
      for (int64_t r = row; r < row_end; ++r) amax = max_of(amax, max_abs(w + r * cols + col, width));
      const int exponent = pow2_ceil_exponent(amax / kE4m3Max);
      scales[row / block * scale_cols + col / block] = e8m0_encode_exponent(exponent);
      for (int64_t r = row; r < row_end; ++r) {
        for (int64_t c = col; c < col + width; ++c) codes[r * cols + c] = fp8_code(w[r * cols + c], exponent);
      }
    }
  }
}

/// Engram table rows: F32 [count] -> E4M3 [count] and E8M0 [count/32], one scale per 32 columns. count % 32
/// == 0.
constexpr void fp8_row_quantise(const float* w, int64_t count, uint8_t* codes, uint8_t* scales) {
  for (int64_t group = 0; group < count / kFp8Group; ++group) {
    const float* x = w + group * kFp8Group;
    const int exponent = pow2_ceil_exponent(max_of(max_abs(x, kFp8Group), 0x1p-100f) / kE4m3Max);
    scales[group] = e8m0_encode_exponent(exponent);
    for (int i = 0; i < kFp8Group; ++i) codes[group * kFp8Group + i] = fp8_code(x[i], exponent);
  }
}

/// Routed experts: F32 [count] of one row -> packed E2M1 [count/2], even column in the low nibble, and E8M0
/// [count/32]. count % 32 == 0.
constexpr void mxfp4_row_quantise(const float* w, int64_t count, uint8_t* packed, uint8_t* scales) {
  for (int64_t group = 0; group < count / kFp4Group; ++group) {
    const float* x = w + group * kFp4Group;
    const int exponent = fp4_exponent(max_abs(x, kFp4Group));
    scales[group] = e8m0_encode_exponent(exponent);
    for (int i = 0; i < kFp4Group; i += 2) {
      const uint32_t high = fp4_code(x[i + 1], exponent);
      packed[(group * kFp4Group + i) / 2] = static_cast<uint8_t>(fp4_code(x[i], exponent) | (high << 4));
    }
  }
}

}  // namespace rorqual::num
