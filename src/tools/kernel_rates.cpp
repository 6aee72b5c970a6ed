// SPDX-License-Identifier: Apache-2.0
// Operands are patterns, not a model: speed depends on shapes and on where the bytes lie, not on values.
#include "tools/kernel_rates.h"

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>

#include "base/cpu_info.h"
#include "kernels/scratch.h"
#include "model/config.h"
#include "tensor/buffer.h"
#include "tools/machine_measure.h"
#include "tools/synthetic_operands.h"

namespace rorqual::tools {
namespace {

// w1 of three experts: few rows would leave threads idle in the last round, which a layer's experts do not.
constexpr int64_t kMatrixRows = 3 * 2304, kMatrixCols = 5120;
constexpr int64_t kFewRows = 4, kManyRows = 48;  // 48: rows that share one pass over the weights
constexpr int64_t kStageRows = 64;
constexpr uint64_t kSeed = 7;
constexpr int64_t kLeastWeightBytes = int64_t{256} << 20;
constexpr int64_t kPatternPage = 1 << 20;
constexpr uint8_t kUnitScale = 120;  // E8M0: 2^-7

struct FormatName {
  kernels::WeightFormat format;
  const char* name;
};

constexpr FormatName kFormats[] = {{kernels::WeightFormat::mxfp4, "mxfp4"},
                                   {kernels::WeightFormat::fp8_block32, "fp8"},
                                   {kernels::WeightFormat::bf16, "bf16"},
                                   {kernels::WeightFormat::f32, "f32"}};

double seconds_now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

/// Calls `body` until a sample has lasted `sample_seconds`; units per second of each of `repeats` samples,
/// where one call does `units`. One call before, to warm up.
template <class Body>
std::vector<double> sample(const KernelRateOptions& options, double units, const Body& body) {
  body();
  std::vector<double> rates;
  for (int i = 0; i < options.repeats; ++i) {
    const double start = seconds_now();
    double seconds = 0;
    int64_t calls = 0;
    while (seconds < options.sample_seconds || calls == 0) {
      body();
      ++calls;
      seconds = seconds_now() - start;
    }
    rates.push_back(units * static_cast<double>(calls) / seconds);
  }
  return rates;
}

/// Memory filled in parallel with small finite values of every format.
Result<tensor::Buffer> allocate_pattern(ThreadPool& pool, int64_t size_bytes) {
  RORQUAL_TRY_ASSIGN(auto buffer, tensor::Buffer::allocate(size_bytes));
  std::byte* data = buffer.data();
  pool.parallel_for((size_bytes + kPatternPage - 1) / kPatternPage, [&](int64_t page, int) {
    const int64_t end = std::min(size_bytes, (page + 1) * kPatternPage);
    for (int64_t i = page * kPatternPage; i < end; ++i) {
      data[i] = static_cast<std::byte>((static_cast<uint64_t>(i) * 2654435761U >> 11) & 0x3B);
    }
  });
  return buffer;
}

int64_t weight_bytes_of(const KernelRateOptions& options) {
  if (options.weight_bytes > 0) return options.weight_bytes;
  return std::max(kLeastWeightBytes, 2 * cpu_info().l3_bytes);
}

}  // namespace

// ------------------------------------------------------------------------------------------------ products
namespace {

/// Equal matrices of one format over one block of memory, taken in turn.
struct MatrixRing {
  kernels::Matrix first;
  int64_t matrix_bytes = 0, count = 0, next = 0;

