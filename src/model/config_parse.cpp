// SPDX-License-Identifier: Apache-2.0
// Reads config.json in both spellings: nested text_config with Hugging Face names, or the flat inference
// form.
#include <fmt/format.h>
#include <simdjson.h>

#include <optional>
#include <string>
#include <unordered_map>

#include "model/config.h"
#include "model/config_check.h"

namespace rorqual::model {
namespace {

using simdjson::dom::element;

constexpr size_t kMaxConfig_bytes = 16 << 20;
constexpr size_t kMaxListLength = 4096;
constexpr std::string_view kArchitecture = "DeepseekV41ForCausalLM";
constexpr const char* kOtherModelHint =
    "rorqual runs DeepSeek-V4.1-Flash and models of the same architecture only";

Error config_error(std::string what) {
  return Error(Code::corrupt_data, "config.json: " + std::move(what), kConfigHint);
}

/// A value as the file has it, short enough for a message.
std::string shown(element value) {
  constexpr size_t kShown_bytes = 60;
  std::string text = simdjson::minify(value);
  if (text.size() > kShown_bytes) text = text.substr(0, kShown_bytes) + "...";
  return text;
}

/// Fields of one JSON object. null counts as absent.
class Fields {
 public:
  static Result<Fields> of(std::string prefix, simdjson::dom::object object) {
    Fields fields;
    fields.prefix_ = std::move(prefix);
    for (const auto field : object) {
      if (!fields.values_.emplace(field.key, field.value).second) {
        return config_error(
            fmt::format("field '{}{}' is given twice", fields.prefix_, field.key.substr(0, 100)));
      }
    }
    return fields;
  }

  std::optional<element> find(std::string_view name) const {
    const auto it = values_.find(name);
    if (it == values_.end() || it->second.is_null()) return std::nullopt;
    return it->second;
  }

  /// The first of two spellings that is there.
  std::optional<element> find(std::string_view name, std::string_view flat_name) const {
    const auto value = find(name);
    return value || flat_name.empty() ? value : find(flat_name);
  }

  Error wrong(std::string_view name, element value, std::string_view expected) const {
    return config_error(fmt::format("{}{} is {}, expected {}", prefix_, name, shown(value), expected));
  }

  Status read(std::string_view name, std::string_view flat_name, int64_t& out) const {
    const auto value = find(name, flat_name);
    if (!value) return Ok{};
    if (value->get(out) != simdjson::SUCCESS) return wrong(name, *value, "an integer");
    return Ok{};
  }

  Status read(std::string_view name, std::string_view flat_name, double& out) const {
    const auto value = find(name, flat_name);
    if (!value) return Ok{};
    if (value->get(out) != simdjson::SUCCESS) return wrong(name, *value, "a number");
    return Ok{};
  }

  Status read(std::string_view name, std::string_view flat_name, bool& out) const {
    const auto value = find(name, flat_name);
    if (!value) return Ok{};
    if (value->get(out) != simdjson::SUCCESS) return wrong(name, *value, "true or false");
    return Ok{};
  }

  Status read(std::string_view name, std::string_view flat_name, std::vector<int64_t>& out) const {
    const auto value = find(name, flat_name);
    if (!value) return Ok{};
    simdjson::dom::array array;
    if (value->get(array) != simdjson::SUCCESS) return wrong(name, *value, "a list of integers");
    out.clear();
    for (const element item : array) {
      int64_t number = 0;
      if (out.size() == kMaxListLength)
        return config_error(fmt::format("{}{} has over {} values", prefix_, name, kMaxListLength));
      if (item.get(number) != simdjson::SUCCESS) return wrong(name, item, "a list of integers");
      out.push_back(number);
    }
    return Ok{};
  }

  /// A field whose only supported value is `wanted` (JSON text); absent is fine.
  Status require(std::string_view name, std::string_view wanted) const {
    const auto value = find(name);
    if (!value || std::string(simdjson::minify(*value)) == wanted) return Ok{};
    return Error(Code::unsupported,
                 fmt::format("config.json: {}{} is {}, supported: {}", prefix_, name, shown(*value), wanted),
                 kOtherModelHint);
  }

