// SPDX-License-Identifier: Apache-2.0
// The MoE stage: router, routed experts, shared expert. The router's random weights and the rows' random
// values make a new random choice of experts in every call.
#include <algorithm>
#include <set>

#include "tools/op_case.h"

namespace rorqual::tools {
namespace {

constexpr int64_t kNarrowShared = 32;
constexpr int64_t kRowsInFlight = 1024;  // sorted rows whose intermediate values exist at a time

/// w1, w3 and w2 of `count` experts.
struct ExpertSet {
  ExpertSet(kernels::WeightFormat format, int64_t d_model, int64_t width, int64_t count)
      : w1(format, width, d_model, count),
        w3(format, width, d_model, count),
        w2(format, d_model, width, count) {}

  Status allocate(ThreadPool& pool, uint64_t seed) {
    RORQUAL_TRY(w1.allocate(pool, seed));
    RORQUAL_TRY(w3.allocate(pool, seed + 10));
    return w2.allocate(pool, seed + 20);
  }

  kernels::ExpertWeights at(int64_t index) const { return {w1.at(index), w2.at(index), w3.at(index)}; }

  int64_t expert_bytes() const { return w1.matrix_bytes() + w3.matrix_bytes() + w2.matrix_bytes(); }

  double operations() const { return w1.operations() + w3.operations() + w2.operations(); }

  MatrixSet w1, w3, w2;
};

class MoeCase : public OpCase {
 public:
  explicit MoeCase(const OpSettings& settings)
      : settings_(settings),
        config_(*settings.config),
        gate_(kernels::WeightFormat::bf16, settings.experts, config_.hidden_size, 1),
        routed_(kernels::WeightFormat::mxfp4, config_.hidden_size, config_.moe_intermediate_size,
                settings.experts),
        shared_(kernels::WeightFormat::fp8_block32, config_.hidden_size,
                settings.shared_expert ? config_.moe_intermediate_size : kNarrowShared, 1) {}

  int64_t forecast_bytes() const override {
    const int64_t rows = std::min(settings_.max_tokens * (active() + 1), kRowsInFlight);
    const int64_t floats = settings_.max_tokens * 3 * config_.hidden_size +
                           rows * 2 * (config_.hidden_size + config_.moe_intermediate_size);
    return gate_.total_bytes() + settings_.experts * routed_.expert_bytes() + shared_.expert_bytes() +
           4 * floats;
  }

  Status allocate(ThreadPool& pool) override {
    RORQUAL_TRY(gate_.allocate(pool, 1));
    RORQUAL_TRY(routed_.allocate(pool, 100));
    RORQUAL_TRY(shared_.allocate(pool, 200));
    for (int64_t i = 0; i < settings_.experts; ++i) experts_.push_back(routed_.at(i));
    bias_.assign(experts_.size(), 0.0F);
    weights_.gate = gate_.at(0);
    weights_.bias = bias_.data();
    weights_.experts = experts_;
    weights_.shared = shared_.at(0);
    return Ok();
  }

  void prepare(int64_t tokens, FastRandom& random) override {
    tokens_ = tokens;
    x_.resize(static_cast<size_t>(tokens * config_.hidden_size));
    y_.resize(x_.size());
    random.fill(x_);
    chosen_.assign(static_cast<size_t>(tokens * active()), 0);
  }

  void run(kernels::Context& ctx, const kernels::KernelTable& table) override {
    kernels::MoeArgs args;
    args.num_rows = tokens_;
    args.d_model = config_.hidden_size;
    args.d_expert = config_.moe_intermediate_size;
    args.num_active = active();
    args.scoring = config_.scoring;
    args.normalise_weights = config_.norm_topk_prob;
    args.routed_scale = static_cast<float>(config_.routed_scaling_factor);
    args.swiglu_limit = static_cast<float>(config_.swiglu_limit);
    args.weights = &weights_;
    args.x = x_.data();
    args.y = y_.data();
    args.router_index = chosen_.data();
    table.moe(ctx, args);
  }

  OpWork work() const override {
    const std::set<int32_t> distinct(chosen_.begin(), chosen_.end());
    OpWork work;
    work.experts = static_cast<int64_t>(distinct.size());
    work.bytes = static_cast<double>(work.experts * routed_.expert_bytes() + shared_.expert_bytes() +
                                     gate_.total_bytes() + 8 * tokens_ * config_.hidden_size);
    work.operations = static_cast<double>(tokens_) * (static_cast<double>(active()) * routed_.operations() +
                                                      shared_.operations() + gate_.operations());
    return work;
  }

  Peak peak(std::string_view tier) const override { return product_peak(settings_.activations, tier); }

 private:
  int64_t active() const { return std::min(config_.num_experts_per_tok, settings_.experts); }

  OpSettings settings_;
  const model::Config& config_;
  MatrixSet gate_;
  ExpertSet routed_, shared_;
  kernels::MoeWeights weights_;
  std::vector<kernels::ExpertWeights> experts_;
  std::vector<float> bias_, x_, y_;
  std::vector<int32_t> chosen_;
  int64_t tokens_ = 0;
};

}  // namespace

std::unique_ptr<OpCase> make_moe_case(const OpSettings& settings) {
  return std::make_unique<MoeCase>(settings);
}

}  // namespace rorqual::tools
