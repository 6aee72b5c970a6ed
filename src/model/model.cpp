// SPDX-License-Identifier: Apache-2.0
// Loading and sequence bookkeeping; the forward pass is forward.cpp, drafts are draft.cpp.
#include "model/model.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/check.h"
#include "model/manifest.h"
#include "model/rope.h"
#include "model/row_ranges.h"

namespace rorqual::model {
namespace {

constexpr int kEngramReaders = 8;  // reads in flight

PoolSizes pool_sizes(const CacheLayout& layout, const ModelOptions& options) {
  constexpr auto kBlock = static_cast<size_t>(PageKind::block),
                 kWindow = static_cast<size_t>(PageKind::window);
  const int64_t running = options.num_blocks > 0
                              ? options.num_blocks
                              : layout.running_blocks(0, options.max_model_len, options.max_sequences);
  PoolSizes sizes;
  sizes.page_bytes[kBlock] = layout.block_bytes;
  sizes.page_bytes[kWindow] = layout.window_page_bytes();
  sizes.promised_windows = layout.promised_windows(options.max_sequences, options.max_step_rows);
  sizes.pages[kBlock] = running + options.prefix_blocks;
  sizes.pages[kWindow] = sizes.promised_windows + options.prefix_windows;
  return sizes;
}

}  // namespace

Model::Model(Config config, ModelOptions options)
    : config_(std::move(config)), options_(options), threads_(options.num_threads, options.compute_cpus) {
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
  model->layout_ = make_cache_layout(config, options.numerics, options.with_drafts);
  RORQUAL_TRY(model->scratch_.reserve(options.scratch_bytes));
  RORQUAL_TRY_ASSIGN(model->pools_, PagePools::create(pool_sizes(model->layout_, options)));
  model->sequences_.resize(static_cast<size_t>(options.max_sequences));
  WeightOptions weight_options;
  weight_options.head = options.switches.lm_head;
  weight_options.engram_on_disk = options.engram_on_disk;
  weight_options.with_drafts = options.with_drafts;
  RORQUAL_TRY_ASSIGN(model->weights_,
                     load_weights(source, model->config_, weight_options, model->threads_, progress));
  if (options.engram_on_disk && !config.engram_layer_ids.empty()) {
    model->engram_reader_ = std::make_unique<EngramReader>(kEngramReaders);
  }
  return model;
}

// ------------------------------------------------------------------------------------------------ sequences
Result<size_t> Model::free_sequence() const {
  for (size_t i = 0; i < sequences_.size(); ++i) {
    if (sequences_[i] == nullptr) return i;
  }
  return Error(Code::unavailable, fmt::format("all {} sequences of the model are in use", sequences_.size()),
               "raise --max-num-seqs");
}

Result<SequenceId> Model::open_sequence(const SequenceStart& start) {
  RORQUAL_TRY_ASSIGN(const size_t slot, free_sequence());
  RORQUAL_TRY_ASSIGN(auto opened, SequenceState::create(layout_, *pools_));
  RORQUAL_CHECK(start.is_image.empty() || start.is_image.size() == start.tokens.size());
  opened->restore(start);
  for (size_t i = 0; hasher_ && i < static_cast<size_t>(start.length); ++i) {
    const bool is_image = !start.is_image.empty() && start.is_image[i] != 0;
    opened->history().push_back(is_image ? -1 : token_map_[static_cast<size_t>(start.tokens[i])]);
  }
  sequences_[slot] = std::move(opened);
  return static_cast<SequenceId>(slot);
}

void Model::close_sequence(SequenceId sequence) {
  sequences_[static_cast<size_t>(sequence)].reset();
}

int64_t Model::sequence_length(SequenceId sequence) const {
  return state(sequence).length();
}

PageId Model::page_at(SequenceId sequence, PageKind kind, int64_t index) const {
  return state(sequence).page_at(kind, index);
}

bool Model::reserve(SequenceId sequence, int64_t num_tokens) {
  return state(sequence).reserve(num_tokens);
}

void Model::truncate(SequenceId sequence, int64_t length) {
  state(sequence).truncate(length);
}

int64_t Model::image_bytes(SequenceId sequence) const {
  return state(sequence).image_bytes();
}

void Model::save_image(SequenceId sequence, std::span<std::byte> image) const {
  state(sequence).save_image(image);
}

Result<SequenceId> Model::open_image(std::span<const std::byte> image) {
  RORQUAL_TRY_ASSIGN(const size_t slot, free_sequence());
  RORQUAL_TRY_ASSIGN(auto opened, SequenceState::create(layout_, *pools_));
  if (!opened->load_image(image)) {
    return Error(Code::unavailable, "the cache has no room for the sequence that was swapped out");
  }
  sequences_[slot] = std::move(opened);
  return static_cast<SequenceId>(slot);
}

int64_t Model::replay_rows() const {
  return model::replay_rows(config_);
}

int64_t Model::replay_cost() const {
  return model::replay_cost(config_);
}

void Model::parallel_for(int64_t count, const std::function<void(int64_t, int)>& f) {
  threads_.parallel_for(count, f);
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
