// SPDX-License-Identifier: Apache-2.0
// Index scores, top-k and candidate blocks, scalar. Rounding sites and ties: docs/numerics.md, "Index".
#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>

#include "kernels/ref/operators_ref.h"
#include "num/formats.h"

namespace rorqual::kernels::ref {
namespace {

/// Dot product in the linear order; width % 32 == 0.
float linear_dot(const float* a, const float* b, int64_t width) {
  float acc = 0;
  for (int64_t begin = 0; begin < width; begin += 32) {
    float even = 0, odd = 0;
    for (int64_t k = begin; k < begin + 32; k += 2) {
      even = std::fma(a[k], b[k], even);
      odd = std::fma(a[k + 1], b[k + 1], odd);
    }
    acc += even + odd;
  }
  return acc;
}

/// Maps floats to integers of the same order; both zeros to one value; NaN and -inf to 0 (never taken).
uint32_t order_key(float value) {
  if (!(value > -std::numeric_limits<float>::infinity())) return 0;
  const auto bits = std::bit_cast<uint32_t>(value + 0.0f);
  return (bits & 0x80000000u) != 0 ? ~bits : bits | 0x80000000u;
}

/// The k-th largest order key (k <= how many are above 0), and how many keys are larger than it.
struct Threshold {
  uint32_t key = 0;
  int64_t larger = 0;
};

/// Radix selection over the keys key_at(0) … key_at(count - 1), most significant byte first.
template <class KeyAt>
Threshold kth_largest(int64_t count, int64_t k, const KeyAt& key_at) {
  Threshold result;
  uint32_t mask = 0;
  for (int shift = 24; shift >= 0; shift -= 8) {
    int64_t histogram[256] = {};
    for (int64_t i = 0; i < count; ++i) {
      const uint32_t key = key_at(i);
      if ((key & mask) == result.key) ++histogram[(key >> shift) & 255u];
    }
    uint32_t digit = 255;
    while (result.larger + histogram[digit] < k) result.larger += histogram[digit--];
    result.key |= digit << shift;
    mask |= 255u << shift;
  }
  return result;
}

}  // namespace

void index_scores(const float* q, const float* w, int64_t heads, int64_t index_dim, const float* keys,
                  int64_t count, Numerics numerics, float* scores) {
  for (int64_t i = 0; i < count; ++i) {
    float sum = 0;
    for (int64_t h = 0; h < heads; ++h) {
      float dot = linear_dot(q + h * index_dim, keys + i * index_dim, index_dim);
      if (numerics == Numerics::reference) {
        dot = num::bf16_round(dot);
        dot = dot > 0.0f ? dot : 0.0f;
        sum += num::bf16_round(dot * w[h]);
      } else {
        dot = dot > 0.0f ? dot : 0.0f;
        sum = std::fma(dot, w[h], sum);
      }
    }
    scores[i] = numerics == Numerics::reference ? num::bf16_round(sum) : sum;
  }
}

int64_t top_k(const float* scores, int64_t count, int64_t k, int32_t* selected, float* gap) {
  if (gap != nullptr) *gap = std::numeric_limits<float>::infinity();
  int64_t usable = 0;
  for (int64_t i = 0; i < count; ++i) usable += order_key(scores[i]) != 0;
  const int64_t taken = std::min(k, usable);
  if (taken <= 0) return 0;
  const Threshold threshold = kth_largest(count, taken, [&](int64_t i) { return order_key(scores[i]); });

  int64_t out = 0, ties_left = taken - threshold.larger;
  float smallest_taken = std::numeric_limits<float>::infinity();
  float largest_rejected = -std::numeric_limits<float>::infinity();
  for (int64_t i = 0; i < count; ++i) {
    const uint32_t key = order_key(scores[i]);
    if (key == 0) continue;
    if (key > threshold.key || (key == threshold.key && ties_left > 0)) {
      ties_left -= key == threshold.key;
      selected[out++] = static_cast<int32_t>(i);
      smallest_taken = std::min(smallest_taken, scores[i] + 0.0f);
    } else {
      largest_rejected = std::max(largest_rejected, scores[i] + 0.0f);
    }
  }
  if (gap != nullptr && taken < usable) *gap = smallest_taken - largest_rejected;
  return taken;
}

int64_t candidate_blocks(const float* scores, int64_t count, int64_t block_size, int64_t num_blocks,
                         int32_t* blocks) {
  if (count <= 0 || num_blocks <= 0) return 0;
  const int64_t total = (count + block_size - 1) / block_size;
  const int64_t newest = (count - 1) / block_size;
  // Maxima are recomputed where they are needed, so that no memory is.
  const auto block_key = [&](int64_t b) {
    if (b == newest) return std::numeric_limits<uint32_t>::max();
    uint32_t best = 0;
    const int64_t end = std::min(count, (b + 1) * block_size);
    for (int64_t i = b * block_size; i < end; ++i) best = std::max(best, order_key(scores[i]));
    return best;
  };
  int64_t usable = 0;
  for (int64_t b = 0; b < total; ++b) usable += block_key(b) != 0;
  const int64_t taken = std::min(num_blocks, usable);

  const Threshold threshold = kth_largest(total, taken, block_key);
  int64_t out = 0, ties_left = taken - threshold.larger;
  for (int64_t b = 0; b < total; ++b) {
    const uint32_t key = block_key(b);
    if (key == 0 || key < threshold.key || (key == threshold.key && ties_left <= 0)) continue;
    ties_left -= key == threshold.key;
    blocks[out++] = static_cast<int32_t>(b);
  }
  return taken;
}

}  // namespace rorqual::kernels::ref
