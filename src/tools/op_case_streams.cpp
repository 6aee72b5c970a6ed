// SPDX-License-Identifier: Apache-2.0
// The stages on the residual streams: sublayer boundary (mhc), Engram, and the head.
#include "tools/op_case.h"

namespace rorqual::tools {
namespace {

/// A case with one matrix that is another one in every call.
class MatrixCase : public OpCase {
 public:
  MatrixCase(const OpSettings& settings, kernels::WeightFormat format, int64_t rows, int64_t cols)
      : settings_(settings), config_(*settings.config) {
    const int64_t bytes = MatrixSet(format, rows, cols, 1).matrix_bytes();
    matrices_ = MatrixSet(format, rows, cols, copies_beyond_caches(bytes));
  }

  int64_t forecast_bytes() const override {
    return matrices_.total_bytes() + settings_.max_tokens * row_bytes();
  }

  Status allocate(ThreadPool& pool) override { return matrices_.allocate(pool, 50); }

  OpWork work() const override {
    OpWork work;
    work.bytes = static_cast<double>(matrices_.matrix_bytes() + tokens_ * row_bytes());
    work.operations = static_cast<double>(tokens_) * (matrices_.operations() + row_operations());
    return work;
  }

  Peak peak(std::string_view tier) const override { return product_peak(settings_.activations, tier); }

 protected:
  /// Bytes that a row reads and writes once.
  virtual int64_t row_bytes() const = 0;

  /// Of a row, beside the matrix product.
  virtual double row_operations() const { return 0; }

  kernels::Matrix next_matrix() {
    next_ = (next_ + 1) % matrices_.count();
    return matrices_.at(next_);
  }

  OpSettings settings_;
  const model::Config& config_;
  MatrixSet matrices_;
  int64_t tokens_ = 0, next_ = 0;
};

// ------------------------------------------------------------------------------------------------ boundary
class MhcCase : public MatrixCase {
 public:
  explicit MhcCase(const OpSettings& settings)
      : MatrixCase(settings, kernels::WeightFormat::f32,
                   (2 + settings.config->hc_mult) * settings.config->hc_mult,
                   settings.config->hc_mult * settings.config->hidden_size),
        operands_(config_) {}

  void prepare(int64_t tokens, FastRandom& random) override {
    tokens_ = tokens;
    operands_.prepare(tokens, random);
  }

  void run(kernels::Context& ctx, const kernels::KernelTable& table) override {
    kernels::HyperWeights hyper;
    table.boundary(ctx, operands_.args(hyper, next_matrix()));
  }

  /// F32 weights are multiplied as such in all numerics.
  Peak peak(std::string_view) const override { return Peak::f32_fma; }

 protected:
  /// Streams in and out, sublayer output in, input of the next sublayer out.
  int64_t row_bytes() const override { return 4 * config_.hidden_size * (2 * config_.hc_mult + 2); }

  /// Expansion, sum of squares, collapse, norm.
  double row_operations() const override {
    const auto n = static_cast<double>(config_.hc_mult);
    return 2 * static_cast<double>(config_.hidden_size) * (n * (n + 1) + n + n + 2);
  }

 private:
  BoundaryOperands operands_;
};

// ------------------------------------------------------------------------------------------------ Engram
class EngramCase : public MatrixCase {
 public:
  explicit EngramCase(const OpSettings& settings)
      : MatrixCase(settings, kernels::WeightFormat::fp8_block32,
                   (settings.config->hc_mult + 1) * settings.config->hidden_size,
                   settings.config->engram_columns() * settings.config->engram_head_dim) {}

  void prepare(int64_t tokens, FastRandom& random) override {
    tokens_ = tokens;
    const auto count = static_cast<size_t>(tokens);
    streams_.resize(count * static_cast<size_t>(stream_width()));
    random.fill(streams_);
    codes_.resize(count * static_cast<size_t>(codes_width()));
    for (uint8_t& code : codes_) code = static_cast<uint8_t>(random.next() & 0xB7);  // finite E4M3
    scales_.assign(codes_.size() / 32, 120);
    norm_.assign(static_cast<size_t>(stream_width()), 1.0F);
    zeros_.assign(count, 0);
    ids_.assign(count, 0);
    positions_.assign(count, 0);
    sequences_ = {{.row_begin = 0, .row_count = static_cast<int32_t>(tokens), .start = 0, .window_begin = 0}};
    plan_ = {.num_rows = static_cast<int32_t>(tokens),
             .token_ids = ids_,
             .positions = positions_,
             .is_image = zeros_,
             .sequence_of_row = ids_,
             .sequences = sequences_};
  }

  void run(kernels::Context& ctx, const kernels::KernelTable& table) override {
    kernels::EngramArgs args;
    args.plan = &plan_;
    args.d_model = config_.hidden_size;
    args.num_streams = config_.hc_mult;
    args.num_columns = config_.engram_columns();
    args.head_dim = config_.engram_head_dim;
    args.rows_e4m3 = codes_.data();
    args.row_scales = scales_.data();
    args.wkv = next_matrix();
    args.query_weight = args.key_weight = norm_.data();
    args.eps = 1e-6F;
    args.streams = streams_.data();
    table.engram(ctx, args);
  }

 protected:
  int64_t row_bytes() const override { return 8 * stream_width() + codes_width() / 32 * 33; }

  double row_operations() const override { return 8 * static_cast<double>(stream_width()); }

 private:
  int64_t stream_width() const { return config_.hc_mult * config_.hidden_size; }

  int64_t codes_width() const { return config_.engram_columns() * config_.engram_head_dim; }

  std::vector<float> streams_, norm_;
  std::vector<uint8_t> codes_, scales_, zeros_;
  std::vector<int32_t> ids_;
  std::vector<int64_t> positions_;
  std::vector<kernels::SequenceRows> sequences_;
  kernels::StepPlan plan_;
};

// ------------------------------------------------------------------------------------------------ head
class HeadCase : public MatrixCase {
 public:
  explicit HeadCase(const OpSettings& settings)
      : MatrixCase(settings, kernels::WeightFormat::bf16, settings.config->vocab_size,
                   settings.config->hidden_size) {}

  void prepare(int64_t tokens, FastRandom& random) override {
    tokens_ = tokens;
    hidden_.resize(static_cast<size_t>(tokens * config_.hidden_size));
    random.fill(hidden_);
    logits_.resize(static_cast<size_t>(tokens * config_.vocab_size));
    norm_.assign(static_cast<size_t>(config_.hidden_size), 1.0F);
  }

  void run(kernels::Context& ctx, const kernels::KernelTable& table) override {
    kernels::HeadArgs args;
    args.num_rows = tokens_;
    args.d_model = config_.hidden_size;
    args.norm_eps = 1e-6F;
    args.hidden = hidden_.data();
    args.norm_weight = norm_.data();
    args.head = next_matrix();
    args.logits = logits_.data();
    table.head(ctx, args);
  }

 protected:
  int64_t row_bytes() const override { return 4 * (config_.hidden_size + config_.vocab_size); }

 private:
  std::vector<float> hidden_, logits_, norm_;
};

}  // namespace

std::unique_ptr<OpCase> make_mhc_case(const OpSettings& settings) {
  return std::make_unique<MhcCase>(settings);
}

std::unique_ptr<OpCase> make_engram_case(const OpSettings& settings) {
  return std::make_unique<EngramCase>(settings);
}

std::unique_ptr<OpCase> make_head_case(const OpSettings& settings) {
  return std::make_unique<HeadCase>(settings);
}

}  // namespace rorqual::tools
