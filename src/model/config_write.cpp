// SPDX-License-Identifier: Apache-2.0
// Writes config.json in the nested Hugging Face form, with the released model's key order where it matters to
// readers.
#include <nlohmann/json.hpp>

#include "model/config.h"
#include "model/config_check.h"

namespace rorqual::model {
namespace {

using Json = nlohmann::ordered_json;

const char* scoring_name(kernels::Scoring scoring) {
  switch (scoring) {
    case kernels::Scoring::sqrt_softplus:
      return "sqrtsoftplus";
    case kernels::Scoring::sigmoid:
      return "sigmoid";
    case kernels::Scoring::softmax:
      return "softmax";
  }
  return "";
}

/// Fields that live in rope_scaling in this form.
bool is_rope_scaling(std::string_view name) {
  return name == "rope_factor" || name == "beta_fast" || name == "beta_slow" || name == "original_seq_len";
}

Json text_config(const Config& config) {
  Json text;
  text["model_type"] = "deepseek_v41_text";
  for (const IntegerField& field : integer_fields()) {
    if (!is_rope_scaling(field.name)) text[field.name] = config.*field.member;
  }
  for (const NumberField& field : number_fields()) {
    if (!is_rope_scaling(field.name)) text[field.name] = config.*field.member;
  }
  for (const ListField& field : list_fields()) text[field.name] = config.*field.member;
  text["num_key_value_heads"] = 1;
  text["hidden_act"] = "silu";
  text["attention_bias"] = false;
  text["topk_method"] = "noaux_tc";
  text["scoring_func"] = scoring_name(config.scoring);
  text["norm_topk_prob"] = config.norm_topk_prob;
  if (config.original_seq_len > 0) {
    text["rope_scaling"] = {{"rope_type", "yarn"},
                            {"factor", config.rope_factor},
                            {"beta_fast", config.beta_fast},
                            {"beta_slow", config.beta_slow},
                            {"original_max_position_embeddings", config.original_seq_len}};
  }
  return text;
}

Json vision_config(const Config::Vision& vision) {
  Json json;
  json["model_type"] = "deepseek_v41_vision";
  json["num_hidden_layers"] = vision.num_hidden_layers;
  if (vision.num_hidden_layers == 0) return json;
  json["hidden_size"] = vision.hidden_size;
  json["num_attention_heads"] = vision.num_attention_heads;
  json["intermediate_size"] = vision.intermediate_size;
  json["patch_size"] = vision.patch_size;
  json["rope_theta"] = vision.rope_theta;
  json["downsample_ratio"] = vision.downsample_ratio;
  json["max_image_tokens"] = vision.max_image_tokens;
  json["min_pixels"] = vision.min_pixels;
  json["max_wh_ratio"] = vision.max_wh_ratio > 0 ? Json(vision.max_wh_ratio) : Json(nullptr);
  return json;
}

}  // namespace

std::string config_to_json(const Config& config) {
  Json json;
  json["architectures"] = {"DeepseekV41ForCausalLM"};
  json["model_type"] = "deepseek_v41";
  if (config.image_token_id >= 0) json["image_token_id"] = config.image_token_id;
  json["bos_token_id"] = config.bos_token_id;
  json["eos_token_id"] = config.eos_token_id;
  json["pad_token_id"] = config.pad_token_id;
  json["dtype"] = "bfloat16";
  json["tie_word_embeddings"] = false;
  json["quantization_config"] = {{"quant_method", "fp8"},
                                 {"activation_scheme", "dynamic"},
                                 {"weight_block_size", {32, 32}},
                                 {"scale_fmt", "ue8m0"},
                                 {"expert_dtype", "fp4"}};
  json["text_config"] = text_config(config);
  json["vision_config"] = vision_config(config.vision);
  if (!config.layer_origin.empty()) json["rorqual_layer_origin"] = config.layer_origin;
  return json.dump(2) + "\n";
}

}  // namespace rorqual::model
