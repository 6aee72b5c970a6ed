// SPDX-License-Identifier: Apache-2.0
// Linear layers, norms, the grouped output projection of attention, and the head.
#include <algorithm>

#include "base/check.h"
#include "kernels/cpu/stages.h"
#include "kernels/cpu/tiles.h"

namespace rorqual::kernels::cpu {
namespace {

/// Rows of x as the linear operator wants them: quantised if asked for, padded with zeros to whole blocks.
struct PreparedRows {
  const float* x = nullptr;
  int64_t stride = 0;
};

PreparedRows prepare_rows(const OperatorTable& ops, Context& ctx, const LinearCall& call) {
  const int64_t cols = call.weight->cols;
  const int64_t padded = padded_cols(cols);
  if (!call.quantise_input && padded == cols) return {call.x, call.x_stride};
  RORQUAL_CHECK(!call.quantise_input || padded == cols);
  float* rows = ctx.scratch->alloc<float>(call.num_rows * padded);
  ctx.pool->parallel_for(call.num_rows, [&](int64_t row, int) {
    const float* source = call.x + row * call.x_stride;
    float* target = rows + row * padded;
    if (call.quantise_input) {
      ops.qdq_fp8(source, cols, target);
      return;
    }
    std::copy_n(source, cols, target);
    std::fill(target + cols, target + padded, 0.0f);
  });
  return {rows, padded};
}

}  // namespace

void linear_layer(const OperatorTable& ops, Context& ctx, const LinearCall& call) {
  if (call.num_rows == 0) return;
  const Scratch::Frame frame(*ctx.scratch);
  const Matrix& weight = *call.weight;
  const PreparedRows rows = prepare_rows(ops, ctx, call);
  const int64_t panels = panels_per_chunk(weight, std::min(call.num_rows, kTileRows));
  const int64_t panel_chunks = divide_up(weight.num_panels(), panels);
  const int64_t row_chunks = divide_up(call.num_rows, kTileRows);
  ctx.pool->parallel_for(panel_chunks * row_chunks, [&](int64_t chunk, int) {
    const int64_t row = chunk / panel_chunks * kTileRows;
    const int64_t panel = chunk % panel_chunks * panels;
    ops.linear({.weight = &weight,
                .panel_begin = panel,
                .panel_end = std::min(panel + panels, weight.num_panels()),
                .num_rows = std::min(kTileRows, call.num_rows - row),
                .x = rows.x + row * rows.stride,
                .x_stride = rows.stride,
                .y = call.y + row * call.y_stride,
                .y_stride = call.y_stride,
                .round_bf16 = call.round_output});
  });
}

void norm_rows(const OperatorTable& ops, Context& ctx, const NormArgs& args) {
  const bool round = ctx.numerics == Numerics::reference;
  ctx.pool->parallel_for(args.num_rows, [&](int64_t row, int) {
    ops.rms_norm(args.x + row * args.width, args.weight, args.eps, args.width, round,
                 args.y + row * args.width);
  });
}

void linear(const OperatorTable& ops, Context& ctx, const LinearArgs& args) {
  const bool reference = ctx.numerics == Numerics::reference;
  linear_layer(ops, ctx,
               {.weight = &args.weight,
                .num_rows = args.num_rows,
                .x = args.x,
                .x_stride = args.weight.cols,
                .y = args.y,
                .y_stride = args.weight.rows,
                .quantise_input = args.quantise_input && reference,
                .round_output = args.round_output && reference});
}

void norm(const OperatorTable& ops, Context& ctx, const NormArgs& args) {
  norm_rows(ops, ctx, args);
}

void head(const OperatorTable& ops, Context& ctx, const HeadArgs& args) {
  const Scratch::Frame frame(*ctx.scratch);
  float* x = ctx.scratch->alloc<float>(args.num_rows * args.d_model);
  norm_rows(ops, ctx,
            {.num_rows = args.num_rows,
             .width = args.d_model,
             .x = args.hidden,
             .weight = args.norm_weight,
             .eps = args.norm_eps,
             .y = x});
  linear_layer(ops, ctx,
               {.weight = &args.head,
                .num_rows = args.num_rows,
                .x = x,
                .x_stride = args.d_model,
                .y = args.logits,
                .y_stride = args.head.rows});
}

namespace {

/// The block-diagonal first half of the output projection: group g of the heads times rows g·rank … of wo_a.
struct GroupedCall {
  const Matrix* weight = nullptr;
  int64_t num_rows = 0, groups = 0, rank = 0;
  const float* x = nullptr;
  int64_t x_stride = 0, group_cols = 0;  // group g reads columns g·group_cols …
  float* z = nullptr;                    // [T, groups·rank]
  bool round_output = false;
};

/// One panel of one group for at most kTileRows rows. Panels that straddle two groups go through a side
/// buffer.
void grouped_panel(const OperatorTable& ops, const GroupedCall& call, int64_t group, int64_t panel,
                   int64_t row) {
  const int64_t z_stride = call.groups * call.rank;
  const int64_t first = std::max(panel * kPanelRows, group * call.rank);
  const int64_t last = std::min({(panel + 1) * kPanelRows, (group + 1) * call.rank, call.weight->rows});
  LinearTile tile{.weight = call.weight,
                  .panel_begin = panel,
                  .panel_end = panel + 1,
                  .num_rows = std::min(kTileRows, call.num_rows - row),
                  .x = call.x + row * call.x_stride + group * call.group_cols,
                  .x_stride = call.x_stride,
                  .y = call.z + row * z_stride,
                  .y_stride = z_stride,
                  .round_bf16 = call.round_output};
  if (last - first == kPanelRows) {
    ops.linear(tile);
    return;
  }
  float side[kTileRows * kPanelRows];
  tile.y = side - panel * kPanelRows;
  tile.y_stride = kPanelRows;
  ops.linear(tile);
  for (int64_t t = 0; t < tile.num_rows; ++t) {
    for (int64_t c = first; c < last; ++c) {
      call.z[(row + t) * z_stride + c] = side[t * kPanelRows + c - panel * kPanelRows];
    }
  }
}

void grouped_linear(const OperatorTable& ops, Context& ctx, const GroupedCall& call) {
  const int64_t panels = divide_up(call.rank, kPanelRows) + (call.rank % kPanelRows != 0 ? 1 : 0);
  const int64_t row_chunks = divide_up(call.num_rows, kTileRows);
  ctx.pool->parallel_for(row_chunks * call.groups * panels, [&](int64_t chunk, int) {
    const int64_t group = chunk / panels % call.groups;
    const int64_t panel = group * call.rank / kPanelRows + chunk % panels;
    if (panel * kPanelRows >= (group + 1) * call.rank) return;
    grouped_panel(ops, call, group, panel, chunk / panels / call.groups * kTileRows);
  });
}

}  // namespace

void attention_output(const OperatorTable& ops, Context& ctx, const AttentionOutputArgs& args) {
  const Scratch::Frame frame(*ctx.scratch);
  const AttentionShape& shape = args.shape;
  const bool reference = ctx.numerics == Numerics::reference;
  const int64_t width = shape.num_heads * shape.head_dim;
  const int64_t z_width = shape.o_groups * shape.o_lora_rank;
  RORQUAL_CHECK(width / shape.o_groups == args.weights->wo_a.cols &&
                width % (shape.o_groups * kBlockCols) == 0);
  float* z = ctx.scratch->alloc<float>(args.num_rows * z_width);
  grouped_linear(ops, ctx,
                 {.weight = &args.weights->wo_a,
                  .num_rows = args.num_rows,
                  .groups = shape.o_groups,
                  .rank = shape.o_lora_rank,
                  .x = args.attended,
                  .x_stride = width,
                  .group_cols = width / shape.o_groups,
                  .z = z,
                  .round_output = reference});
  linear_layer(ops, ctx,
               {.weight = &args.weights->wo_b,
                .num_rows = args.num_rows,
                .x = z,
                .x_stride = z_width,
                .y = args.y,
                .y_stride = shape.d_model,
                .quantise_input = reference,
                .round_output = reference});
}

}  // namespace rorqual::kernels::cpu
