// SPDX-License-Identifier: Apache-2.0
// Reading single blocks (16 rows x 32 columns) of packed matrices: layout arithmetic and the scalar decoder.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/matrix.h"

namespace rorqual::kernels {

/// Bytes of one block of a panel.
constexpr int64_t block_bytes(WeightFormat format) {
  switch (format) {
    case WeightFormat::f32:
      return kPanelRows * kBlockCols * 4;
    case WeightFormat::bf16:
      return kPanelRows * kBlockCols * 2;
    case WeightFormat::fp8_block32:
      return kPanelRows * kBlockCols;
    case WeightFormat::mxfp4:
      return kPanelRows * kBlockCols / 2;
  }
  return 0;
}

/// Scale bytes of one block.
constexpr int64_t block_scale_bytes(WeightFormat format) {
  return format == WeightFormat::mxfp4 ? kPanelRows : format == WeightFormat::fp8_block32 ? 1 : 0;
}

inline const std::byte* block_data(const Matrix& matrix, int64_t panel, int64_t block) {
  return matrix.data + (panel * matrix.num_blocks() + block) * block_bytes(matrix.format);
}

inline const uint8_t* block_scales(const Matrix& matrix, int64_t panel, int64_t block) {
  return matrix.scales + (panel * matrix.num_blocks() + block) * block_scale_bytes(matrix.format);
}

/// Values of a block as F32 [32 columns][16 rows], without scales.
void decode_block(const Matrix& matrix, int64_t panel, int64_t block, float* values);

/// The same with scales applied, each value rounded once to F32: what wide_scales matrices multiply with.
void decode_block_scaled(const Matrix& matrix, int64_t panel, int64_t block, float* values);

}  // namespace rorqual::kernels
