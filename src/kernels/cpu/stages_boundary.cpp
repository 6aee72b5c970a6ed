// SPDX-License-Identifier: Apache-2.0
// Sublayer boundary (post, mixes, collapse, norm) and the taps of the draft model.
#include <algorithm>
#include <cstdint>

#include "base/check.h"
#include "kernels/cpu/stages.h"

namespace rorqual::kernels::cpu {
namespace {

constexpr int64_t kRowsPerTile = 8;  // rows that share one pass over fn

struct Boundary {
  const OperatorTable& ops;
  const BoundaryArgs& args;
  bool round;

  int64_t stream_floats() const { return args.num_streams * args.d_model; }

  int64_t num_mixes() const { return (2 + args.num_streams) * args.num_streams; }

  int64_t padded_mixes() const { return args.hyper->fn.num_panels() * kPanelRows; }

  float* row(int64_t t) const { return args.streams + t * stream_floats(); }

  void post(int64_t t) const {
    if (args.y == nullptr) return;
    const int64_t n = args.num_streams;
    ops.hyper_expand(args.y + t * args.d_model, args.post + t * n, args.comb + t * n * n, n, args.d_model,
                     round, row(t));
  }

  void collapse(int64_t t, float* spare) const {
    if (args.pre_mix == nullptr) return;
    float* to = args.collapsed != nullptr ? args.collapsed + t * args.d_model : spare;
    ops.hyper_collapse(row(t), args.pre_mix + t * args.num_streams, args.num_streams, args.d_model, round,
                       to);
    if (args.norm_weight == nullptr) return;
    ops.rms_norm(to, args.norm_weight, args.norm_eps, args.d_model, round, args.x + t * args.d_model);
  }

  /// Raw products of fn with the streams of rows [begin, end) -> products [end - begin, padded_mixes].
  void products(int64_t begin, int64_t end, float* out) const {
    LinearTile tile;
    tile.weight = &args.hyper->fn;
    tile.panel_begin = 0;
    tile.panel_end = args.hyper->fn.num_panels();
    tile.num_rows = end - begin;
    tile.x = row(begin);
    tile.x_stride = stream_floats();
    tile.y = out;
    tile.y_stride = padded_mixes();
    ops.linear(tile);
  }

