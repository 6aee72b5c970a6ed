// SPDX-License-Identifier: Apache-2.0
// Attention of one row on AVX2. Scores: lanes are heads, keys are broadcast, so a key is never transposed.
// P·V: lanes are value dimensions, probabilities are broadcast. Same order of every sum as
// kernels/ref/attention.cpp.
#include <immintrin.h>

#include <cstdint>

#include "kernels/cpu/avx2/math_avx2.h"
#include "kernels/cpu/avx2/operators_avx2.h"
#include "kernels/cpu/avx2/tile.h"

namespace rorqual::kernels::avx2 {
namespace {

constexpr int64_t kBlockEntries = 64;
constexpr int64_t kValueTile = 16;  // value dimensions packed at a time: 64 entries x 16 floats = 4 KiB
constexpr float kNoMaximum = -1e30f;

int64_t padded_heads(int64_t num_heads) {
  return (num_heads + 7) / 8 * 8;
}

struct Row {
  int64_t num_heads, lanes;  // lanes: heads padded to 8
  int64_t head_dim, num_slots, num_blocks;
  const float* keys;
  const uint8_t* valid;
  float* qt;           // [head_dim][lanes]
  float* scores;       // [num_blocks · 64][lanes]
  float* block_max;    // [num_blocks][lanes]
  float* denominator;  // [lanes]
  float* tile;         // [64][16]

  bool has(int64_t s) const { return s < num_slots && valid[s] != 0; }

