// SPDX-License-Identifier: Apache-2.0
// Attention of one row, scalar: blocks of 64 entries, running maximum, one sink. docs/numerics.md,
// "Attention".
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>

#include "kernels/ref/operators_ref.h"
#include "num/formats.h"
#include "num/vector_math.h"

namespace rorqual::kernels::ref {
namespace {

constexpr int64_t kBlockEntries = 64;
constexpr float kNoMaximum = -1e30f;

/// Linear order over one 32-wide block: an FMA chain over even k and one over odd k.
float block_dot(const float* a, const float* b) {
  float even = 0, odd = 0;
  for (int64_t k = 0; k < 32; k += 2) {
    even = std::fma(a[k], b[k], even);
    odd = std::fma(a[k + 1], b[k + 1], odd);
  }
  return even + odd;
}

/// Reduction order over the 64 entries of a block: element i to chain i mod 16, then c[j] += c[j+8], +4, +2,
/// +1.
float sum_64(const float* x) {
  float chain[16];
  for (int64_t j = 0; j < 16; ++j) chain[j] = ((x[j] + x[j + 16]) + x[j + 32]) + x[j + 48];
  for (int64_t width = 8; width >= 1; width /= 2) {
    for (int64_t j = 0; j < width; ++j) chain[j] += chain[j + width];
  }
  return chain[0];
}

struct Block {
  const float* keys;     // [count, head_dim]
  const uint8_t* valid;  // [count]
  int64_t count;         // <= 64
  int64_t head_dim;

  bool has(int64_t s) const { return s < count && valid[s] != 0; }

  bool any_valid() const {
    return std::any_of(valid, valid + count, [](uint8_t v) { return v != 0; });
  }
};

/// Scores of one head; -inf for invalid and missing entries.
void block_scores(const float* q, const Block& block, float scale, float* scores) {
  std::fill(scores, scores + kBlockEntries, -std::numeric_limits<float>::infinity());
  for (int64_t s = 0; s < block.count; ++s) {
    if (!block.valid[s]) continue;
    float acc = 0;
    for (int64_t k = 0; k < block.head_dim; k += 32) {
      acc += block_dot(q + k, block.keys + s * block.head_dim + k);
    }
    scores[s] = acc * scale;
  }
}

/// One value dimension of P·V: two 32-blocks of entries in the linear order; `column` is [64], zero where
/// invalid.
float block_value(const float* p, const float* column) {
  return (0.0f + block_dot(p, column)) + block_dot(p + 32, column + 32);
}

struct Head {
  const float* q;
  float sink;
  float scale;
  Numerics numerics;
};

/// `workspace`: scores [blocks][64], then block maxima [blocks].
void attend_head(const Head& head, const float* keys, const uint8_t* valid, int64_t num_slots,
                 int64_t head_dim, float* out, float* workspace) {
  const int64_t num_blocks = (num_slots + kBlockEntries - 1) / kBlockEntries;
  float* block_max = workspace + num_blocks * kBlockEntries;
  const auto block_at = [&](int64_t i) {
    const int64_t begin = i * kBlockEntries;
    return Block{keys + begin * head_dim, valid + begin, std::min(kBlockEntries, num_slots - begin),
                 head_dim};
  };
  float last = kNoMaximum;
  for (int64_t i = 0; i < num_blocks; ++i) {
    float* scores = workspace + i * kBlockEntries;
    block_scores(head.q, block_at(i), head.scale, scores);
    for (int64_t s = 0; s < kBlockEntries; ++s) last = scores[s] > last ? scores[s] : last;
    block_max[i] = last;
  }

  float p[kBlockEntries], column[kBlockEntries];
  float denominator = 0;
  std::fill(out, out + head_dim, 0.0f);
  for (int64_t i = 0; i < num_blocks; ++i) {
    const Block block = block_at(i);
    if (!block.any_valid()) continue;
    for (int64_t s = 0; s < kBlockEntries; ++s) {
      p[s] = block.has(s) ? num::exp(workspace[i * kBlockEntries + s] - block_max[i]) : 0.0f;
    }
    const float weight = num::exp(block_max[i] - last);
    denominator = std::fma(weight, sum_64(p), denominator);
    if (head.numerics == Numerics::reference) {
      for (float& v : p) v = num::bf16_round(v);
    }
    for (int64_t d = 0; d < head_dim; ++d) {
      for (int64_t s = 0; s < kBlockEntries; ++s)
        column[s] = block.has(s) ? block.keys[s * head_dim + d] : 0.0f;
      out[d] = std::fma(weight, block_value(p, column), out[d]);
    }
  }
  if (denominator == 0.0f) return;  // no entry at all: zeros
  denominator += num::exp(head.sink - last);
  for (int64_t d = 0; d < head_dim; ++d) {
    const float value = out[d] / denominator;
    out[d] = head.numerics == Numerics::reference ? num::bf16_round(value) : value;
  }
}

}  // namespace

void attend(const float* q, int64_t num_heads, int64_t head_dim, const float* keys, const uint8_t* valid,
            int64_t num_slots, const float* sink, float scale, Numerics numerics, float* out,
            float* workspace) {
  for (int64_t h = 0; h < num_heads; ++h) {
    attend_head({q + h * head_dim, sink[h], scale, numerics}, keys, valid, num_slots, head_dim,
                out + h * head_dim, workspace);
  }
}

int64_t attend_workspace(int64_t /*num_heads*/, int64_t /*head_dim*/, int64_t num_slots) {
  return (num_slots + kBlockEntries - 1) / kBlockEntries * (kBlockEntries + 1);
}

}  // namespace rorqual::kernels::ref
