// SPDX-License-Identifier: Apache-2.0
// Loading and sequence bookkeeping; the forward pass is forward.cpp, drafts are draft.cpp.
#include "model/model.h"

#include <fmt/format.h>

#include "base/check.h"
#include "model/manifest.h"
#include "model/rope.h"

namespace rorqual::model {

Model::Model(Config config, ModelOptions options)
    : config_(std::move(config)), options_(options), threads_(options.num_threads) {
  context_.pool = &threads_;
  context_.scratch = &scratch_;
  context_.numerics = options_.numerics;
}

Result<std::unique_ptr<Model>> Model::load(const format::TensorSource& source, const Config& config,
                                           std::vector<int32_t> token_map, const ModelOptions& options,
                                           const LoadProgress& progress) {
  RORQUAL_TRY(check_manifest(source, manifest(config)));
  std::unique_ptr<Model> model(new Model(config, options));
  model->kernels_ = options.kernels != nullptr ? options.kernels : kernels::select_kernels();
  if (model->kernels_ == nullptr) {
    return Error(Code::unsupported, "no kernels for this CPU", "rorqual needs AVX2 and FMA");
  }
  if (!config.engram_layer_ids.empty()) {
    RORQUAL_TRY_ASSIGN(NgramHasher hasher, NgramHasher::create(config, token_map));
    model->hasher_.emplace(std::move(hasher));
    model->token_map_ = std::move(token_map);
  }
  model->inv_freq_window_ = rope_inv_freq(config, false);
  model->inv_freq_compressed_ = rope_inv_freq(config, true);
  model->layout_ = make_cache_layout(config, options.numerics, options.with_drafts, options.truncate_slack);
  const int64_t blocks_per_sequence = (options.max_model_len + kBlockTokens - 1) / kBlockTokens;
  const int64_t num_blocks =
      options.num_blocks > 0 ? options.num_blocks : blocks_per_sequence * options.max_sequences;
  RORQUAL_TRY(model->scratch_.reserve(options.scratch_bytes));
  RORQUAL_TRY_ASSIGN(model->pool_, BlockPool::create(model->layout_, num_blocks));
  model->sequences_.resize(static_cast<size_t>(options.max_sequences));
  WeightOptions weight_options;
  weight_options.head = options.switches.lm_head;
  weight_options.engram_on_disk = options.engram_on_disk;
  weight_options.with_drafts = options.with_drafts;
  RORQUAL_TRY_ASSIGN(model->weights_,
                     load_weights(source, model->config_, weight_options, model->threads_, progress));
  return model;
}

Result<SequenceId> Model::open_sequence() {
  for (size_t i = 0; i < sequences_.size(); ++i) {
    if (sequences_[i] != nullptr) continue;
    RORQUAL_TRY_ASSIGN(sequences_[i], SequenceState::create(layout_));
    return static_cast<SequenceId>(i);
  }
  return Error(Code::unavailable, fmt::format("all {} sequences of the model are in use", sequences_.size()),
               "raise --max-num-seqs");
}

void Model::close_sequence(SequenceId sequence) {
  state(sequence).release(pool_);
  sequences_[static_cast<size_t>(sequence)].reset();
}

int64_t Model::sequence_length(SequenceId sequence) const {
  return state(sequence).length();
}

bool Model::reserve(SequenceId sequence, int64_t num_tokens) {
  return state(sequence).reserve(pool_, num_tokens);
}

void Model::truncate(SequenceId sequence, int64_t length) {
  // Window rings hold `truncate_slack` positions beyond the window; forgetting everything needs none of them.
  RORQUAL_CHECK(length == 0 || state(sequence).length() - length <= options_.truncate_slack);
  state(sequence).truncate(pool_, length);
}

kernels::AttentionShape Model::attention_shape() const {
  kernels::AttentionShape shape;
  shape.d_model = config_.hidden_size;
  shape.num_heads = config_.num_attention_heads;
  shape.head_dim = config_.head_dim;
  shape.rope_dim = config_.qk_rope_head_dim;
  shape.q_lora_rank = config_.q_lora_rank;
  shape.o_groups = config_.o_groups;
  shape.o_lora_rank = config_.o_lora_rank;
  shape.window = config_.sliding_window;
  shape.norm_eps = static_cast<float>(config_.rms_norm_eps);
  return shape;
}

}  // namespace rorqual::model
