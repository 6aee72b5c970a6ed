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

/// Eight order keys from position i on: unsigned integers in the order of the scores, both zeros alike; 0 for
/// NaN, -inf and lanes behind the end.
__m256i order_keys(const float* scores, int64_t i, int64_t count) {
  const __m256i inside = first_lanes(count - i < 8 ? count - i : 8);
  const __m256 value = _mm256_add_ps(_mm256_maskload_ps(scores + i, inside), _mm256_setzero_ps());
  const __m256i bits = _mm256_castps_si256(value);
  const __m256i flip = _mm256_or_si256(_mm256_srai_epi32(bits, 31), _mm256_set1_epi32(INT32_MIN));
  const __m256 usable = _mm256_cmp_ps(value, _mm256_set1_ps(-__builtin_inff()), _CMP_GT_OQ);
  return _mm256_and_si256(_mm256_xor_si256(bits, flip),
                          _mm256_and_si256(inside, _mm256_castps_si256(usable)));
}

__m256i at_least(__m256i keys, uint32_t bound) {
  const __m256i b = _mm256_set1_epi32(static_cast<int>(bound));
  return _mm256_cmpeq_epi32(_mm256_max_epu32(keys, b), keys);
}

unsigned lanes_from(__m256i keys, uint32_t bound) {
  return static_cast<unsigned>(_mm256_movemask_ps(_mm256_castsi256_ps(at_least(keys, bound))));
}

/// How many keys are >= bound (bound > 0).
int64_t count_from(const float* scores, int64_t count, uint32_t bound) {
  __m256i total = _mm256_setzero_si256();  // fewer than 2^31 scores
  for (int64_t i = 0; i < count; i += 8) {
    total = _mm256_sub_epi32(total, at_least(order_keys(scores, i, count), bound));
  }
  alignas(32) int32_t lane[8];
  _mm256_store_si256(reinterpret_cast<__m256i*>(lane), total);
  int64_t sum = 0;
  for (const int32_t n : lane) sum += n;
  return sum;
}

float value_of(uint32_t key) {
  const uint32_t bits = (key & 0x80000000u) != 0 ? key & 0x7FFFFFFFu : ~key;
  return _mm256_cvtss_f32(_mm256_castsi256_ps(_mm256_set1_epi32(static_cast<int>(bits))));
}

/// Best score that was not taken when the `taken` best were, the threshold being the last of them.
float largest_rejected(const float* scores, int64_t count, uint32_t threshold, int64_t taken) {
  if (count_from(scores, count, threshold) > taken) return value_of(threshold);  // a tie was left out
  const __m256i limit = _mm256_set1_epi32(static_cast<int>(threshold));
  __m256i best = _mm256_setzero_si256();
  for (int64_t i = 0; i < count; i += 8) {
    const __m256i keys = order_keys(scores, i, count);
    const __m256i below = _mm256_cmpeq_epi32(_mm256_max_epu32(keys, limit), limit);
    const __m256i equal = _mm256_cmpeq_epi32(keys, limit);
    best = _mm256_max_epu32(best, _mm256_and_si256(keys, _mm256_andnot_si256(equal, below)));
  }
  alignas(32) uint32_t lane[8];
  _mm256_store_si256(reinterpret_cast<__m256i*>(lane), best);
  uint32_t most = 0;
  for (const uint32_t key : lane) most = key > most ? key : most;
  return value_of(most);
}

struct Best {
  int64_t taken = 0, usable = 0;
  uint32_t threshold = 0;  // key of the last one
};

