// SPDX-License-Identifier: Apache-2.0
#include "plan/memory_step.h"

#include <algorithm>

#include "kernels/kernels.h"
#include "model/cache.h"

namespace rorqual::plan {
namespace {

constexpr int64_t kAlign_bytes = 64;
constexpr int64_t kPage_bytes = int64_t{2} << 20;  // as tensor/buffer.cpp
constexpr int64_t kFloat = 4, kInt = 4, kLong = 8;

int64_t divide_up(int64_t a, int64_t b) {
  return (a + b - 1) / b;
}

/// kernels::Scratch with one chunk that is large enough: how high the stack grows.
class ScratchModel {
 public:
  void take(int64_t size_bytes) {
    used_ += divide_up(size_bytes, kAlign_bytes) * kAlign_bytes;
    high_ = std::max(high_, used_);
  }

  int64_t touched_bytes() const { return divide_up(high_, kPage_bytes) * kPage_bytes; }

  class Frame {
   public:
    explicit Frame(ScratchModel& scratch) : scratch_(scratch), used_(scratch.used_) {}

    ~Frame() { scratch_.used_ = used_; }

    Frame(const Frame&) = delete;
    Frame& operator=(const Frame&) = delete;

   private:
    ScratchModel& scratch_;
    int64_t used_;
  };

 private:
  int64_t used_ = 0, high_ = 0;
};

/// The stages of one step of `rows` rows, in their order; see kernels/cpu/stages_*.cpp and model/forward.cpp.
class StepReplay {
 public:
  StepReplay(const model::Config& config, const MemorySettings& settings, ScratchModel& scratch, int64_t rows)
      : c_(config),
        settings_(settings),
        scratch_(scratch),
        t_(rows),
        sequences_(std::min(rows, settings.max_num_seqs)),
        reference_(settings.numerics == kernels::Numerics::reference) {
    format_ = {settings.numerics, config.head_dim, config.index_head_dim};
  }

  void run() {
    const ScratchModel::Frame frame(scratch_);
    step(true);
    if (settings_.engram_on_disk) {  // rows of all tables are read ahead
      for (size_t i = 0; i < c_.engram_layer_ids.size(); ++i) engram_rows();
    }
    for (int64_t layer = 0; layer < c_.num_hidden_layers; ++layer) {
      if (c_.engram_slot(layer) >= 0) engram();
      boundary();
      attention(layer);
      boundary();
      moe(c_.num_experts(layer), c_.num_active_experts(layer));
    }
    if (settings_.with_drafts && c_.num_stages() > 0) draft_context();
    head();
  }

  /// One pass of drafts: as many blocks as fit into a step, then logits in parts (model/draft.cpp).
  void run_drafts() {
    const ScratchModel::Frame frame(scratch_);
    step(false);
    for (int64_t stage = 0; stage < c_.num_stages(); ++stage) {
      boundary();
      attention(c_.num_hidden_layers + stage);
      boundary();
      moe(c_.num_experts(c_.num_hidden_layers + stage), c_.num_active_experts(c_.num_hidden_layers + stage));
    }
    floats(t_ * c_.hidden_size);
    // Rows of logits, and as many of bias at most: one draft of each sequence.
    floats(2 * std::min(model::kMaxDraftLogitRows, t_) * c_.vocab_size);
    floats(model::kMaxDraftLogitRows * (2 * c_.dspark_markov_rank + c_.hidden_size + 1));
  }

 private:
  void floats(int64_t count) { scratch_.take(count * kFloat); }

  /// The copy that quantised inputs need (in reference numerics).
  void linear(int64_t rows, int64_t cols, bool quantise) {
    const ScratchModel::Frame frame(scratch_);
    const int64_t padded = divide_up(cols, 32) * 32;
    if ((quantise && reference_) || padded != cols) floats(rows * padded);
  }

  void step(bool is_backbone) {
    const int64_t d = c_.hidden_size, n = c_.hc_mult, half = c_.qk_rope_head_dim / 2;
    floats(t_ * n * d);
    for (int i = 0; i < 2; ++i) {
      floats(t_ * n);
      floats(t_ * n);
      floats(t_ * n * n);
    }
    floats(t_ * d);
    floats(t_ * d);
    floats(t_ * c_.q_lora_rank);
    floats(t_ * c_.num_attention_heads * c_.head_dim);
    floats(t_ * c_.num_attention_heads * c_.head_dim);
    scratch_.take(t_ * format_.window_bytes());
    for (int i = 0; i < 4; ++i) floats(t_ * half);
    if (!c_.index_source_layer_ids.empty()) {
      scratch_.take(t_ * c_.index_topk * kInt);
      scratch_.take(t_ * kInt);
    }
    if (c_.candidate_source_layer_id >= 0) {
      scratch_.take(t_ * c_.candidate_topk_blocks * kInt);
      scratch_.take(t_ * kInt);
    }
    if (is_backbone && settings_.with_drafts && !c_.dspark_target_layer_ids.empty()) {
      floats(t_ * d * static_cast<int64_t>(c_.dspark_target_layer_ids.size()));
    }
  }

