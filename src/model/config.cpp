// SPDX-License-Identifier: Apache-2.0
// What follows from a config, and the released model's values.
#include "model/config.h"

#include <algorithm>

namespace rorqual::model {
namespace {

/// Largest id in the ascending list that is not above `layer`, or -1.
int64_t last_at_or_below(const std::vector<int64_t>& ids, int64_t layer) {
  const auto after = std::upper_bound(ids.begin(), ids.end(), layer);
  return after == ids.begin() ? -1 : *std::prev(after);
}

bool contains(const std::vector<int64_t>& ids, int64_t layer) {
  return std::binary_search(ids.begin(), ids.end(), layer);
}

Config make_release_config() {
  Config config;  // sizes of the released text model are the defaults of the struct
  config.swiglu_limit = 10.0;
  config.routed_scaling_factor = 1.5;
  config.compress_ratios.assign(2, 0);
  config.compress_ratios.insert(config.compress_ratios.end(), 18, 2);
  config.compress_ratios.insert(config.compress_ratios.end(), 20, 1);
  config.compress_ratios.insert(config.compress_ratios.end(), 3, 0);
  config.kv_source_layer_ids = {2, 8, 14, 20};
  config.index_source_layer_ids = {2, 8, 14, 20, 24, 28, 32, 36};
  config.candidate_source_layer_id = 20;
  config.candidate_topk_blocks = 2048;
  config.candidate_block_size = 8;
  config.original_seq_len = 65536;
  config.engram_layer_ids = {1, 14};
  config.engram_num_embeddings = {384006168, 384016682};
  config.engram_max_ngram_size = 4;
  config.engram_vocab_size = 16000000;
  config.engram_n_heads = 8;
  config.engram_head_dim = 256;
  config.engram_compressed_vocab_size = 99092;
  config.num_nextn_predict_layers = 3;
  config.dspark_block_size = 5;
  config.dspark_noise_token_id = 128799;
  config.dspark_target_layer_ids = {37, 38, 39};
  config.dspark_n_routed_experts = 128;
  config.dspark_num_experts_per_tok = 3;
  config.vision.num_hidden_layers = 32;
  config.vision.hidden_size = 1024;
  config.vision.num_attention_heads = 16;
  config.vision.intermediate_size = 2816;
  config.image_token_id = 129264;
  return config;
}

}  // namespace

int64_t Config::ratio(int64_t layer) const {
  return layer < num_hidden_layers ? compress_ratios[static_cast<size_t>(layer)] : 0;
}

LayerRole Config::role(int64_t layer) const {
  if (ratio(layer) == 0) return LayerRole::window_only;
  if (contains(kv_source_layer_ids, layer)) return LayerRole::full;
  return contains(index_source_layer_ids, layer) ? LayerRole::reindex : LayerRole::reuse;
}

int64_t Config::kv_source_of(int64_t layer) const {
  return ratio(layer) == 0 ? -1 : last_at_or_below(kv_source_layer_ids, layer);
}

int64_t Config::index_source_of(int64_t layer) const {
  return ratio(layer) == 0 ? -1 : last_at_or_below(index_source_layer_ids, layer);
}

int64_t Config::num_experts(int64_t layer) const {
  const bool is_draft = layer >= num_hidden_layers && dspark_n_routed_experts > 0;
  return is_draft ? dspark_n_routed_experts : n_routed_experts;
}

int64_t Config::num_active_experts(int64_t layer) const {
  const bool is_draft = layer >= num_hidden_layers && dspark_num_experts_per_tok > 0;
  return is_draft ? dspark_num_experts_per_tok : num_experts_per_tok;
}

int64_t Config::engram_slot(int64_t layer) const {
  const auto it = std::find(engram_layer_ids.begin(), engram_layer_ids.end(), layer);
  return it == engram_layer_ids.end() ? -1 : it - engram_layer_ids.begin();
}

const Config& release_config() {
  static const Config config = make_release_config();
  return config;
}

}  // namespace rorqual::model
