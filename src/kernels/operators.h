// SPDX-License-Identifier: Apache-2.0
// Primitive operators of the CPU tiers. The stages of kernels.h are written once, over this table; a tier
// replaces operators, never stages. `ref` (scalar) is the law: every other tier gives the same bits for every
// input. Each function handles a tile and is called from one thread; the stages split work.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

#include "kernels/kernels.h"

namespace rorqual::kernels {

/// y[t][p·16 + r] = Σ_k x[t][k]·W[p·16 + r][k] for panels p in [panel_begin, panel_end), in the linear order
/// of docs/numerics.md: per 32-wide block an FMA chain over even k and one over odd k, acc = acc + (even +
/// odd).
struct LinearTile {
  const Matrix* weight = nullptr;
  int64_t panel_begin = 0, panel_end = 0;
  int64_t num_rows = 0;
  const float* x =
      nullptr;  // [num_rows, x_stride]; columns up to the next multiple of 32 are readable and zero
  int64_t x_stride = 0;
  float* y =
      nullptr;  // [num_rows, y_stride], columns counted from row 0 of the weight; padding rows not written
  int64_t y_stride = 0;
  bool round_bf16 = false;
};

/// Index keys of FP4 values, eight side by side: byte (d, lane) of group g is codes[((g·Di + d/4·4)·8) +
/// 4·lane + d%4] = 2·value/scale + 12, scale of block b at scales[(g·Di/32 + b)·8 + lane]. Lanes behind the
/// end hold zeros. 32-byte aligned.
inline constexpr int64_t kIndexKeyLanes = 8;
inline constexpr int kIndexKeyZero = 12;

struct IndexKeys {
  const uint8_t* codes = nullptr;
  const float* scales = nullptr;
};

/// Index queries of one row: codes [heads, Di] = 2·value/scale; scales [heads, Di/32], a quarter of the
/// scale; offsets [heads, Di/32] = 12·(sum of the block's codes).
struct IndexQuery {
  const int8_t* codes = nullptr;
  const float* scales = nullptr;
  const int32_t* offsets = nullptr;
  const float* weights = nullptr;  // [heads]
  int64_t heads = 0, index_dim = 0;
};

struct OperatorTable {
  std::string_view name;

  // ---- matrix products (kernels/ref/linear.cpp)
  void (*linear)(const LinearTile& tile);

  // ---- rows of F32 values; in place where x == y (kernels/ref/rows.cpp)
  /// y = w·(x·rsqrt(mean(x²)+eps)); rsqrt = 1/sqrt, both IEEE. Sum of squares in the reduction order.
  void (*rms_norm)(const float* x, const float* weight, float eps, int64_t width, bool round_bf16, float* y);
  void (*round_bf16)(const float* x, int64_t count, float* y);
  /// E4M3 values times UE8M0 scale per 32: y = q·2^n (activations, window KV). width % 32 == 0.
  void (*qdq_fp8)(const float* x, int64_t width, float* y);
  /// E2M1 values times UE8M0 scale per 32 (index queries and keys).
  void (*qdq_fp4_e8m0)(const float* x, int64_t width, float* y);
  /// E2M1 values times E4M3 scale per 16 (compressed KV).
  void (*qdq_fp4_e4m3)(const float* x, int64_t width, float* y);
  /// The same three into and out of cache records: codes first, then scales (docs/formats.md#caches).
  void (*encode_fp8)(const float* x, int64_t width, std::byte* record);
  void (*decode_fp8)(const std::byte* record, int64_t width, float* y);
  void (*encode_fp4_e8m0)(const float* x, int64_t width, std::byte* record);
  void (*decode_fp4_e8m0)(const std::byte* record, int64_t width, float* y);
  void (*encode_fp4_e4m3)(const float* x, int64_t width, std::byte* record);
  void (*decode_fp4_e4m3)(const std::byte* record, int64_t width, float* y);
  /// Rotates the last 2·half elements of x[width] as adjacent pairs; sin negated for the inverse.
  void (*rope)(const float* x, int64_t width, const float* cos, const float* sin, int64_t half, bool inverse,
               bool round_bf16, float* y);

  // ---- hyper-connections (kernels/ref/hyper.cpp)
  /// mixes[(2+n)n] (raw products of fn with the flattened streams) and the sum of squares -> pre, post, comb.
  void (*hyper_mixes)(const float* products, float mean_square, const HyperWeights& weights, int64_t n,
                      float norm_eps, float hc_eps, int sinkhorn_iters, float* pre, float* post, float* comb);
  /// Softmax over rows, then alternating normalisation, in place [n, n].
  void (*sinkhorn)(float* comb, int64_t n, int iters, float eps);
  void (*hyper_collapse)(const float* streams, const float* pre, int64_t n, int64_t width, bool round_bf16,
                         float* y);
  void (*hyper_expand)(const float* y, const float* post, const float* comb, int64_t n, int64_t width,
                       bool round_bf16, float* streams);

  // ---- reductions in the order of docs/numerics.md (16 chains)
  float (*sum)(const float* x, int64_t count);
  float (*sum_squares)(const float* x, int64_t count);
  float (*dot)(const float* a, const float* b, int64_t count);  // linear order (even and odd chains per 32)

  // ---- experts (kernels/ref/experts.cpp)
  /// out = weight·silu(min(gate, limit))·clamp(up, ±limit); limit 0 = no clamp.
  void (*swiglu)(const float* gate, const float* up, int64_t width, float limit, float weight,
                 bool round_bf16, float* out);
  /// Selection scores to the `k` best (ties: lowest id), weights of §3.11. One token.
  void (*route)(const float* logits, const float* bias, int64_t num_experts, const MoeArgs& args,
                int32_t* index, float* weight, float* gap);

  // ---- attention of one row (kernels/ref/attention.cpp)
  /// Attention of all heads over a list of decoded entries in list order; blocks of 64 (docs/numerics.md).
  /// keys [num_slots, Dh] F32; valid[s] != 0 marks an entry. out [H, Dh] before the inverse rotation.
  void (*attend)(const float* q, int64_t num_heads, int64_t head_dim, const float* keys, const uint8_t* valid,
                 int64_t num_slots, const float* sink, float scale, Numerics numerics, float* out,
                 float* workspace);
  int64_t (*attend_workspace)(int64_t num_heads, int64_t head_dim, int64_t num_slots);  // floats

  // ---- index (kernels/ref/index.cpp)
  /// Scores of `count` decoded keys [count, Di] against q [heads, Di] with head weights w [heads].
  void (*index_scores)(const float* q, const float* w, int64_t heads, int64_t index_dim, const float* keys,
                       int64_t count, Numerics numerics, float* scores);
  /// Positions of the k largest of scores[count] (ties: lowest position; -inf never taken), ascending.
  /// Returns how many.
  int64_t (*top_k)(const float* scores, int64_t count, int64_t k, int32_t* selected, float* gap);
  /// Blocks of `block_size` scores: the num_blocks best by maximum, the newest block (holding count-1) always
  /// kept.
  int64_t (*candidate_blocks)(const float* scores, int64_t count, int64_t block_size, int64_t num_blocks,
                              int32_t* blocks);
  /// The bits of index_scores in reference numerics, from integers: sums over 32 products are exact. Scales
  /// are powers of two between 2^-60 and 2^60.
  void (*index_scores_int8)(const IndexQuery& query, const IndexKeys& keys, int64_t count, float* scores);
};

std::span<const OperatorTable* const> available_operators();

}  // namespace rorqual::kernels
