// SPDX-License-Identifier: Apache-2.0
// One step through the backbone: the sequence of docs/model.md#layer, stage by stage over the kernel table.
#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "base/check.h"
#include "model/step.h"

namespace rorqual::model {

// ------------------------------------------------------------------------------------------------ planning
Status Model::check_replay(const StepSlice& slice) const {
  const SequenceState& sequence = state(slice.sequence);
  const int64_t end = sequence.length() + static_cast<int64_t>(slice.tokens.size());
  if (slice.window_targets.empty() || !slice.logit_offsets.empty()) {
    return Error(Code::internal, "a replay slice needs window targets and gives no logits");
  }
  if (end > sequence.entries_end() || slice.window_targets.back() > sequence.entries_end()) {
    return Error(Code::internal,
                 fmt::format("a replay up to position {} of a sequence whose entries end at {}",
                             std::max(end, slice.window_targets.back()), sequence.entries_end()));
  }
  return Ok{};
}

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
    if (slice.is_replay) RORQUAL_TRY(check_replay(slice));
    rows += count;
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

/// Replays come last, so that what only normal slices do is done on the first rows.
void Model::plan_step(Step& step, std::span<const StepSlice> slices) {
  step.position_of_slice.resize(slices.size());
  for (const bool is_replay : {false, true}) {
    for (size_t s = 0; s < slices.size(); ++s) {
      const StepSlice& slice = slices[s];
      if (slice.is_replay != is_replay) continue;
      SequenceState& sequence = state(slice.sequence);
      Step::SliceRows rows;
      rows.rule = make_row_rule(config_, is_replay, sequence.trim_rows());
      rows.demand.rows = {sequence.length(), sequence.length() + static_cast<int64_t>(slice.tokens.size())};
      rows.demand.is_everything = slice.window_targets.empty();
      rows.demand.window_targets = slice.window_targets;
      rows.demand.logit_offsets = slice.logit_offsets;
      rows.is_replay = is_replay;
      rows.is_trimmed = sequence.trim_rows() > 0;
      step.position_of_slice[s] = step.slices.size();
      step.add_slice(slice, sequence, rows);
    }
  }
  step.update_plan();
}

void Model::Step::allocate(const Config& config, const kernels::CacheFormat& format,
                           kernels::Scratch& scratch, bool with_trace, bool with_taps) {
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
  if (with_taps && !config.dspark_target_layer_ids.empty()) {
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
/// Hashes the step's tokens and begins to read what is on disk.
void Model::start_engram(Step& step) {
  const int64_t columns = config_.engram_columns();
  const auto num_layers = static_cast<int64_t>(config_.engram_layer_ids.size()),
             stride = columns * num_layers;
  step.hash_rows.resize(static_cast<size_t>(step.num_rows * stride));
  for (size_t s = 0; s < step.rows.size(); ++s) {
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
  if (engram_reader_ == nullptr) return;
  step.engram_tokens.resize(static_cast<size_t>(num_layers));
  for (int64_t slot = 0; slot < num_layers; ++slot) {
    const int64_t layer = config_.engram_layer_ids[static_cast<size_t>(slot)];
    std::vector<int32_t>& tokens = step.engram_tokens[static_cast<size_t>(slot)];
    tokens = step.rows_entering(layer);
    step.engram.push_back(want_engram(step, layer, tokens));
  }
  step.reads = engram_reader_->start(step.engram);
}

/// The rows of a layer's table for some tokens of the step, with buffers for them.
EngramRows Model::want_engram(Step& step, int64_t layer, std::span<const int32_t> tokens) {
  EngramRows wanted;
  wanted.table = &weights_.layers[static_cast<size_t>(layer)].engram->table;
  wanted.tokens = tokens;
  wanted.columns = config_.engram_columns();
  wanted.rows = step.hash_rows.data() + config_.engram_slot(layer) * wanted.columns;
  wanted.stride = static_cast<int64_t>(config_.engram_layer_ids.size()) * wanted.columns;
  const int64_t records = static_cast<int64_t>(tokens.size()) * wanted.columns;
  wanted.values = scratch_.alloc<uint8_t>(records * wanted.table->head_dim);
  wanted.scales = scratch_.alloc<uint8_t>(records * wanted.table->scale_bytes());
  return wanted;
}

Status Model::run_engram(Step& step, int64_t layer, const LayerWeights& weights) {
  const kernels::Scratch::Frame frame(scratch_);
  const EngramWeights& engram = *weights.engram;
  EngramRows wanted;
  if (step.reads != nullptr) {
    const auto slot = static_cast<size_t>(config_.engram_slot(layer));
    RORQUAL_TRY(step.reads->wait(slot));
    wanted = step.engram[slot];
    RORQUAL_CHECK(static_cast<int64_t>(wanted.tokens.size()) == step.num_rows);
  } else {
    wanted = want_engram(step, layer, step.origin);
    copy_engram_rows(wanted, threads_);
  }
  kernels::EngramArgs args;
  args.plan = &step.plan;
  args.d_model = config_.hidden_size;
  args.num_streams = config_.hc_mult;
  args.num_columns = wanted.columns;
  args.head_dim = engram.table.head_dim;
  args.rows_e4m3 = wanted.values;
  args.row_scales = wanted.scales;
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

/// Caches that the rows see in a layer.
void Model::bind_windows(Step& step, int64_t layer) {
  step.windows.resize(step.states.size());
  for (size_t s = 0; s < step.states.size(); ++s) {
    step.windows[s] = step.states[s]->window(layer);
    // A first row after a gap sees itself only.
    const bool is_continued = step.states[s]->window_end(layer) == step.rows[s].start;
    step.rows[s].window_begin = is_continued ? step.states[s]->window_begin(layer) : step.rows[s].start;
  }
}

void Model::bind_compressed(Step& step, int64_t layer, const LayerWeights& weights) {
  if (weights.ratio == 0) return;
  const int32_t source = layout_.source_of_layer[static_cast<size_t>(layer)];
  step.compressed.resize(step.states.size());
  for (size_t s = 0; s < step.states.size(); ++s) step.compressed[s] = step.states[s]->compressed(source);
}

void Model::project_inputs(Step& step, const LayerWeights& weights, const float* x, bool with_queries) {
  kernels::AttentionInputArgs inputs;
  inputs.num_rows = step.num_rows;
  inputs.shape = attention_shape();
  inputs.weights = &weights.attention;
  inputs.x = x;
  inputs.angles = weights.ratio > 0 ? step.compressed_angles : step.window_angles;
  inputs.qr = with_queries ? step.qr : nullptr;
  inputs.q = with_queries ? step.q : nullptr;
  inputs.window_records = step.window_records;
  kernels_->attention_inputs(context_, inputs);
}

/// Entries and index keys of the normal rows; those of replays exist.
void Model::run_compress(Step& step, const LayerWeights& weights) {
  if (!weights.compressor) return;
  const kernels::StepPlan plan = step.normal_plan();
  kernels::CompressArgs compress;
  compress.plan = &plan;
  compress.shape = attention_shape();
  compress.format = layout_.format;
  compress.ratio = weights.ratio;
  compress.weights = &*weights.compressor;
  compress.rope.inv_freq = inv_freq_compressed_;
  compress.x = step.x;
  compress.caches = std::span(step.compressed).first(plan.sequences.size());
  kernels_->compress(context_, compress);
}

void Model::commit_windows(Step& step, int64_t layer) {
  kernels::CommitWindowArgs commit;
  commit.plan = &step.plan;
  commit.format = layout_.format;
  commit.window_records = step.window_records;
  commit.windows = step.windows;
  kernels_->commit_window(context_, commit);
  for (size_t s = 0; s < step.states.size(); ++s) {
    step.states[s]->add_window(layer, step.rows[s].start, step.rows[s].start + step.rows[s].row_count);
  }
}

void Model::attend(Step& step, const LayerWeights& weights) {
  kernels::AttendArgs attend;
  if (weights.ratio > 0) {
    attend.compressed = step.compressed;
    attend.selected = step.selection.entries;
    attend.selected_count = step.selection.count;
    attend.selected_stride = config_.index_topk;
  }
  attend.plan = &step.plan;
  attend.shape = attention_shape();
  attend.format = layout_.format;
  attend.attn_sink = weights.attention.attn_sink;
  attend.q = step.q;
  attend.window_records = step.window_records;
  attend.windows = step.windows;
  attend.draft_block = step.is_draft;
  attend.angles = weights.ratio > 0 ? step.compressed_angles : step.window_angles;
  attend.out = step.attended;
  kernels_->attend(context_, attend);

  kernels::AttentionOutputArgs output;
  output.num_rows = step.num_rows;
  output.shape = attention_shape();
  output.weights = &weights.attention;
  output.attended = step.attended;
  output.y = step.y;
  kernels_->attention_output(context_, output);
}

/// Rows that this layer does not run whole give their window records and compressed entries, then fall away.
Status Model::run_attention(Step& step, int64_t layer, const LayerWeights& weights) {
  const kernels::Scratch::Frame frame(scratch_);
  bind_windows(step, layer);
  bind_compressed(step, layer, weights);
  std::vector<Step::Kept> kept;
  const bool falls_away = step.find_kept(layer, kept);
  if (!falls_away || !kept.empty()) RORQUAL_TRY(step.check_windows(layer, kept));
  project_inputs(step, weights, step.x, !falls_away);
  run_compress(step, weights);
  if (falls_away) {
    const std::vector<kernels::WindowCache> windows = step.windows_before(kept, layout_.format, scratch_);
    commit_windows(step, layer);
    step.keep(config_, kept);
    if (step.num_rows == 0) return Ok{};
    step.windows = windows;
    bind_compressed(step, layer, weights);
    project_inputs(step, weights, step.x, true);
  }
  if (weights.indexer) run_index(step, layer, weights);
  attend(step, weights);
  // A draft block's own rows are never committed.
  if (!falls_away && !step.is_draft) commit_windows(step, layer);
  return Ok{};
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
Status Model::run_layer(Step& step, int64_t layer, const LayerWeights& weights) {
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
  RORQUAL_TRY(run_attention(step, layer, weights));
  if (step.num_rows == 0) return Ok{};
  args.num_rows = step.num_rows;
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
  return Ok{};
}

// ------------------------------------------------------------------------------------------------ the step
/// Copies the collapsed streams of rows that want logits to the front. Returns their number.
int64_t Model::gather_hidden(const Step& step, std::span<const StepSlice> slices, float* hidden) const {
  const int64_t d = config_.hidden_size;
  int64_t wanted = 0;
  size_t run = 0;  // normal slices are in the caller's order, and so are their runs
  for (size_t s = 0; s < slices.size(); ++s) {
    const size_t slice = step.position_of_slice[s];
    for (const int32_t offset : slices[s].logit_offsets) {
      const int64_t position = step.slices[slice].demand.rows.begin + offset;
      while (run < step.rows.size() && (step.slice_of_run[run] != slice ||
                                        step.rows[run].start + step.rows[run].row_count <= position)) {
        ++run;
      }
      RORQUAL_CHECK(run < step.rows.size() && step.rows[run].start <= position);
      const int64_t row = step.rows[run].row_begin + (position - step.rows[run].start);
      if (row != wanted) std::copy_n(hidden + row * d, d, hidden + wanted * d);  // towards the front only
      ++wanted;
    }
  }
  return wanted;
}

void Model::run_head(Step& step, std::span<const StepSlice> slices, std::span<float> logits) {
  if (step.num_rows == 0) return;
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
  const int64_t wanted = gather_hidden(step, slices, hidden);
  if (wanted == 0) return;
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

/// The mean over the streams that enter a draft target. The last target completes the context rows.
void Model::run_tap(Step& step, int64_t target) {
  const auto num_targets = static_cast<int64_t>(config_.dspark_target_layer_ids.size());
  const int64_t d = config_.hidden_size;
  kernels::TapArgs tap;
  tap.num_rows = step.num_rows;
  tap.d_model = d;
  tap.num_streams = config_.hc_mult;
  tap.streams = step.streams;
  tap.out = step.taps + target * d;
  tap.out_stride = num_targets * d;
  kernels_->tap(context_, tap);
  if (target + 1 < num_targets) return;
  if (probe_ != nullptr) {
    probe_->taps(std::span(step.taps, static_cast<size_t>(step.num_rows * num_targets * d)));
  }
  if (weights_.draft) store_draft_context(step);
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

  for (int64_t l = 0; l < config_.num_hidden_layers && step.num_rows > 0; ++l) {
    const LayerWeights& weights = weights_.layers[static_cast<size_t>(l)];
    const auto target =
        std::find(config_.dspark_target_layer_ids.begin(), config_.dspark_target_layer_ids.end(), l);
    const bool is_target = step.taps != nullptr && target != config_.dspark_target_layer_ids.end();
    if (weights.engram || is_target || probe_ != nullptr) flush_post(step);
    if (weights.engram) RORQUAL_TRY(run_engram(step, l, weights));
    if (is_target) run_tap(step, target - config_.dspark_target_layer_ids.begin());
    if (probe_ != nullptr) {
      probe_->layer_begin(l, std::span(step.streams, static_cast<size_t>(step.num_rows * n * d)),
                          std::span(step.pre[1], static_cast<size_t>(step.num_rows * n)));
      std::copy_n(step.streams, step.num_rows * n * d, step.streams_in);
      std::copy_n(step.pre[1], step.num_rows * n, step.pre_in);
    }
    RORQUAL_TRY(run_layer(step, l, weights));
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
  threads_.bind_owner();
  int64_t wanted = 0;
  for (const StepSlice& slice : slices) wanted += static_cast<int64_t>(slice.logit_offsets.size());
  RORQUAL_CHECK(wanted == 0 || static_cast<int64_t>(logits.size()) == wanted * config_.vocab_size);
  RORQUAL_TRY(begin_sequences(slices));
  const kernels::Scratch::Frame frame(scratch_);
  Step step;
  plan_step(step, slices);
  step.allocate(config_, layout_.format, scratch_, probe_ != nullptr, probe_ != nullptr || weights_.draft);
  if (hasher_) start_engram(step);
  RORQUAL_TRY(run_backbone(step));
  run_head(step, slices, logits);
  for (const StepSlice& slice : slices) {
    state(slice.sequence).end_step(static_cast<int64_t>(slice.tokens.size()), slice.window_targets);
  }
  return Ok{};
}

}  // namespace rorqual::model
