// SPDX-License-Identifier: Apache-2.0
// Router, routed experts, shared expert. Rows are sorted by expert; the shared expert is the last one and
// takes every row. The sorted list is worked off in batches of bounded memory; within a batch each phase runs
// over chunks of (expert, rows, panels). A row's result depends on that row only: its products are whole
// within a chunk, and its expert outputs are added in ascending expert id, the shared one last.
#include <algorithm>

#include "base/check.h"
#include "kernels/cpu/stages.h"
#include "kernels/cpu/tiles.h"
#include "num/formats.h"

namespace rorqual::kernels::cpu {
namespace {

constexpr int64_t kBatchRows = 1024;   // sorted rows in flight: bounds the gathered copies
constexpr int64_t kSumColumns = 1024;  // columns of one chunk of the final sum

/// One row for one expert.
struct Entry {
  int32_t token;
  float weight;
};

/// Rows [begin, begin + count) of the sorted list that share an expert and a register tile; indices into the
/// batch.
struct Segment {
  const ExpertWeights* expert;
  int64_t begin, count;
  const float* x;  // first row
  int64_t x_stride;
};

/// A segment and a range of panels.
struct Chunk {
  int32_t segment;
  int32_t panel_begin, panel_end;
};

struct Routing {
  int64_t num_experts = 0, num_active = 0;
  const int64_t* expert_begin = nullptr;  // [E + 2]: sorted rows of expert e; E is the shared one
  const Entry* entries = nullptr;         // [T·(K + 1)], by expert, then by row
  const int64_t* position = nullptr;      // [T, K + 1]: places of a row's entries, ascending
};

/// Router logits and choice of every row.
void route_rows(const OperatorTable& ops, Context& ctx, const MoeArgs& args, int32_t* index, float* weight) {
  const Scratch::Frame frame(*ctx.scratch);
  const MoeWeights& weights = *args.weights;
  const int64_t num_experts = weights.gate.rows;
  float* logits = ctx.scratch->alloc<float>(args.num_rows * num_experts);
  linear_layer(ops, ctx,
               {.weight = &weights.gate,
                .num_rows = args.num_rows,
                .x = args.x,
                .x_stride = args.d_model,
                .y = logits,
                .y_stride = num_experts});
  ctx.pool->parallel_for(args.num_rows, [&](int64_t row, int) {
    const bool image = args.is_image != nullptr && args.is_image[row] != 0 && weights.bias_vl != nullptr;
    float* gap = args.router_gap == nullptr ? nullptr : args.router_gap + row;
    ops.route(logits + row * num_experts, image ? weights.bias_vl : weights.bias, num_experts, args,
              index + row * args.num_active, weight + row * args.num_active, gap);
  });
}

/// Sorts (row, choice) by expert, rows ascending within one; the shared expert follows with every row.
Routing sort_rows(Context& ctx, const MoeArgs& args, const int32_t* index, const float* weight) {
  const int64_t num_experts = args.weights->gate.rows;
  const int64_t active = args.num_active;
  auto* begin = ctx.scratch->alloc<int64_t>(num_experts + 2);
  auto* next = ctx.scratch->alloc<int64_t>(num_experts + 1);
  auto* entries = ctx.scratch->alloc<Entry>(args.num_rows * (active + 1));
  auto* position = ctx.scratch->alloc<int64_t>(args.num_rows * (active + 1));
  std::fill_n(begin, num_experts + 2, int64_t{0});
  for (int64_t i = 0; i < args.num_rows * active; ++i) ++begin[index[i] + 1];
  begin[num_experts + 1] = args.num_rows;
  for (int64_t e = 0; e <= num_experts; ++e) begin[e + 1] += begin[e];
  std::copy_n(begin, num_experts + 1, next);
  for (int64_t row = 0; row < args.num_rows; ++row) {
    int64_t* places = position + row * (active + 1);
    for (int64_t i = 0; i < active; ++i) {
      const int64_t place = next[index[row * active + i]]++;
      entries[place] = {static_cast<int32_t>(row), weight[row * active + i]};
      places[i] = place;
    }
    places[active] = next[num_experts]++;
    entries[places[active]] = {static_cast<int32_t>(row), 1.0f};
    std::sort(places, places + active + 1);
  }
  return {num_experts, active, begin, entries, position};
}

/// Everything the phases of one batch share.
struct Batch {
  const OperatorTable& ops;
  Context& ctx;
  const MoeArgs& args;
  const Routing& routing;
  const float* x = nullptr;  // [T, x_stride] quantised rows
  int64_t x_stride = 0;
  int64_t begin = 0, end = 0;  // sorted rows
  float* gathered = nullptr;   // [rows, x_stride]
  float* gate = nullptr;       // [rows, mid_stride]; becomes the hidden row in place
  float* up = nullptr;         // [rows, mid_stride]
  float* out = nullptr;        // [rows, D]
  int64_t mid_stride = 0;
  Segment* segments = nullptr;
  int64_t num_segments = 0;

