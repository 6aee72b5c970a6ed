// SPDX-License-Identifier: Apache-2.0
// The DeepSeek-V4.1 text model: weights + steps over sequences -> logits, cache rows and drafts.
// docs/model.md.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "base/thread_pool.h"
#include "format/tensor_source.h"
#include "kernels/kernels.h"
#include "model/cache.h"
#include "model/config.h"
#include "model/engram_hash.h"
#include "model/engram_rows.h"
#include "model/runner.h"
#include "model/switches.h"
#include "model/weights.h"

namespace rorqual::model {

struct ModelOptions {
  kernels::Numerics numerics = kernels::Numerics::reference;
  int num_threads = 1;
  std::vector<int> compute_cpus;  // that the compute threads keep to; empty = wherever the process may
  const kernels::KernelTable* kernels = nullptr;  // null = the best this machine has
  bool engram_on_disk = false;
  bool with_drafts = true;
  Switches switches;
  int64_t max_model_len = 4096;
  int64_t max_step_rows = 512;
  int64_t max_sequences = 8;
  int64_t num_blocks = 0;     // of running sequences; 0 = enough for max_model_len tokens in each
  int64_t prefix_blocks = 0;  // further pages, for the prefix cache
  int64_t prefix_windows = 0;
  int64_t scratch_bytes =
      0;  // address space for the work memory of steps (plan/memory_step.h); 0 = as needed
};

/// Intermediate values of one layer, for checks against golden runs. Pointers are valid during the call only.
struct LayerTrace {
  int64_t layer = 0, num_rows = 0;
  const float* streams_in = nullptr;      // [T, n, D] at entry, after Engram
  const float* pre_mix_in = nullptr;      // [T, n]
  const float* attn_out = nullptr;        // [T, D]
  const float* hyper_pre = nullptr;       // [T, n], of the attention sublayer
  const float* hyper_post = nullptr;      // [T, n]
  const float* hyper_comb = nullptr;      // [T, n, n]
  const float* ffn_out = nullptr;         // [T, D]
  const float* streams_out = nullptr;     // [T, n, D]
  const float* engram_gate = nullptr;     // [T, n] or null
  const int32_t* router_index = nullptr;  // [T, K]
  const float* router_weight = nullptr;   // [T, K]
  const float* router_gap = nullptr;      // [T]
  const int32_t* selected = nullptr;      // [T, index_topk] or null unless this layer is an index source
  const int32_t* selected_count = nullptr;
  const float* topk_gap = nullptr;
  const std::byte* window_records = nullptr;  // [T, window_bytes]
};

/// Watches a forward pass and may force its layer inputs. Slows the pass down; for checks only.
class Probe {
 public:
  virtual ~Probe() = default;

  virtual void hash_rows(std::span<const int64_t> /*rows*/) {}  // [T, engram layers, columns]

  /// May overwrite both: streams [T, n, D] at layer entry after Engram, and the mix that collapses them.
  virtual void layer_begin(int64_t /*layer*/, std::span<float> /*streams*/, std::span<float> /*pre_mix*/) {}

  virtual void layer_end(const LayerTrace& /*trace*/) {}

  virtual void taps(std::span<const float> /*taps*/) {}  // [T, targets, D]

  virtual void final_hidden(std::span<const float> /*hidden*/) {}  // [T, D]
};

/// One draft pass of one sequence with all that it computes, for checks.
struct Draft {
  std::vector<int32_t> tokens;    // [count]
  std::vector<float> confidence;  // [count], raw logits of acceptance
  std::vector<float> logits;      // [count, V], Markov bias included
};

/// One thread, which is the owner of the pool's parallel sections.
class Model final : public Runner {
 public:
  /// Checks the manifest, then loads. `token_map`: compressed token id of every token (Engram); may be empty
  /// when the config has no Engram layers. Errors as load_weights, and corrupt_data when the map does not fit
  /// the config.
  static Result<std::unique_ptr<Model>> load(const format::TensorSource& source, const Config& config,
                                             std::vector<int32_t> token_map, const ModelOptions& options,
                                             const LoadProgress& progress = {});

  const Config& config() const { return config_; }

  const ModelOptions& options() const { return options_; }

  const CacheLayout& cache_layout() const { return layout_; }

  const Weights& weights() const { return weights_; }

  std::string_view kernel_name() const { return kernels_->name; }

  // Runner
  int64_t vocab_size() const override { return config_.vocab_size; }

  int64_t max_model_len() const override { return options_.max_model_len; }

  int64_t max_step_rows() const override { return options_.max_step_rows; }

  PageStore& pages() override { return *pools_; }

  const PageStore& pages() const override { return *pools_; }

  int64_t window_pages() const override { return layout_.window_pages(); }