  void engram_rows() {
    const int64_t width = c_.engram_columns() * c_.engram_head_dim;
    scratch_.take(t_ * width);
    scratch_.take(t_ * width / 32);
  }

  void engram() {
    constexpr int64_t kRowsPerBatch = 256;
    const ScratchModel::Frame frame(scratch_);
    const int64_t width = c_.engram_columns() * c_.engram_head_dim;
    if (!settings_.engram_on_disk) engram_rows();
    const int64_t batch = std::min(t_, kRowsPerBatch), d = c_.hidden_size, n = c_.hc_mult;
    floats(n * d);
    floats(n * n);
    floats(batch * width);
    floats(batch * (n + 1) * d);
    floats(settings_.threads * d);
    scratch_.take(settings_.threads * (c_.engram_head_dim + c_.engram_head_dim / 32));
    linear(batch, width, true);
  }

  void boundary() {
    constexpr int64_t kRowsPerTile = 8;
    const ScratchModel::Frame frame(scratch_);
    const int64_t d = c_.hidden_size, mixes = divide_up((2 + c_.hc_mult) * c_.hc_mult, 16) * 16;
    if (t_ < settings_.threads) {
      floats(t_ * d);
      floats(t_ * mixes);
      floats(divide_up(c_.hc_mult * d, 32) * t_ * mixes);
    } else {
      floats(settings_.threads * d);
      floats(settings_.threads * mixes * kRowsPerTile);
    }
  }

  /// Rows that nothing reads fall away after their window records; that never needs more than keeping them.
  void attention(int64_t layer) {
    const int64_t ratio = c_.ratio(layer);
    attention_inputs();
    const model::LayerRole role = c_.role(layer);
    if (role == model::LayerRole::full) compress(ratio);
    if (role == model::LayerRole::full || role == model::LayerRole::reindex) index(layer, ratio);
    attend(ratio);
    attention_output();
  }

  void attention_inputs() {
    const ScratchModel::Frame frame(scratch_);
    linear(t_, c_.hidden_size, true);
    linear(t_, c_.q_lora_rank, true);
    floats(t_ * c_.head_dim);
    linear(t_, c_.hidden_size, true);
  }

  void attention_output() {
    const ScratchModel::Frame frame(scratch_);
    const int64_t z = c_.o_groups * c_.o_lora_rank;
    floats(t_ * z);
    linear(t_, z, true);
  }

  void compress(int64_t ratio) {
    const ScratchModel::Frame frame(scratch_);
    const int64_t groups = divide_up(t_, ratio), half = c_.qk_rope_head_dim / 2;
    floats(t_ * c_.head_dim);
    if (ratio > 1) floats(t_ * c_.head_dim);
    scratch_.take(t_ * 2 * kLong);
    if (ratio > 1) floats(groups * c_.head_dim);
    floats(groups * c_.index_head_dim);
    scratch_.take(groups * kLong);
    floats(groups * half);
    floats(groups * half);
  }

  void index(int64_t layer, int64_t ratio) {
    constexpr int64_t kRowsPerBatch = 256, kKeysPerTile = 128, kScoreFloats = int64_t{1} << 24;
    int64_t keys = settings_.max_model_len / ratio;
    const bool is_restricted = c_.candidate_source_layer_id >= 0 && layer > c_.candidate_source_layer_id;
    if (is_restricted) {
      keys = std::min(keys, c_.candidate_topk_blocks * c_.candidate_block_size);
    }
    if (keys <= c_.index_topk) return;
    const ScratchModel::Frame frame(scratch_);
    const int64_t rows = std::min({t_, kRowsPerBatch, std::max<int64_t>(kScoreFloats / keys, 1)});
    floats(rows * c_.index_n_heads * c_.index_head_dim);
    floats(rows * c_.index_n_heads);
    floats(rows * keys);
    const int64_t values = rows * c_.index_n_heads * c_.index_head_dim;
    if (reference_) {
      scratch_.take(rows * c_.index_n_heads * format_.index_bytes());
      scratch_.take(values);
      floats(values / 32);
      scratch_.take(values / 32 * kInt);
      scratch_.take(rows);
    }
    {
      const ScratchModel::Frame inner(scratch_);
      linear(rows, c_.q_lora_rank, true);
    }
    scratch_.take(divide_up(rows, is_restricted ? 1 : 32) * divide_up(keys, kKeysPerTile) * 4 * kLong);
    floats(settings_.threads * kKeysPerTile * c_.index_head_dim);
    scratch_.take(settings_.threads * kKeysPerTile * c_.index_head_dim);
    floats(settings_.threads * kKeysPerTile * c_.index_head_dim / 32);
  }

