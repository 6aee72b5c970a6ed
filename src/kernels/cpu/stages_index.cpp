// SPDX-License-Identifier: Apache-2.0
// Index stage: queries and head weights, scores of the visible keys in tiles, top-k and candidate blocks.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>

#include "base/check.h"
#include "kernels/cpu/cache_records.h"
#include "kernels/cpu/stages.h"

namespace rorqual::kernels::cpu {
namespace {

constexpr int64_t kKeysPerTile = 128;
constexpr int64_t kRowsPerTile = 8;                 // rows that share one decoded tile of keys
constexpr int64_t kRowsPerBatch = 256;              // rows whose queries and scores exist at a time
constexpr int64_t kScoreFloats = int64_t{1} << 24;  // bound on the scores of a batch; one row always fits

/// Scores of rows [row, row + num_rows) of one sequence against keys [key_begin, key_end) of each row's list.
struct Tile {
  int64_t row = 0, num_rows = 0;
  int64_t key_begin = 0, key_end = 0;
};

struct Index {
  const IndexArgs& args;
  RecordCodec codec;

  int64_t index_dim() const { return args.format.index_dim; }

  int64_t query_width() const { return args.num_index_heads * index_dim(); }

  int64_t sequence_of(int64_t t) const { return args.plan->sequence_of_row[static_cast<size_t>(t)]; }

  const CompressedCache& cache(int64_t t) const { return args.caches[static_cast<size_t>(sequence_of(t))]; }

  int64_t visible(int64_t t) const { return (args.plan->positions[static_cast<size_t>(t)] + 1) / args.ratio; }

  /// All visible blocks are candidates: no scores are needed to find them.
  bool all_blocks(int64_t t) const {
    const CandidateList* out = args.candidates_out;
    return out == nullptr || visible(t) <= out->max_blocks * out->block_size;
  }

  bool needs_scores(int64_t t) const { return visible(t) > args.index_topk || !all_blocks(t); }

  /// Number of candidate blocks that restrict row t, -1 for none.
  int64_t restricted(int64_t t) const {
    return args.candidates_in == nullptr ? -1 : args.candidates_in->count[t];
  }

  /// Keys that row t scores: all visible ones, or those of its candidate blocks (only the last can be
  /// partial).
  int64_t num_keys(int64_t t) const {
    const int64_t blocks = restricted(t);
    if (blocks < 0) return visible(t);
    if (blocks == 0) return 0;
    const int64_t size = args.candidates_in->block_size;
    const int64_t last = args.candidates_in->blocks[t * args.candidates_in->max_blocks + blocks - 1];
    return (blocks - 1) * size + std::min(size, visible(t) - last * size);
  }

  /// Entry of key i of row t's list.
  int64_t entry(int64_t t, int64_t i) const {
    if (restricted(t) < 0) return i;
    const int64_t size = args.candidates_in->block_size;
    return args.candidates_in->blocks[t * args.candidates_in->max_blocks + i / size] * size + i % size;
  }

  void put_count(int64_t t, int64_t count) const {
    int32_t* selected = args.selected + t * args.index_topk;
    std::fill(selected + count, selected + args.index_topk, -1);
    args.selected_count[t] = static_cast<int32_t>(count);
  }

  void put_candidates(int64_t t, const float* scores) const {
    CandidateList* out = args.candidates_out;
    if (out == nullptr) return;
    int32_t* blocks = out->blocks + t * out->max_blocks;
    int64_t count = 0;
    if (!all_blocks(t)) {
      count = codec.ops.candidate_blocks(scores, visible(t), out->block_size, out->max_blocks, blocks);
    }
    std::fill(blocks + count, blocks + out->max_blocks, -1);
    out->count[t] = all_blocks(t) ? -1 : static_cast<int32_t>(count);
  }

  /// A row that sees no more than index_topk entries takes them all.
  void select_all(int64_t t) const {
    for (int64_t i = 0; i < visible(t); ++i) args.selected[t * args.index_topk + i] = static_cast<int32_t>(i);
    put_count(t, visible(t));
    put_candidates(t, nullptr);
    if (args.topk_gap != nullptr) args.topk_gap[t] = std::numeric_limits<float>::infinity();
  }

