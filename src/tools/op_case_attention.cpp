// SPDX-License-Identifier: Apache-2.0
// The stages of attention: its five projections (dense), the core over window and selected entries, and the
// index of one layer.
#include "tools/op_case.h"

namespace rorqual::tools {
namespace {

constexpr auto kFp8 = kernels::WeightFormat::fp8_block32;
constexpr auto kBf16 = kernels::WeightFormat::bf16;

/// Operands of a sequence, and what the three cases have in common.
class SequenceCase : public OpCase {
 public:
  SequenceCase(const OpSettings& settings, int64_t context)
      : settings_(settings),
        config_(*settings.config),
        context_(context),
        operands_(config_, context, settings.max_tokens) {}

  int64_t forecast_bytes() const override {
    return operands_.memory_bytes(numerics_of(settings_.activations));
  }

  Status allocate(ThreadPool& pool) override {
    return operands_.allocate(pool, numerics_of(settings_.activations));
  }

  void prepare(int64_t tokens, FastRandom& random) override {
    tokens_ = tokens;
    operands_.prepare(tokens, context_, random);
  }

 protected:
  double heads_width() const { return static_cast<double>(config_.num_attention_heads * config_.head_dim); }

  OpSettings settings_;
  const model::Config& config_;
  int64_t context_, tokens_ = 0;
  AttentionOperands operands_;
};

// ------------------------------------------------------------------------------------------------
// projections
class DenseCase : public SequenceCase {
 public:
  explicit DenseCase(const OpSettings& settings) : SequenceCase(settings, settings.config->sliding_window) {
    const int64_t width = config_.num_attention_heads * config_.head_dim;
    const int64_t z_width = config_.o_groups * config_.o_lora_rank;
    const int64_t shapes[5][2] = {{config_.q_lora_rank, config_.hidden_size},
                                  {width, config_.q_lora_rank},
                                  {config_.head_dim, config_.hidden_size},
                                  {z_width, width / config_.o_groups},
                                  {config_.hidden_size, z_width}};
    int64_t bytes = 0;
    for (const auto& shape : shapes) bytes += MatrixSet(kFp8, shape[0], shape[1], 1).matrix_bytes();
    copies_ = copies_beyond_caches(bytes);
    for (const auto& shape : shapes) sets_.emplace_back(kFp8, shape[0], shape[1], copies_);
    norm_.assign(static_cast<size_t>(std::max(config_.q_lora_rank, config_.head_dim)), 1.0F);
    sink_.assign(static_cast<size_t>(config_.num_attention_heads), 0.0F);
  }

  int64_t forecast_bytes() const override {
    int64_t bytes = SequenceCase::forecast_bytes();
    for (const MatrixSet& set : sets_) bytes += set.total_bytes();
    return bytes;
  }

  Status allocate(ThreadPool& pool) override {
    RORQUAL_TRY(SequenceCase::allocate(pool));
    for (size_t i = 0; i < sets_.size(); ++i) RORQUAL_TRY(sets_[i].allocate(pool, 10 * (i + 1)));
    return Ok();
  }

  void run(kernels::Context& ctx, const kernels::KernelTable& table) override {
    next_ = (next_ + 1) % copies_;
    kernels::AttentionWeights weights;
    weights.wq_a = sets_[0].at(next_);
    weights.wq_b = sets_[1].at(next_);
    weights.wkv = sets_[2].at(next_);
    weights.wo_a = sets_[3].at(next_);
    weights.wo_b = sets_[4].at(next_);
    weights.q_norm = weights.kv_norm = norm_.data();
    weights.attn_sink = sink_.data();
    table.attention_inputs(ctx, operands_.input_args(weights));
    table.attention_output(ctx, operands_.output_args(weights));
  }

  OpWork work() const override {
    const auto tokens = static_cast<double>(tokens_);
    OpWork work;
    work.bytes = tokens * 4 * (2 * heads_width() + 2 * static_cast<double>(config_.hidden_size));
    for (const MatrixSet& set : sets_) {
      work.bytes += static_cast<double>(set.matrix_bytes());
      work.operations += tokens * set.operations();
    }
    return work;
  }