/// The k best, by a search for the last one's key over all bits.
Best find_best(const float* scores, int64_t count, int64_t k, int32_t* selected) {
  Best best;
  best.usable = count_from(scores, count, 1);
  best.taken = k < best.usable ? k : best.usable;
  if (best.taken <= 0) return best;
  uint32_t threshold = 0;  // the largest key that at least `taken` keys reach
  for (int bit = 31; bit >= 0; --bit) {
    const uint32_t higher = threshold | (1u << bit);
    if (count_from(scores, count, higher) >= best.taken) threshold = higher;
  }
  best.threshold = threshold;
  const int64_t larger = threshold == 0xFFFFFFFFu ? 0 : count_from(scores, count, threshold + 1);

  int64_t out = 0, ties_left = best.taken - larger;
  for (int64_t i = 0; i < count; i += 8) {
    const __m256i keys = order_keys(scores, i, count);
    unsigned larger_lanes = lanes_from(keys, threshold + 1), lanes = lanes_from(keys, threshold);
    if (threshold == 0xFFFFFFFFu) larger_lanes = 0;
    for (; lanes != 0; lanes &= lanes - 1) {
      const int lane = __builtin_ctz(lanes);
      if ((larger_lanes >> lane & 1u) == 0 && ties_left-- <= 0) continue;
      selected[out++] = static_cast<int32_t>(i + lane);
    }
  }
  return best;
}

constexpr int64_t kMostStreamed = 1024;  // largest k of the search in one pass
constexpr int64_t kLeastPool = 512;

constexpr int64_t pool_size(int64_t k) {
  return 4 * k > kLeastPool ? 4 * k : kLeastPool;
}

/// Scores above a bound that rises, in order of position.
struct Pool {
  float scores[static_cast<size_t>(pool_size(kMostStreamed) + 8)];
  int32_t positions[static_cast<size_t>(pool_size(kMostStreamed) + 8)];
  int64_t size = 0;

  /// Leaves the k best; true and their smallest in `bound` when there are so many.
  bool shrink(int64_t k, float& bound) {
    int32_t kept[kMostStreamed];
    const Best best = find_best(scores, size, k, kept);
    for (int64_t i = 0; i < best.taken; ++i) {  // ascending: to the front only
      scores[i] = scores[kept[i]];
      positions[i] = positions[kept[i]];
    }
    size = best.taken;
    if (best.taken < k) return false;
    bound = value_of(best.threshold);
    return true;
  }
};

/// The k best in one pass over many scores: of those not larger than the k-th best so far, none can be among
/// the best, since equal ones that come later lose. Few scores pass, however many there are.
int64_t stream_best(const float* scores, int64_t count, int64_t k, int32_t* selected) {
  Pool pool;
  const int64_t most = pool_size(k);
  float bound = -__builtin_inff();
  for (int64_t i = 0; i < count; i += 8) {
    const __m256 value =
        count - i >= 8 ? _mm256_loadu_ps(scores + i) : _mm256_maskload_ps(scores + i, first_lanes(count - i));
    auto lanes =
        static_cast<unsigned>(_mm256_movemask_ps(_mm256_cmp_ps(value, _mm256_set1_ps(bound), _CMP_GT_OQ)));
    if (count - i < 8) lanes &= (1u << (count - i)) - 1;
    if (lanes == 0) continue;
    for (; lanes != 0; lanes &= lanes - 1) {
      const int64_t at = i + __builtin_ctz(lanes);
      pool.scores[pool.size] = scores[at];
      pool.positions[pool.size++] = static_cast<int32_t>(at);
    }
    if (pool.size > most) pool.shrink(k, bound);
  }
  int32_t kept[kMostStreamed];
  const int64_t taken = find_best(pool.scores, pool.size, k, kept).taken;
  for (int64_t i = 0; i < taken; ++i) selected[i] = pool.positions[kept[i]];
  return taken;
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
  if (gap == nullptr && k <= kMostStreamed && count > 2 * pool_size(k)) {
    return stream_best(scores, count, k, selected);
  }
  if (gap != nullptr) *gap = __builtin_inff();
  const Best best = find_best(scores, count, k, selected);
  if (gap != nullptr && best.taken < best.usable) {
    *gap = value_of(best.threshold) - largest_rejected(scores, count, best.threshold, best.taken);
  }
  return best.taken;
}

int64_t candidate_blocks(const float* scores, int64_t count, int64_t block_size, int64_t num_blocks,
                         int32_t* blocks) {
  return ref::candidate_blocks(scores, count, block_size, num_blocks, blocks);
}

}  // namespace rorqual::kernels::avx2
