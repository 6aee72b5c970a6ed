// SPDX-License-Identifier: Apache-2.0
// DSpark drafts: context rows written during the backbone's steps, and one bidirectional block pass.
// docs/model.md#drafts.
#include <algorithm>
#include <cstring>

#include "base/check.h"
#include "model/step.h"

namespace rorqual::model {

/// main_x = norm(main_proj(taps)); every stage's window record comes straight from it.
void Model::store_draft_context(Step& step) {
  const kernels::Scratch::Frame frame(scratch_);
  const DraftWeights& draft = *weights_.draft;
  auto* main_x = scratch_.alloc<float>(step.num_rows * config_.hidden_size);
  kernels::LinearArgs project;
  project.num_rows = step.num_rows;
  project.weight = draft.main_proj;
  project.x = step.taps;
  project.y = main_x;
  project.quantise_input = true;
  kernels_->linear(context_, project);
  kernels::NormArgs norm;
  norm.num_rows = step.num_rows;
  norm.width = config_.hidden_size;
  norm.x = main_x;
  norm.weight = draft.main_norm;
  norm.eps = static_cast<float>(config_.rms_norm_eps);
  norm.y = main_x;
  kernels_->norm(context_, norm);
  for (size_t m = 0; m < draft.stages.size(); ++m) {
    kernels::AttentionInputArgs inputs;
    inputs.num_rows = step.num_rows;
    inputs.shape = attention_shape();
    inputs.weights = &draft.stages[m].attention;
    inputs.x = main_x;
    inputs.angles = step.window_angles;
    inputs.window_records = step.window_records;
    kernels_->attention_inputs(context_, inputs);
    for (size_t s = 0; s < step.states.size(); ++s) {
      step.windows[s] = step.states[s]->window(config_.num_hidden_layers + static_cast<int64_t>(m));
    }
    kernels::CommitWindowArgs commit;
    commit.plan = &step.plan;
    commit.format = layout_.format;
    commit.window_records = step.window_records;
    commit.windows = step.windows;
    kernels_->commit_window(context_, commit);
  }
}

Result<Draft> Model::draft(SequenceId sequence, int32_t token) {
  if (!weights_.draft) {
    return Error(Code::unsupported, "this model was loaded without draft stages");
  }
  if (token < 0 || token >= config_.vocab_size)
    return Error(Code::invalid_argument, "draft anchor outside the vocabulary");
  const ScopedFlushToZero flush;
  const kernels::Scratch::Frame frame(scratch_);
  std::vector<int32_t> block(static_cast<size_t>(config_.dspark_block_size),
                             static_cast<int32_t>(config_.dspark_noise_token_id));
  block[0] = token;
  StepSlice slice;
  slice.sequence = sequence;
  slice.tokens = block;
  Step step;
  step.is_draft = true;
  plan_step(step, std::span(&slice, 1));
  step.allocate(config_, layout_.format, scratch_, false);
  kernels::EmbedArgs embed;
  embed.plan = &step.plan;
  embed.table_bf16 = weights_.embed;
  embed.d_model = config_.hidden_size;
  embed.num_streams = config_.hc_mult;
  embed.streams = step.streams;
  embed.pre_mix = step.pre[1];
  kernels_->embed(context_, embed);
  kernels_->rope_angles(context_, step.positions, {inv_freq_window_},
                        const_cast<float*>(step.window_angles.cos),
                        const_cast<float*>(step.window_angles.sin));
  for (size_t m = 0; m < weights_.draft->stages.size(); ++m) {
    run_layer(step, config_.num_hidden_layers + static_cast<int64_t>(m), weights_.draft->stages[m]);
  }
  Draft result;
  run_draft_heads(step, token, result);
  return result;
}

/// Base logits of all block rows, then the Markov head row by row: each row's bias comes from the token
/// before it.
void Model::run_draft_heads(Step& step, int32_t token, Draft& draft) {
  const DraftWeights& weights = *weights_.draft;
  const int64_t d = config_.hidden_size, vocab = config_.vocab_size, rank = config_.dspark_markov_rank;
  auto* hidden = scratch_.alloc<float>(step.num_rows * d);
  kernels::BoundaryArgs fold;
  fold.num_rows = step.num_rows;
  fold.d_model = d;
  fold.num_streams = config_.hc_mult;
  fold.streams = step.streams;
  fold.y = step.y;
  fold.post = step.post[1];
  fold.comb = step.comb[1];
  fold.pre_mix = step.pre[1];
  fold.collapsed = hidden;
  kernels_->boundary(context_, fold);
  draft.logits.resize(static_cast<size_t>(step.num_rows * vocab));
  kernels::HeadArgs head;
  head.num_rows = step.num_rows;
  head.d_model = d;
  head.norm_eps = static_cast<float>(config_.rms_norm_eps);
  head.hidden = hidden;
  head.norm_weight = weights.norm;
  head.head = weights_.head;
  head.logits = draft.logits.data();
  kernels_->head(context_, head);

  auto* bias = scratch_.alloc<float>(vocab);
  auto* features = scratch_.alloc<float>(d + rank);  // confidence input: collapsed hidden, Markov embedding
  int32_t previous = token;
  for (int64_t row = 0; row < step.num_rows; ++row) {
    float* embedding = features + d;
    for (int64_t i = 0; i < rank; ++i) {
      const uint32_t wide = static_cast<uint32_t>(weights.markov_embed[previous * rank + i]) << 16;
      std::memcpy(embedding + i, &wide, 4);
    }
    kernels::LinearArgs markov;
    markov.num_rows = 1;
    markov.weight = weights.markov_head;
    markov.x = embedding;
    markov.y = bias;
    markov.round_output = false;
    kernels_->linear(context_, markov);
    float* logits = draft.logits.data() + row * vocab;
    for (int64_t v = 0; v < vocab; ++v) logits[v] += bias[v];
    std::copy_n(hidden + row * d, d, features);
    kernels::LinearArgs confidence;
    confidence.num_rows = 1;
    confidence.weight = weights.confidence;
    confidence.x = features;
    float value = 0;
    confidence.y = &value;
    confidence.round_output = false;
    kernels_->linear(context_, confidence);
    draft.confidence.push_back(value);
    previous = static_cast<int32_t>(std::max_element(logits, logits + vocab) - logits);
    draft.tokens.push_back(previous);
  }
}

}  // namespace rorqual::model