  bool any(int64_t begin, int64_t end) const {
    for (int64_t s = begin; s < end; ++s) {
      if (has(s)) return true;
    }
    return false;
  }
};

Row make_row(int64_t num_heads, int64_t head_dim, int64_t num_slots, float* workspace) {
  Row row{};
  row.num_heads = num_heads;
  row.lanes = padded_heads(num_heads);
  row.head_dim = head_dim;
  row.num_slots = num_slots;
  row.num_blocks = (num_slots + kBlockEntries - 1) / kBlockEntries;
  row.qt = workspace;
  row.scores = row.qt + head_dim * row.lanes;
  row.block_max = row.scores + row.num_blocks * kBlockEntries * row.lanes;
  row.denominator = row.block_max + row.num_blocks * row.lanes;
  row.tile = row.denominator + row.lanes;
  return row;
}

void transpose_queries(const Row& row, const float* q) {
  for (int64_t h = 0; h < row.lanes; ++h) {
    for (int64_t d = 0; d < row.head_dim; ++d) {
      row.qt[d * row.lanes + h] = h < row.num_heads ? q[h * row.head_dim + d] : 0.0f;
    }
  }
}

/// scores[s + r][h …] += the 32-wide block of d at `d`, for Rows slots and Vecs·8 heads.
template <int Rows, int Vecs>
void score_tile(const Row& row, int64_t s, int64_t h, int64_t d) {
  float* out = row.scores + s * row.lanes + h;
  TileAcc<Rows, Vecs> acc;
#pragma GCC unroll 4
  for (int r = 0; r < Rows; ++r) {
#pragma GCC unroll 2
    for (int v = 0; v < Vecs; ++v) acc[r][v] = _mm256_loadu_ps(out + r * row.lanes + 8 * v);
  }
  const BroadcastRows keys{row.keys + s * row.head_dim + d, row.head_dim, 1};
  tile_block<Rows, Vecs>(keys, row.qt + d * row.lanes + h, row.lanes, acc);
#pragma GCC unroll 4
  for (int r = 0; r < Rows; ++r) {
#pragma GCC unroll 2
    for (int v = 0; v < Vecs; ++v) _mm256_storeu_ps(out + r * row.lanes + 8 * v, acc[r][v]);
  }
}

template <int Vecs>
void score_slots(const Row& row, int64_t begin, int64_t end, int64_t h) {
  for (int64_t d = 0; d < row.head_dim; d += 32) {
    int64_t s = begin;
    for (; s + 4 <= end; s += 4) {
      if (row.any(s, s + 4)) score_tile<4, Vecs>(row, s, h, d);
    }
    for (; s < end; ++s) score_tile<1, Vecs>(row, s, h, d);
  }
}

/// Raw dot products of the block's slots with all heads.
void score_block(const Row& row, int64_t begin) {
  const int64_t end = begin + kBlockEntries < row.num_slots ? begin + kBlockEntries : row.num_slots;
  float* scores = row.scores + begin * row.lanes;
  for (int64_t i = 0; i < kBlockEntries * row.lanes; i += 8)
    _mm256_storeu_ps(scores + i, _mm256_setzero_ps());
  int64_t h = 0;
  for (; h + 16 <= row.lanes; h += 16) score_slots<2>(row, begin, end, h);
  for (; h < row.lanes; h += 8) score_slots<1>(row, begin, end, h);
}

/// Scales and masks the scores of block i and continues the running maximum.
void scale_block(const Row& row, int64_t i, float scale, float* running_max) {
  const __m256 factor = _mm256_set1_ps(scale);
  const __m256 minus_inf = _mm256_set1_ps(-__builtin_inff());
  for (int64_t h = 0; h < row.lanes; h += 8) {
    __m256 m = _mm256_loadu_ps(running_max + h);
    for (int64_t s = i * kBlockEntries; s < (i + 1) * kBlockEntries; ++s) {
      float* at = row.scores + s * row.lanes + h;
      const __m256 score = row.has(s) ? _mm256_mul_ps(_mm256_loadu_ps(at), factor) : minus_inf;
      _mm256_storeu_ps(at, score);
      m = _mm256_max_ps(score, m);
    }
    _mm256_storeu_ps(running_max + h, m);
    _mm256_storeu_ps(row.block_max + i * row.lanes + h, m);
  }
}

/// Reduction order over the 64 entries at `p` (stride `lanes`): 16 chains, then +8, +4, +2, +1.
__m256 sum_64(const float* p, int64_t lanes) {
  __m256 chain[16];
  for (int64_t j = 0; j < 16; ++j) {
    chain[j] = _mm256_loadu_ps(p + j * lanes);
    for (int64_t i = 1; i < 4; ++i)
      chain[j] = _mm256_add_ps(chain[j], _mm256_loadu_ps(p + (j + 16 * i) * lanes));
  }
  for (int64_t width = 8; width >= 1; width /= 2) {
    for (int64_t j = 0; j < width; ++j) chain[j] = _mm256_add_ps(chain[j], chain[j + width]);
  }
  return chain[0];
}

/// Scores of block i become probabilities in place; block_max[i] becomes the block's weight; denominators
/// grow.
void soften_block(const Row& row, int64_t i, const float* last_max, bool round) {
  float* p = row.scores + i * kBlockEntries * row.lanes;
  for (int64_t h = 0; h < row.lanes; h += 8) {
    float* max_at = row.block_max + i * row.lanes + h;
    const __m256 m = _mm256_loadu_ps(max_at);
    for (int64_t s = 0; s < kBlockEntries; ++s) {
      float* at = p + s * row.lanes + h;
      const bool has = row.has(i * kBlockEntries + s);
      _mm256_storeu_ps(at, has ? exp8(_mm256_sub_ps(_mm256_loadu_ps(at), m)) : _mm256_setzero_ps());
    }
    const __m256 weight = exp8(_mm256_sub_ps(m, _mm256_loadu_ps(last_max + h)));
    _mm256_storeu_ps(max_at, weight);
    float* den = row.denominator + h;
    _mm256_storeu_ps(den, _mm256_fmadd_ps(weight, sum_64(p + h, row.lanes), _mm256_loadu_ps(den)));
    if (!round) continue;
    for (int64_t s = 0; s < kBlockEntries; ++s) {
      float* at = p + s * row.lanes + h;
      _mm256_storeu_ps(at, round_bf16_8(_mm256_loadu_ps(at)));
    }
  }
}

/// Copies 16 value dimensions of the block's entries, zeros where there is none.
void pack_values(const Row& row, int64_t begin, int64_t d) {
  for (int64_t s = 0; s < kBlockEntries; ++s) {
    float* to = row.tile + s * kValueTile;
    if (row.has(begin + s)) {
      const float* from = row.keys + (begin + s) * row.head_dim + d;
      _mm256_storeu_ps(to, _mm256_loadu_ps(from));
      _mm256_storeu_ps(to + 8, _mm256_loadu_ps(from + 8));
    } else {
      _mm256_storeu_ps(to, _mm256_setzero_ps());
      _mm256_storeu_ps(to + 8, _mm256_setzero_ps());
    }
  }
}

/// out[h + r][d …] = weight·(P·V) + out for Rows heads; halves: how many 32-blocks hold entries at all.
template <int Rows>
void value_tile(const Row& row, int64_t i, int64_t h, int halves, float* out) {
  const float* p = row.scores + i * kBlockEntries * row.lanes + h;
  TileAcc<Rows, 2> acc;
  tile_zero<Rows, 2>(acc);
  for (int half = 0; half < halves; ++half) {
    tile_block<Rows, 2>({p + 32 * half * row.lanes, 1, row.lanes}, row.tile + 32 * half * kValueTile,
                        kValueTile, acc);
  }
#pragma GCC unroll 4
  for (int r = 0; r < Rows; ++r) {
    const __m256 weight = _mm256_broadcast_ss(row.block_max + i * row.lanes + h + r);
    float* to = out + r * row.head_dim;
#pragma GCC unroll 2
    for (int v = 0; v < 2; ++v) {
      _mm256_storeu_ps(to + 8 * v, _mm256_fmadd_ps(weight, acc[r][v], _mm256_loadu_ps(to + 8 * v)));
    }
  }
}

void value_block(const Row& row, int64_t i, float* out) {
  const int64_t begin = i * kBlockEntries;
  const int halves = row.any(begin + 32, begin + 64) ? 2 : 1;
  for (int64_t d = 0; d < row.head_dim; d += kValueTile) {
    pack_values(row, begin, d);
    int64_t h = 0;
    for (; h + 4 <= row.num_heads; h += 4) value_tile<4>(row, i, h, halves, out + h * row.head_dim + d);
    const int64_t left = row.num_heads - h;
    float* to = out + h * row.head_dim + d;
    if (left == 3) value_tile<3>(row, i, h, halves, to);
    if (left == 2) value_tile<2>(row, i, h, halves, to);
    if (left == 1) value_tile<1>(row, i, h, halves, to);
  }
}

/// Adds the sink to the denominators of 8 heads and divides.
void divide_heads(const Row& row, int64_t h, const float* sink, const float* last_max, bool round,
                  float* out) {
  float sinks[8] = {}, denominators[8];
  for (int64_t r = 0; r < 8 && h + r < row.num_heads; ++r) sinks[r] = sink[h + r];
  const __m256 extra = exp8(_mm256_sub_ps(_mm256_loadu_ps(sinks), _mm256_loadu_ps(last_max + h)));
  _mm256_storeu_ps(denominators, _mm256_add_ps(_mm256_loadu_ps(row.denominator + h), extra));
  for (int64_t r = 0; r < 8 && h + r < row.num_heads; ++r) {
    const __m256 den = _mm256_set1_ps(denominators[r]);
    float* head = out + (h + r) * row.head_dim;
    for (int64_t d = 0; d < row.head_dim; d += 8) {
      const __m256 value = _mm256_div_ps(_mm256_loadu_ps(head + d), den);
      _mm256_storeu_ps(head + d, round ? round_bf16_8(value) : value);
    }
  }
}

}  // namespace

void attend(const float* q, int64_t num_heads, int64_t head_dim, const float* keys, const uint8_t* valid,
            int64_t num_slots, const float* sink, float scale, Numerics numerics, float* out,
            float* workspace) {
  Row row = make_row(num_heads, head_dim, num_slots, workspace);
  row.keys = keys;
  row.valid = valid;
  const bool round = numerics == Numerics::reference;
  for (int64_t i = 0; i < num_heads * head_dim; i += 8) _mm256_storeu_ps(out + i, _mm256_setzero_ps());
  if (!row.any(0, num_slots)) return;

  transpose_queries(row, q);
  float* last_max = row.tile + kBlockEntries * kValueTile;
  for (int64_t h = 0; h < row.lanes; ++h) {
    last_max[h] = kNoMaximum;
    row.denominator[h] = 0.0f;
  }
  for (int64_t i = 0; i < row.num_blocks; ++i) {
    if (!row.any(i * kBlockEntries, (i + 1) * kBlockEntries)) continue;
    score_block(row, i * kBlockEntries);
    scale_block(row, i, scale, last_max);
  }
  for (int64_t i = 0; i < row.num_blocks; ++i) {
    if (!row.any(i * kBlockEntries, (i + 1) * kBlockEntries)) continue;
    soften_block(row, i, last_max, round);
    value_block(row, i, out);
  }
  for (int64_t h = 0; h < row.lanes; h += 8) divide_heads(row, h, sink, last_max, round, out);
}

int64_t attend_workspace(int64_t num_heads, int64_t head_dim, int64_t num_slots) {
  const int64_t lanes = padded_heads(num_heads);
  const int64_t num_blocks = (num_slots + kBlockEntries - 1) / kBlockEntries;
  return (head_dim + num_blocks * (kBlockEntries + 1) + 2) * lanes + kBlockEntries * kValueTile;
}

}  // namespace rorqual::kernels::avx2
