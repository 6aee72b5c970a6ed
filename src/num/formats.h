// SPDX-License-Identifier: Apache-2.0
// Scalar number formats: BF16, FP16, E4M3, E5M2, E2M1, E8M0. All encoders round to nearest, ties to even; all
// of them are integer arithmetic, so flush-to-zero does not change a result. Byte tables: docs/formats.md.
#pragma once

#include <cstdint>

#include "num/bits.h"

namespace rorqual::num {

constexpr float kE4m3Max = 448.0f;
constexpr float kE5m2Max = 57344.0f;
constexpr float kE2m1Max = 6.0f;

// ---- BF16: the upper half of an F32; overflow gives infinity, NaN stays a (quiet) NaN of the same sign
constexpr float bf16_decode(uint16_t code) {
  return float_of(static_cast<uint32_t>(code) << 16);
}

constexpr uint16_t bf16_encode(float value) {
  const uint32_t bits = bits_of(value);
  if (is_nan(value)) return static_cast<uint16_t>((bits >> 16) | 0x40u);
  return static_cast<uint16_t>((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}

constexpr float bf16_round(float value) {
  return bf16_decode(bf16_encode(value));
}

// ---- FP16 (IEEE binary16): overflow gives infinity
constexpr float fp16_decode(uint16_t code) {
  const uint32_t sign = static_cast<uint32_t>(code & 0x8000u) << 16;
  const uint32_t abs = code & 0x7fffu;
  if (abs >= 0x7c00u) return float_of(sign | kInfBits | ((abs & 0x3ffu) << 13));
  return float_of(sign | bits_of(decode_magnitude(abs, 10, 15)));
}

constexpr uint16_t fp16_encode(float value) {
  const uint32_t sign = (bits_of(value) & kSignMask) >> 16;
  if (is_nan(value)) return static_cast<uint16_t>(sign | 0x7e00u | ((bits_of(value) >> 13) & 0x1ffu));
  return static_cast<uint16_t>(sign | encode_magnitude(value, 10, 15, 0x7bffu, 0x7c00u));
}

// ---- E4M3 (no infinity, 0x7f and 0xff are NaN): saturates at ±448
constexpr float e4m3_decode(uint8_t code) {
  const uint32_t sign = static_cast<uint32_t>(code & 0x80u) << 24;
  const uint32_t abs = code & 0x7fu;
  if (abs == 0x7fu) return float_of(sign | 0x7fc00000u);
  return float_of(sign | bits_of(decode_magnitude(abs, 3, 7)));
}

constexpr uint8_t e4m3_encode(float value) {
  const uint32_t sign = (bits_of(value) & kSignMask) >> 24;
  if (is_nan(value)) return static_cast<uint8_t>(sign | 0x7fu);
  return static_cast<uint8_t>(sign | encode_magnitude(value, 3, 7, 0x7eu, 0x7eu));
}

// ---- E5M2 (0x7c infinity, above NaN): encoding saturates at ±57344
constexpr float e5m2_decode(uint8_t code) {
  return fp16_decode(static_cast<uint16_t>(code << 8));
}

constexpr uint8_t e5m2_encode(float value) {
  const uint32_t sign = (bits_of(value) & kSignMask) >> 24;
  if (is_nan(value)) return static_cast<uint8_t>(sign | 0x7fu);
  return static_cast<uint8_t>(sign | encode_magnitude(value, 2, 15, 0x7bu, 0x7bu));
}

// ---- E2M1, one nibble: 0, 0.5, 1, 1.5, 2, 3, 4, 6 and bit 3 for the sign (of zero too); saturates at ±6
constexpr float e2m1_decode(uint8_t code) {
  const uint32_t sign = static_cast<uint32_t>(code & 8u) << 28;
  return float_of(sign | bits_of(decode_magnitude(code & 7u, 1, 1)));
}

/// NaN has no code and becomes ±6.
constexpr uint8_t e2m1_encode(float value) {
  const uint32_t sign = (bits_of(value) & kSignMask) >> 28;
  return static_cast<uint8_t>(sign | encode_magnitude(value, 1, 1, 7u, 7u));
}

constexpr uint8_t e2m1_low(uint8_t byte) {
  return byte & 15u;
}

constexpr uint8_t e2m1_high(uint8_t byte) {
  return static_cast<uint8_t>(byte >> 4);
}

// ---- E8M0: 2^(code − 127); code 0 is the F32 subnormal 2^−127, 255 is NaN
constexpr float e8m0_decode(uint8_t code) {
  if (code == 0) return float_of(0x00400000u);
  if (code == 255) return float_of(0x7fc00000u);
  return float_of(static_cast<uint32_t>(code) << 23);
}

constexpr int e8m0_exponent(uint8_t code) {
  return static_cast<int>(code) - 127;
}

/// Code of 2^exponent, clamped to what the format holds.
constexpr uint8_t e8m0_encode_exponent(int exponent) {
  return static_cast<uint8_t>(exponent < -127 ? 0 : exponent > 127 ? 254 : exponent + 127);
}

}  // namespace rorqual::num
