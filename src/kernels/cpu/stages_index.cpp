// SPDX-License-Identifier: Apache-2.0
// Index stage: queries and head weights, scores of the visible keys in tiles, top-k and candidate blocks.
#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <limits>

#include "base/check.h"
#include "kernels/cpu/cache_records.h"
#include "kernels/cpu/stages.h"

namespace rorqual::kernels::cpu {
namespace {

constexpr int64_t kKeysPerTile = 128;
constexpr int64_t kRowsPerTile = 32;                // rows that share one decoded tile of keys
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
  // reference numerics: the queries as integers (IndexQuery), and whether their scales allow it
  std::byte* records = nullptr;  // [rows, heads, index_bytes]
  int8_t* codes = nullptr;
  float* scales = nullptr;
  int32_t* offsets = nullptr;
  uint8_t* fits = nullptr;  // [rows]
};

/// Twice the value of an FP4 code.
constexpr int8_t kDoubled[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};
constexpr int kMostExponent = 60;

/// The two codes of a byte of FP4 values as IndexKeys has them, the first one in the low byte.
constexpr std::array<uint16_t, 256> make_key_codes() {
  std::array<uint16_t, 256> codes{};
  for (size_t byte = 0; byte < codes.size(); ++byte) {
    const int low = kDoubled[byte & 15] + kIndexKeyZero, high = kDoubled[byte >> 4] + kIndexKeyZero;
    codes[byte] = static_cast<uint16_t>(low | high << 8);
  }
  return codes;
}

constexpr std::array<uint16_t, 256> kKeyCodes = make_key_codes();

/// Scale of block `b` of a record of `width` FP4 values: 1 for a block of zeros. False: too large or small
/// for integers.
bool block_scale(const uint8_t* record, int64_t width, int64_t b, float& scale) {
  const int exponent = static_cast<int>(record[width / 2 + b]) - 127;
  scale = 1.0f;
  if (std::abs(exponent) <= kMostExponent) {
    scale = std::bit_cast<float>(static_cast<uint32_t>(record[width / 2 + b]) << 23);
    return true;
  }
  const uint8_t* codes = record + 16 * b;
  return std::all_of(codes, codes + 16, [](uint8_t two) { return (two & 0x77) == 0; });
}

/// The queries of row i as integers.
void unpack_query(const Index& index, const Batch& batch, int64_t i) {
  const int64_t heads = index.args.num_index_heads, dim = index.index_dim(), blocks = dim / 32;
  batch.fits[i] = 1;
  for (int64_t h = i * heads; h < (i + 1) * heads; ++h) {
    const auto* record =
        reinterpret_cast<const uint8_t*>(batch.records + h * index.args.format.index_bytes());
    for (int64_t b = 0; b < blocks; ++b) {
      float scale = 1;
      if (!block_scale(record, dim, b, scale)) batch.fits[i] = 0;
      batch.scales[h * blocks + b] = 0.25f * scale;
      int32_t sum = 0;
      for (int64_t d = 32 * b; d < 32 * b + 32; d += 2) {
        const uint8_t two = record[d / 2];
        batch.codes[h * dim + d] = kDoubled[two & 15];
        batch.codes[h * dim + d + 1] = kDoubled[two >> 4];
        sum += kDoubled[two & 15] + kDoubled[two >> 4];
      }
      batch.offsets[h * blocks + b] = kIndexKeyZero * sum;
    }
  }
}

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
      if (!round) continue;
      std::byte* record = batch.records + (i * heads + h) * index.args.format.index_bytes();
      ops.encode_fp4_e8m0(q, index.index_dim(), record);
      ops.decode_fp4_e8m0(record, index.index_dim(), q);
    }
    if (round) unpack_query(index, batch, i);
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

/// Keys of a tile in the form that a thread scores them in.
struct TileKeys {
  float* values = nullptr;   // [kKeysPerTile, Di]
  uint8_t* codes = nullptr;  // IndexKeys
  float* scales = nullptr;
};

