// SPDX-License-Identifier: Apache-2.0
// How stages cut matrix products into chunks for the thread pool. Every output element is computed whole
// within one chunk, so no choice made here can change a bit.
#pragma once

#include <algorithm>
#include <cstdint>

#include "kernels/matrix.h"

namespace rorqual::kernels::cpu {

/// Rows of x that one call of the linear operator sees: their columns and sums fit in the first-level cache.
inline constexpr int64_t kTileRows = 48;

constexpr int64_t divide_up(int64_t a, int64_t b) {
  return (a + b - 1) / b;
}

constexpr int64_t padded_cols(int64_t cols) {
  return divide_up(cols, kBlockCols) * kBlockCols;
}

/// Panels of a chunk: about 2^18 multiplications, 5 to 20 µs, and an even number, so that 32 output columns
/// (a group of the activation quantiser) stay together.
constexpr int64_t panels_per_chunk(const Matrix& weight, int64_t num_rows) {
  constexpr int64_t kChunkProducts = int64_t{1} << 18;
  const int64_t per_panel = kPanelRows * std::max<int64_t>(weight.cols, 1) * std::max<int64_t>(num_rows, 1);
  return std::max<int64_t>(kChunkProducts / per_panel / 2 * 2, 2);
}

}  // namespace rorqual::kernels::cpu
