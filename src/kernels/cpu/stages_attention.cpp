// SPDX-License-Identifier: Apache-2.0
// Attention stages: queries and window records, compressed entries, sparse attention, commit of window
// records.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>

#include "base/check.h"
#include "kernels/cpu/cache_records.h"
#include "kernels/cpu/stages.h"
#include "num/vector_math.h"

namespace rorqual::kernels::cpu {
namespace {

constexpr int64_t kRecordsPerChunk = 16;
constexpr int64_t kHeadsPerTask = 16;  // two registers of heads

int64_t chunks_of(int64_t count, int64_t size) {
  return (count + size - 1) / size;
}

}  // namespace

// ------------------------------------------------------------------------------------------------
// attention_inputs
void attention_inputs(const OperatorTable& ops, Context& ctx, const AttentionInputArgs& args) {
  const AttentionShape& shape = args.shape;
  const bool round = ctx.numerics == Numerics::reference;
  const int64_t half = shape.rope_dim / 2, q_width = shape.num_heads * shape.head_dim;
  if (args.num_rows == 0) return;
  const Scratch::Frame frame(*ctx.scratch);
  const auto project = [&](const Matrix& weight, const float* x, float* y) {
    LinearCall call;
    call.weight = &weight;
    call.num_rows = args.num_rows;
    call.x = x;
    call.x_stride = weight.cols;
    call.y = y;
    call.y_stride = weight.rows;
    call.quantise_input = round;
    call.round_output = round;
    linear_layer(ops, ctx, call);
  };
  const auto norm = [&](float* x, int64_t width, const float* weight) {
    norm_rows(ops, ctx, {args.num_rows, width, x, weight, shape.norm_eps, x});
  };

  if (args.qr != nullptr) {
    project(args.weights->wq_a, args.x, args.qr);
    norm(args.qr, shape.q_lora_rank, args.weights->q_norm);
    project(args.weights->wq_b, args.qr, args.q);
  }
  float* kv = ctx.scratch->alloc<float>(args.num_rows * shape.head_dim);
  project(args.weights->wkv, args.x, kv);
  norm(kv, shape.head_dim, args.weights->kv_norm);

  const RecordCodec codec{ops, {ctx.numerics, shape.head_dim, 0}};
  const int64_t record_bytes = codec.format.window_bytes();
  ctx.pool->parallel_for(args.num_rows, [&](int64_t t, int /*thread*/) {
    const float* cos = args.angles.cos + t * half;
    const float* sin = args.angles.sin + t * half;
    for (int64_t h = 0; args.q != nullptr && h < shape.num_heads; ++h) {
      float* q = args.q + t * q_width + h * shape.head_dim;
      ops.rope(q, shape.head_dim, cos, sin, half, false, round, q);
    }
    float* row = kv + t * shape.head_dim;
    ops.rope(row, shape.head_dim, cos, sin, half, false, round, row);
    codec.encode_window(row, args.window_records + t * record_bytes);
  });
}

// ------------------------------------------------------------------------------------------------ compress
namespace {

constexpr int64_t kMaxRatio = 8;

/// A group of `ratio` tokens that becomes complete in the step.
struct Group {
  int64_t sequence = 0;
  int64_t id = 0;
};

struct Projection {
  const float* kv = nullptr;
  const float* gate = nullptr;
};

struct Compress {
  const OperatorTable& ops;
  const CompressArgs& args;
  bool round;
  const float* kv;    // [T, Dh]
  const float* gate;  // [T, Dh], null for ratio 1

  int64_t head_dim() const { return args.shape.head_dim; }

  const SequenceRows& rows(int64_t sequence) const {
    return args.plan->sequences[static_cast<size_t>(sequence)];
  }

  const CompressedCache& cache(int64_t sequence) const { return args.caches[static_cast<size_t>(sequence)]; }

  float* pending(const CompressedCache& c, int64_t position) const {
    return c.pending + position % c.pending_slots * 2 * head_dim();
  }

  /// Projections (kv, gate) of a position: rows of this step, or pending ones of an earlier step.
  Projection projection(int64_t sequence, int64_t position) const {
    const SequenceRows& r = rows(sequence);
    if (position < r.start) {
      const float* row = pending(cache(sequence), position);
      return {row, row + head_dim()};
    }
    const int64_t t = r.row_begin + (position - r.start);
    return {kv + t * head_dim(), gate + t * head_dim()};
  }