  void select_best(int64_t t, const float* scores) const {
    int32_t* selected = args.selected + t * args.index_topk;
    float* gap = args.topk_gap == nullptr ? nullptr : args.topk_gap + t;
    const int64_t count = codec.ops.top_k(scores, num_keys(t), args.index_topk, selected, gap);
    for (int64_t i = 0; i < count; ++i) selected[i] = static_cast<int32_t>(entry(t, selected[i]));
    put_count(t, count);
    put_candidates(t, scores);
  }
};

/// A run of rows that are scored together.
struct Batch {
  int64_t row_begin = 0, row_end = 0;
  float* q = nullptr;       // [rows, heads, Di]
  float* w = nullptr;       // [rows, heads]
  float* scores = nullptr;  // [rows, stride]
  int64_t stride = 0;
};

/// Rotated and rounded queries and the head weights of the batch's rows.
void project_queries(const Index& index, Context& ctx, const Batch& batch) {
  const IndexArgs& args = index.args;
  const OperatorTable& ops = index.codec.ops;
  const bool round = ctx.numerics == Numerics::reference;
  const int64_t count = batch.row_end - batch.row_begin, heads = args.num_index_heads,
                width = index.query_width();
  const Matrix &wq = args.weights->wq_b, &wp = args.weights->weights_proj;
  linear_layer(ops, ctx,
               {&wq, count, args.qr + batch.row_begin * wq.cols, wq.cols, batch.q, width, round, round});
  linear_layer(ops, ctx,
               {&wp, count, args.x + batch.row_begin * wp.cols, wp.cols, batch.w, heads, false, round});

  const int64_t half = args.shape.rope_dim / 2;
  const auto factor = static_cast<float>(1.0 / std::sqrt(static_cast<double>(index.index_dim())) /
                                         std::sqrt(static_cast<double>(heads)));
  ctx.pool->parallel_for(count, [&](int64_t i, int /*thread*/) {
    const int64_t t = batch.row_begin + i;
    for (int64_t h = 0; h < heads; ++h) {
      float* q = batch.q + i * width + h * index.index_dim();
      ops.rope(q, index.index_dim(), args.angles.cos + t * half, args.angles.sin + t * half, half, false,
               round, q);
      if (round) ops.qdq_fp4_e8m0(q, index.index_dim(), q);
    }
    float* w = batch.w + i * heads;
    for (int64_t h = 0; h < heads; ++h) w[h] *= factor;
    if (round) ops.round_bf16(w, heads, w);
  });
}

/// Cuts the batch into tiles; restricted rows have lists of their own and therefore tiles of their own.
/// With `tiles` null it only counts.
int64_t cut_tiles(const Index& index, const Batch& batch, Tile* tiles) {
  int64_t count = 0;
  for (int64_t t = batch.row_begin; t < batch.row_end;) {
    int64_t rows = 1;
    while (index.restricted(t) < 0 && rows < kRowsPerTile && t + rows < batch.row_end &&
           index.sequence_of(t + rows) == index.sequence_of(t) && index.restricted(t + rows) < 0) {
      ++rows;
    }
    const int64_t most = index.num_keys(t + rows - 1);  // visible counts ascend within a sequence
    for (int64_t begin = 0; begin < most; begin += kKeysPerTile) {
      if (tiles != nullptr) tiles[count] = {t, rows, begin, std::min(most, begin + kKeysPerTile)};
      ++count;
    }
    t += rows;
  }
  return count;
}

void score_tile(const Index& index, const Batch& batch, const Tile& tile, float* keys) {
  const RecordCodec& codec = index.codec;
  for (int64_t i = tile.key_begin; i < tile.key_end; ++i) {
    const std::byte* record = codec.index_record(index.cache(tile.row), index.entry(tile.row, i));
    codec.decode_index(record, keys + (i - tile.key_begin) * index.index_dim());
  }
  for (int64_t t = tile.row; t < tile.row + tile.num_rows; ++t) {
    const int64_t count = std::min(tile.key_end, index.num_keys(t)) - tile.key_begin;
    const int64_t i = t - batch.row_begin;
    if (count <= 0 || !index.needs_scores(t)) continue;
    codec.ops.index_scores(batch.q + i * index.query_width(), batch.w + i * index.args.num_index_heads,
                           index.args.num_index_heads, index.index_dim(), keys, count, codec.format.numerics,
                           batch.scores + i * batch.stride + tile.key_begin);
  }
}

void run_batch(const Index& index, Context& ctx, Batch batch) {
  const Scratch::Frame frame(*ctx.scratch);
  const int64_t count = batch.row_end - batch.row_begin, threads = ctx.pool->num_threads();
  batch.q = ctx.scratch->alloc<float>(count * index.query_width());
  batch.w = ctx.scratch->alloc<float>(count * index.args.num_index_heads);
  batch.scores = ctx.scratch->alloc<float>(count * batch.stride);
  project_queries(index, ctx, batch);

  const int64_t num_tiles = cut_tiles(index, batch, nullptr);
  Tile* tiles = ctx.scratch->alloc<Tile>(num_tiles);
  cut_tiles(index, batch, tiles);
  float* keys = ctx.scratch->alloc<float>(threads * kKeysPerTile * index.index_dim());
  ctx.pool->parallel_for(num_tiles, [&](int64_t i, int thread) {
    score_tile(index, batch, tiles[i], keys + thread * kKeysPerTile * index.index_dim());
  });
  ctx.pool->parallel_for(count, [&](int64_t i, int /*thread*/) {
    const int64_t t = batch.row_begin + i;
    if (index.needs_scores(t)) index.select_best(t, batch.scores + i * batch.stride);
  });
}

/// Rows that fit the score budget beside each other, from `begin` on.
Batch next_batch(const Index& index, int64_t begin, int64_t end) {
  Batch batch{begin, begin};
  while (batch.row_end < end && batch.row_end - begin < kRowsPerBatch) {
    const int64_t stride = std::max(batch.stride, index.num_keys(batch.row_end));
    if (batch.row_end > begin && stride * (batch.row_end + 1 - begin) > kScoreFloats) break;
    batch.stride = stride;
    ++batch.row_end;
  }
  return batch;
}

}  // namespace

void index_select(const OperatorTable& ops, Context& ctx, const IndexArgs& args) {
  RORQUAL_CHECK(args.format.numerics == ctx.numerics && args.format.index_dim % kBlockCols == 0);
  RORQUAL_CHECK(args.candidates_out == nullptr || args.candidates_in == nullptr);
  const ScopedFlushToZero flush;
  const Index index{args, {ops, args.format}};
  int64_t first = args.plan->num_rows, last = 0;  // rows outside [first, last) need no scores
  for (int64_t t = 0; t < args.plan->num_rows; ++t) {
    if (!index.needs_scores(t)) {
      index.select_all(t);
    } else {
      first = std::min(first, t);
      last = t + 1;
    }
  }
  while (first < last) {
    const Batch batch = next_batch(index, first, last);
    run_batch(index, ctx, batch);
    first = batch.row_end;
  }
}

}  // namespace rorqual::kernels::cpu
