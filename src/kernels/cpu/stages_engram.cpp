// SPDX-License-Identifier: Apache-2.0
// Engram: gathered table rows -> keys and a value -> gated addition to the streams. docs/numerics.md,
// "Engram".
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>

#include "base/check.h"
#include "kernels/cpu/stages.h"
#include "num/vector_math.h"

namespace rorqual::kernels::cpu {
namespace {

constexpr int64_t kMaxStreams = 8;
constexpr int64_t kRowsPerBatch = 256;  // bounds the scratch memory of long steps
constexpr int64_t kScaleGroup = 32;

/// Table rows of token t: E4M3 times their scales, exact in BF16. `record` holds head_dim + head_dim/32
/// bytes.
void decode_row(const OperatorTable& ops, const EngramArgs& args, int64_t t, std::byte* record, float* out) {
  const int64_t codes = args.head_dim, scales = args.head_dim / kScaleGroup;
  for (int64_t c = 0; c < args.num_columns; ++c) {
    const int64_t at = t * args.num_columns + c;
    std::memcpy(record, args.rows_e4m3 + at * codes, static_cast<size_t>(codes));
    std::memcpy(record + codes, args.row_scales + at * scales, static_cast<size_t>(scales));
    ops.decode_fp8(record, args.head_dim, out + c * args.head_dim);
  }
}

float gate_of(float dot, float h_square, float key_square, const EngramArgs& args) {
  const auto width = static_cast<float>(args.d_model);
  const float r =
      (1.0f / std::sqrt(h_square / width + args.eps)) * (1.0f / std::sqrt(key_square / width + args.eps));
  const float d = dot * r * static_cast<float>(1.0 / std::sqrt(static_cast<double>(args.d_model)));
  const float magnitude = std::sqrt(std::max(std::fabs(d), 1e-6f));
  return num::sigmoid(std::copysign(magnitude, d));
}

struct Mix {
  const OperatorTable& ops;
  const EngramArgs& args;
  bool round;
  const float* weight;    // [n, D]: query weight times key weight
  const float* identity;  // [n, n]

  /// Row t from its projection kv [(n+1)·D]; `weighted` is scratch of D floats.
  void apply(int64_t t, const float* kv, float* weighted) const {
    const int64_t n = args.num_streams, d = args.d_model;
    float* streams = args.streams + t * n * d;
    float gate[kMaxStreams];
    for (int64_t i = 0; i < n; ++i) {
      const float* h = streams + i * d;
      const float* key = kv + i * d;
      for (int64_t c = 0; c < d; ++c) weighted[c] = h[c] * weight[i * d + c];
      const float dot = ops.dot(weighted, key, d);
      gate[i] = gate_of(dot, ops.sum_squares(h, d), ops.sum_squares(key, d), args);
      if (args.plan->is_image[static_cast<size_t>(t)] != 0) gate[i] = 0.0f;
    }
    if (args.gate != nullptr) std::copy(gate, gate + n, args.gate + t * n);
    // streams[i] = gate_i·value + streams[i]: the expansion with the identity as its matrix.
    ops.hyper_expand(kv + n * d, gate, identity, n, d, round, streams);
  }
};

}  // namespace

void engram(const OperatorTable& ops, Context& ctx, const EngramArgs& args) {
  const int64_t n = args.num_streams, d = args.d_model, num_rows = args.plan->num_rows;
  const int64_t width = args.num_columns * args.head_dim;
  RORQUAL_CHECK(n <= kMaxStreams && d % kBlockCols == 0 && args.head_dim % kScaleGroup == 0);
  const ScopedFlushToZero flush;
  const Scratch::Frame frame(*ctx.scratch);
  const int64_t threads = ctx.pool->num_threads(), batch = std::min(num_rows, kRowsPerBatch);
  const bool round = ctx.numerics == Numerics::reference;

  float* weight = ctx.scratch->alloc<float>(n * d);
  for (int64_t i = 0; i < n * d; ++i) weight[i] = args.query_weight[i] * args.key_weight[i];
  float* identity = ctx.scratch->alloc<float>(n * n);
  for (int64_t i = 0; i < n * n; ++i) identity[i] = i % (n + 1) == 0 ? 1.0f : 0.0f;
  float* rows = ctx.scratch->alloc<float>(batch * width);
  float* kv = ctx.scratch->alloc<float>(batch * (n + 1) * d);
  float* weighted = ctx.scratch->alloc<float>(threads * d);
  const int64_t record_bytes = args.head_dim + args.head_dim / kScaleGroup;
  std::byte* records = ctx.scratch->alloc<std::byte>(threads * record_bytes);
  const Mix mix{ops, args, round, weight, identity};

  for (int64_t begin = 0; begin < num_rows; begin += batch) {
    const int64_t count = std::min(batch, num_rows - begin);
    ctx.pool->parallel_for(count, [&](int64_t i, int thread) {
      decode_row(ops, args, begin + i, records + thread * record_bytes, rows + i * width);
    });
    LinearCall call;
    call.weight = &args.wkv;
    call.num_rows = count;
    call.x = rows;
    call.x_stride = width;
    call.y = kv;
    call.y_stride = (n + 1) * d;
    call.quantise_input = round;
    call.round_output = round;
    linear_layer(ops, ctx, call);
    ctx.pool->parallel_for(count, [&](int64_t i, int thread) {
      mix.apply(begin + i, kv + i * (n + 1) * d, weighted + thread * d);
    });
  }
}

}  // namespace rorqual::kernels::cpu