  void attend(int64_t ratio) {
    const ScratchModel::Frame frame(scratch_);
    const int64_t selected = ratio == 0 ? 0 : std::min(c_.index_topk, settings_.max_model_len / ratio);
    const int64_t slots = c_.sliding_window + selected, threads = settings_.threads;
    const bool by_heads = t_ < threads;
    if (by_heads) {
      floats(t_ * slots * c_.head_dim);
      scratch_.take(t_ * slots);
      floats(threads * workspace(16, slots));
      return;
    }
    floats((t_ + sequences_ * (c_.sliding_window - 1)) * c_.head_dim);
    floats(threads * slots * c_.head_dim);
    scratch_.take(threads * slots);
    floats(threads * workspace(c_.num_attention_heads, slots));
  }

  /// Floats of one thread's attention, as the AVX2 operators ask for (kernels/cpu/avx2/attention.cpp).
  int64_t workspace(int64_t heads, int64_t slots) const {
    const int64_t lanes = divide_up(heads, 8) * 8;
    return (c_.head_dim + divide_up(slots, 64) * 65 + 2) * lanes + 64 * 16;
  }

  void moe(int64_t experts, int64_t active) {
    constexpr int64_t kBatchRows = 1024, kChunk_bytes = 12, kSegment_bytes = 40;
    const ScratchModel::Frame frame(scratch_);
    scratch_.take(t_ * active * kInt);
    floats(t_ * active);
    {
      const ScratchModel::Frame inner(scratch_);
      floats(t_ * experts);
    }
    scratch_.take((experts + 2) * kLong);
    scratch_.take((experts + 1) * kLong);
    scratch_.take(t_ * (active + 1) * kLong);
    scratch_.take(t_ * (active + 1) * kLong);
    const int64_t d = divide_up(c_.hidden_size, 32) * 32, mid = divide_up(c_.moe_intermediate_size, 32) * 32;
    if (reference_ || d != c_.hidden_size) floats(t_ * d);
    const int64_t rows = std::min(kBatchRows, t_ * (active + 1));
    scratch_.take(rows * kSegment_bytes);
    floats(rows * d);
    floats(rows * mid);
    floats(rows * mid);
    floats(rows * c_.hidden_size);
    // Segments of one row each are the most chunks: two panels of 16 rows in each.
    const int64_t segments = std::min(rows, experts + rows / 48 + 1);
    scratch_.take(segments * divide_up(std::max(c_.hidden_size, c_.moe_intermediate_size), 32) *
                  kChunk_bytes);
  }

  void draft_context() {
    const ScratchModel::Frame frame(scratch_);
    floats(t_ * c_.hidden_size);
    linear(t_, c_.hidden_size * static_cast<int64_t>(c_.dspark_target_layer_ids.size()), true);
    floats(t_ * c_.head_dim);
    linear(t_, c_.hidden_size, true);
  }

  void head() {
    const ScratchModel::Frame frame(scratch_);
    floats(t_ * c_.hidden_size);
    floats(std::min(t_, settings_.max_logit_rows) * c_.hidden_size);
  }

  const model::Config& c_;
  const MemorySettings& settings_;
  ScratchModel& scratch_;
  int64_t t_, sequences_;
  bool reference_;
  kernels::CacheFormat format_;
};

}  // namespace

int64_t step_scratch_bytes(const model::Config& config, const MemorySettings& settings) {
  ScratchModel scratch;
  for (const int64_t rows :
       {settings.max_num_batched_tokens,
        std::min<int64_t>(settings.threads - 1, settings.max_num_batched_tokens), int64_t{1}}) {
    StepReplay(config, settings, scratch, std::max<int64_t>(rows, 1)).run();
  }
  if (settings.with_drafts && config.num_stages() > 0) {
    const int64_t width = std::max(config.dspark_block_size, model::kMaxDrafts);
    const int64_t blocks =
        std::clamp<int64_t>(settings.max_num_batched_tokens / width, 1, settings.max_num_seqs);
    StepReplay(config, settings, scratch, blocks * width).run_drafts();
  }
  return scratch.touched_bytes();
}

}  // namespace rorqual::plan