  /// The object of that name; empty fields if absent.
  Result<Fields> object(std::string_view name) const {
    const auto value = find(name);
    if (!value) return Fields();
    simdjson::dom::object inner;
    if (value->get(inner) != simdjson::SUCCESS) return wrong(name, *value, "an object");
    return of(fmt::format("{}{}.", prefix_, name), inner);
  }

 private:
  std::string prefix_;
  std::unordered_map<std::string_view, element> values_;
};

/// Another model's config must not be read as ours.
Status check_architecture(const Fields& root) {
  if (const auto value = root.find("architectures")) {
    simdjson::dom::array array;
    bool found = false;
    if (value->get(array) != simdjson::SUCCESS) return root.wrong("architectures", *value, "a list of names");
    for (const element item : array) {
      std::string_view name;
      found = found || (item.get(name) == simdjson::SUCCESS && name == kArchitecture);
    }
    if (!found) {
      return Error(
          Code::unsupported,
          fmt::format("config.json: architectures is {}, supported: {}", shown(*value), kArchitecture),
          kOtherModelHint);
    }
  }
  return root.require("model_type", "\"deepseek_v41\"");
}

Status check_fixed_choices(const Fields& root, const Fields& text) {
  RORQUAL_TRY(text.require("hidden_act", "\"silu\""));
  RORQUAL_TRY(text.require("attention_bias", "false"));
  RORQUAL_TRY(text.require("num_key_value_heads", "1"));
  RORQUAL_TRY(text.require("topk_method", "\"noaux_tc\""));
  RORQUAL_TRY(text.require("tie_word_embeddings", "false"));
  RORQUAL_TRY(root.require("tie_word_embeddings", "false"));
  RORQUAL_TRY_ASSIGN(const Fields quantization, root.object("quantization_config"));
  RORQUAL_TRY(quantization.require("quant_method", "\"fp8\""));
  RORQUAL_TRY(quantization.require("weight_block_size", "[32,32]"));
  RORQUAL_TRY(quantization.require("scale_fmt", "\"ue8m0\""));
  return quantization.require("expert_dtype", "\"fp4\"");
}

Status read_scoring(const Fields& text, Config& config) {
  const auto value = text.find("scoring_func", "score_func");
  if (!value) return Ok{};
  std::string_view name;
  if (value->get(name) != simdjson::SUCCESS) return text.wrong("scoring_func", *value, "a name");
  if (name == "sqrtsoftplus") {
    config.scoring = kernels::Scoring::sqrt_softplus;
  } else if (name == "sigmoid") {
    config.scoring = kernels::Scoring::sigmoid;
  } else if (name == "softmax") {
    config.scoring = kernels::Scoring::softmax;
  } else {
    return Error(Code::unsupported,
                 fmt::format("config.json: scoring_func is {}, supported: sqrtsoftplus, sigmoid, softmax",
                             shown(*value)),
                 kOtherModelHint);
  }
  return Ok{};
}

Status read_rope(const Fields& text, Config& config) {
  RORQUAL_TRY_ASSIGN(Fields rope, text.object("rope_scaling"));
  if (!text.find("rope_scaling")) {
    RORQUAL_TRY_ASSIGN(rope, text.object("rope_parameters"));
    if (!text.find("rope_parameters")) return Ok{};
  }
  RORQUAL_TRY(rope.require("rope_type", "\"yarn\""));
  RORQUAL_TRY(rope.require("type", "\"yarn\""));
  config.rope_factor = 1.0;
  RORQUAL_TRY(rope.read("factor", "", config.rope_factor));
  RORQUAL_TRY(rope.read("beta_fast", "", config.beta_fast));
  RORQUAL_TRY(rope.read("beta_slow", "", config.beta_slow));
  return rope.read("original_max_position_embeddings", "", config.original_seq_len);
}

Status read_vision(const Fields& root, const Fields& text, Config& config) {
  Config::Vision& vision = config.vision;
  // The flat form describes the released tower by its depth alone.
  RORQUAL_TRY(text.read("vision_n_layers", "", vision.num_hidden_layers));
  if (vision.num_hidden_layers != 0) {
    const int64_t layers = vision.num_hidden_layers;
    vision = release_config().vision;
    vision.num_hidden_layers = layers;
  }
  RORQUAL_TRY_ASSIGN(const Fields fields, root.object("vision_config"));
  RORQUAL_TRY(fields.read("num_hidden_layers", "", vision.num_hidden_layers));
  RORQUAL_TRY(fields.read("hidden_size", "", vision.hidden_size));
  RORQUAL_TRY(fields.read("num_attention_heads", "", vision.num_attention_heads));
  RORQUAL_TRY(fields.read("intermediate_size", "", vision.intermediate_size));
  RORQUAL_TRY(fields.read("patch_size", "", vision.patch_size));
  RORQUAL_TRY(fields.read("rope_theta", "", vision.rope_theta));
  RORQUAL_TRY(fields.read("downsample_ratio", "", vision.downsample_ratio));
  RORQUAL_TRY(fields.read("max_image_tokens", "", vision.max_image_tokens));
  RORQUAL_TRY(fields.read("min_pixels", "", vision.min_pixels));
  return fields.read("max_wh_ratio", "", vision.max_wh_ratio);
}

Status read_text_fields(const Fields& root, const Fields& text, Config& config) {
  for (const IntegerField& field : integer_fields())
    RORQUAL_TRY(text.read(field.name, field.flat_name, config.*field.member));
  for (const NumberField& field : number_fields())
    RORQUAL_TRY(text.read(field.name, field.flat_name, config.*field.member));
  for (const ListField& field : list_fields())
    RORQUAL_TRY(text.read(field.name, field.flat_name, config.*field.member));
  RORQUAL_TRY(text.read("norm_topk_prob", "", config.norm_topk_prob));
  RORQUAL_TRY(read_scoring(text, config));
  for (const Fields* fields : {&text, &root}) {  // the outer level wins, where official files have these
    RORQUAL_TRY(fields->read("rorqual_layer_origin", "", config.layer_origin));
    RORQUAL_TRY(fields->read("image_token_id", "", config.image_token_id));
    RORQUAL_TRY(fields->read("bos_token_id", "", config.bos_token_id));
    RORQUAL_TRY(fields->read("eos_token_id", "", config.eos_token_id));
    RORQUAL_TRY(fields->read("pad_token_id", "", config.pad_token_id));
  }
  return Ok{};
}

}  // namespace

Result<Config> parse_config(std::string_view json) {
  if (json.size() > kMaxConfig_bytes) {
    return config_error(fmt::format("it has {} bytes, expected at most {}", json.size(), kMaxConfig_bytes));
  }
  simdjson::dom::parser parser;
  simdjson::dom::object object;
  if (const auto error = parser.parse(json.data(), json.size()).get(object); error != simdjson::SUCCESS) {
    return config_error(fmt::format("not a JSON object: {}", simdjson::error_message(error)));
  }
  RORQUAL_TRY_ASSIGN(const Fields root, Fields::of("", object));
  RORQUAL_TRY(check_architecture(root));
  const bool is_nested = root.find("text_config").has_value();
  RORQUAL_TRY_ASSIGN(const Fields inner, root.object("text_config"));
  const Fields& text = is_nested ? inner : root;
  RORQUAL_TRY(check_fixed_choices(root, text));
  Config config;
  RORQUAL_TRY(read_rope(text, config));
  RORQUAL_TRY(read_text_fields(root, text, config));
  RORQUAL_TRY(read_vision(root, text, config));
  RORQUAL_TRY(check_config(config));
  return config;
}

}  // namespace rorqual::model
