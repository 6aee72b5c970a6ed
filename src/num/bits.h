// SPDX-License-Identifier: Apache-2.0
// Integer arithmetic on the bits of F32 values. Nothing here depends on the rounding mode or on
// flush-to-zero.
#pragma once

#include <bit>
#include <cstdint>

namespace rorqual::num {

constexpr uint32_t bits_of(float value) {
  return std::bit_cast<uint32_t>(value);
}

constexpr float float_of(uint32_t bits) {
  return std::bit_cast<float>(bits);
}

constexpr uint32_t kSignMask = 0x80000000u;
constexpr uint32_t kAbsMask = 0x7fffffffu;
constexpr uint32_t kInfBits = 0x7f800000u;

constexpr bool is_nan(float value) {
  return (bits_of(value) & kAbsMask) > kInfBits;
}

constexpr float abs_of(float value) {
  return float_of(bits_of(value) & kAbsMask);
}

/// value >> shift with round-to-nearest-even; shift >= 0 may exceed the width.
constexpr uint32_t shift_right_rne(uint32_t value, int shift) {
  if (shift == 0) return value;
  if (shift > 31) return 0;
  const uint32_t half = uint32_t{1} << (shift - 1);
  const uint32_t rest = value & (half * 2 - 1);
  const uint32_t kept = value >> shift;
  return kept + (rest > half || (rest == half && (kept & 1) != 0) ? 1 : 0);
}

/// value · 2^exponent, one rounding to nearest even, subnormal operands and results kept whatever MXCSR says.
constexpr float scale_pow2(float value, int exponent) {
  const uint32_t bits = bits_of(value);
  const uint32_t sign = bits & kSignMask;
  const uint32_t abs = bits & kAbsMask;
  if (abs == 0 || abs >= kInfBits) return value;
  int power = static_cast<int>(abs >> 23);
  uint32_t mantissa = abs & 0x7fffffu;
  if (power == 0) {
    const int shift = std::countl_zero(mantissa) - 8;
    mantissa <<= shift;
    power = 1 - shift;
  } else {
    mantissa |= 0x800000u;
  }
  power += exponent;  // biased
  if (power >= 255) return float_of(sign | kInfBits);
  if (power >= 1) return float_of(sign | (static_cast<uint32_t>(power) << 23) | (mantissa & 0x7fffffu));
  return float_of(sign | shift_right_rne(mantissa, 1 - power));
}

/// Smallest n with 2^n >= value, for positive normal F32 values: exponent field, plus one unless a power of
/// two.
constexpr int pow2_ceil_exponent(float value) {
  const uint32_t bits = bits_of(value);
  return static_cast<int>(bits >> 23) - 127 + ((bits & 0x7fffffu) != 0 ? 1 : 0);
}

/// Code of the nearest value of a binary format with `mantissa_bits` and the given bias, ties to even,
/// without sign. Codes above `max_code` become `overflow_code`. NaN is the caller's business.
constexpr uint32_t encode_magnitude(float value, int mantissa_bits, int bias, uint32_t max_code,
                                    uint32_t overflow_code) {
  const uint32_t abs = bits_of(value) & kAbsMask;
  if (abs < 0x00800000u) return 0;  // zero and F32 subnormals are below half of every format's smallest value
  const int power = static_cast<int>(abs >> 23) - 127;
  const uint32_t mantissa = (abs & 0x7fffffu) | 0x800000u;
  const int min_power = 1 - bias;
  uint32_t code = 0;
  if (power >= min_power) {
    const uint32_t units = shift_right_rne(mantissa, 23 - mantissa_bits);
    code = (static_cast<uint32_t>(power + bias - 1) << mantissa_bits) + units;
  } else {
    code = shift_right_rne(mantissa, 23 - mantissa_bits + min_power - power);
  }
  return code > max_code ? overflow_code : code;
}

/// Value of a sign-less code of such a format (special codes are the caller's business).
constexpr float decode_magnitude(uint32_t code, int mantissa_bits, int bias) {
  const uint32_t field = code >> mantissa_bits;
  const uint32_t mantissa = code & ((uint32_t{1} << mantissa_bits) - 1);
  if (field == 0) return scale_pow2(static_cast<float>(mantissa), 1 - bias - mantissa_bits);
  return float_of(((field + 127 - static_cast<uint32_t>(bias)) << 23) | (mantissa << (23 - mantissa_bits)));
}

}  // namespace rorqual::num
