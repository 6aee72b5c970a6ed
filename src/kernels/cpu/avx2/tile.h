// SPDX-License-Identifier: Apache-2.0
// The register tile that scores, P·V and index dot products share: Rows broadcast rows times Vecs·8 lanes
// over one 32-wide block of k, in the linear order (an FMA chain over even k, one over odd k, then even +
// odd).
#pragma once

#include <immintrin.h>

#include <cstddef>
#include <cstdint>

namespace rorqual::kernels::avx2 {
namespace {

/// Registers of a tile: [Rows][Vecs].
template <int Rows, int Vecs>
using TileAcc = __m256[static_cast<size_t>(Rows)][static_cast<size_t>(Vecs)];

/// Rows of `a`: element (row, k) at a[row·row_stride + k·k_stride].
struct BroadcastRows {
  const float* a;
  int64_t row_stride;
  int64_t k_stride;
};

/// One chain: acc[r][v] = Σ a(r, k)·b[k·b_stride + 8v], k = first, first + 2, … below 32, from zero.
template <int Rows, int Vecs>
inline void tile_chain(const BroadcastRows& rows, const float* b, int64_t b_stride, int64_t first,
                       TileAcc<Rows, Vecs>& acc) {
#pragma GCC unroll 4
  for (int r = 0; r < Rows; ++r) {
#pragma GCC unroll 2
    for (int v = 0; v < Vecs; ++v) acc[r][v] = _mm256_setzero_ps();
  }
  const float* a = rows.a + first * rows.k_stride;
  b += first * b_stride;
  for (int64_t k = 0; k < 16; ++k) {
    __m256 lanes[static_cast<size_t>(Vecs)];
#pragma GCC unroll 2
    for (int v = 0; v < Vecs; ++v) lanes[v] = _mm256_loadu_ps(b + 8 * v);
#pragma GCC unroll 4
    for (int r = 0; r < Rows; ++r) {
      const __m256 x = _mm256_broadcast_ss(a + r * rows.row_stride);
#pragma GCC unroll 2
      for (int v = 0; v < Vecs; ++v) acc[r][v] = _mm256_fmadd_ps(x, lanes[v], acc[r][v]);
    }
    a += 2 * rows.k_stride;
    b += 2 * b_stride;
  }
}

/// acc[r][v] += even chain + odd chain of the block. Not inlined: the callers would take the registers of the
/// strides.
template <int Rows, int Vecs>
__attribute__((noinline)) void tile_block(const BroadcastRows& rows, const float* b, int64_t b_stride,
                                          TileAcc<Rows, Vecs>& acc) {
  TileAcc<Rows, Vecs> even, odd;
  tile_chain<Rows, Vecs>(rows, b, b_stride, 0, even);
  tile_chain<Rows, Vecs>(rows, b, b_stride, 1, odd);
#pragma GCC unroll 4
  for (int r = 0; r < Rows; ++r) {
#pragma GCC unroll 2
    for (int v = 0; v < Vecs; ++v) acc[r][v] = _mm256_add_ps(acc[r][v], _mm256_add_ps(even[r][v], odd[r][v]));
  }
}

template <int Rows, int Vecs>
inline void tile_zero(TileAcc<Rows, Vecs>& acc) {
#pragma GCC unroll 4
  for (int r = 0; r < Rows; ++r) {
#pragma GCC unroll 2
    for (int v = 0; v < Vecs; ++v) acc[r][v] = _mm256_setzero_ps();
  }
}

}  // namespace
}  // namespace rorqual::kernels::avx2
