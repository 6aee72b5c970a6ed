// SPDX-License-Identifier: Apache-2.0
// Packing: every element of the checkpoint form is where matrix_value and the kernels look for it.
#include "kernels/matrix.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <random>
#include <vector>

#include "kernels/panel.h"
#include "kernels/test_matrices.h"
#include "num/formats.h"

namespace rorqual::kernels {
namespace {

constexpr uint32_t kSeed = 5;

/// Element of the checkpoint's own layout, by the definitions of docs/formats.md.
float source_value(const TestMatrix& matrix, int64_t row, int64_t col) {
  const Matrix& view = matrix.view();
  const auto byte_at = [&](int64_t i) {
    return static_cast<uint8_t>(matrix.source()[static_cast<size_t>(i)]);
  };
  const int64_t blocks = (view.cols + 31) / 32;
  switch (view.format) {
    case WeightFormat::f32: {
      float value = 0;
      std::memcpy(&value, &matrix.source()[static_cast<size_t>((row * view.cols + col) * 4)], 4);
      return value;
    }
    case WeightFormat::bf16: {
      const int64_t i = (row * view.cols + col) * 2;
      return num::bf16_decode(static_cast<uint16_t>(byte_at(i) | byte_at(i + 1) << 8));
    }
    case WeightFormat::fp8_block32: {
      const uint8_t scale = matrix.scales()[static_cast<size_t>(row / 32 * blocks + col / 32)];
      return static_cast<float>(std::ldexp(num::e4m3_decode(byte_at(row * view.cols + col)), scale - 127));
    }
    case WeightFormat::mxfp4: {
      const uint8_t scale = matrix.scales()[static_cast<size_t>(row * blocks + col / 32)];
      const uint8_t byte = byte_at(row * ((view.cols + 1) / 2) + col / 2);
      const auto code = static_cast<uint8_t>(col % 2 == 0 ? byte & 15 : byte >> 4);
      return static_cast<float>(std::ldexp(num::e2m1_decode(code), scale - 127));
    }
  }
  return 0;
}

TEST(Matrix, PackingKeepsEveryElementOfEveryFormatAndShape) {
  std::mt19937 random(kSeed);
  for (const WeightFormat format : kAllFormats) {
    for (const int64_t rows : {1, 16, 17, 33, 70}) {
      for (const int64_t cols : {1, 31, 32, 33, 100}) {
        for (const bool wide : {false, true}) {
          const TestMatrix matrix(random, format, rows, cols, wide);
          for (int64_t row = 0; row < rows; ++row) {
            for (int64_t col = 0; col < cols; ++col) {
              ASSERT_EQ(num::bits_of(matrix_value(matrix.view(), row, col)),
                        num::bits_of(source_value(matrix, row, col)))
                  << format_name(format) << " [" << rows << ", " << cols << "] at " << row << ", " << col;
            }
          }
        }
      }
    }
  }
}

TEST(Matrix, SizesCountWholePanelsAndBlocks) {
  EXPECT_EQ(packed_data_bytes(WeightFormat::f32, 17, 33), 2 * 2 * 2048);
  EXPECT_EQ(packed_data_bytes(WeightFormat::bf16, 16, 32), 1024);
  EXPECT_EQ(packed_data_bytes(WeightFormat::fp8_block32, 16, 64), 1024);
  EXPECT_EQ(packed_data_bytes(WeightFormat::mxfp4, 16, 64), 512);
  EXPECT_EQ(packed_scale_bytes(WeightFormat::fp8_block32, 33, 64), 3 * 2);
  EXPECT_EQ(packed_scale_bytes(WeightFormat::mxfp4, 33, 64), 3 * 2 * 16);
  EXPECT_EQ(packed_scale_bytes(WeightFormat::bf16, 33, 64), 0);
  EXPECT_EQ(source_row_bytes(WeightFormat::mxfp4, 33), 17);
}

/// wide_scales of one MXFP4 block whose first row has this scale and these codes.
bool is_wide(WeightFormat format, uint8_t scale, uint8_t code) {
  std::vector<std::byte> source(static_cast<size_t>(source_row_bytes(format, 32)));
  source[3] = static_cast<std::byte>(code);
  alignas(64) std::byte data[1024];
  uint8_t scales[16];
  return pack_matrix(format, 1, 32, source.data(), &scale, data, scales).wide_scales;
}

TEST(Matrix, OnlyExtremeScalesOfNonzeroBlocksAreWide) {
  for (const WeightFormat format : {WeightFormat::mxfp4, WeightFormat::fp8_block32}) {
    EXPECT_FALSE(is_wide(format, 127, 0x11));
    EXPECT_FALSE(is_wide(format, 127 - 86, 0x11));
    EXPECT_TRUE(is_wide(format, 127 - 87, 0x11));
    EXPECT_FALSE(is_wide(format, 127 + 49, 0x11));
    EXPECT_TRUE(is_wide(format, 127 + 50, 0x11));
    EXPECT_FALSE(is_wide(format, 0, 0x00));
    EXPECT_FALSE(is_wide(format, 254, 0x80));  // zeros, one of them negative
    EXPECT_TRUE(is_wide(format, 255, 0x00));   // NaN reaches every product
  }
  EXPECT_TRUE(is_wide(WeightFormat::fp8_block32, 127, 0x7f));  // NaN code
}

}  // namespace
}  // namespace rorqual::kernels
