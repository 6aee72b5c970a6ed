// SPDX-License-Identifier: Apache-2.0
// Random packed matrices for tests. Not part of the library.
#pragma once

#include <cstdint>
#include <cstring>
#include <random>
#include <vector>

#include "base/check.h"
#include "kernels/matrix.h"
#include "num/formats.h"
#include "tensor/buffer.h"

namespace rorqual::kernels {

inline constexpr WeightFormat kAllFormats[] = {WeightFormat::f32, WeightFormat::bf16,
                                               WeightFormat::fp8_block32, WeightFormat::mxfp4};

inline const char* format_name(WeightFormat format) {
  switch (format) {
    case WeightFormat::f32:
      return "f32";
    case WeightFormat::bf16:
      return "bf16";
    case WeightFormat::fp8_block32:
      return "fp8_block32";
    case WeightFormat::mxfp4:
      return "mxfp4";
  }
  return "";
}

/// A matrix in checkpoint form and in panels. `wide`: scales over the whole of E8M0 but NaN.
class TestMatrix {
 public:
  TestMatrix(std::mt19937& random, WeightFormat format, int64_t rows, int64_t cols, bool wide = false)
      : source_(static_cast<size_t>(rows * source_row_bytes(format, cols))),
        scales_(static_cast<size_t>(rows * ((cols + 31) / 32))) {
    fill(random, format);
    for (uint8_t& scale : scales_) {
      scale = static_cast<uint8_t>(wide ? random() % 255 : 118 + random() % 12);
    }
    data_ = allocate(packed_data_bytes(format, rows, cols));
    packed_scales_ = allocate(packed_scale_bytes(format, rows, cols) + 1);
    view_ = pack_matrix(format, rows, cols, source_.data(), scales_.data(), data_.data(),
                        reinterpret_cast<uint8_t*>(packed_scales_.data()));
  }

  const Matrix& view() const { return view_; }

  const std::vector<std::byte>& source() const { return source_; }

  const std::vector<uint8_t>& scales() const { return scales_; }

 private:
  static tensor::Buffer allocate(int64_t bytes) {
    auto buffer = tensor::Buffer::allocate(bytes + 1);
    RORQUAL_CHECK(buffer.ok());
    return *std::move(buffer);
  }

  void fill(std::mt19937& random, WeightFormat format) {
    std::normal_distribution<float> normal;
    if (format == WeightFormat::f32) {
      for (size_t i = 0; i + 4 <= source_.size(); i += 4) {
        const float value = normal(random);
        std::memcpy(&source_[i], &value, 4);
      }
    } else if (format == WeightFormat::bf16) {
      for (size_t i = 0; i + 2 <= source_.size(); i += 2) {
        const uint16_t value = num::bf16_encode(normal(random));
        std::memcpy(&source_[i], &value, 2);
      }
    } else {
      for (std::byte& byte : source_) {
        auto code = static_cast<uint8_t>(random());
        if (format == WeightFormat::fp8_block32 && (code & 0x7f) == 0x7f) code ^= 1;
        byte = static_cast<std::byte>(code);
      }
    }
  }

  std::vector<std::byte> source_;
  std::vector<uint8_t> scales_;
  tensor::Buffer data_, packed_scales_;
  Matrix view_;
};

}  // namespace rorqual::kernels
