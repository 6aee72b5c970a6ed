// SPDX-License-Identifier: Apache-2.0
// One step through the backbone: the sequence of docs/model.md#layer, stage by stage over the kernel table.
#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <mutex>

#include "base/check.h"
#include "model/step.h"

namespace rorqual::model {

// ------------------------------------------------------------------------------------------------ planning
Status Model::check_slices(std::span<const StepSlice> slices) const {
  int64_t rows = 0;
  for (const StepSlice& slice : slices) {
    const auto count = static_cast<int64_t>(slice.tokens.size());
    if (count == 0) return Error(Code::internal, "a step slice has no tokens");
    if (!slice.is_image.empty() && slice.is_image.size() != slice.tokens.size()) {
      return Error(Code::internal, "a step slice has another number of image flags than tokens");
    }
    for (const int32_t token : slice.tokens) {
      if (token < 0 || token >= config_.vocab_size) {
        return Error(Code::invalid_argument, fmt::format("token id {} is outside the vocabulary of {} tokens",
                                                         token, config_.vocab_size));
      }
    }
    if (state(slice.sequence).length() + count > options_.max_model_len) {
      return Error(Code::internal,
                   fmt::format("a sequence would grow beyond max_model_len {}", options_.max_model_len));
    }
    rows += count;
    if (slice.is_replay) return Error(Code::unsupported, "replay slices");
  }
  if (rows > options_.max_step_rows) {
    return Error(Code::internal,
                 fmt::format("a step of {} rows, at most {} fit", rows, options_.max_step_rows));
  }
  return Ok{};
}

/// Window pages for the rows of all sequences, then those of their targets from what is left.
Status Model::begin_sequences(std::span<const StepSlice> slices) {
  for (const StepSlice& slice : slices) {
    SequenceState& sequence = state(slice.sequence);
    const auto count = static_cast<int64_t>(slice.tokens.size());
    if (!sequence.is_writable()) {
      return Error(Code::internal, "the next rows of a sequence would change a page that others hold");
    }
    if (sequence.begin_step(count)) continue;
    for (auto& other : sequences_) {
      if (other != nullptr) other->drop_extra_windows();
    }
    if (!sequence.begin_step(count)) {
      return Error(Code::unavailable, "no window pages are left: others hold more of them than was planned");
    }
  }
  for (const StepSlice& slice : slices) {
    state(slice.sequence).claim_targets(static_cast<int64_t>(slice.tokens.size()), slice.window_targets);
  }
  return Ok{};
}

void Model::plan_step(Step& step, std::span<const StepSlice> slices) {
  for (const StepSlice& slice : slices) {
    SequenceState& sequence = state(slice.sequence);
    kernels::SequenceRows rows;
    rows.row_begin = static_cast<int32_t>(step.token_ids.size());
    rows.row_count = static_cast<int32_t>(slice.tokens.size());
    rows.start = sequence.length();
    rows.window_begin = 0;  // set layer by layer
    for (size_t i = 0; i < slice.tokens.size(); ++i) {
      step.token_ids.push_back(slice.tokens[i]);
      step.positions.push_back(rows.start + static_cast<int64_t>(i));
      step.is_image.push_back(slice.is_image.empty() ? uint8_t{0} : slice.is_image[i]);
      step.sequence_of_row.push_back(static_cast<int32_t>(step.rows.size()));
    }
    step.rows.push_back(rows);
    step.states.push_back(&sequence);
  }
  step.num_rows = static_cast<int64_t>(step.token_ids.size());
  step.plan.num_rows = static_cast<int32_t>(step.num_rows);
  step.plan.token_ids = step.token_ids;
  step.plan.positions = step.positions;
  step.plan.is_image = step.is_image;
  step.plan.sequence_of_row = step.sequence_of_row;
  step.plan.sequences = step.rows;
}

void Model::Step::allocate(const Config& config, const kernels::CacheFormat& format,
                           kernels::Scratch& scratch, bool with_trace) {
  const int64_t t = num_rows, d = config.hidden_size, n = config.hc_mult, half = config.qk_rope_head_dim / 2;
  streams = scratch.alloc<float>(t * n * d);
  for (size_t i = 0; i < 2; ++i) {
    pre[i] = scratch.alloc<float>(t * n);
    post[i] = scratch.alloc<float>(t * n);
    comb[i] = scratch.alloc<float>(t * n * n);
  }
  x = scratch.alloc<float>(t * d);
  y = scratch.alloc<float>(t * d);
  qr = scratch.alloc<float>(t * config.q_lora_rank);
  q = scratch.alloc<float>(t * config.num_attention_heads * config.head_dim);
  attended = scratch.alloc<float>(t * config.num_attention_heads * config.head_dim);
  window_records = scratch.alloc<std::byte>(t * format.window_bytes());
  for (kernels::RopeAngles* angles : {&window_angles, &compressed_angles}) {
    angles->cos = scratch.alloc<float>(t * half);
    angles->sin = scratch.alloc<float>(t * half);
  }
  if (!config.index_source_layer_ids.empty()) {
    selection.entries = scratch.alloc<int32_t>(t * config.index_topk);
    selection.count = scratch.alloc<int32_t>(t);
    if (with_trace) selection.gap = scratch.alloc<float>(t);
  }
  if (config.candidate_source_layer_id >= 0) {
    selection.candidates.max_blocks = config.candidate_topk_blocks;
    selection.candidates.block_size = config.candidate_block_size;
    selection.candidates.blocks = scratch.alloc<int32_t>(t * config.candidate_topk_blocks);
    selection.candidates.count = scratch.alloc<int32_t>(t);
  }
  if (!config.dspark_target_layer_ids.empty() && !is_draft) {
    taps = scratch.alloc<float>(t * d * static_cast<int64_t>(config.dspark_target_layer_ids.size()));
  }
  if (with_trace) {
    attn_out = scratch.alloc<float>(t * d);
    streams_in = scratch.alloc<float>(t * n * d);
    pre_in = scratch.alloc<float>(t * n);
    engram_gate = scratch.alloc<float>(t * n);
    const int64_t k = std::max(config.num_experts_per_tok, config.dspark_num_experts_per_tok);
    router_index = scratch.alloc<int32_t>(t * k);
    router_weight = scratch.alloc<float>(t * k);
    router_gap = scratch.alloc<float>(t);
  }
}

// ------------------------------------------------------------------------------------------------ Engram
struct Model::EngramGather {
  const int64_t* rows = nullptr;  // table rows of token t at rows + t·stride
  int64_t num_tokens = 0, stride = 0, columns = 0;
  uint8_t* values = nullptr;  // out [num_tokens, columns, head_dim]
  uint8_t* scales = nullptr;  // out [num_tokens, columns, head_dim/32]
};

Status Model::gather_engram(const EngramTable& table, const EngramGather& gather) {
  const int64_t width = table.head_dim, scale_width = table.scale_bytes();
  std::mutex mutex;
  std::optional<Error> failure;
  const auto read_row = [&](int64_t whole_row, uint8_t* values, uint8_t* scales) -> Status {
    const int64_t row = whole_row - (table.values != nullptr ? table.row_begin : 0);
    if (table.values != nullptr) {
      std::memcpy(values, table.values + row * width, static_cast<size_t>(width));
      std::memcpy(scales, table.scales + row * scale_width, static_cast<size_t>(scale_width));
      return Ok{};
    }
    RORQUAL_TRY(table.source->read(*table.values_info, row * width,
                                   std::as_writable_bytes(std::span(values, static_cast<size_t>(width)))));
    return table.source->read(*table.scales_info, row * scale_width,
                              std::as_writable_bytes(std::span(scales, static_cast<size_t>(scale_width))));
  };
  threads_.parallel_for(gather.num_tokens, [&](int64_t t, int) {
    for (int64_t c = 0; c < gather.columns; ++c) {
      const int64_t at = t * gather.columns + c;
      Status status = read_row(gather.rows[t * gather.stride + c], gather.values + at * width,
                               gather.scales + at * scale_width);
      if (status.ok()) continue;
      std::lock_guard lock(mutex);
      if (!failure) failure = std::move(status).error();
      return;
    }
  });
  if (failure) return *std::move(failure);
  return Ok{};
}

Status Model::run_engram(Step& step, int64_t layer, const LayerWeights& weights) {
  const kernels::Scratch::Frame frame(scratch_);
  const EngramWeights& engram = *weights.engram;
  const int64_t columns = config_.engram_columns();
  EngramGather gather;
  gather.rows = step.hash_rows.data() + config_.engram_slot(layer) * columns;
  gather.num_tokens = step.num_rows;
  gather.stride = static_cast<int64_t>(config_.engram_layer_ids.size()) * columns;
  gather.columns = columns;
  gather.values = scratch_.alloc<uint8_t>(step.num_rows * columns * engram.table.head_dim);
  gather.scales = scratch_.alloc<uint8_t>(step.num_rows * columns * engram.table.scale_bytes());
  RORQUAL_TRY(gather_engram(engram.table, gather));
  kernels::EngramArgs args;
  args.plan = &step.plan;
  args.d_model = config_.hidden_size;
  args.num_streams = config_.hc_mult;
  args.num_columns = columns;
  args.head_dim = engram.table.head_dim;
  args.rows_e4m3 = gather.values;
  args.row_scales = gather.scales;
  args.wkv = engram.wkv;
  args.query_weight = engram.query_weight;
  args.key_weight = engram.key_weight;
  args.eps = static_cast<float>(config_.rms_norm_eps);
  args.streams = step.streams;
  args.gate = step.engram_gate;
  kernels_->engram(context_, args);
  return Ok{};
}

// ------------------------------------------------------------------------------------------------ one layer
void Model::flush_post(Step& step) {
  if (!step.post_pending) return;
  kernels::BoundaryArgs args;
  args.num_rows = step.num_rows;
  args.d_model = config_.hidden_size;
  args.num_streams = config_.hc_mult;
  args.streams = step.streams;
  args.y = step.y;
  args.post = step.post[1];
  args.comb = step.comb[1];
  kernels_->boundary(context_, args);
  step.post_pending = false;
}

void Model::run_index(Step& step, int64_t layer, const LayerWeights& weights) {
  kernels::IndexArgs args;
  args.plan = &step.plan;
  args.shape = attention_shape();
  args.format = layout_.format;
  args.ratio = weights.ratio;
  args.num_index_heads = config_.index_n_heads;
  args.index_topk = config_.index_topk;
  args.weights = &*weights.indexer;
  args.angles = step.compressed_angles;
  args.x = step.x;
  args.qr = step.qr;
  args.caches = step.compressed;
  if (layer == config_.candidate_source_layer_id) args.candidates_out = &step.selection.candidates;
  const bool is_above_source =
      config_.candidate_source_layer_id >= 0 && layer > config_.candidate_source_layer_id;
  if (is_above_source) args.candidates_in = &step.selection.candidates;
  args.selected = step.selection.entries;
  args.selected_count = step.selection.count;
  args.topk_gap = step.selection.gap;
  kernels_->index_select(context_, args);
}

void Model::run_attention(Step& step, int64_t layer, const LayerWeights& weights) {
  const auto num_sequences = step.states.size();
  step.windows.resize(num_sequences);
  for (size_t s = 0; s < num_sequences; ++s) {
    step.windows[s] = step.states[s]->window(layer);
    // A first row after a gap sees itself only.
    const bool is_continued = step.states[s]->window_end(layer) == step.rows[s].start;
    step.rows[s].window_begin = is_continued ? step.states[s]->window_begin(layer) : step.rows[s].start;
  }
  const bool is_compressed = weights.ratio > 0;
  kernels::AttentionInputArgs inputs;
  inputs.num_rows = step.num_rows;
  inputs.shape = attention_shape();
  inputs.weights = &weights.attention;
  inputs.x = step.x;
  inputs.angles = is_compressed ? step.compressed_angles : step.window_angles;
  inputs.qr = step.qr;
  inputs.q = step.q;
  inputs.window_records = step.window_records;
  kernels_->attention_inputs(context_, inputs);

  kernels::AttendArgs attend;
  if (is_compressed) {
    const int32_t source = layout_.source_of_layer[static_cast<size_t>(layer)];
    step.compressed.resize(num_sequences);
    for (size_t s = 0; s < num_sequences; ++s) step.compressed[s] = step.states[s]->compressed(source);
    if (weights.compressor) {
      kernels::CompressArgs compress;
      compress.plan = &step.plan;
      compress.shape = inputs.shape;
      compress.format = layout_.format;
      compress.ratio = weights.ratio;
      compress.weights = &*weights.compressor;
      compress.rope.inv_freq = inv_freq_compressed_;
      compress.x = step.x;
      compress.caches = step.compressed;
      kernels_->compress(context_, compress);
    }
    if (weights.indexer) run_index(step, layer, weights);
    attend.compressed = step.compressed;
    attend.selected = step.selection.entries;
    attend.selected_count = step.selection.count;
    attend.selected_stride = config_.index_topk;
  }
  attend.plan = &step.plan;
  attend.shape = inputs.shape;
  attend.format = layout_.format;
  attend.attn_sink = weights.attention.attn_sink;
  attend.q = step.q;
  attend.window_records = step.window_records;
  attend.windows = step.windows;
  attend.draft_block = step.is_draft;
  attend.angles = inputs.angles;
  attend.out = step.attended;
  kernels_->attend(context_, attend);

  kernels::AttentionOutputArgs output;
  output.num_rows = step.num_rows;
  output.shape = inputs.shape;
  output.weights = &weights.attention;
  output.attended = step.attended;
  output.y = step.y;
  kernels_->attention_output(context_, output);
  if (step.is_draft) return;  // a block's own rows are never committed
  kernels::CommitWindowArgs commit;
  commit.plan = &step.plan;
  commit.format = layout_.format;
  commit.window_records = step.window_records;
  commit.windows = step.windows;
  kernels_->commit_window(context_, commit);
  for (size_t s = 0; s < num_sequences; ++s) {
    step.states[s]->add_window(layer, step.rows[s].start, step.rows[s].start + step.rows[s].row_count);
  }
}

void Model::run_moe(Step& step, int64_t layer, const LayerWeights& weights) {
  kernels::MoeArgs args;
  args.num_rows = step.num_rows;
  args.d_model = config_.hidden_size;
  args.d_expert = config_.moe_intermediate_size;
  args.num_active = config_.num_active_experts(layer);
  args.scoring = config_.scoring;
  args.normalise_weights = config_.norm_topk_prob;
  args.routed_scale = static_cast<float>(config_.routed_scaling_factor);
  args.gate_temperature = static_cast<float>(config_.gate_temp);
  args.swiglu_limit = static_cast<float>(config_.swiglu_limit);
  args.weights = &weights.moe;
  args.is_image = step.is_draft ? nullptr : step.is_image.data();
  args.x = step.x;
  args.y = step.y;
  args.router_index = step.router_index;
  args.router_weight = step.router_weight;
  args.router_gap = step.router_gap;
  kernels_->moe(context_, args);
}

/// Streams at entry are complete except for the last FFN's post, which the first boundary applies when it is
/// pending.
void Model::run_layer(Step& step, int64_t layer, const LayerWeights& weights) {
  kernels::BoundaryArgs args;
  args.num_rows = step.num_rows;
  args.d_model = config_.hidden_size;
  args.num_streams = config_.hc_mult;
  args.norm_eps = static_cast<float>(config_.rms_norm_eps);
  args.hc_eps = static_cast<float>(config_.hc_eps);
  args.sinkhorn_iters = static_cast<int>(config_.hc_sinkhorn_iters);
  args.streams = step.streams;
  args.x = step.x;
  if (step.post_pending) {
    args.y = step.y;
    args.post = step.post[1];
    args.comb = step.comb[1];
    step.post_pending = false;
  }
  args.hyper = &weights.hyper_attn;
  args.pre_mix = step.pre[1];
  args.next_pre = step.pre[0];
  args.next_post = step.post[0];
  args.next_comb = step.comb[0];
  args.norm_weight = weights.attn_norm;
  kernels_->boundary(context_, args);
  run_attention(step, layer, weights);
  if (step.attn_out != nullptr) {
    std::copy_n(step.y, step.num_rows * config_.hidden_size, step.attn_out);
  }
  args.y = step.y;
  args.post = step.post[0];
  args.comb = step.comb[0];
  args.hyper = &weights.hyper_ffn;
  args.pre_mix = step.pre[0];
  args.next_pre = step.pre[1];
  args.next_post = step.post[1];
  args.next_comb = step.comb[1];
  args.norm_weight = weights.ffn_norm;
  kernels_->boundary(context_, args);
  run_moe(step, layer, weights);
  step.post_pending = true;
}

// ------------------------------------------------------------------------------------------------ the step
void Model::run_head(Step& step, std::span<const StepSlice> slices, std::span<float> logits) {
  const kernels::Scratch::Frame frame(scratch_);
  const int64_t d = config_.hidden_size;
  auto* hidden = scratch_.alloc<float>(step.num_rows * d);
  kernels::BoundaryArgs fold;
  fold.num_rows = step.num_rows;
  fold.d_model = d;
  fold.num_streams = config_.hc_mult;
  fold.streams = step.streams;
  if (step.post_pending) {
    fold.y = step.y;
    fold.post = step.post[1];
    fold.comb = step.comb[1];
    step.post_pending = false;
  }
  fold.pre_mix = step.pre[1];
  fold.collapsed = hidden;
  kernels_->boundary(context_, fold);
  if (probe_ != nullptr) probe_->final_hidden(std::span(hidden, static_cast<size_t>(step.num_rows * d)));
  int64_t wanted = 0;
  for (size_t s = 0; s < slices.size(); ++s) {
    for (const int32_t offset : slices[s].logit_offsets) {
      // Rows only move towards the front, so the gather can be done in place.
      std::copy_n(hidden + (step.rows[s].row_begin + offset) * d, d, hidden + wanted * d);
      ++wanted;
    }
  }
  if (wanted == 0) return;
  RORQUAL_CHECK(static_cast<int64_t>(logits.size()) == wanted * config_.vocab_size);
  kernels::HeadArgs head;
  head.num_rows = wanted;
  head.d_model = d;
  head.norm_eps = static_cast<float>(config_.rms_norm_eps);
  head.hidden = hidden;
  head.norm_weight = weights_.norm;
  head.head = weights_.head;
  head.logits = logits.data();
  kernels_->head(context_, head);
}

Status Model::run_backbone(Step& step) {
  const int64_t d = config_.hidden_size, n = config_.hc_mult;
  kernels::EmbedArgs embed;
  embed.plan = &step.plan;
  embed.table_bf16 = weights_.embed;
  embed.d_model = d;
  embed.num_streams = n;
  embed.streams = step.streams;
  embed.pre_mix = step.pre[1];
  kernels_->embed(context_, embed);
  const auto angles = [&](const std::vector<float>& inv_freq, const kernels::RopeAngles& out) {
    kernels_->rope_angles(context_, step.positions, {inv_freq}, const_cast<float*>(out.cos),
                          const_cast<float*>(out.sin));
  };
  angles(inv_freq_window_, step.window_angles);
  angles(inv_freq_compressed_, step.compressed_angles);

  const auto num_targets = static_cast<int64_t>(config_.dspark_target_layer_ids.size());
  for (int64_t l = 0; l < config_.num_hidden_layers; ++l) {
    const LayerWeights& weights = weights_.layers[static_cast<size_t>(l)];
    const auto target =
        std::find(config_.dspark_target_layer_ids.begin(), config_.dspark_target_layer_ids.end(), l);
    const bool is_target = target != config_.dspark_target_layer_ids.end();
    if (weights.engram || is_target || probe_ != nullptr) flush_post(step);
    if (weights.engram) RORQUAL_TRY(run_engram(step, l, weights));
    if (is_target) {
      kernels::TapArgs tap;
      tap.num_rows = step.num_rows;
      tap.d_model = d;
      tap.num_streams = n;
      tap.streams = step.streams;
      tap.out = step.taps + (target - config_.dspark_target_layer_ids.begin()) * d;
      tap.out_stride = num_targets * d;
      kernels_->tap(context_, tap);
    }
    if (probe_ != nullptr) {
      probe_->layer_begin(l, std::span(step.streams, static_cast<size_t>(step.num_rows * n * d)),
                          std::span(step.pre[1], static_cast<size_t>(step.num_rows * n)));
      std::copy_n(step.streams, step.num_rows * n * d, step.streams_in);
      std::copy_n(step.pre[1], step.num_rows * n, step.pre_in);
    }
    run_layer(step, l, weights);
    if (probe_ != nullptr) report_layer(step, l, weights);
  }
  return Ok{};
}

void Model::report_layer(Step& step, int64_t layer, const LayerWeights& weights) {
  flush_post(step);
  LayerTrace trace;
  trace.layer = layer;
  trace.num_rows = step.num_rows;
  trace.streams_in = step.streams_in;
  trace.pre_mix_in = step.pre_in;
  trace.attn_out = step.attn_out;
  trace.hyper_pre = step.pre[0];
  trace.hyper_post = step.post[0];
  trace.hyper_comb = step.comb[0];
  trace.ffn_out = step.y;
  trace.streams_out = step.streams;
  trace.engram_gate = weights.engram ? step.engram_gate : nullptr;
  trace.router_index = step.router_index;
  trace.router_weight = step.router_weight;
  trace.router_gap = step.router_gap;
  if (weights.indexer) {
    trace.selected = step.selection.entries;
    trace.selected_count = step.selection.count;
    trace.topk_gap = step.selection.gap;
  }
  trace.window_records = step.window_records;
  probe_->layer_end(trace);
}

Status Model::forward(std::span<const StepSlice> slices, std::span<float> logits) {
  const ScopedFlushToZero flush;
  RORQUAL_TRY(check_slices(slices));
  if (slices.empty()) return Ok{};
  RORQUAL_TRY(begin_sequences(slices));
  const kernels::Scratch::Frame frame(scratch_);
  Step step;
  plan_step(step, slices);
  step.allocate(config_, layout_.format, scratch_, probe_ != nullptr);
  if (hasher_) {
    const int64_t stride = config_.engram_columns() * static_cast<int64_t>(config_.engram_layer_ids.size());
    step.hash_rows.resize(static_cast<size_t>(step.num_rows * stride));
    for (size_t s = 0; s < slices.size(); ++s) {
      const kernels::SequenceRows& rows = step.rows[s];
      std::vector<int32_t>& history = step.states[s]->history();
      history.resize(static_cast<size_t>(rows.start));  // drops what a failed step may have left
      for (int32_t i = rows.row_begin; i < rows.row_begin + rows.row_count; ++i) {
        const auto at = static_cast<size_t>(i);
        history.push_back(step.is_image[at] != 0 ? -1 : token_map_[static_cast<size_t>(step.token_ids[at])]);
      }
      hasher_->hash(history, rows.start, rows.row_count, step.hash_rows.data() + rows.row_begin * stride);
    }
    if (probe_ != nullptr) probe_->hash_rows(step.hash_rows);
  }
  RORQUAL_TRY(run_backbone(step));
  if (step.taps != nullptr) {
    if (probe_ != nullptr) {
      const auto width = static_cast<size_t>(config_.hidden_size) * config_.dspark_target_layer_ids.size();
      probe_->taps(std::span(step.taps, static_cast<size_t>(step.num_rows) * width));
    }
    if (weights_.draft) store_draft_context(step);
  }
  run_head(step, slices, logits);
  for (size_t s = 0; s < slices.size(); ++s) {
    step.states[s]->end_step(step.rows[s].row_count, slices[s].window_targets);
  }
  return Ok{};
}

}  // namespace rorqual::model
