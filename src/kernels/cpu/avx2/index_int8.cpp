// SPDX-License-Identifier: Apache-2.0
// Index scores of FP4 values as integers on AVX2: lanes are keys, four dimensions of eight keys to a
// register.
#include <immintrin.h>

#include <cstdint>
#include <cstring>

#include "kernels/cpu/avx2/math_avx2.h"
#include "kernels/cpu/avx2/operators_avx2.h"

namespace rorqual::kernels::avx2 {
namespace {

constexpr int kLanes = 8;  // keys of a group

/// Scores of Groups groups of keys.
template <int Groups>
struct Sums {
  __m256 value[static_cast<size_t>(Groups)];
};

/// One block of 32 dimensions of Heads heads and Groups groups: Σ q·(k + 12) in int16 pairs, which stay below
/// 8·2·12·24; then the exact product as F32 is added to the dot products.
template <int Heads, int Groups>
inline void add_block(const IndexQuery& query, const IndexKeys& keys, int64_t head, int64_t block,
                      int64_t group, __m256 (&dot)[static_cast<size_t>(Heads)][static_cast<size_t>(Groups)]) {
  const int64_t dim = query.index_dim, blocks = dim / 32;
  __m256i acc[static_cast<size_t>(Heads)][static_cast<size_t>(Groups)];
#pragma GCC unroll 2
  for (int h = 0; h < Heads; ++h) {
#pragma GCC unroll 2
    for (int g = 0; g < Groups; ++g) acc[h][g] = _mm256_setzero_si256();
  }
  const uint8_t* k = keys.codes + (group * dim + block * 32) * kLanes;
  const int8_t* q = query.codes + head * dim + block * 32;
#pragma GCC unroll 8
  for (int64_t d = 0; d < 32; d += 4) {
    __m256i lanes[static_cast<size_t>(Groups)];
#pragma GCC unroll 2
    for (int g = 0; g < Groups; ++g) {
      lanes[g] = _mm256_load_si256(reinterpret_cast<const __m256i*>(k + (g * dim + d) * kLanes));
    }
#pragma GCC unroll 2
    for (int h = 0; h < Heads; ++h) {
      int word = 0;
      memcpy(&word, q + h * dim + d, sizeof word);
      const __m256i four = _mm256_set1_epi32(word);
#pragma GCC unroll 2
      for (int g = 0; g < Groups; ++g) {
        acc[h][g] = _mm256_add_epi16(acc[h][g], _mm256_maddubs_epi16(lanes[g], four));
      }
    }
  }
  const __m256i ones = _mm256_set1_epi16(1);
#pragma GCC unroll 2
  for (int h = 0; h < Heads; ++h) {
    const __m256i offset = _mm256_set1_epi32(query.offsets[(head + h) * blocks + block]);
    const __m256 scale = _mm256_broadcast_ss(query.scales + (head + h) * blocks + block);
#pragma GCC unroll 2
    for (int g = 0; g < Groups; ++g) {
      const __m256 sum = _mm256_cvtepi32_ps(_mm256_sub_epi32(_mm256_madd_epi16(acc[h][g], ones), offset));
      const __m256 both =
          _mm256_mul_ps(scale, _mm256_load_ps(keys.scales + ((group + g) * blocks + block) * kLanes));
      dot[h][g] = _mm256_add_ps(dot[h][g], _mm256_mul_ps(sum, both));
    }
  }
}

/// Adds Heads heads from `head` on, in order.
template <int Heads, int Groups>
inline void add_heads(const IndexQuery& query, const IndexKeys& keys, int64_t head, int64_t group,
                      Sums<Groups>& sums) {
  __m256 dot[static_cast<size_t>(Heads)][static_cast<size_t>(Groups)];
#pragma GCC unroll 2
  for (int h = 0; h < Heads; ++h) {
#pragma GCC unroll 2
    for (int g = 0; g < Groups; ++g) dot[h][g] = _mm256_setzero_ps();
  }
  for (int64_t block = 0; block < query.index_dim / 32; ++block) {
    add_block<Heads, Groups>(query, keys, head, block, group, dot);
  }
  const __m256 zero = _mm256_setzero_ps();
#pragma GCC unroll 2
  for (int h = 0; h < Heads; ++h) {
    const __m256 w = _mm256_broadcast_ss(query.weights + head + h);
#pragma GCC unroll 2
    for (int g = 0; g < Groups; ++g) {
      const __m256 positive = _mm256_max_ps(round_bf16_8(dot[h][g]), zero);
      sums.value[g] = _mm256_add_ps(sums.value[g], round_bf16_8(_mm256_mul_ps(positive, w)));
    }
  }
}

template <int Groups>
inline void score_groups(const IndexQuery& query, const IndexKeys& keys, int64_t group, float* scores) {
  Sums<Groups> sums;
#pragma GCC unroll 2
  for (int g = 0; g < Groups; ++g) sums.value[g] = _mm256_setzero_ps();
  int64_t head = 0;
  for (; head + 2 <= query.heads; head += 2) add_heads<2, Groups>(query, keys, head, group, sums);
  if (head < query.heads) add_heads<1, Groups>(query, keys, head, group, sums);
#pragma GCC unroll 2
  for (int g = 0; g < Groups; ++g) _mm256_storeu_ps(scores + g * kLanes, round_bf16_8(sums.value[g]));
}

}  // namespace

void index_scores_int8(const IndexQuery& query, const IndexKeys& keys, int64_t count, float* scores) {
  int64_t begin = 0;
  for (; begin + 2 * kLanes <= count; begin += 2 * kLanes) {
    score_groups<2>(query, keys, begin / kLanes, scores + begin);
  }
  for (; begin < count; begin += kLanes) {
    if (begin + kLanes <= count) {
      score_groups<1>(query, keys, begin / kLanes, scores + begin);
      continue;
    }
    float tail[kLanes];
    score_groups<1>(query, keys, begin / kLanes, tail);
    for (int64_t i = begin; i < count; ++i) scores[i] = tail[i - begin];
  }
}

}  // namespace rorqual::kernels::avx2
