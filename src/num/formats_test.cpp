// SPDX-License-Identifier: Apache-2.0
// Exhaustive tests of the number formats against arithmetic in double, which holds every value of them
// exactly.
#include "num/formats.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>
#include <vector>

#include "num/quantise.h"

namespace rorqual::num {
namespace {

/// Value of a code by the definition of a binary format, in double.
double value_by_definition(uint32_t code, int exponent_bits, int mantissa_bits, int bias) {
  const uint32_t sign = code >> (exponent_bits + mantissa_bits);
  const int field = static_cast<int>((code >> mantissa_bits) & ((1u << exponent_bits) - 1));
  const double fraction = (code & ((1u << mantissa_bits) - 1)) / std::exp2(mantissa_bits);
  const double magnitude =
      field == 0 ? fraction * std::exp2(1 - bias) : (1 + fraction) * std::exp2(field - bias);
  return sign != 0 ? -magnitude : magnitude;
}

/// Checks encoding at, between and just beside all neighbouring finite codes: ties go to the even code.
template <class Encode>
void expect_nearest_even(const Encode& encode, uint32_t max_code, int exponent_bits, int mantissa_bits,
                         int bias) {
  const uint32_t sign_bit = 1u << (exponent_bits + mantissa_bits);
  for (uint32_t code = 0; code < max_code; ++code) {
    const double low = value_by_definition(code, exponent_bits, mantissa_bits, bias);
    const double high = value_by_definition(code + 1, exponent_bits, mantissa_bits, bias);
    const auto middle = static_cast<float>((low + high) / 2);
    ASSERT_EQ(static_cast<double>(middle), (low + high) / 2) << "midpoints must be F32 values";
    const uint32_t even = code % 2 == 0 ? code : code + 1;
    for (const float sign : {1.0f, -1.0f}) {
      const uint32_t s = sign < 0 ? sign_bit : 0;
      ASSERT_EQ(encode(sign * static_cast<float>(low)), s | code) << low;
      ASSERT_EQ(encode(sign * middle), s | even) << middle;
      ASSERT_EQ(encode(sign * std::nextafterf(middle, 0.0f)), s | code) << middle;
      ASSERT_EQ(encode(sign * std::nextafterf(middle, 1e38f)), s | (code + 1)) << middle;
    }
  }
}

TEST(Formats, Bf16DecodesAndEncodesAllCodesExactly) {
  for (uint32_t code = 0; code < 65536; ++code) {
    const float value = bf16_decode(static_cast<uint16_t>(code));
    if (is_nan(value)) {
      EXPECT_EQ(bf16_encode(value), code | 0x40u);
    } else {
      ASSERT_EQ(bf16_encode(value), code);
    }
  }
  EXPECT_EQ(bf16_encode(1.0f + 0x1p-8f), 0x3f80);      // tie to even, down
  EXPECT_EQ(bf16_encode(1.0f + 3 * 0x1p-8f), 0x3f82);  // tie to even, up
  EXPECT_EQ(bf16_encode(std::numeric_limits<float>::max()), 0x7f80);
}

TEST(Formats, Fp16DecodesAndEncodesAllCodesExactly) {
  for (uint32_t code = 0; code < 65536; ++code) {
    const float value = fp16_decode(static_cast<uint16_t>(code));
    const uint32_t abs = code & 0x7fff;
    if (abs > 0x7c00) {
      ASSERT_TRUE(is_nan(value));
      ASSERT_EQ(fp16_encode(value), code | 0x200u);
      continue;
    }
    if (abs < 0x7c00) {
      ASSERT_EQ(value, value_by_definition(code, 5, 10, 15));
    }
    ASSERT_EQ(fp16_encode(value), code);
  }
  expect_nearest_even(fp16_encode, 0x7bff, 5, 10, 15);
  EXPECT_EQ(fp16_encode(65519.996f), 0x7bff);
  EXPECT_EQ(fp16_encode(65520.0f), 0x7c00);
}

TEST(Formats, E4m3IsExactForAllCodesAndSaturates) {
  for (uint32_t code = 0; code < 256; ++code) {
    const float value = e4m3_decode(static_cast<uint8_t>(code));
    if ((code & 0x7f) == 0x7f) {
      EXPECT_TRUE(is_nan(value));
    } else {
      EXPECT_EQ(value, value_by_definition(code, 4, 3, 7));
    }
    EXPECT_EQ(e4m3_encode(value), code);
  }
  expect_nearest_even(e4m3_encode, 0x7e, 4, 3, 7);
  EXPECT_EQ(e4m3_encode(1e30f), 0x7e);
  EXPECT_EQ(e4m3_encode(-std::numeric_limits<float>::infinity()), 0xfe);
  EXPECT_EQ(e4m3_encode(464.0f), 0x7e);
  EXPECT_EQ(e4m3_encode(-0.0f), 0x80);
}

TEST(Formats, E5m2IsExactForAllCodesAndSaturates) {
  for (uint32_t code = 0; code < 256; ++code) {
    const float value = e5m2_decode(static_cast<uint8_t>(code));
    const uint32_t abs = code & 0x7f;
    if (abs > 0x7c) {
      EXPECT_TRUE(is_nan(value));
    } else if (abs < 0x7c) {
      EXPECT_EQ(value, value_by_definition(code, 5, 2, 15));
      EXPECT_EQ(e5m2_encode(value), code);
    }
  }
  expect_nearest_even(e5m2_encode, 0x7b, 5, 2, 15);
  EXPECT_EQ(e5m2_encode(1e30f), 0x7b);
}

TEST(Formats, E2m1RoundsTiesToTheEvenCode) {
  const float values[8] = {0, 0.5f, 1, 1.5f, 2, 3, 4, 6};
  for (uint32_t code = 0; code < 16; ++code) {
    const float value = e2m1_decode(static_cast<uint8_t>(code));
    EXPECT_EQ(value, code < 8 ? values[code] : -values[code - 8]);
    EXPECT_EQ(std::signbit(value), code >= 8);
    EXPECT_EQ(e2m1_encode(value), code);
  }
  expect_nearest_even(e2m1_encode, 7, 2, 1, 1);
  const float ties[8] = {0.25f, 0.75f, 1.25f, 1.75f, 2.5f, 3.5f, 5.0f, 7.0f};
  const uint8_t expected[8] = {0, 2, 2, 4, 4, 6, 6, 7};
  for (int i = 0; i < 8; ++i) EXPECT_EQ(e2m1_encode(ties[i]), expected[i]) << ties[i];
}

TEST(Formats, E8m0CoversSubnormalAndNan) {
  for (int code = 0; code < 255; ++code) {
    EXPECT_EQ(static_cast<double>(e8m0_decode(static_cast<uint8_t>(code))), std::exp2(code - 127));
    EXPECT_EQ(e8m0_encode_exponent(code - 127), code);
  }
  EXPECT_TRUE(is_nan(e8m0_decode(255)));
  EXPECT_EQ(e8m0_encode_exponent(-200), 0);
}

TEST(Bits, ScalePow2EqualsLdexpInEveryRange) {
  constexpr uint32_t seed = 7;
  std::mt19937 random(seed);
  for (int i = 0; i < 200000; ++i) {
    const float value = float_of(static_cast<uint32_t>(random()));
    const int exponent = static_cast<int>(random() % 600) - 300;
    if (is_nan(value)) continue;
    ASSERT_EQ(bits_of(scale_pow2(value, exponent)), bits_of(std::ldexp(value, exponent)))
        << "seed " << seed << " value " << value << " exponent " << exponent;
  }
}

TEST(Bits, Pow2CeilIsTheNextPowerOfTwo) {
  for (int n = -126; n < 127; ++n) {
    const auto power = static_cast<float>(std::exp2(n));
    EXPECT_EQ(pow2_ceil_exponent(power), n);
    EXPECT_EQ(pow2_ceil_exponent(std::nextafterf(power, 1e38f)), n + 1);
  }
}

TEST(Quantise, ActivationScaleHasAFloorAndCoversTheMaximum) {
  EXPECT_EQ(fp8_exponent(0.0f), -22);
  EXPECT_EQ(fp8_exponent(448.0f), 0);
  EXPECT_EQ(fp8_exponent(449.0f), 1);
  EXPECT_EQ(fp4_exponent(0.0f), -126);
  EXPECT_EQ(fp4_exponent(6.0f), 0);
  EXPECT_EQ(fp4_kv_scale(0.0f), 1);  // 2^-9
  EXPECT_EQ(e4m3_decode(fp4_kv_scale(6.0f * 0.9f)), 0.875f);
  EXPECT_EQ(fp4_kv_code(7.0f, fp4_kv_scale(6.0f)), 7);
}

TEST(Quantise, BlocksOfDenseWeightsMayBeCutByTheMatrixEdge) {
  constexpr int64_t rows = 33;
  constexpr int64_t cols = 40;
  std::vector<float> w(rows * cols, 0.0f);
  w[0] = 448.0f;            // block (0, 0): scale 1
  w[39] = 3.0f;             // block (0, 1): 3/448 -> 2^-7
  w[32 * cols] = -2000.0f;  // block (1, 0): 2000/448 -> 8
  std::vector<uint8_t> codes(rows * cols), scales(4);
  fp8_block_quantise(w.data(), rows, cols, codes.data(), scales.data());
  EXPECT_EQ(scales[0], 127);
  EXPECT_EQ(scales[1], 120);
  EXPECT_EQ(scales[2], 130);
  EXPECT_EQ(scales[3], 127 - 108);  // the floor 2^-100 / 448
  EXPECT_EQ(fp8_value(codes[39], e8m0_exponent(scales[1])), 3.0f);
  EXPECT_EQ(fp8_value(codes[32 * cols], e8m0_exponent(scales[2])), -2048.0f);
}

TEST(Quantise, Mxfp4PacksEvenColumnsIntoTheLowNibble) {
  std::vector<float> w(32, 0.0f);
  w[0] = 6.0f;
  w[1] = -1.5f;
  uint8_t packed[16], scale = 0;
  mxfp4_row_quantise(w.data(), 32, packed, &scale);
  EXPECT_EQ(scale, 127);
  EXPECT_EQ(packed[0], 0xb7);
  EXPECT_EQ(packed[1], 0);
}

}  // namespace
}  // namespace rorqual::num