/// The tile's keys as integers; false if a scale does not allow it.
bool pack_keys(const Index& index, const Tile& tile, const TileKeys& keys) {
  const int64_t dim = index.index_dim(), blocks = dim / 32, count = tile.key_end - tile.key_begin;
  constexpr int64_t kLanes = kIndexKeyLanes;
  bool fits = true;
  for (int64_t i = 0; i < (count + kLanes - 1) / kLanes * kLanes; ++i) {
    const int64_t group = i / kLanes, lane = i % kLanes;
    uint8_t* codes = keys.codes + group * dim * kLanes + lane * 4;
    float* scales = keys.scales + group * blocks * kLanes + lane;
    if (i >= count) {
      for (int64_t d = 0; d < dim; ++d) codes[d / 4 * 4 * kLanes + d % 4] = kIndexKeyZero;
      for (int64_t b = 0; b < blocks; ++b) scales[b * kLanes] = 1;
      continue;
    }
    const int64_t entry = index.entry(tile.row, tile.key_begin + i);
    const auto* record =
        reinterpret_cast<const uint8_t*>(index.codec.index_record(index.cache(tile.row), entry));
    for (int64_t b = 0; b < blocks; ++b) fits = block_scale(record, dim, b, scales[b * kLanes]) && fits;
    for (int64_t d = 0; d < dim; d += 4) {
      const uint32_t four = kKeyCodes[record[d / 2]] | uint32_t{kKeyCodes[record[d / 2 + 1]]} << 16;
      std::memcpy(codes + d * kLanes, &four, sizeof four);
    }
  }
  return fits;
}

void score_tile(const Index& index, const Batch& batch, const Tile& tile, const TileKeys& keys) {
  const RecordCodec& codec = index.codec;
  const int64_t heads = index.args.num_index_heads, dim = index.index_dim(), blocks = dim / 32;
  const bool are_packed = codec.packed() && pack_keys(index, tile, keys);
  bool are_decoded = false;
  for (int64_t t = tile.row; t < tile.row + tile.num_rows; ++t) {
    const int64_t count = std::min(tile.key_end, index.num_keys(t)) - tile.key_begin;
    const int64_t i = t - batch.row_begin;
    if (count <= 0 || !index.needs_scores(t)) continue;
    float* scores = batch.scores + i * batch.stride + tile.key_begin;
    const float* weights = batch.w + i * heads;
    if (are_packed && batch.fits[i] != 0) {
      const IndexQuery query{.codes = batch.codes + i * heads * dim,
                             .scales = batch.scales + i * heads * blocks,
                             .offsets = batch.offsets + i * heads * blocks,
                             .weights = weights,
                             .heads = heads,
                             .index_dim = dim};
      codec.ops.index_scores_int8(query, {keys.codes, keys.scales}, count, scores);
      continue;
    }
    for (int64_t k = tile.key_begin; !are_decoded && k < tile.key_end; ++k) {
      const std::byte* record = codec.index_record(index.cache(tile.row), index.entry(tile.row, k));
      codec.decode_index(record, keys.values + (k - tile.key_begin) * dim);
    }
    are_decoded = true;
    codec.ops.index_scores(batch.q + i * index.query_width(), weights, heads, dim, keys.values, count,
                           codec.format.numerics, scores);
  }
}

void run_batch(const Index& index, Context& ctx, Batch batch) {
  const Scratch::Frame frame(*ctx.scratch);
  const int64_t count = batch.row_end - batch.row_begin, threads = ctx.pool->num_threads();
  batch.q = ctx.scratch->alloc<float>(count * index.query_width());
  batch.w = ctx.scratch->alloc<float>(count * index.args.num_index_heads);
  batch.scores = ctx.scratch->alloc<float>(count * batch.stride);
  const int64_t width = index.query_width(), dim = index.index_dim();
  if (index.codec.packed()) {
    batch.records =
        ctx.scratch->alloc<std::byte>(count * index.args.num_index_heads * index.args.format.index_bytes());
    batch.codes = ctx.scratch->alloc<int8_t>(count * width);
    batch.scales = ctx.scratch->alloc<float>(count * width / 32);
    batch.offsets = ctx.scratch->alloc<int32_t>(count * width / 32);
    batch.fits = ctx.scratch->alloc<uint8_t>(count);
  }
  project_queries(index, ctx, batch);

  const int64_t num_tiles = cut_tiles(index, batch, nullptr);
  Tile* tiles = ctx.scratch->alloc<Tile>(num_tiles);
  cut_tiles(index, batch, tiles);
  TileKeys keys;
  keys.values = ctx.scratch->alloc<float>(threads * kKeysPerTile * dim);
  keys.codes = ctx.scratch->alloc<uint8_t>(threads * kKeysPerTile * dim);
  keys.scales = ctx.scratch->alloc<float>(threads * kKeysPerTile * dim / 32);
  ctx.pool->parallel_for(num_tiles, [&](int64_t i, int thread) {
    const int64_t at = thread * kKeysPerTile * dim;
    score_tile(index, batch, tiles[i], {keys.values + at, keys.codes + at, keys.scales + at / 32});
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
