// SPDX-License-Identifier: Apache-2.0
// Scalar operators of hyper-connections, attention and index: the law for every tier. Contracts: kernels/operators.h.
#pragma once

#include <cstdint>

#include "kernels/operators.h"

namespace rorqual::kernels::ref {

/// Most hyper-connection streams that the operators take.
inline constexpr int64_t kMaxStreams = 8;

// hyper.cpp
void hyper_mixes(const float* products, float mean_square, const HyperWeights& weights, int64_t n, float norm_eps,
                 float hc_eps, int sinkhorn_iters, float* pre, float* post, float* comb);
void sinkhorn(float* comb, int64_t n, int iters, float eps);
void hyper_collapse(const float* streams, const float* pre, int64_t n, int64_t width, bool round_bf16, float* y);
void hyper_expand(const float* y, const float* post, const float* comb, int64_t n, int64_t width, bool round_bf16,
                  float* streams);

// attention.cpp
void attend(const float* q, int64_t num_heads, int64_t head_dim, const float* keys, const uint8_t* valid,
            int64_t num_slots, const float* sink, float scale, Numerics numerics, float* out, float* workspace);
int64_t attend_workspace(int64_t num_heads, int64_t head_dim, int64_t num_slots);

// index.cpp
void index_scores(const float* q, const float* w, int64_t heads, int64_t index_dim, const float* keys, int64_t count,
                  Numerics numerics, float* scores);
int64_t top_k(const float* scores, int64_t count, int64_t k, int32_t* selected, float* gap);
int64_t candidate_blocks(const float* scores, int64_t count, int64_t block_size, int64_t num_blocks, int32_t* blocks);

}  // namespace rorqual::kernels::ref
