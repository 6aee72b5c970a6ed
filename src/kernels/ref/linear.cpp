// SPDX-License-Identifier: Apache-2.0
// Scalar matrix product over panels: the definition of the order of summation (docs/numerics.md).
#include <algorithm>
#include <cmath>

#include "kernels/panel.h"
#include "kernels/ref/operators_ref.h"
#include "num/formats.h"

namespace rorqual::kernels::ref {
namespace {

constexpr int64_t kRowTile = 16;  // rows that share one decoded block

/// One decoded block: values [32][16], and what a block sum is multiplied with, per row of the panel.
struct Block {
  float values[kBlockCols * kPanelRows];
  float scales[kPanelRows];
  bool scaled = false;  // false: the sum is added as it is
};

void load_block(const Matrix& weight, int64_t panel, int64_t index, Block& block) {
  block.scaled = weight.scales != nullptr && !weight.wide_scales;
  if (!block.scaled) {
    decode_block_scaled(weight, panel, index, block.values);
    return;
  }
  decode_block(weight, panel, index, block.values);
  const uint8_t* scales = block_scales(weight, panel, index);
  for (int64_t r = 0; r < kPanelRows; ++r) {
    // Only blocks of zeros can have scale 0 (2^-127) here; flushed or not, they contribute +0.
    const uint8_t scale = scales[weight.format == WeightFormat::mxfp4 ? r : 0];
    block.scales[r] = num::float_of(static_cast<uint32_t>(scale) << 23);
  }
}

/// acc[r] += x[32] · block, even and odd chains from zero.
void add_block(const Block& block, const float* x, float* acc) {
  float even[kPanelRows] = {};
  float odd[kPanelRows] = {};
  for (int64_t k = 0; k < kBlockCols; k += 2) {
    const float* w = block.values + k * kPanelRows;
    for (int64_t r = 0; r < kPanelRows; ++r) even[r] = std::fma(x[k], w[r], even[r]);
    for (int64_t r = 0; r < kPanelRows; ++r) odd[r] = std::fma(x[k + 1], w[kPanelRows + r], odd[r]);
  }
  for (int64_t r = 0; r < kPanelRows; ++r) {
    const float sum = even[r] + odd[r];
    acc[r] = block.scaled ? std::fma(sum, block.scales[r], acc[r]) : acc[r] + sum;
  }
}

void write_row(const LinearTile& tile, int64_t panel, const float* acc, float* y) {
  const int64_t first = panel * kPanelRows;
  const int64_t count = std::min(kPanelRows, tile.weight->rows - first);
  for (int64_t r = 0; r < count; ++r) y[first + r] = tile.round_bf16 ? num::bf16_round(acc[r]) : acc[r];
}

}  // namespace

void linear(const LinearTile& tile) {
  Block block;
  for (int64_t panel = tile.panel_begin; panel < tile.panel_end; ++panel) {
    for (int64_t row = 0; row < tile.num_rows; row += kRowTile) {
      const int64_t count = std::min(kRowTile, tile.num_rows - row);
      float acc[kRowTile * kPanelRows] = {};
      for (int64_t index = 0; index < tile.weight->num_blocks(); ++index) {
        load_block(*tile.weight, panel, index, block);
        for (int64_t t = 0; t < count; ++t) {
          add_block(block, tile.x + (row + t) * tile.x_stride + index * kBlockCols, acc + t * kPanelRows);
        }
      }
      for (int64_t t = 0; t < count; ++t) {
        write_row(tile, panel, acc + t * kPanelRows, tile.y + (row + t) * tile.y_stride);
      }
    }
  }
}

}  // namespace rorqual::kernels::ref