  kernels::Matrix take() {
    kernels::Matrix matrix = first;
    matrix.data += next * matrix_bytes;
    next = (next + 1) % count;
    return matrix;
  }
};

plan::KernelRate measure_format(ThreadPool& pool, const KernelRateOptions& options, const FormatName& format,
                                const tensor::Buffer& weights, const std::vector<uint8_t>& scales) {
  MatrixRing ring;
  ring.first = {.format = format.format, .rows = kMatrixRows, .cols = kMatrixCols, .data = weights.data()};
  const int64_t scale_bytes = kernels::packed_scale_bytes(format.format, kMatrixRows, kMatrixCols);
  if (scale_bytes > 0) ring.first.scales = scales.data();
  ring.matrix_bytes = kernels::packed_data_bytes(format.format, kMatrixRows, kMatrixCols);
  ring.count = std::max<int64_t>(weights.size_bytes() / ring.matrix_bytes, 1);
  const std::vector<float> x(static_cast<size_t>(kManyRows * kMatrixCols), 0.25F);
  std::vector<float> y(static_cast<size_t>(kManyRows * kMatrixRows));
  kernels::Scratch scratch;
  kernels::Context ctx{&pool, &scratch, options.numerics};
  const auto measure = [&](int64_t rows, double units) {
    return rate_of(sample(options, units, [&] {
      kernels::LinearArgs args;
      args.num_rows = rows;
      args.weight = ring.take();
      args.x = x.data();
      args.y = y.data();
      options.kernels->linear(ctx, args);
    }));
  };
  const auto madds = static_cast<double>(kMatrixRows * kMatrixCols);
  plan::KernelRate rate;
  rate.format = format.name;
  rate.one_row = measure(1, static_cast<double>(ring.matrix_bytes + scale_bytes));
  rate.few_rows = measure(kFewRows, madds * kFewRows);
  rate.many_rows = measure(kManyRows, madds * kManyRows);
  return rate;
}

/// Both products of the attention's output in one stage. It is measured for itself because its first half
/// reads rows that lie a power of two apart, which caches dislike.
plan::KernelRate measure_attention_output(ThreadPool& pool, const KernelRateOptions& options,
                                          const tensor::Buffer& weights, const std::vector<uint8_t>& scales) {
  constexpr auto kFp8 = kernels::WeightFormat::fp8_block32;
  const auto& config = model::release_config();
  const int64_t width = config.num_attention_heads * config.head_dim;
  const int64_t z_width = config.o_groups * config.o_lora_rank;
  kernels::AttentionWeights attention;
  attention.wo_a = {.format = kFp8, .rows = z_width, .cols = width / config.o_groups, .data = nullptr};
  attention.wo_b = {.format = kFp8, .rows = config.hidden_size, .cols = z_width, .data = nullptr};
  attention.wo_a.scales = attention.wo_b.scales = scales.data();
  const int64_t a_bytes = kernels::packed_data_bytes(kFp8, attention.wo_a.rows, attention.wo_a.cols);
  const int64_t b_bytes = kernels::packed_data_bytes(kFp8, attention.wo_b.rows, attention.wo_b.cols);
  const int64_t count = weights.size_bytes() / (a_bytes + b_bytes);
  plan::KernelRate rate;
  rate.format = plan::kAttentionOutput;
  if (count == 0) return rate;
  const std::vector<float> x(static_cast<size_t>(kManyRows * width), 0.25F);
  std::vector<float> y(static_cast<size_t>(kManyRows * config.hidden_size));
  kernels::Scratch scratch;
  kernels::Context ctx{&pool, &scratch, options.numerics};
  int64_t next = 0;
  const auto measure = [&](int64_t rows, double units) {
    return rate_of(sample(options, units, [&] {
      attention.wo_a.data = weights.data() + next * (a_bytes + b_bytes);
      attention.wo_b.data = attention.wo_a.data + a_bytes;
      next = (next + 1) % count;
      kernels::AttentionOutputArgs args;
      args.num_rows = rows;
      args.shape = {.d_model = config.hidden_size,
                    .num_heads = config.num_attention_heads,
                    .head_dim = config.head_dim,
                    .o_groups = config.o_groups,
                    .o_lora_rank = config.o_lora_rank};
      args.weights = &attention;
      args.attended = x.data();
      args.y = y.data();
      options.kernels->attention_output(ctx, args);
    }));
  };
  const int64_t scale_bytes = kernels::packed_scale_bytes(kFp8, attention.wo_a.rows, attention.wo_a.cols) +
                              kernels::packed_scale_bytes(kFp8, attention.wo_b.rows, attention.wo_b.cols);
  const auto madds = static_cast<double>(attention.wo_a.rows * attention.wo_a.cols +
                                         attention.wo_b.rows * attention.wo_b.cols);
  rate.one_row = measure(1, static_cast<double>(a_bytes + b_bytes + scale_bytes));
  rate.few_rows = measure(kFewRows, madds * kFewRows);
  rate.many_rows = measure(kManyRows, madds * kManyRows);
  return rate;
}

}  // namespace

Result<std::vector<plan::KernelRate>> measure_kernel_rates(ThreadPool& pool,
                                                           const KernelRateOptions& options) {
  const ScopedFlushToZero flush;
  const int64_t least = kernels::packed_data_bytes(kernels::WeightFormat::f32, kMatrixRows, kMatrixCols);
  RORQUAL_TRY_ASSIGN(const auto weights, allocate_pattern(pool, std::max(weight_bytes_of(options), least)));
  // One matrix's scales serve all: they are a sixteenth of the data or less, and stay in the cache.
  const std::vector<uint8_t> scales(static_cast<size_t>(kernels::packed_scale_bytes(
                                        kernels::WeightFormat::mxfp4, kMatrixRows, kMatrixCols)),
                                    kUnitScale);
  std::vector<plan::KernelRate> rates;
  for (const auto& format : kFormats) {
    rates.push_back(measure_format(pool, options, format, weights, scales));
  }
  rates.push_back(measure_attention_output(pool, options, weights, scales));
  return rates;
}

// ------------------------------------------------------------------------------------------------ boundary
namespace {

Result<plan::StageRate> measure_boundary(ThreadPool& pool, const KernelRateOptions& options) {
  constexpr int64_t kMatrices = 32;  // 84 MB: more than most caches hold, as between two layers of a step
  const auto& config = model::release_config();
  MatrixSet fn(kernels::WeightFormat::f32, (2 + config.hc_mult) * config.hc_mult,
               config.hc_mult * config.hidden_size, kMatrices);
  RORQUAL_TRY(fn.allocate(pool, kSeed));
  BoundaryOperands operands(config);
  FastRandom random(kSeed);
  kernels::Scratch scratch;
  kernels::Context ctx{&pool, &scratch, options.numerics};
  int64_t next = 0;
  const auto measure = [&](int64_t rows) {
    operands.prepare(rows, random);
    return rate_of(sample(options, static_cast<double>(rows), [&] {
      kernels::HyperWeights hyper;
      options.kernels->boundary(ctx, operands.args(hyper, fn.at(next)));
      next = (next + 1) % kMatrices;
    }));
  };
  return plan::StageRate{.stage = "boundary", .one_row = measure(1), .many_rows = measure(kStageRows)};
}

// ------------------------------------------------------------------------------------------------ attention
constexpr int64_t kContext = 16384;  // entries that exist; positions of the rows lie behind it

/// Units per second of what `large` does beyond `small`, from the medians of both in calls per second.
plan::Rate difference(const plan::Rate& large, const plan::Rate& small, double units) {
  const double seconds = 1 / large.value - 1 / small.value;
  if (seconds <= 0) return {};
  const double error = (large.spread / large.value + small.spread / small.value) / seconds;
  return {.value = units / seconds, .spread = std::min(error, 1.0), .measured = true};
}

void measure_attend(kernels::Context& ctx, const KernelRateOptions& options, AttentionOperands& operands,
                    std::vector<plan::StageRate>& rates) {
  plan::StageRate window{.stage = "attend", .one_row = {}, .many_rows = {}};
  plan::StageRate slot{.stage = "attend_slot", .one_row = {}, .many_rows = {}};
  FastRandom random(kSeed);
  for (const int64_t rows : {int64_t{1}, kStageRows}) {
    operands.prepare(rows, kContext / 2, random);
    const auto measure = [&](bool with_selected) {
      return rate_of(
          sample(options, 1, [&] { options.kernels->attend(ctx, operands.attend_args(with_selected)); }));
    };
    const plan::Rate small = measure(false), large = measure(true);
    plan::Rate per_row = small;
    per_row.value *= static_cast<double>(rows);
    (rows == 1 ? window.one_row : window.many_rows) = per_row;
    (rows == 1 ? slot.one_row : slot.many_rows) =
        difference(large, small, static_cast<double>(rows * operands.num_selected()));
  }
  rates.push_back(window);
  rates.push_back(slot);
}

/// Keys scored per second, from two contexts: what does not grow with the keys cancels.
plan::StageRate measure_index(kernels::Context& ctx, const KernelRateOptions& options,
                              AttentionOperands& operands, const tensor::Buffer& weights,
                              const std::vector<uint8_t>& scales) {
  constexpr int64_t kNear = 2048;
  const auto& config = model::release_config();
  FastRandom random(kSeed);
  kernels::IndexWeights index;
  index.wq_b = {.format = kernels::WeightFormat::fp8_block32,
                .rows = config.index_n_heads * config.index_head_dim,
                .cols = config.q_lora_rank,
                .data = weights.data(),
                .scales = scales.data()};
  index.weights_proj = {.format = kernels::WeightFormat::bf16,
                        .rows = config.index_n_heads,
                        .cols = config.hidden_size,
                        .data = weights.data()};
  plan::StageRate rate{.stage = "index_key", .one_row = {}, .many_rows = {}};
  for (const int64_t rows : {int64_t{1}, kStageRows}) {
    const auto measure = [&](int64_t context) {
      operands.prepare(rows, context, random);
      const kernels::IndexArgs args = operands.index_args(index);
      return rate_of(sample(options, 1, [&] { options.kernels->index_select(ctx, args); }));
    };
    const plan::Rate near = measure(kNear), far = measure(kContext);
    (rows == 1 ? rate.one_row : rate.many_rows) =
        difference(far, near, static_cast<double>(rows * (kContext - kNear)));
  }
  return rate;
}

// ------------------------------------------------------------------------------------------------ the rest
/// The MoE stage with experts of 32 columns, without its router's product: few experts' bytes, all of the
/// routing, rounding, sorting and adding of the real width.
Result<plan::StageRate> measure_layer_row(kernels::Context& ctx, const KernelRateOptions& options,
                                          const tensor::Buffer& weights, const std::vector<uint8_t>& scales) {
  const auto& config = model::release_config();
  constexpr int64_t kNarrow = 32;
  const auto matrix = [&](kernels::WeightFormat format, int64_t rows, int64_t cols) {
    return kernels::Matrix{
        .format = format, .rows = rows, .cols = cols, .data = weights.data(), .scales = scales.data()};
  };
  const auto expert_of = [&](kernels::WeightFormat format) {
    return kernels::ExpertWeights{matrix(format, kNarrow, config.hidden_size),
                                  matrix(format, config.hidden_size, kNarrow),
                                  matrix(format, kNarrow, config.hidden_size)};
  };
  const std::vector<kernels::ExpertWeights> experts(static_cast<size_t>(config.n_routed_experts),
                                                    expert_of(kernels::WeightFormat::mxfp4));
  const std::vector<float> bias(experts.size(), 0.0F);
  kernels::MoeWeights moe;
  moe.gate = matrix(kernels::WeightFormat::bf16, config.n_routed_experts, config.hidden_size);
  moe.bias = bias.data();
  moe.experts = experts;
  moe.shared = expert_of(kernels::WeightFormat::fp8_block32);
  const std::vector<float> x(static_cast<size_t>(kStageRows * config.hidden_size), 0.25F);
  std::vector<float> y(x.size());
  std::vector<float> logits(static_cast<size_t>(kStageRows * config.n_routed_experts));
  const auto measure = [&](int64_t rows) {
    kernels::MoeArgs args;
    args.num_rows = rows;
    args.d_model = config.hidden_size;
    args.d_expert = kNarrow;
    args.num_active = config.num_experts_per_tok;
    args.weights = &moe;
    args.x = x.data();
    args.y = y.data();
    const plan::Rate all = rate_of(sample(options, 1, [&] { options.kernels->moe(ctx, args); }));
    kernels::LinearArgs gate;  // a product like any other: counted with the routers' weights
    gate.num_rows = rows;
    gate.weight = moe.gate;
    gate.x = x.data();
    gate.y = logits.data();
    const plan::Rate product = rate_of(sample(options, 1, [&] { options.kernels->linear(ctx, gate); }));
    return difference(all, product, static_cast<double>(rows));
  };
  return plan::StageRate{.stage = "layer_row", .one_row = measure(1), .many_rows = measure(kStageRows)};
}

plan::StageRate measure_region(ThreadPool& pool, const KernelRateOptions& options) {
  const int64_t chunks = 2 * pool.num_threads();
  const auto rate = rate_of(sample(options, 64, [&] {
    for (int i = 0; i < 64; ++i) pool.parallel_for(chunks, [](int64_t, int) {});
  }));
  return {.stage = "region", .one_row = rate, .many_rows = rate};
}

}  // namespace

Result<std::vector<plan::StageRate>> measure_stage_rates(ThreadPool& pool, const KernelRateOptions& options) {
  const ScopedFlushToZero flush;
  std::vector<plan::StageRate> rates;
  RORQUAL_TRY_ASSIGN(const auto boundary, measure_boundary(pool, options));
  rates.push_back(boundary);
  kernels::Scratch scratch;
  kernels::Context ctx{&pool, &scratch, options.numerics};
  RORQUAL_TRY_ASSIGN(const auto weights, allocate_pattern(pool, int64_t{8} << 20));
  const std::vector<uint8_t> scales(size_t{1} << 20, kUnitScale);
  {
    AttentionOperands operands(model::release_config(), kContext, kStageRows);
    RORQUAL_TRY(operands.allocate(pool, options.numerics));
    measure_attend(ctx, options, operands, rates);
    rates.push_back(measure_index(ctx, options, operands, weights, scales));
  }
  RORQUAL_TRY_ASSIGN(const auto layer_row, measure_layer_row(ctx, options, weights, scales));
  rates.push_back(layer_row);
  rates.push_back(measure_region(pool, options));
  return rates;
}

}  // namespace rorqual::tools
