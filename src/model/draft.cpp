// SPDX-License-Identifier: Apache-2.0
// DSpark drafts: context rows written during the backbone's steps, and one bidirectional block per sequence.
// docs/model.md#drafts.
#include <fmt/format.h>

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
    const int64_t layer = config_.num_hidden_layers + static_cast<int64_t>(m);
    bind_windows(step, layer);
    project_inputs(step, draft.stages[m], main_x, false);
    commit_windows(step, layer);
  }
}

/// Sequences whose blocks go through the stages together.
struct Model::DraftRows {
  std::span<const DraftSlice> slices;
  int64_t count = 0;            // drafts wanted of each
  int32_t* tokens = nullptr;    // out [slices, count]
  float* confidence = nullptr;  // out [slices, count]
  float* logits = nullptr;      // out [slices, count, V]; null = not kept
};

Status Model::check_drafts(std::span<const DraftSlice> slices, int64_t count) const {
  if (!weights_.draft) return Error(Code::unsupported, "this model was loaded without draft stages");
  if (count < 1 || count > kMaxDrafts) {
    return Error(Code::internal,
                 fmt::format("{} drafts were asked for, 1 to {} are possible", count, kMaxDrafts));
  }
  for (const DraftSlice& slice : slices) {
    if (slice.token >= 0 && slice.token < config_.vocab_size) continue;
    return Error(Code::invalid_argument, fmt::format("draft anchor {} is outside the vocabulary of {} tokens",
                                                     slice.token, config_.vocab_size));
  }
  return Ok{};
}

Status Model::draft(std::span<const DraftSlice> slices, int64_t count, std::span<int32_t> tokens,
                    std::span<float> confidence) {
  RORQUAL_TRY(check_drafts(slices, count));
  const auto wanted = slices.size() * static_cast<size_t>(count);
  RORQUAL_CHECK(tokens.size() == wanted && confidence.size() == wanted);
  const int64_t width = std::max(config_.dspark_block_size, count);
  const auto most = static_cast<size_t>(std::max<int64_t>(1, options_.max_step_rows / width));
  for (size_t begin = 0; begin < slices.size(); begin += most) {
    DraftRows rows;
    rows.slices = slices.subspan(begin, std::min(most, slices.size() - begin));
    rows.count = count;
    rows.tokens = tokens.data() + begin * static_cast<size_t>(count);
    rows.confidence = confidence.data() + begin * static_cast<size_t>(count);
    run_draft(rows);
  }
  return Ok{};
}

Result<Draft> Model::draft_logits(SequenceId sequence, int32_t token) {
  const DraftSlice slice{sequence, token};
  DraftRows rows;
  rows.slices = std::span(&slice, 1);
  rows.count = std::min(config_.dspark_block_size, kMaxDrafts);
  RORQUAL_TRY(check_drafts(rows.slices, rows.count));
  Draft result;
  result.tokens.resize(static_cast<size_t>(rows.count));
  result.confidence.resize(static_cast<size_t>(rows.count));
  result.logits.resize(static_cast<size_t>(rows.count * config_.vocab_size));
  rows.tokens = result.tokens.data();
  rows.confidence = result.confidence.data();
  rows.logits = result.logits.data();
  run_draft(rows);
  return result;
}

/// The block of each sequence: the new token, then noise, as wide as the stages were trained on or as many
/// drafts are wanted.
void Model::run_draft(const DraftRows& rows) {
  const ScopedFlushToZero flush;
  const kernels::Scratch::Frame frame(scratch_);
  const int64_t width = std::max(config_.dspark_block_size, rows.count);
  Step step;
  step.is_draft = true;
  for (const DraftSlice& slice : rows.slices) {
    SequenceState& sequence = state(slice.sequence);
    kernels::SequenceRows block;
    block.row_begin = static_cast<int32_t>(step.token_ids.size());
    block.row_count = static_cast<int32_t>(width);
    block.start = sequence.length();
    for (int64_t i = 0; i < width; ++i) {
      step.token_ids.push_back(i == 0 ? slice.token : static_cast<int32_t>(config_.dspark_noise_token_id));
      step.positions.push_back(block.start + i);
      step.is_image.push_back(0);
      step.sequence_of_row.push_back(static_cast<int32_t>(step.rows.size()));
    }
    step.rows.push_back(block);
    step.states.push_back(&sequence);
  }
  step.update_plan();
  step.allocate(config_, layout_.format, scratch_, false);
  run_draft_stages(step);
  run_draft_heads(step, rows);
}

