// SPDX-License-Identifier: Apache-2.0
// Reading of vLLM's rarer fields.
#include "api/extension_fields.h"

namespace rorqual::api {

namespace {

constexpr int64_t kMaxPatternSize = 1024;  // tokens: bounds the work per token
constexpr int64_t kMaxPatternCount = 1'000'000;

struct RefusedField {
  const char* name;
  const char* reason;
};

/// Refused unless absent, null, false or empty.
constexpr RefusedField kRefused[] = {
    {"use_beam_search", "beam search is not implemented; ask for several answers with `n`"},
    {"chat_template", "the prompt format belongs to the model and cannot be replaced"},
    {"logits_processors", "programs in requests are not run; see `logit_bias` and `allowed_token_ids`"},
    {"watermarking", "watermarks are not implemented"},
    {"prompt_embeds", "only text and token ids are taken as prompts"},
    {"functions", "this old form is not supported; declare `tools`"},
    {"function_call", "this old form is not supported; use `tool_choice`"},
    {"audio", "this model answers with text only"},
};

bool asks_for_something(const Json& value) {
  if (value.is_null() || value == false) return false;
  if (value.is_string()) return !value.get_ref<const std::string&>().empty();
  return !value.is_structured() || !value.empty();
}

}  // namespace

void read_prompt_fields(BodyReader& reader, const Json& body, const ApiPolicy& policy, PromptFields& prompt) {
  if (!policy.extensions) return;
  prompt.truncate_tokens = reader.integer(body, "truncate_prompt_tokens", -1, INT64_MAX);
  if (prompt.truncate_tokens == 0) {
    reader.fail("field `truncate_prompt_tokens`: nothing would be left; expected -1 or at least 1");
  }
  prompt.truncates_end = reader.variant(body, "truncation_side", {"left", "right"}) == "right";
  prompt.returns_text = reader.boolean_or(body, "return_prompt_text", false);
}

void read_length_fields(BodyReader& reader, const Json& body, const ApiPolicy& policy,
                        SamplingFields& sampling) {
  if (!policy.extensions) return;
  const auto budget = reader.integer(body, "thinking_token_budget", -1, INT32_MAX);
  if (budget && *budget >= 0) sampling.thinking_token_budget = budget;

  const Json* detection = reader.find(body, "repetition_detection");
  if (detection == nullptr || !reader.expect_object(*detection, "a map with `max_pattern_size`")) return;
  const auto scope = reader.enter("repetition_detection");
  RepetitionLimit limit;
  limit.max_size = reader.integer(*detection, "max_pattern_size", 0, kMaxPatternSize).value_or(0);
  limit.min_size =
      std::max<int64_t>(reader.integer(*detection, "min_pattern_size", 0, kMaxPatternSize).value_or(0), 1);
  if (limit.max_size > 0 && limit.min_size > limit.max_size) {
    reader.fail("field `min_pattern_size`: " + std::to_string(limit.min_size) +
                " is more than `max_pattern_size` " + std::to_string(limit.max_size));
  }
  const int64_t least = limit.max_size > 0 ? 2 : 0;
  limit.min_count = reader.integer(*detection, "min_count", least, kMaxPatternCount).value_or(least);
  if (limit.max_size > 0) sampling.repetition = limit;
}

void check_fields_without_effect(BodyReader& reader, const Json& body, const ApiPolicy& policy) {
  if (!policy.extensions) return;
  for (const char* name : {"spaces_between_special_tokens", "add_special_tokens", "return_token_offsets"}) {
    reader.boolean(body, name);
  }
  for (const char* name : {"vllm_xargs", "kv_transfer_params", "mm_processor_kwargs", "media_io_kwargs"}) {
    if (const Json* map = reader.find(body, name)) reader.expect_object(*map, "a map");
  }
  reader.number(body, "length_penalty");
  reader.string(body, "session_id");
}

std::optional<ApiError> refuse_fields(const Json& body, const ApiPolicy& policy) {
  if (!policy.extensions) return std::nullopt;
  for (const auto& [name, reason] : kRefused) {
    const auto it = body.find(name);
    if (it != body.end() && asks_for_something(*it)) {
      return ApiError::conversion("`" + std::string(name) + "` is not supported: " + reason + ".", name);
    }
  }
  const auto best_of = body.find("best_of");
  if (best_of != body.end() && !best_of->is_null() && *best_of != 1) {
    return ApiError::conversion("`best_of` is not supported: ask for several answers with `n`.", "best_of");
  }
  return std::nullopt;
}

}  // namespace rorqual::api