  /// Per channel: softmax of the gates over the tokens of a group, then the weighted sum of their kv.
  void pool_group(int64_t sequence, int64_t group, float* out) const {
    Projection tokens[kMaxRatio];
    for (int64_t i = 0; i < args.ratio; ++i) tokens[i] = projection(sequence, group * args.ratio + i);
    for (int64_t c = 0; c < head_dim(); ++c) {
      float largest = tokens[0].gate[c];
      for (int64_t i = 1; i < args.ratio; ++i) largest = std::max(largest, tokens[i].gate[c]);
      float weight[kMaxRatio];
      float total = 0;
      for (int64_t i = 0; i < args.ratio; ++i) {
        weight[i] = num::exp(tokens[i].gate[c] - largest);
        total += weight[i];
      }
      out[c] = 0;
      for (int64_t i = 0; i < args.ratio; ++i) out[c] += tokens[i].kv[c] * (weight[i] / total);
    }
    if (round) ops.round_bf16(out, head_dim(), out);
  }

  /// Rows that a later step may need to complete a group (also after rejected drafts): all but the last
  /// tokens of groups, as many of the newest positions as the ring holds.
  void keep_pending(int64_t sequence) const {
    const SequenceRows& r = rows(sequence);
    const CompressedCache& c = cache(sequence);
    const int64_t end = r.start + r.row_count;
    for (int64_t position = std::max(r.start, end - c.pending_slots); position < end; ++position) {
      if (position % args.ratio == args.ratio - 1) continue;
      const int64_t t = r.row_begin + (position - r.start);
      float* to = pending(c, position);
      std::copy(kv + t * head_dim(), kv + (t + 1) * head_dim(), to);
      std::copy(gate + t * head_dim(), gate + (t + 1) * head_dim(), to + head_dim());
    }
  }
};

/// Lists the groups that the step completes, in row order.
int64_t list_groups(const CompressArgs& args, Group* groups) {
  int64_t count = 0;
  for (size_t s = 0; s < args.plan->sequences.size(); ++s) {
    const SequenceRows& r = args.plan->sequences[s];
    for (int64_t g = r.start / args.ratio; g < (r.start + r.row_count) / args.ratio; ++g) {
      groups[count++] = {static_cast<int64_t>(s), g};
    }
  }
  return count;
}

}  // namespace

void compress(const OperatorTable& ops, Context& ctx, const CompressArgs& args) {
  const int64_t head_dim = args.shape.head_dim, index_dim = args.format.index_dim;
  const int64_t num_rows = args.plan->num_rows, half = args.shape.rope_dim / 2;
  RORQUAL_CHECK(args.ratio >= 1 && args.ratio <= kMaxRatio && args.format.numerics == ctx.numerics);
  if (num_rows == 0) return;
  const ScopedFlushToZero flush;
  const Scratch::Frame frame(*ctx.scratch);
  const bool round = ctx.numerics == Numerics::reference;
  const auto project = [&](const Matrix& weight, int64_t count, const float* x, bool round_output) {
    float* y = ctx.scratch->alloc<float>(count * weight.rows);
    linear_layer(ops, ctx, {&weight, count, x, weight.cols, y, weight.rows, false, round_output});
    return y;
  };

  // Ratio 1 rounds its projection to BF16; the pooled kind keeps F32 until the pool is rounded.
  const bool pooled = args.ratio > 1;
  float* kv = project(args.weights->wkv, num_rows, args.x, round && !pooled);
  const float* gate = pooled ? project(args.weights->wgate, num_rows, args.x, false) : nullptr;
  const Compress step{ops, args, round, kv, gate};
  Group* groups = ctx.scratch->alloc<Group>(num_rows);
  const int64_t num_groups = list_groups(args, groups);

  float* latent = kv;  // ratio 1: row t is group t
  if (pooled) {
    latent = ctx.scratch->alloc<float>(num_groups * head_dim);
    ctx.pool->parallel_for(num_groups, [&](int64_t g, int /*thread*/) {
      step.pool_group(groups[g].sequence, groups[g].id, latent + g * head_dim);
    });
    for (size_t s = 0; s < args.plan->sequences.size(); ++s) step.keep_pending(static_cast<int64_t>(s));
  }
  if (num_groups == 0) return;
  norm_rows(ops, ctx, {num_groups, head_dim, latent, args.weights->norm, args.shape.norm_eps, latent});

  // The index key comes from the latent before its rotation.
  float* key = project(args.weights->index_wk, num_groups, latent, round);
  norm_rows(ops, ctx, {num_groups, index_dim, key, args.weights->index_k_norm, args.shape.norm_eps, key});

  auto* positions = ctx.scratch->alloc<int64_t>(num_groups);
  for (int64_t g = 0; g < num_groups; ++g) positions[g] = groups[g].id * args.ratio;
  float* cos = ctx.scratch->alloc<float>(num_groups * half);
  float* sin = ctx.scratch->alloc<float>(num_groups * half);
  rope_angles(ops, ctx, {positions, static_cast<size_t>(num_groups)}, args.rope, cos, sin);
  const RecordCodec codec{ops, args.format};
  ctx.pool->parallel_for(num_groups, [&](int64_t g, int /*thread*/) {
    const CompressedCache& cache = step.cache(groups[g].sequence);
    float* k = key + g * index_dim;
    ops.rope(k, index_dim, cos + g * half, sin + g * half, half, false, round, k);
    codec.encode_index(k, codec.index_record(cache, groups[g].id));
    float* l = latent + g * head_dim;
    ops.rope(l, head_dim, cos + g * half, sin + g * half, half, false, round, l);
    codec.encode_compressed(l, codec.compressed_record(cache, groups[g].id));
  });
}

// ------------------------------------------------------------------------------------------------ attend
namespace {

struct Attend {
  const AttendArgs& args;
  RecordCodec codec;
  const float* decoded = nullptr;          // window rows of all sequences, null = decode per row
  const int64_t* decoded_begin = nullptr;  // [sequences] first row of a sequence in `decoded`

