// SPDX-License-Identifier: Apache-2.0
// config.json of DeepSeek-V4.1-Flash, in both spellings (nested text_config, or the flat inference form).
// Field by field: docs/model.md#config. Defaults are those of the official code where a field may be absent.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "kernels/kernels.h"

namespace rorqual::model {

/// What a backbone layer does for the compressed (long-range) KV.
enum class LayerRole : uint8_t { window_only, full, reindex, reuse };

struct Config {
  int64_t vocab_size = 129280;
  int64_t hidden_size = 5120;
  int64_t num_hidden_layers = 40;
  int64_t moe_intermediate_size = 2304;
  int64_t num_attention_heads = 64;
  int64_t head_dim = 512;
  int64_t qk_rope_head_dim = 64;
  int64_t q_lora_rank = 1280;
  int64_t o_groups = 8;
  int64_t o_lora_rank = 1024;
  int64_t sliding_window = 128;
  double rms_norm_eps = 1e-20;
  double swiglu_limit = 0.0;
  int64_t n_routed_experts = 384;
  int64_t n_shared_experts = 1;
  int64_t num_experts_per_tok = 6;
  kernels::Scoring scoring = kernels::Scoring::sqrt_softplus;
  double gate_temp = 1.0;
  bool norm_topk_prob = true;
  double routed_scaling_factor = 1.0;
  std::vector<int64_t> compress_ratios;
  std::vector<int64_t> kv_source_layer_ids;
  std::vector<int64_t> index_source_layer_ids;
  int64_t index_n_heads = 32;
  int64_t index_head_dim = 128;
  int64_t index_topk = 512;
  int64_t candidate_source_layer_id = -1;
  int64_t candidate_topk_blocks = 0;
  int64_t candidate_block_size = 0;
  double rope_theta = 10000.0;
  double compress_rope_theta = 160000.0;
  double rope_factor = 16.0;
  double beta_fast = 32.0;
  double beta_slow = 1.0;
  int64_t original_seq_len = 0;  // 0 = YaRN off
  int64_t max_position_embeddings = 1048576;
  int64_t hc_mult = 4;
  int64_t hc_sinkhorn_iters = 20;
  double hc_eps = 1e-6;
  std::vector<int64_t> engram_layer_ids;
  std::vector<int64_t> engram_num_embeddings;
  int64_t engram_max_ngram_size = 1;
  int64_t engram_vocab_size = 0;
  int64_t engram_n_heads = 0;
  int64_t engram_head_dim = 0;
  int64_t engram_pad_token_id = 2;
  int64_t engram_compressed_vocab_size = 0;
  int64_t num_nextn_predict_layers = 0;
  int64_t dspark_block_size = 0;  // 0 = no drafts
  int64_t dspark_noise_token_id = 0;
  std::vector<int64_t> dspark_target_layer_ids;
  int64_t dspark_markov_rank = 256;
  int64_t dspark_n_routed_experts = 0;     // 0 = backbone value
  int64_t dspark_num_experts_per_tok = 0;  // 0 = backbone value

  struct Vision {
    int64_t num_hidden_layers = 0, hidden_size = 0, num_attention_heads = 0, intermediate_size = 0,
            patch_size = 14;
    double rope_theta = 10000.0;
    int64_t downsample_ratio = 3, max_image_tokens = 1024, min_pixels = 295936;
    double max_wh_ratio = 0;  // 0 = none
  } vision;

  int64_t image_token_id = -1;
  int64_t bos_token_id = 0;
  int64_t eos_token_id = 1;
  int64_t pad_token_id = 2;

  /// Original layer ids, for slices: layer l of this config was layer layer_origin[l] of the full model
  /// (Engram multipliers and primes depend on it). Empty = identity.
  std::vector<int64_t> layer_origin;

  // ---- derived
  int64_t num_stages() const { return dspark_block_size > 0 ? num_nextn_predict_layers : 0; }

  int64_t ratio(int64_t layer) const;  // 0 for draft stages (layer >= num_hidden_layers)
  LayerRole role(int64_t layer) const;
  int64_t kv_source_of(int64_t layer) const;     // -1 if there is none
  int64_t index_source_of(int64_t layer) const;  // -1 if there is none
  int64_t num_experts(int64_t layer) const;
  int64_t num_active_experts(int64_t layer) const;
  int64_t engram_slot(int64_t layer) const;  // index into engram_layer_ids, -1 if none

  int64_t engram_columns() const { return (engram_max_ngram_size - 1) * engram_n_heads; }
};

/// Parses and checks. Errors (corrupt_data) name the field, got and expected; no field is trusted for an
/// allocation.
Result<Config> parse_config(std::string_view json);

/// The released model's configuration, built in (for plan, inspect and the generator).
const Config& release_config();

/// The nested HF form, for writing checkpoints.
std::string config_to_json(const Config& config);

}  // namespace rorqual::model