  bool reference() const { return ctx.numerics == Numerics::reference; }
};

/// Cuts the batch into segments of at most kTileRows rows and copies the rows of those that have several.
void make_segments(Batch& batch) {
  const Routing& routing = batch.routing;
  const auto upper =
      std::upper_bound(routing.expert_begin, routing.expert_begin + routing.num_experts + 2, batch.begin);
  int64_t expert = upper - routing.expert_begin - 1;
  for (int64_t row = batch.begin; row < batch.end;) {
    while (routing.expert_begin[expert + 1] <= row) ++expert;
    const int64_t end = std::min({batch.end, routing.expert_begin[expert + 1], row + kTileRows});
    const MoeWeights& weights = *batch.args.weights;
    Segment& segment = batch.segments[batch.num_segments++];
    segment.expert =
        expert == routing.num_experts ? &weights.shared : &weights.experts[static_cast<size_t>(expert)];
    segment.begin = row - batch.begin;
    segment.count = end - row;
    segment.x_stride = batch.x_stride;
    segment.x = segment.count == 1 ? batch.x + routing.entries[row].token * batch.x_stride
                                   : batch.gathered + segment.begin * batch.x_stride;
    row = end;
  }
  batch.ctx.pool->parallel_for(batch.num_segments, [&](int64_t index, int) {
    const Segment& segment = batch.segments[index];
    if (segment.count == 1) return;
    for (int64_t i = segment.begin; i < segment.begin + segment.count; ++i) {
      const int64_t token = routing.entries[batch.begin + i].token;
      std::copy_n(batch.x + token * batch.x_stride, batch.x_stride, batch.gathered + i * batch.x_stride);
    }
  });
}

/// All chunks of one of the expert's matrices over the segments of the batch, and `work` on each of them in
/// parallel.
template <class Work>
void for_chunks(Batch& batch, Matrix ExpertWeights::*matrix, const Work& work) {
  const Scratch::Frame frame(*batch.ctx.scratch);
  int64_t total = 0;
  for (int64_t s = 0; s < batch.num_segments; ++s) {
    const Matrix& weight = batch.segments[s].expert->*matrix;
    total += divide_up(weight.num_panels(), panels_per_chunk(weight, batch.segments[s].count));
  }
  auto* chunks = batch.ctx.scratch->alloc<Chunk>(total);
  int64_t count = 0;
  for (int64_t s = 0; s < batch.num_segments; ++s) {
    const Matrix& weight = batch.segments[s].expert->*matrix;
    const int64_t panels = panels_per_chunk(weight, batch.segments[s].count);
    for (int64_t panel = 0; panel < weight.num_panels(); panel += panels) {
      chunks[count++] = {static_cast<int32_t>(s), static_cast<int32_t>(panel),
                         static_cast<int32_t>(std::min(panel + panels, weight.num_panels()))};
    }
  }
  batch.ctx.pool->parallel_for(total,
                               [&](int64_t i, int) { work(batch.segments[chunks[i].segment], chunks[i]); });
}

LinearTile tile_of(const Matrix& weight, const Segment& segment, const Chunk& chunk) {
  return {.weight = &weight,
          .panel_begin = chunk.panel_begin,
          .panel_end = chunk.panel_end,
          .num_rows = segment.count,
          .x = segment.x,
          .x_stride = segment.x_stride};
}

/// Gate and up projection of some columns, activation with the routing weight inside, and the roundings
/// before w2.
void hidden_chunk(const Batch& batch, const Segment& segment, const Chunk& chunk) {
  const int64_t stride = batch.mid_stride;
  const Matrix& w1 = segment.expert->w1;
  LinearTile tile = tile_of(w1, segment, chunk);
  tile.y = batch.gate + segment.begin * stride;
  tile.y_stride = stride;
  tile.round_bf16 = batch.reference();
  batch.ops.linear(tile);
  tile.weight = &segment.expert->w3;
  tile.y = batch.up + segment.begin * stride;
  batch.ops.linear(tile);

  const int64_t first = chunk.panel_begin * kPanelRows;
  const int64_t last = std::min(chunk.panel_end * kPanelRows, w1.rows);
  for (int64_t i = segment.begin; i < segment.begin + segment.count; ++i) {
    float* hidden = batch.gate + i * stride;
    const float weight = batch.routing.entries[batch.begin + i].weight;
    batch.ops.swiglu(hidden + first, batch.up + i * stride + first, last - first, batch.args.swiglu_limit,
                     weight, batch.reference(), hidden + first);
    if (batch.reference()) batch.ops.qdq_fp8(hidden + first, last - first, hidden + first);
    if (last == w1.rows) std::fill(hidden + last, hidden + stride, 0.0f);
  }
}

void down_chunk(const Batch& batch, const Segment& segment, const Chunk& chunk) {
  LinearTile tile = tile_of(segment.expert->w2, segment, chunk);
  tile.x = batch.gate + segment.begin * batch.mid_stride;
  tile.x_stride = batch.mid_stride;
  tile.y = batch.out + segment.begin * batch.args.d_model;
  tile.y_stride = batch.args.d_model;
  tile.round_bf16 = batch.reference();
  batch.ops.linear(tile);
}

/// y += outputs of this batch, in sorted order; the shared expert's entry is a row's last and rounds it.
void add_outputs(const Batch& batch) {
  const int64_t width = batch.args.d_model;
  const int64_t column_chunks = divide_up(width, kSumColumns);
  const int64_t per_row = batch.routing.num_active + 1;
  batch.ctx.pool->parallel_for(batch.args.num_rows * column_chunks, [&](int64_t chunk, int) {
    const int64_t row = chunk / column_chunks;
    const int64_t first = chunk % column_chunks * kSumColumns;
    const int64_t count = std::min(kSumColumns, width - first);
    const int64_t* places = batch.routing.position + row * per_row;
    float* y = batch.args.y + row * width + first;
    for (int64_t i = 0; i < per_row; ++i) {
      if (places[i] < batch.begin || places[i] >= batch.end) continue;
      const float* part = batch.out + (places[i] - batch.begin) * width + first;
      if (i == 0) {
        for (int64_t c = 0; c < count; ++c) y[c] = 0.0f + part[c];
      } else {
        for (int64_t c = 0; c < count; ++c) y[c] += part[c];
      }
      if (i == per_row - 1 && batch.reference()) batch.ops.round_bf16(y, count, y);
    }
  });
}

void run_batch(Batch& batch) {
  const Scratch::Frame frame(*batch.ctx.scratch);
  Scratch& scratch = *batch.ctx.scratch;
  const int64_t rows = batch.end - batch.begin;
  batch.segments = scratch.alloc<Segment>(rows);
  batch.num_segments = 0;
  batch.gathered = scratch.alloc<float>(rows * batch.x_stride);
  batch.gate = scratch.alloc<float>(rows * batch.mid_stride);
  batch.up = scratch.alloc<float>(rows * batch.mid_stride);
  batch.out = scratch.alloc<float>(rows * batch.args.d_model);
  make_segments(batch);
  for_chunks(batch, &ExpertWeights::w1,
             [&](const Segment& segment, const Chunk& chunk) { hidden_chunk(batch, segment, chunk); });
  for_chunks(batch, &ExpertWeights::w2,
             [&](const Segment& segment, const Chunk& chunk) { down_chunk(batch, segment, chunk); });
  add_outputs(batch);
}

/// The experts' input: quantised once per row, whatever the number of experts it goes to.
const float* quantised_rows(const OperatorTable& ops, Context& ctx, const MoeArgs& args) {
  const int64_t stride = padded_cols(args.d_model);
  const bool reference = ctx.numerics == Numerics::reference;
  RORQUAL_CHECK(!reference || stride == args.d_model);
  if (!reference && stride == args.d_model) return args.x;
  float* rows = ctx.scratch->alloc<float>(args.num_rows * stride);
  ctx.pool->parallel_for(args.num_rows, [&](int64_t row, int) {
    const float* source = args.x + row * args.d_model;
    float* target = rows + row * stride;
    if (reference) {
      ops.qdq_fp8(source, args.d_model, target);
    } else {
      std::copy_n(source, args.d_model, target);
      std::fill(target + args.d_model, target + stride, 0.0f);
    }
  });
  return rows;
}

}  // namespace

void moe(const OperatorTable& ops, Context& ctx, const MoeArgs& args) {
  if (args.num_rows == 0) return;
  const Scratch::Frame frame(*ctx.scratch);
  const int64_t choices = args.num_rows * args.num_active;
  int32_t* index = args.router_index != nullptr ? args.router_index : ctx.scratch->alloc<int32_t>(choices);
  float* weight = args.router_weight != nullptr ? args.router_weight : ctx.scratch->alloc<float>(choices);
  route_rows(ops, ctx, args, index, weight);
  const Routing routing = sort_rows(ctx, args, index, weight);
  Batch batch{.ops = ops, .ctx = ctx, .args = args, .routing = routing};
  batch.x = quantised_rows(ops, ctx, args);
  batch.x_stride = padded_cols(args.d_model);
  batch.mid_stride = padded_cols(args.d_expert);
  const int64_t total = args.num_rows * (args.num_active + 1);
  for (int64_t begin = 0; begin < total; begin += kBatchRows) {
    batch.begin = begin;
    batch.end = std::min(begin + kBatchRows, total);
    run_batch(batch);
  }
}

}  // namespace rorqual::kernels::cpu
