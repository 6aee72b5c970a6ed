// SPDX-License-Identifier: Apache-2.0
// Ranges of single fields come first: the rules between fields then compute with numbers that cannot
// overflow.
#include "model/config_check.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <initializer_list>
#include <limits>
#include <string>

#include "model/engram_hash.h"

namespace rorqual::model {
namespace {

constexpr int64_t kMaxWidth = 1 << 16;
constexpr int64_t kMaxLayers = 1024;
constexpr int64_t kMaxVocab = 1 << 24;
constexpr int64_t kMaxExperts = 1 << 20;    // over all layers: bounds the tensor list
constexpr int64_t kMaxLayerExperts = 4096;  // of one layer: the router's arrays
constexpr int64_t kMaxStreams = 8;          // the arrays of the hyper-connection kernels
constexpr int64_t kMaxColumns = 4096;       // Engram rows per token and layer
constexpr int64_t kScaleGroup = 32;         // values that share one scale

using C = Config;

constexpr std::array kIntegerFields = {
    IntegerField{"vocab_size", "", &C::vocab_size, 1, kMaxVocab},
    IntegerField{"hidden_size", "dim", &C::hidden_size, 1, kMaxWidth},
    IntegerField{"num_hidden_layers", "n_layers", &C::num_hidden_layers, 1, kMaxLayers},
    IntegerField{"moe_intermediate_size", "moe_inter_dim", &C::moe_intermediate_size, 1, kMaxWidth},
    IntegerField{"num_attention_heads", "n_heads", &C::num_attention_heads, 1, 4096},
    IntegerField{"head_dim", "", &C::head_dim, 1, 4096},
    IntegerField{"qk_rope_head_dim", "rope_head_dim", &C::qk_rope_head_dim, 2, 4096},
    IntegerField{"q_lora_rank", "", &C::q_lora_rank, 1, kMaxWidth},
    IntegerField{"o_groups", "", &C::o_groups, 1, 4096},
    IntegerField{"o_lora_rank", "", &C::o_lora_rank, 1, kMaxWidth},
    IntegerField{"sliding_window", "window_size", &C::sliding_window, 1, 1 << 20},
    IntegerField{"n_routed_experts", "", &C::n_routed_experts, 1, kMaxLayerExperts},
    IntegerField{"n_shared_experts", "", &C::n_shared_experts, 1, 1},
    IntegerField{"num_experts_per_tok", "n_activated_experts", &C::num_experts_per_tok, 1, 64},
    IntegerField{"index_n_heads", "", &C::index_n_heads, 1, 4096},
    IntegerField{"index_head_dim", "", &C::index_head_dim, 1, 4096},
    IntegerField{"index_topk", "", &C::index_topk, 1, kMaxWidth},
    IntegerField{"candidate_source_layer_id", "candidate_source_layer", &C::candidate_source_layer_id, -1,
                 kMaxLayers},
    IntegerField{"candidate_topk_blocks", "", &C::candidate_topk_blocks, 0, 1 << 20},
    IntegerField{"candidate_block_size", "", &C::candidate_block_size, 0, 4096},
    IntegerField{"original_seq_len", "", &C::original_seq_len, 0, int64_t{1} << 31},
    IntegerField{"max_position_embeddings", "max_seq_len", &C::max_position_embeddings, 1, int64_t{1} << 31},
    IntegerField{"hc_mult", "", &C::hc_mult, 1, kMaxStreams},
    IntegerField{"hc_sinkhorn_iters", "", &C::hc_sinkhorn_iters, 1, 1000},
    IntegerField{"engram_max_ngram_size", "", &C::engram_max_ngram_size, 1, 16},
    IntegerField{"engram_vocab_size", "", &C::engram_vocab_size, 0, int64_t{1} << 31},
    IntegerField{"engram_n_heads", "", &C::engram_n_heads, 0, kMaxColumns},
    IntegerField{"engram_head_dim", "", &C::engram_head_dim, 0, 4096},
    IntegerField{"engram_pad_token_id", "engram_pad_id", &C::engram_pad_token_id, 0, kMaxVocab},
    IntegerField{"engram_compressed_vocab_size", "", &C::engram_compressed_vocab_size, 0, kMaxVocab},
    IntegerField{"num_nextn_predict_layers", "n_mtp_layers", &C::num_nextn_predict_layers, 0, 64},
    IntegerField{"dspark_block_size", "", &C::dspark_block_size, 0, 64},
    IntegerField{"dspark_noise_token_id", "", &C::dspark_noise_token_id, 0, kMaxVocab},
    IntegerField{"dspark_markov_rank", "", &C::dspark_markov_rank, 1, kMaxWidth},
    IntegerField{"dspark_n_routed_experts", "", &C::dspark_n_routed_experts, 0, kMaxLayerExperts},
    IntegerField{"dspark_num_experts_per_tok", "dspark_n_activated_experts", &C::dspark_num_experts_per_tok,
                 0, 64},
};

constexpr double kMaxTheta = 1e12;

constexpr std::array kNumberFields = {
    NumberField{"rms_norm_eps", "norm_eps", &C::rms_norm_eps, 0, 1},
    NumberField{"swiglu_limit", "", &C::swiglu_limit, 0, 1e30},
    NumberField{"gate_temp", "", &C::gate_temp, 1e-6, 1e6},
    NumberField{"routed_scaling_factor", "route_scale", &C::routed_scaling_factor, -1e6, 1e6},
    NumberField{"rope_theta", "", &C::rope_theta, 1.001, kMaxTheta},
    NumberField{"compress_rope_theta", "", &C::compress_rope_theta, 1.001, kMaxTheta},
    NumberField{"rope_factor", "", &C::rope_factor, 1e-3, 1e6},
    NumberField{"beta_fast", "", &C::beta_fast, 1e-3, 1e6},
    NumberField{"beta_slow", "", &C::beta_slow, 1e-3, 1e6},
    NumberField{"hc_eps", "", &C::hc_eps, 0, 1},
};

constexpr std::array kListFields = {
    ListField{"compress_ratios", "", &C::compress_ratios},
    ListField{"kv_source_layer_ids", "kv_source_layers", &C::kv_source_layer_ids},
    ListField{"index_source_layer_ids", "index_source_layers", &C::index_source_layer_ids},
    ListField{"engram_layer_ids", "", &C::engram_layer_ids},
    ListField{"engram_num_embeddings", "", &C::engram_num_embeddings},
    ListField{"dspark_target_layer_ids", "", &C::dspark_target_layer_ids},
};

template <class Got>
Error field_error(std::string_view field, const Got& got, std::string_view expected) {
  return Error(Code::corrupt_data, fmt::format("config.json: {} is {}, expected {}", field, got, expected),
               kConfigHint);
}

Status check_ranges(const Config& config) {
  for (const IntegerField& field : kIntegerFields) {
    const int64_t value = config.*field.member;
    if (value < field.min || value > field.max) {
      return field_error(field.name, value,
                         field.min == field.max ? fmt::format("{}", field.min)
                                                : fmt::format("{} to {}", field.min, field.max));
    }
  }
  for (const NumberField& field : kNumberFields) {
    const double value = config.*field.member;
    if (!(value >= field.min && value <= field.max)) {
      return field_error(field.name, value, fmt::format("{} to {}", field.min, field.max));
    }
  }
  return Ok{};
}

Status check_multiple(std::string_view what, int64_t value, int64_t multiple) {
  if (value % multiple == 0) return Ok{};
  return field_error(what, value, fmt::format("a multiple of {}", multiple));
}

Status check_widths(const Config& config) {
  RORQUAL_TRY(check_multiple("hidden_size", config.hidden_size, kScaleGroup));
  RORQUAL_TRY(check_multiple("q_lora_rank", config.q_lora_rank, kScaleGroup));
  RORQUAL_TRY(check_multiple("moe_intermediate_size", config.moe_intermediate_size, kScaleGroup));
  RORQUAL_TRY(check_multiple("head_dim", config.head_dim, kScaleGroup));
  RORQUAL_TRY(check_multiple("index_head_dim", config.index_head_dim, kScaleGroup));
  RORQUAL_TRY(check_multiple("o_groups * o_lora_rank", config.o_groups * config.o_lora_rank, kScaleGroup));
  RORQUAL_TRY(check_multiple("qk_rope_head_dim", config.qk_rope_head_dim, 2));
  RORQUAL_TRY(check_multiple("num_attention_heads", config.num_attention_heads, config.o_groups));
  RORQUAL_TRY(check_multiple("num_attention_heads * head_dim / o_groups",
                             config.num_attention_heads / config.o_groups * config.head_dim, kScaleGroup));
  const int64_t rope_max = std::min(config.head_dim, config.index_head_dim);
  if (config.qk_rope_head_dim > rope_max) {
    return field_error(
        "qk_rope_head_dim", config.qk_rope_head_dim,
        fmt::format("at most head_dim {} and index_head_dim {}", config.head_dim, config.index_head_dim));
  }
  if (config.beta_fast <= config.beta_slow) {
    return field_error("beta_fast", config.beta_fast,
                       fmt::format("more than beta_slow {}", config.beta_slow));
  }
  return Ok{};
}

Status check_experts(const Config& config) {
  for (const int64_t layer : {int64_t{0}, config.num_hidden_layers}) {
    const bool is_draft = layer > 0;
    if (config.num_active_experts(layer) > config.num_experts(layer)) {
      return field_error(is_draft ? "dspark_num_experts_per_tok" : "num_experts_per_tok",
                         config.num_active_experts(layer),
                         fmt::format("at most the {} experts there are", config.num_experts(layer)));
    }
  }
  const int64_t total = config.num_hidden_layers * config.n_routed_experts +
                        config.num_stages() * config.num_experts(config.num_hidden_layers);
  if (total > kMaxExperts)
    return field_error("number of experts in all layers", total, fmt::format("at most {}", kMaxExperts));
  return Ok{};
}

/// Strictly ascending ids in [0, num_layers).
Status check_layer_list(std::string_view field, const std::vector<int64_t>& ids, int64_t num_layers) {
  for (size_t i = 0; i < ids.size(); ++i) {
    if (ids[i] < 0 || ids[i] >= num_layers) {
      return field_error(fmt::format("{}[{}]", field, i), ids[i],
                         fmt::format("a layer from 0 to {}", num_layers - 1));
    }
    if (i > 0 && ids[i] <= ids[i - 1]) {
      return field_error(fmt::format("{}[{}]", field, i), ids[i],
                         fmt::format("more than the {} before it", ids[i - 1]));
    }
  }
  return Ok{};
}

Status check_ratios(const Config& config) {
  const auto& ratios = config.compress_ratios;
  const int64_t count = config.num_hidden_layers + config.num_nextn_predict_layers;
  if (static_cast<int64_t>(ratios.size()) != count) {
    return field_error("length of compress_ratios", ratios.size(),
                       fmt::format("num_hidden_layers + num_nextn_predict_layers = {}", count));
  }
  for (size_t i = 0; i < ratios.size(); ++i) {
    const bool is_draft = static_cast<int64_t>(i) >= config.num_hidden_layers;
    if (ratios[i] < 0 || ratios[i] > (is_draft ? 0 : 2)) {
      return field_error(fmt::format("compress_ratios[{}]", i), ratios[i],
                         is_draft ? "0 (a draft stage)" : "0, 1 or 2");
    }
  }
  return Ok{};
}

/// Who provides the compressed entries and the selection of each layer.
Status check_sources(const Config& config) {
  const auto& kv = config.kv_source_layer_ids;
  const auto& index = config.index_source_layer_ids;
  RORQUAL_TRY(check_layer_list("kv_source_layer_ids", kv, config.num_hidden_layers));
  RORQUAL_TRY(check_layer_list("index_source_layer_ids", index, config.num_hidden_layers));
  for (const int64_t layer : kv) {
    if (!std::binary_search(index.begin(), index.end(), layer)) {
      return field_error("index_source_layer_ids", fmt::format("without layer {}", layer),
                         "every kv source to be an index source");
    }
  }
  for (const int64_t layer : index) {
    if (config.ratio(layer) == 0) {
      return field_error(fmt::format("compress_ratios[{}]", layer), 0,
                         "1 or 2, because the layer is an index source");
    }
  }
  for (int64_t layer = 0; layer < config.num_hidden_layers; ++layer) {
    if (config.ratio(layer) == 0) continue;
    const int64_t source = config.kv_source_of(layer);
    if (source < 0 || config.ratio(source) != config.ratio(layer)) {
      return field_error(fmt::format("compress_ratios[{}]", layer), config.ratio(layer),
                         source < 0 ? "a kv source at or below the layer"
                                    : fmt::format("{} as its kv source {}", config.ratio(source), source));
    }
    // kv sources are index sources, so the index source lies between the kv source and the layer.
  }
  return Ok{};
}

Status check_candidates(const Config& config) {
  const int64_t source = config.candidate_source_layer_id;
  if (source < 0) return Ok{};
  const auto& kv = config.kv_source_layer_ids;
  if (kv.empty() || kv.back() != source || config.ratio(source) != 1) {
    return field_error("candidate_source_layer_id", source, "the last kv source, with compress ratio 1");
  }
  const int64_t reach = (config.candidate_topk_blocks - 1) * config.candidate_block_size + 1;
  if (config.candidate_topk_blocks < 1 || config.candidate_block_size < 1 || reach < config.index_topk) {
    return field_error("(candidate_topk_blocks - 1) * candidate_block_size + 1", reach,
                       fmt::format("at least index_topk {}", config.index_topk));
  }
  return Ok{};
}

Status check_engram(const Config& config) {
  const auto& layers = config.engram_layer_ids;
  RORQUAL_TRY(check_layer_list("engram_layer_ids", layers, config.num_hidden_layers));
  if (config.engram_num_embeddings.size() != layers.size()) {
    return field_error("length of engram_num_embeddings", config.engram_num_embeddings.size(),
                       fmt::format("{}, one per Engram layer", layers.size()));
  }
  if (layers.empty()) return Ok{};

  const struct {
    const char* name;
    int64_t value, min;
  } needed[] = {
      {"engram_max_ngram_size", config.engram_max_ngram_size, 2},
      {"engram_n_heads", config.engram_n_heads, 1},
      {"engram_head_dim", config.engram_head_dim, kScaleGroup},
      {"engram_vocab_size", config.engram_vocab_size, 2},
      {"engram_compressed_vocab_size", config.engram_compressed_vocab_size, 1},
  };

  for (const auto& [name, value, min] : needed) {
    if (value < min) return field_error(name, value, fmt::format("at least {} with Engram layers", min));
  }
  RORQUAL_TRY(check_multiple("engram_head_dim", config.engram_head_dim, kScaleGroup));
  if (config.engram_columns() > kMaxColumns) {
    return field_error("number of Engram rows per token", config.engram_columns(),
                       fmt::format("at most {}", kMaxColumns));
  }
  if (config.engram_compressed_vocab_size > config.vocab_size) {
    return field_error("engram_compressed_vocab_size", config.engram_compressed_vocab_size,
                       fmt::format("at most vocab_size {}", config.vocab_size));
  }
  if (config.engram_pad_token_id >= config.vocab_size) {
    return field_error("engram_pad_token_id", config.engram_pad_token_id,
                       fmt::format("less than vocab_size {}", config.vocab_size));
  }
  const auto primes = engram_primes(config);
  return primes.ok() ? Status() : Status(primes.error());
}

Status check_drafts(const Config& config) {
  if (config.num_stages() == 0) {
    if (config.dspark_block_size == 0) return Ok{};
    return field_error("num_nextn_predict_layers", 0, "at least 1 when dspark_block_size is set");
  }
  const auto& targets = config.dspark_target_layer_ids;
  RORQUAL_TRY(check_layer_list("dspark_target_layer_ids", targets, config.num_hidden_layers));
  if (targets.empty()) return field_error("dspark_target_layer_ids", "empty", "at least one layer");
  if (config.dspark_noise_token_id >= config.vocab_size) {
    return field_error("dspark_noise_token_id", config.dspark_noise_token_id,
                       fmt::format("less than vocab_size {}", config.vocab_size));
  }
  if (config.sliding_window < config.dspark_block_size) {
    return field_error("sliding_window", config.sliding_window,
                       fmt::format("at least dspark_block_size {}", config.dspark_block_size));
  }
  return Ok{};
}

Status check_origin(const Config& config) {
  const auto& origin = config.layer_origin;
  if (origin.empty()) return Ok{};
  if (static_cast<int64_t>(origin.size()) != config.num_hidden_layers) {
    return field_error("length of rorqual_layer_origin", origin.size(),
                       fmt::format("num_hidden_layers {}", config.num_hidden_layers));
  }
  return check_layer_list("rorqual_layer_origin", origin, kMaxLayers);
}

Status check_vision(const Config& config) {
  const Config::Vision& vision = config.vision;

  const struct {
    const char* name;
    int64_t value, min, max;
  } fields[] = {
      {"num_hidden_layers", vision.num_hidden_layers, 0, kMaxLayers},
      {"hidden_size", vision.hidden_size, 1, kMaxWidth},
      {"num_attention_heads", vision.num_attention_heads, 1, 4096},
      {"intermediate_size", vision.intermediate_size, 1, kMaxWidth},
      {"patch_size", vision.patch_size, 1, 256},
      {"downsample_ratio", vision.downsample_ratio, 1, 64},
      {"max_image_tokens", vision.max_image_tokens, 1, 1 << 20},
      {"min_pixels", vision.min_pixels, 0, int64_t{1} << 31},
  };

  for (const auto& [name, value, min, max] : fields) {
    if (value < min || value > max) {
      return field_error(fmt::format("vision_config.{}", name), value, fmt::format("{} to {}", min, max));
    }
    if (vision.num_hidden_layers == 0) return Ok{};  // no tower: the rest is not used
  }
  if (!(vision.rope_theta >= 1.001 && vision.rope_theta <= kMaxTheta)) {
    return field_error("vision_config.rope_theta", vision.rope_theta, fmt::format("1.001 to {}", kMaxTheta));
  }
  RORQUAL_TRY(check_multiple("vision_config.hidden_size", vision.hidden_size, vision.num_attention_heads));
  if (!(vision.max_wh_ratio >= 0 && std::isfinite(vision.max_wh_ratio))) {
    return field_error("vision_config.max_wh_ratio", vision.max_wh_ratio, "a number >= 0 or null");
  }
  return Ok{};
}

Status check_token_ids(const Config& config) {
  const struct {
    const char* name;
    int64_t value;
  } ids[] = {{"bos_token_id", config.bos_token_id},
             {"eos_token_id", config.eos_token_id},
             {"pad_token_id", config.pad_token_id}};

  for (const auto& [name, value] : ids) {
    if (value < 0 || value >= config.vocab_size) {
      return field_error(name, value, fmt::format("0 to vocab_size - 1 = {}", config.vocab_size - 1));
    }
  }
  if (config.image_token_id < -1 || config.image_token_id >= config.vocab_size) {
    return field_error("image_token_id", config.image_token_id,
                       fmt::format("less than vocab_size {}", config.vocab_size));
  }
  return Ok{};
}

}  // namespace

std::span<const IntegerField> integer_fields() {
  return kIntegerFields;
}

std::span<const NumberField> number_fields() {
  return kNumberFields;
}

std::span<const ListField> list_fields() {
  return kListFields;
}

Status check_config(const Config& config) {
  RORQUAL_TRY(check_ranges(config));
  RORQUAL_TRY(check_widths(config));
  RORQUAL_TRY(check_ratios(config));
  RORQUAL_TRY(check_experts(config));
  RORQUAL_TRY(check_sources(config));
  RORQUAL_TRY(check_candidates(config));
  RORQUAL_TRY(check_origin(config));
  RORQUAL_TRY(check_engram(config));
  RORQUAL_TRY(check_drafts(config));
  RORQUAL_TRY(check_vision(config));
  return check_token_ids(config);
}

}  // namespace rorqual::model