void Model::run_draft_stages(Step& step) {
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
    const int64_t layer = config_.num_hidden_layers + static_cast<int64_t>(m);
    RORQUAL_CHECK(run_layer(step, layer, weights_.draft->stages[m]).ok());
  }
}

/// Base logits of the wanted rows, then the Markov head for all sequences at once, draft by draft: each row's
/// bias comes from the token before it.
void Model::run_draft_heads(Step& step, const DraftRows& rows) {
  const int64_t d = config_.hidden_size, count = rows.count;
  const auto num_sequences = static_cast<int64_t>(rows.slices.size());
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
  for (int64_t s = 0; s < num_sequences; ++s) {
    // Rows only move towards the front.
    for (int64_t i = 0; i < count; ++i) {
      std::copy_n(hidden + (step.rows[static_cast<size_t>(s)].row_begin + i) * d, d,
                  hidden + (s * count + i) * d);
    }
  }
  const int64_t most = std::max<int64_t>(1, kMaxDraftLogitRows / count);
  for (int64_t begin = 0; begin < num_sequences; begin += most) {
    const int64_t end = std::min(num_sequences, begin + most);
    DraftRows part = rows;
    part.slices = rows.slices.subspan(static_cast<size_t>(begin), static_cast<size_t>(end - begin));
    part.tokens += begin * count;
    part.confidence += begin * count;
    if (part.logits != nullptr) part.logits += begin * count * config_.vocab_size;
    draft_tokens(part, hidden + begin * count * d);
  }
}

/// `hidden` [slices, count, D].
void Model::draft_tokens(const DraftRows& rows, const float* hidden) {
  const kernels::Scratch::Frame frame(scratch_);
  const DraftWeights& weights = *weights_.draft;
  const int64_t d = config_.hidden_size, vocab = config_.vocab_size, rank = config_.dspark_markov_rank;
  const auto num_sequences = static_cast<int64_t>(rows.slices.size());
  float* logits = rows.logits;
  if (logits == nullptr) logits = scratch_.alloc<float>(num_sequences * rows.count * vocab);
  kernels::HeadArgs head;
  head.num_rows = num_sequences * rows.count;
  head.d_model = d;
  head.norm_eps = static_cast<float>(config_.rms_norm_eps);
  head.hidden = hidden;
  head.norm_weight = weights.norm;
  head.head = weights_.head;
  head.logits = logits;
  kernels_->head(context_, head);

  auto* bias = scratch_.alloc<float>(num_sequences * vocab);
  auto* embedding = scratch_.alloc<float>(num_sequences * rank);
  auto* features = scratch_.alloc<float>(num_sequences * (d + rank));  // collapsed hidden, Markov embedding
  auto* values = scratch_.alloc<float>(num_sequences);
  for (int64_t i = 0; i < rows.count; ++i) {
    for (int64_t s = 0; s < num_sequences; ++s) {
      const int64_t previous =
          i == 0 ? rows.slices[static_cast<size_t>(s)].token : rows.tokens[s * rows.count + i - 1];
      for (int64_t c = 0; c < rank; ++c) {
        const uint32_t wide = static_cast<uint32_t>(weights.markov_embed[previous * rank + c]) << 16;
        std::memcpy(embedding + s * rank + c, &wide, 4);
      }
      std::copy_n(hidden + (s * rows.count + i) * d, d, features + s * (d + rank));
      std::copy_n(embedding + s * rank, rank, features + s * (d + rank) + d);
    }
    kernels_->linear(context_, {num_sequences, weights.markov_head, embedding, bias, false, false});
    kernels_->linear(context_, {num_sequences, weights.confidence, features, values, false, false});
    threads_.parallel_for(num_sequences, [&](int64_t s, int /*thread*/) {
      float* row = logits + (s * rows.count + i) * vocab;
      for (int64_t v = 0; v < vocab; ++v) row[v] += bias[s * vocab + v];
      rows.tokens[s * rows.count + i] = static_cast<int32_t>(std::max_element(row, row + vocab) - row);
      rows.confidence[s * rows.count + i] = values[s];
    });
  }
}

}  // namespace rorqual::model