  int64_t head_dim() const { return args.shape.head_dim; }

  int64_t sequence_of(int64_t t) const { return args.plan->sequence_of_row[static_cast<size_t>(t)]; }

  const SequenceRows& rows(int64_t s) const { return args.plan->sequences[static_cast<size_t>(s)]; }

  /// First position that any row of the sequence sees through its window.
  int64_t low(const SequenceRows& r) const {
    const int64_t reach = args.draft_block ? r.start - args.shape.window : r.start - args.shape.window + 1;
    return std::max({int64_t{0}, r.window_begin, reach});
  }

  struct Span {
    int64_t first = 0;   // first window position
    int64_t filled = 0;  // window entries
    int64_t window = 0;  // window slots, filled ones first
    int64_t slots = 0;   // all slots
  };

  Span span_of(int64_t t) const {
    const SequenceRows& r = rows(sequence_of(t));
    if (args.draft_block) {
      const int64_t count = r.start + r.row_count - std::min(low(r), r.start);
      return {std::min(low(r), r.start), count, count, count};
    }
    const int64_t position = r.start + (t - r.row_begin);
    const int64_t first = std::max({int64_t{0}, r.window_begin, position - args.shape.window + 1});
    const int64_t selected = args.selected == nullptr ? 0 : args.selected_count[t];
    return {first, position - first + 1, args.shape.window, args.shape.window + selected};
  }

  void decode_position(int64_t s, int64_t position, float* y) const {
    const SequenceRows& r = rows(s);
    if (position < r.start) {
      codec.decode_window(codec.window_record(args.windows[static_cast<size_t>(s)], position), y);
    } else {
      const int64_t t = r.row_begin + (position - r.start);
      codec.decode_window(args.window_records + t * codec.format.window_bytes(), y);
    }
  }