  void mixes(int64_t t, const float* products) const {
    const int64_t n = args.num_streams;
    const float mean_square = ops.sum_squares(row(t), stream_floats()) / static_cast<float>(stream_floats());
    ops.hyper_mixes(products, mean_square, *args.hyper, n, args.norm_eps, args.hc_eps, args.sinkhorn_iters,
                    args.next_pre + t * n, args.next_post + t * n, args.next_comb + t * n * n);
  }
};

/// Everything of a tile of rows on one thread: streams are touched while they are in cache.
void run_tiles(const Boundary& b, Context& ctx) {
  const int64_t num_rows = b.args.num_rows;
  const int64_t threads = ctx.pool->num_threads();
  const int64_t tile = std::clamp((num_rows + threads - 1) / threads, int64_t{1}, kRowsPerTile);
  const int64_t mixes_stride = b.args.hyper != nullptr ? b.padded_mixes() * kRowsPerTile : 0;
  float* spare = ctx.scratch->alloc<float>(threads * b.args.d_model);
  float* products = ctx.scratch->alloc<float>(threads * mixes_stride);
  ctx.pool->parallel_for((num_rows + tile - 1) / tile, [&](int64_t chunk, int thread) {
    const int64_t begin = chunk * tile, end = std::min(num_rows, begin + tile);
    for (int64_t t = begin; t < end; ++t) b.post(t);
    if (b.args.hyper != nullptr) {
      float* mine = products + thread * mixes_stride;
      b.products(begin, end, mine);
      for (int64_t t = begin; t < end; ++t) b.mixes(t, mine + (t - begin) * b.padded_mixes());
    }
    for (int64_t t = begin; t < end; ++t) b.collapse(t, spare + thread * b.args.d_model);
  });
}

/// fn times few rows, split over blocks of 32 columns: each block's sum on its own, then added in ascending
/// order, which is the linear order of the undivided product.
void split_products(const Boundary& b, Context& ctx, float* products) {
  constexpr int64_t kBlocksPerChunk = 16;
  const Matrix& fn = b.args.hyper->fn;
  const int64_t num_rows = b.args.num_rows, num_blocks = fn.num_blocks(), width = b.padded_mixes();
  float* partial = ctx.scratch->alloc<float>(num_blocks * num_rows * width);
  ctx.pool->parallel_for(
      (num_blocks + kBlocksPerChunk - 1) / kBlocksPerChunk, [&](int64_t chunk, int /*thread*/) {
        const int64_t end = std::min(num_blocks, (chunk + 1) * kBlocksPerChunk);
        for (int64_t block = chunk * kBlocksPerChunk; block < end; ++block) {
          for (int64_t panel = 0; panel < fn.num_panels(); ++panel) {
            Matrix part = fn;
            part.rows = std::min(kPanelRows, fn.rows - panel * kPanelRows);
            part.cols = kBlockCols;
            part.data = fn.data + (panel * num_blocks + block) * kBlockCols * kPanelRows * 4;
            LinearTile tile;
            tile.weight = &part;
            tile.panel_end = 1;
            tile.num_rows = num_rows;
            tile.x = b.args.streams + block * kBlockCols;
            tile.x_stride = b.stream_floats();
            tile.y = partial + block * num_rows * width + panel * kPanelRows;
            tile.y_stride = width;
            b.ops.linear(tile);
          }
        }
      });
  for (int64_t t = 0; t < num_rows; ++t) {
    float* out = products + t * width;
    std::fill(out, out + width, 0.0f);
    for (int64_t block = 0; block < num_blocks; ++block) {
      const float* in = partial + (block * num_rows + t) * width;
      for (int64_t i = 0; i < b.num_mixes(); ++i) out[i] += in[i];
    }
  }
}

/// Few rows: one task per row and part, and fn split over its columns.
void run_split(const Boundary& b, Context& ctx) {
  const int64_t num_rows = b.args.num_rows, d_model = b.args.d_model;
  float* spare = ctx.scratch->alloc<float>(num_rows * d_model);
  ctx.pool->parallel_for(num_rows, [&](int64_t t, int /*thread*/) {
    b.post(t);
    b.collapse(t, spare + t * d_model);
  });
  if (b.args.hyper == nullptr) return;
  float* products = ctx.scratch->alloc<float>(num_rows * b.padded_mixes());
  split_products(b, ctx, products);
  for (int64_t t = 0; t < num_rows; ++t) b.mixes(t, products + t * b.padded_mixes());
}

}  // namespace

void boundary(const OperatorTable& ops, Context& ctx, const BoundaryArgs& args) {
  RORQUAL_CHECK(args.pre_mix == nullptr || args.pre_mix != args.next_pre);
  RORQUAL_CHECK(args.d_model % kBlockCols == 0);
  if (args.num_rows == 0) return;
  const ScopedFlushToZero flush;
  const Scratch::Frame frame(*ctx.scratch);
  const Boundary b{ops, args, ctx.numerics == Numerics::reference};
  if (args.num_rows < ctx.pool->num_threads()) {
    run_split(b, ctx);
  } else {
    run_tiles(b, ctx);
  }
}

void tap(const OperatorTable& ops, Context& ctx, const TapArgs& args) {
  const bool round = ctx.numerics == Numerics::reference;
  ctx.pool->parallel_for(args.num_rows, [&](int64_t t, int /*thread*/) {
    const float* streams = args.streams + t * args.num_streams * args.d_model;
    float* out = args.out + t * args.out_stride;
    for (int64_t c = 0; c < args.d_model; ++c) {
      float sum = streams[c];
      for (int64_t i = 1; i < args.num_streams; ++i) sum += streams[i * args.d_model + c];
      out[c] = sum / static_cast<float>(args.num_streams);
    }
    if (round) ops.round_bf16(out, args.d_model, out);
  });
}

}  // namespace rorqual::kernels::cpu