  int64_t replay_rows() const override;
  int64_t replay_cost() const override;

  int64_t max_drafts() const override { return weights_.draft ? kMaxDrafts : 0; }

  Result<SequenceId> open_sequence(const SequenceStart& start = {}) override;
  void close_sequence(SequenceId sequence) override;
  int64_t sequence_length(SequenceId sequence) const override;
  PageId page_at(SequenceId sequence, PageKind kind, int64_t index) const override;
  bool reserve(SequenceId sequence, int64_t num_tokens) override;
  void truncate(SequenceId sequence, int64_t length) override;
  int64_t image_bytes(SequenceId sequence) const override;
  void save_image(SequenceId sequence, std::span<std::byte> image) const override;
  Result<SequenceId> open_image(std::span<const std::byte> image) override;
  Status forward(std::span<const StepSlice> slices, std::span<float> logits) override;
  Status draft(std::span<const DraftSlice> slices, int64_t count, std::span<int32_t> tokens,
               std::span<float> confidence) override;

  int num_threads() const override { return threads_.num_threads(); }

  void parallel_for(int64_t count, const std::function<void(int64_t, int)>& f) override;

  /// Drafts as many tokens as the trained block has after `token`, alone. Errors as draft.
  Result<Draft> draft_logits(SequenceId sequence, int32_t token);

  /// State of an open sequence, for checks.
  const SequenceState& sequence(SequenceId id) const { return *sequences_[static_cast<size_t>(id)]; }

  /// Watches following forward passes; null stops.
  void set_probe(Probe* probe) { probe_ = probe; }

 private:
  struct Step;  // views and activations of the running step (step.h)

  Model(Config config, ModelOptions options);

  Result<size_t> free_sequence() const;
  Status check_slices(std::span<const StepSlice> slices) const;
  Status check_replay(const StepSlice& slice) const;
  Status begin_sequences(std::span<const StepSlice> slices);
  void plan_step(Step& step, std::span<const StepSlice> slices);
  Status run_backbone(Step& step);
  void report_layer(Step& step, int64_t layer, const LayerWeights& weights);
  void start_engram(Step& step);
  EngramRows want_engram(Step& step, int64_t layer, std::span<const int32_t> tokens);
  Status run_engram(Step& step, int64_t layer, const LayerWeights& weights);
  void run_tap(Step& step, int64_t target);
  Status run_layer(Step& step, int64_t layer, const LayerWeights& weights);
  Status run_attention(Step& step, int64_t layer, const LayerWeights& weights);
  void bind_windows(Step& step, int64_t layer);
  void bind_compressed(Step& step, int64_t layer, const LayerWeights& weights);
  void project_inputs(Step& step, const LayerWeights& weights, const float* x, bool with_queries);
  void run_compress(Step& step, const LayerWeights& weights);
  void commit_windows(Step& step, int64_t layer);
  void attend(Step& step, const LayerWeights& weights);
  void run_index(Step& step, int64_t layer, const LayerWeights& weights);
  void run_moe(Step& step, int64_t layer, const LayerWeights& weights);
  void flush_post(Step& step);
  void store_draft_context(Step& step);
  int64_t gather_hidden(const Step& step, std::span<const StepSlice> slices, float* hidden) const;
  void run_head(Step& step, std::span<const StepSlice> slices, std::span<float> logits);
  struct DraftRows;  // a pass over some sequences (draft.cpp)

  Status check_drafts(std::span<const DraftSlice> slices, int64_t count) const;
  void run_draft(const DraftRows& rows);
  void run_draft_stages(Step& step);
  void run_draft_heads(Step& step, const DraftRows& rows);
  void draft_tokens(const DraftRows& rows, const float* hidden);
  kernels::AttentionShape attention_shape() const;

  const SequenceState& state(SequenceId sequence) const { return *sequences_[static_cast<size_t>(sequence)]; }

  SequenceState& state(SequenceId sequence) { return *sequences_[static_cast<size_t>(sequence)]; }

  Config config_;
  ModelOptions options_;
  const kernels::KernelTable* kernels_ = nullptr;
  ThreadPool threads_;
  kernels::Scratch scratch_;
  kernels::Context context_;
  Weights weights_;
  CacheLayout layout_;
  std::unique_ptr<PagePools> pools_;  // outlives the sequences
  std::vector<std::unique_ptr<SequenceState>> sequences_;
  std::vector<int32_t> token_map_;
  std::optional<NgramHasher> hasher_;
  std::unique_ptr<EngramReader> engram_reader_;  // null: tables are in memory, or there are none
  std::vector<float> inv_freq_window_, inv_freq_compressed_;
  Probe* probe_ = nullptr;
};

}  // namespace rorqual::model
