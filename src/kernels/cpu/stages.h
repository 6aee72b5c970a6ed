// SPDX-License-Identifier: Apache-2.0
// The stages of kernels.h on CPUs, written once over an operator table. kernels/select.cpp binds them to each
// tier.
#pragma once

#include "kernels/kernels.h"
#include "kernels/operators.h"

namespace rorqual::kernels::cpu {

// kernels/cpu/stages_rope.cpp
void rope_angles(const OperatorTable& ops, Context& ctx, std::span<const int64_t> positions,
                 const RopeTable& rope, float* cos, float* sin);

// kernels/cpu/stages_embed.cpp
void embed(const OperatorTable& ops, Context& ctx, const EmbedArgs& args);

// kernels/cpu/stages_engram.cpp
void engram(const OperatorTable& ops, Context& ctx, const EngramArgs& args);

// kernels/cpu/stages_boundary.cpp
void tap(const OperatorTable& ops, Context& ctx, const TapArgs& args);
void boundary(const OperatorTable& ops, Context& ctx, const BoundaryArgs& args);

// kernels/cpu/stages_attention.cpp
void attention_inputs(const OperatorTable& ops, Context& ctx, const AttentionInputArgs& args);
void compress(const OperatorTable& ops, Context& ctx, const CompressArgs& args);
void attend(const OperatorTable& ops, Context& ctx, const AttendArgs& args);
void commit_window(const OperatorTable& ops, Context& ctx, const CommitWindowArgs& args);

// kernels/cpu/stages_index.cpp
void index_select(const OperatorTable& ops, Context& ctx, const IndexArgs& args);

// kernels/cpu/stages_linear.cpp
void attention_output(const OperatorTable& ops, Context& ctx, const AttentionOutputArgs& args);
void linear(const OperatorTable& ops, Context& ctx, const LinearArgs& args);
void norm(const OperatorTable& ops, Context& ctx, const NormArgs& args);
void head(const OperatorTable& ops, Context& ctx, const HeadArgs& args);

// kernels/cpu/stages_moe.cpp
void moe(const OperatorTable& ops, Context& ctx, const MoeArgs& args);

/// The quantised linear layer L8/L4 or the plain one: x [T, cols] -> y [T, rows] with the roundings asked
/// for, in parallel over panels. `x` may have any stride; columns beyond `cols` need not be readable (they
/// are padded here).
struct LinearCall {
  const Matrix* weight = nullptr;
  int64_t num_rows = 0;
  const float* x = nullptr;
  int64_t x_stride = 0;
  float* y = nullptr;
  int64_t y_stride = 0;
  bool quantise_input = false;  // E4M3 x UE8M0 per 32 in front (callers pass it in reference numerics only)
  bool round_output = false;    // BF16 result
};

void linear_layer(const OperatorTable& ops, Context& ctx, const LinearCall& call);

/// rms_norm of num_rows rows in parallel; y may be x. Rounds to BF16 in reference numerics.
void norm_rows(const OperatorTable& ops, Context& ctx, const NormArgs& args);

}  // namespace rorqual::kernels::cpu