  Peak peak(std::string_view tier) const override { return product_peak(settings_.activations, tier); }

 private:
  std::vector<MatrixSet> sets_;  // wq_a, wq_b, wkv, wo_a, wo_b
  std::vector<float> norm_, sink_;
  int64_t copies_ = 1, next_ = 0;
};

// ------------------------------------------------------------------------------------------------ core
class AttentionCase : public SequenceCase {
 public:
  explicit AttentionCase(const OpSettings& settings) : SequenceCase(settings, settings.context) {}

  void run(kernels::Context& ctx, const kernels::KernelTable& table) override {
    table.attend(ctx, operands_.attend_args(true));
  }

  OpWork work() const override {
    const auto tokens = static_cast<double>(tokens_);
    const auto window = static_cast<double>(config_.sliding_window);
    const auto slots = window + static_cast<double>(operands_.num_selected());
    OpWork work;
    work.operations = tokens * slots * heads_width() * 2 * 2;  // scores, then values
    work.bytes = static_cast<double>(operands_.distinct_selected() * operands_.format().compressed_bytes()) +
                 (window + tokens - 1) * static_cast<double>(operands_.format().window_bytes()) +
                 tokens * heads_width() * 2 * 4;
    return work;
  }

  Peak peak(std::string_view tier) const override { return product_peak(Activations::reference, tier); }
};

// ------------------------------------------------------------------------------------------------ index
class IndexerCase : public SequenceCase {
 public:
  explicit IndexerCase(const OpSettings& settings)
      : SequenceCase(settings, settings.context),
        query_(kFp8, config_.index_n_heads * config_.index_head_dim, config_.q_lora_rank, 1),
        head_weights_(kBf16, config_.index_n_heads, config_.hidden_size, 1) {}

  int64_t forecast_bytes() const override {
    // Beside the operands, the scores of a batch of rows.
    return SequenceCase::forecast_bytes() + query_.total_bytes() + head_weights_.total_bytes() +
           4 * std::min<int64_t>(settings_.max_tokens, 256) * (context_ + settings_.max_tokens);
  }

  Status allocate(ThreadPool& pool) override {
    RORQUAL_TRY(SequenceCase::allocate(pool));
    RORQUAL_TRY(query_.allocate(pool, 30));
    RORQUAL_TRY(head_weights_.allocate(pool, 40));
    weights_ = {.wq_b = query_.at(0), .weights_proj = head_weights_.at(0)};
    return Ok();
  }

  void run(kernels::Context& ctx, const kernels::KernelTable& table) override {
    table.index_select(ctx, operands_.index_args(weights_));
  }

  OpWork work() const override {
    const auto tokens = static_cast<double>(tokens_), keys = static_cast<double>(context_ + tokens_);
    const auto query_width = static_cast<double>(config_.index_n_heads * config_.index_head_dim);
    OpWork work;
    work.operations = tokens * (query_.operations() + head_weights_.operations());
    // Row t scores the keys before it and its own.
    work.operations += 2 * query_width * tokens * (static_cast<double>(context_) + (tokens + 1) / 2);
    work.bytes =
        static_cast<double>(query_.matrix_bytes() + head_weights_.matrix_bytes()) +
        keys * static_cast<double>(operands_.format().index_bytes()) +
        4 * tokens * static_cast<double>(config_.hidden_size + config_.q_lora_rank + config_.index_topk);
    return work;
  }

  /// Products of FP4 codes are exact in integers, so that reference numerics may use the byte units.
  Peak peak(std::string_view tier) const override {
    if (settings_.activations == Activations::exact) return Peak::f32_fma;
    return product_peak(Activations::int8, tier);
  }

 private:
  MatrixSet query_, head_weights_;
  kernels::IndexWeights weights_;
};

}  // namespace

std::unique_ptr<OpCase> make_dense_case(const OpSettings& settings) {
  return std::make_unique<DenseCase>(settings);
}

std::unique_ptr<OpCase> make_attention_case(const OpSettings& settings) {
  return std::make_unique<AttentionCase>(settings);
}

std::unique_ptr<OpCase> make_indexer_case(const OpSettings& settings) {
  return std::make_unique<IndexerCase>(settings);
}

}  // namespace rorqual::tools
