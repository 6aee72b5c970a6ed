// SPDX-License-Identifier: Apache-2.0
// Index scores on AVX2: lanes are keys, transposed 16 at a time; queries are broadcast. Selection stays with
// the scalar code, whose cost is small beside the scores.
#include <immintrin.h>

#include <cstdint>

#include "kernels/cpu/avx2/math_avx2.h"
#include "kernels/cpu/avx2/operators_avx2.h"
#include "kernels/cpu/avx2/tile.h"
#include "kernels/ref/operators_ref.h"

namespace rorqual::kernels::avx2 {
namespace {

constexpr int64_t kKeyTile = 16;
constexpr int64_t kMaxIndexDim = 256;  // the transposed tile stays in the first-level cache

/// 8 rows of 8 floats (row stride `stride`) to columns at `to` with row stride 16.
void transpose_8x8(const float* from, int64_t stride, float* to) {
  __m256 r[8], t[8];
#pragma GCC unroll 8
  for (int i = 0; i < 8; ++i) r[i] = _mm256_loadu_ps(from + i * stride);
#pragma GCC unroll 4
  for (int i = 0; i < 8; i += 2) {
    t[i] = _mm256_unpacklo_ps(r[i], r[i + 1]);
    t[i + 1] = _mm256_unpackhi_ps(r[i], r[i + 1]);
  }
#pragma GCC unroll 2
  for (int i = 0; i < 8; i += 4) {
    r[i] = _mm256_shuffle_ps(t[i], t[i + 2], 0x44);
    r[i + 1] = _mm256_shuffle_ps(t[i], t[i + 2], 0xEE);
    r[i + 2] = _mm256_shuffle_ps(t[i + 1], t[i + 3], 0x44);
    r[i + 3] = _mm256_shuffle_ps(t[i + 1], t[i + 3], 0xEE);
  }
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) {
    _mm256_storeu_ps(to + i * kKeyTile, _mm256_permute2f128_ps(r[i], r[i + 4], 0x20));
    _mm256_storeu_ps(to + (i + 4) * kKeyTile, _mm256_permute2f128_ps(r[i], r[i + 4], 0x31));
  }
}

/// kt[d][lane] of up to 16 keys; missing lanes are zero.
void transpose_keys(const float* keys, int64_t count, int64_t index_dim, float* kt) {
  for (int64_t lane = 0; lane < kKeyTile; lane += 8) {
    if (lane + 8 <= count) {
      for (int64_t d = 0; d < index_dim; d += 8) {
        transpose_8x8(keys + lane * index_dim + d, index_dim, kt + d * kKeyTile + lane);
      }
      continue;
    }
    for (int64_t d = 0; d < index_dim; ++d) {
      for (int64_t i = lane; i < lane + 8; ++i)
        kt[d * kKeyTile + i] = i < count ? keys[i * index_dim + d] : 0.0f;
    }
  }
}

struct Query {
  const float* q;
  const float* w;
  int64_t heads, index_dim;
  bool round;
};

/// Adds Rows heads from `h` on to the sums of 16 keys.
template <int Rows>
void add_heads(const Query& query, int64_t h, const float* kt, __m256 (&sum)[2]) {
  TileAcc<Rows, 2> acc;
  tile_zero<Rows, 2>(acc);
  for (int64_t d = 0; d < query.index_dim; d += 32) {
    tile_block<Rows, 2>({query.q + h * query.index_dim + d, query.index_dim, 1}, kt + d * kKeyTile, kKeyTile,
                        acc);
  }
  const __m256 zero = _mm256_setzero_ps();
#pragma GCC unroll 4
  for (int r = 0; r < Rows; ++r) {
    const __m256 w = _mm256_broadcast_ss(query.w + h + r);
#pragma GCC unroll 2
    for (int v = 0; v < 2; ++v) {
      if (query.round) {
        const __m256 dot = _mm256_max_ps(round_bf16_8(acc[r][v]), zero);
        sum[v] = _mm256_add_ps(sum[v], round_bf16_8(_mm256_mul_ps(dot, w)));
      } else {
        sum[v] = _mm256_fmadd_ps(_mm256_max_ps(acc[r][v], zero), w, sum[v]);
      }
    }
  }
}

void score_keys(const Query& query, const float* kt, float* scores) {
  __m256 sum[2] = {_mm256_setzero_ps(), _mm256_setzero_ps()};
  int64_t h = 0;
  for (; h + 4 <= query.heads; h += 4) add_heads<4>(query, h, kt, sum);
  for (; h < query.heads; ++h) add_heads<1>(query, h, kt, sum);
  _mm256_storeu_ps(scores, query.round ? round_bf16_8(sum[0]) : sum[0]);
  _mm256_storeu_ps(scores + 8, query.round ? round_bf16_8(sum[1]) : sum[1]);
}

}  // namespace

void index_scores(const float* q, const float* w, int64_t heads, int64_t index_dim, const float* keys,
                  int64_t count, Numerics numerics, float* scores) {
  if (index_dim > kMaxIndexDim) {
    ref::index_scores(q, w, heads, index_dim, keys, count, numerics, scores);
    return;
  }
  const Query query{q, w, heads, index_dim, numerics == Numerics::reference};
  alignas(32) float kt[kMaxIndexDim * kKeyTile];
  float tail[kKeyTile];
  for (int64_t begin = 0; begin < count; begin += kKeyTile) {
    const int64_t left = count - begin;
    transpose_keys(keys + begin * index_dim, left, index_dim, kt);
    if (left >= kKeyTile) {
      score_keys(query, kt, scores + begin);
      continue;
    }
    score_keys(query, kt, tail);
    for (int64_t i = 0; i < left; ++i) scores[begin + i] = tail[i];
  }
}

int64_t top_k(const float* scores, int64_t count, int64_t k, int32_t* selected, float* gap) {
  return ref::top_k(scores, count, k, selected, gap);
}

int64_t candidate_blocks(const float* scores, int64_t count, int64_t block_size, int64_t num_blocks,
                         int32_t* blocks) {
  return ref::candidate_blocks(scores, count, block_size, num_blocks, blocks);
}

}  // namespace rorqual::kernels::avx2
