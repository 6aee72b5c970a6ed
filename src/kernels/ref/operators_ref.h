// SPDX-License-Identifier: Apache-2.0
// The scalar operators: the law that every other tier matches bit for bit. Contracts: kernels/operators.h.
#pragma once

#include "kernels/operators.h"

namespace rorqual::kernels::ref {

// kernels/ref/linear.cpp
void linear(const LinearTile& tile);

// kernels/ref/rows.cpp
void rms_norm(const float* x, const float* weight, float eps, int64_t width, bool round_bf16, float* y);
void round_bf16(const float* x, int64_t count, float* y);
void qdq_fp8(const float* x, int64_t width, float* y);
void qdq_fp4_e8m0(const float* x, int64_t width, float* y);
void qdq_fp4_e4m3(const float* x, int64_t width, float* y);
void encode_fp8(const float* x, int64_t width, std::byte* record);
void decode_fp8(const std::byte* record, int64_t width, float* y);
void encode_fp4_e8m0(const float* x, int64_t width, std::byte* record);
void decode_fp4_e8m0(const std::byte* record, int64_t width, float* y);
void encode_fp4_e4m3(const float* x, int64_t width, std::byte* record);
void decode_fp4_e4m3(const std::byte* record, int64_t width, float* y);
void rope(const float* x, int64_t width, const float* cos, const float* sin, int64_t half, bool inverse,
          bool round_bf16, float* y);
float sum(const float* x, int64_t count);
float sum_squares(const float* x, int64_t count);
float dot(const float* a, const float* b, int64_t count);

// kernels/ref/hyper.cpp
void hyper_mixes(const float* products, float mean_square, const HyperWeights& weights, int64_t n,
                 float norm_eps, float hc_eps, int sinkhorn_iters, float* pre, float* post, float* comb);
void sinkhorn(float* comb, int64_t n, int iters, float eps);
void hyper_collapse(const float* streams, const float* pre, int64_t n, int64_t width, bool round_bf16,
                    float* y);
void hyper_expand(const float* y, const float* post, const float* comb, int64_t n, int64_t width,
                  bool round_bf16, float* streams);

// kernels/ref/experts.cpp
void swiglu(const float* gate, const float* up, int64_t width, float limit, float weight, bool round_bf16,
            float* out);
void route(const float* logits, const float* bias, int64_t num_experts, const MoeArgs& args, int32_t* index,
           float* weight, float* gap);

// kernels/ref/attention.cpp
void attend(const float* q, int64_t num_heads, int64_t head_dim, const float* keys, const uint8_t* valid,
            int64_t num_slots, const float* sink, float scale, Numerics numerics, float* out,
            float* workspace);
int64_t attend_workspace(int64_t num_heads, int64_t head_dim, int64_t num_slots);

// kernels/ref/index.cpp
void index_scores(const float* q, const float* w, int64_t heads, int64_t index_dim, const float* keys,
                  int64_t count, Numerics numerics, float* scores);
int64_t top_k(const float* scores, int64_t count, int64_t k, int32_t* selected, float* gap);
int64_t candidate_blocks(const float* scores, int64_t count, int64_t block_size, int64_t num_blocks,
                         int32_t* blocks);

// kernels/ref/index_int8.cpp
void index_scores_int8(const IndexQuery& query, const IndexKeys& keys, int64_t count, float* scores);

}  // namespace rorqual::kernels::ref