  /// Writes slots [begin, end) of row t's list: keys and validity.
  void fill(int64_t t, const Span& span, int64_t begin, int64_t end, float* keys, uint8_t* valid) const {
    const int64_t s = sequence_of(t);
    const auto width = static_cast<size_t>(head_dim());
    for (int64_t slot = begin; slot < end; ++slot) {
      float* key = keys + slot * head_dim();
      valid[slot] = slot < span.filled || slot >= span.window;
      if (slot < span.filled && decoded != nullptr) {
        const int64_t row = decoded_begin[s] + span.first + slot - low(rows(s));
        std::memcpy(key, decoded + row * head_dim(), width * sizeof(float));
      } else if (slot < span.filled) {
        decode_position(s, span.first + slot, key);
      } else if (slot >= span.window) {
        const int64_t entry = args.selected[t * args.selected_stride + slot - span.window];
        codec.decode_compressed(codec.compressed_record(args.compressed[static_cast<size_t>(s)], entry), key);
      }
    }
  }

  /// Heads [begin, end) of row t over its filled list, inverse rotation included.
  void heads(int64_t t, int64_t begin, int64_t end, const Span& span, const float* keys, const uint8_t* valid,
             float* workspace) const;
};

void Attend::heads(int64_t t, int64_t begin, int64_t end, const Span& span, const float* keys,
                   const uint8_t* valid, float* workspace) const {
  const OperatorTable& ops = codec.ops;
  const int64_t half = args.shape.rope_dim / 2;
  const int64_t at = (t * args.shape.num_heads + begin) * head_dim();
  const auto scale = static_cast<float>(1.0 / std::sqrt(static_cast<double>(head_dim())));
  ops.attend(args.q + at, end - begin, head_dim(), keys, valid, span.slots, args.attn_sink + begin, scale,
             codec.format.numerics, args.out + at, workspace);
  for (int64_t h = begin; h < end; ++h) {
    float* out = args.out + (t * args.shape.num_heads + h) * head_dim();
    ops.rope(out, head_dim(), args.angles.cos + t * half, args.angles.sin + t * half, half, true,
             codec.packed(), out);
  }
}

/// Decodes the window rows that the step sees, each once; sets `decoded` and `decoded_begin`.
void decode_windows(Attend& attend, Context& ctx) {
  const auto num_sequences = static_cast<int64_t>(attend.args.plan->sequences.size());
  auto* begin = ctx.scratch->alloc<int64_t>(num_sequences);
  auto* first_chunk = ctx.scratch->alloc<int64_t>(num_sequences + 1);
  const auto count_of = [&](int64_t s) {
    const SequenceRows& r = attend.rows(s);
    return std::max<int64_t>(r.start + r.row_count - attend.low(r), 0);
  };
  int64_t total = 0;
  first_chunk[0] = 0;
  for (int64_t s = 0; s < num_sequences; ++s) {
    begin[s] = total;
    total += count_of(s);
    first_chunk[s + 1] = first_chunk[s] + chunks_of(count_of(s), kRecordsPerChunk);
  }
  float* decoded = ctx.scratch->alloc<float>(total * attend.head_dim());
  ctx.pool->parallel_for(first_chunk[num_sequences], [&](int64_t chunk, int /*thread*/) {
    const int64_t s = std::upper_bound(first_chunk, first_chunk + num_sequences, chunk) - first_chunk - 1;
    const int64_t from = (chunk - first_chunk[s]) * kRecordsPerChunk;
    const int64_t to = std::min(count_of(s), from + kRecordsPerChunk);
    for (int64_t i = from; i < to; ++i) {
      attend.decode_position(s, attend.low(attend.rows(s)) + i, decoded + (begin[s] + i) * attend.head_dim());
    }
  });
  attend.decoded = decoded;
  attend.decoded_begin = begin;
}

int64_t most_slots(const Attend& attend) {
  int64_t most = 0;
  for (int64_t t = 0; t < attend.args.plan->num_rows; ++t) most = std::max(most, attend.span_of(t).slots);
  return most;
}

/// Many rows: window records are decoded once for all rows, then each row is one task.
void attend_by_rows(Attend& attend, Context& ctx) {
  const int64_t num_heads = attend.args.shape.num_heads, threads = ctx.pool->num_threads();
  const int64_t slots = most_slots(attend);
  decode_windows(attend, ctx);
  const int64_t work = attend.codec.ops.attend_workspace(num_heads, attend.head_dim(), slots);
  float* keys = ctx.scratch->alloc<float>(threads * slots * attend.head_dim());
  auto* valid = ctx.scratch->alloc<uint8_t>(threads * slots);
  float* workspace = ctx.scratch->alloc<float>(threads * work);
  ctx.pool->parallel_for(attend.args.plan->num_rows, [&](int64_t t, int thread) {
    float* my_keys = keys + thread * slots * attend.head_dim();
    uint8_t* my_valid = valid + thread * slots;
    const Attend::Span span = attend.span_of(t);
    attend.fill(t, span, 0, span.slots, my_keys, my_valid);
    attend.heads(t, 0, num_heads, span, my_keys, my_valid, workspace + thread * work);
  });
}

/// Few rows: the list of each row is decoded in chunks, then tasks are groups of heads.
void attend_by_heads(const Attend& attend, Context& ctx) {
  const int64_t num_rows = attend.args.plan->num_rows, num_heads = attend.args.shape.num_heads;
  const int64_t threads = ctx.pool->num_threads(), slots = most_slots(attend);
  float* keys = ctx.scratch->alloc<float>(num_rows * slots * attend.head_dim());
  auto* valid = ctx.scratch->alloc<uint8_t>(num_rows * slots);
  const int64_t fills = chunks_of(slots, kRecordsPerChunk);
  ctx.pool->parallel_for(num_rows * fills, [&](int64_t task, int /*thread*/) {
    const int64_t t = task / fills, begin = task % fills * kRecordsPerChunk;
    const Attend::Span span = attend.span_of(t);
    attend.fill(t, span, begin, std::min(span.slots, begin + kRecordsPerChunk),
                keys + t * slots * attend.head_dim(), valid + t * slots);
  });

  const bool wide = num_rows * chunks_of(num_heads, kHeadsPerTask) >= threads;
  const int64_t group = wide ? kHeadsPerTask : kHeadsPerTask / 2, groups = chunks_of(num_heads, group);
  const int64_t work = attend.codec.ops.attend_workspace(group, attend.head_dim(), slots);
  float* workspace = ctx.scratch->alloc<float>(threads * work);
  ctx.pool->parallel_for(num_rows * groups, [&](int64_t task, int thread) {
    const int64_t t = task / groups, begin = task % groups * group;
    attend.heads(t, begin, std::min(num_heads, begin + group), attend.span_of(t),
                 keys + t * slots * attend.head_dim(), valid + t * slots, workspace + thread * work);
  });
}

}  // namespace

void attend(const OperatorTable& ops, Context& ctx, const AttendArgs& args) {
  RORQUAL_CHECK(args.shape.head_dim % kBlockCols == 0 && args.format.numerics == ctx.numerics);
  if (args.plan->num_rows == 0) return;
  const Scratch::Frame frame(*ctx.scratch);
  Attend attend{args, {ops, args.format}};
  if (args.plan->num_rows < ctx.pool->num_threads()) {
    attend_by_heads(attend, ctx);
  } else {
    attend_by_rows(attend, ctx);
  }
}

// ------------------------------------------------------------------------------------------------
// commit_window
void commit_window(const OperatorTable& ops, Context& ctx, const CommitWindowArgs& args) {
  const RecordCodec codec{ops, args.format};
  const int64_t bytes = args.format.window_bytes();
  const auto num_sequences = static_cast<int64_t>(args.plan->sequences.size());
  ctx.pool->parallel_for(num_sequences, [&](int64_t s, int /*thread*/) {
    const SequenceRows& r = args.plan->sequences[static_cast<size_t>(s)];
    const WindowCache& cache = args.windows[static_cast<size_t>(s)];
    const int64_t end = r.start + r.row_count;
    for (int64_t position = r.start; position < end;) {
      const int64_t page = position / kWindowPageTokens;
      const int64_t next = std::min(end, (page + 1) * kWindowPageTokens);
      if (cache.pages[page - cache.first_page] != nullptr) {
        const std::byte* from = args.window_records + (r.row_begin + position - r.start) * bytes;
        std::memcpy(codec.window_record(cache, position), from,
                    static_cast<size_t>((next - position) * bytes));
      }
      position = next;
    }
  });
}

}  // namespace rorqual::kernels::cpu
