// SPDX-License-Identifier: Apache-2.0
// From draft to request: the rules that chat completions, messages and responses share.
#include "api/request_draft.h"

#include <algorithm>
#include <cctype>
#include <charconv>
#include <cmath>

#include "api/limits.h"
#include "text/json_text.h"

namespace rorqual::api {

namespace {

constexpr float kMinThinkingTopP = 0.95f;
constexpr int64_t kDefaultTokensChat = 8192;
constexpr int64_t kDefaultTokensThinking = 65536;
constexpr int64_t kDefaultTokensFullEffort = 131072;

ApiError range_error(const std::string& field, const std::string& range) {
  return ApiError::conversion("Invalid " + field + " value, the valid range of " + field + " is " + range,
                              field);
}

int32_t effort_of(const RequestDraft& draft) {
  if (draft.effort_number) return *draft.effort_number;
  const std::string name = draft.effort_name.value_or("high");
  if (name == "minimal" || name == "low") return 50;
  return name == "max" || name == "ultra" ? 100 : 75;
}

std::optional<ApiError> resolve_tools(RequestDraft& draft, const ApiPolicy& policy) {
  const bool inactive = draft.tool_choice == ToolChoice::none && !policy.prompt_compat.tool_choice_none;
  if (auto problem = check_and_normalise_tools(draft.tools, inactive)) {
    return std::move(*problem).in("tools");
  }
  if (draft.tools.empty()) draft.tool_choice = ToolChoice::none;
  if (draft.tool_choice == ToolChoice::named) {
    const auto it = std::find_if(draft.tools.begin(), draft.tools.end(),
                                 [&](const Tool& tool) { return tool.name == draft.chosen_tool; });
    if (it == draft.tools.end()) {
      return ApiError::conversion("Invalid value for 'tool_call': no function named '" + draft.chosen_tool +
                                      "' was specified in the 'tools' parameter.",
                                  "tool_choice");
    }
    draft.tools = std::vector<Tool>{*it};
  }
  const bool forced = draft.tool_choice == ToolChoice::required || draft.tool_choice == ToolChoice::named;
  if (forced && draft.request.conversation.thinking && !policy.force_tools_in_thinking) {
    return ApiError::conversion("Thinking mode does not support this tool_choice", "tool_choice");
  }
  return std::nullopt;
}

std::optional<ApiError> check_prefix(const RequestDraft& draft) {
  const auto& messages = draft.request.conversation.messages;
  if (messages.empty() || !messages.back().is_prefix) return std::nullopt;
  if (draft.format == ResponseFormat::json_object) {
    return ApiError::conversion("response_format json_object should not be used with prefix",
                                "response_format");
  }
  const bool has_calls = std::any_of(messages.begin(), messages.end(),
                                     [](const text::Message& m) { return !m.tool_calls.empty(); });
  if (!draft.tools.empty() || has_calls)
    return ApiError::conversion("Function call should not be used with prefix", "messages");
  return std::nullopt;
}

/// Section of the prompt and constraint of the response format.
std::optional<ApiError> resolve_format(RequestDraft& draft, const ApiPolicy& policy) {
  auto& request = draft.request;
  switch (draft.format) {
    case ResponseFormat::text:
      return std::nullopt;
    case ResponseFormat::json_object:
      if (!policy.prompt_compat.response_format)
        request.conversation.response_schema = "{\"type\": \"json_object\"}";
      request.constraint = {Constraint::Kind::json, ""};
      return std::nullopt;
    case ResponseFormat::regex:
      request.constraint = {Constraint::Kind::regex, draft.regex};
      return std::nullopt;
    case ResponseFormat::json_schema:
      break;
  }
  if (!policy.prompt_compat.response_format)
    request.conversation.response_schema = text::json_text(*draft.schema);
  Json schema = *draft.schema;
  std::string enforced;
  if (!draft.schema_is_strict) {
    const std::string problem = schema_problem(schema);
    if (!problem.empty()) return ApiError::conversion("Invalid json schema: " + problem, "response_format");
  } else {
    auto normal = normalise_strict_schema(schema, false);
    if (!normal.ok()) return ApiError(normal.error()).in("response_format");
    enforced = with_definitions(*normal, schema, false);
    schema = *std::move(normal);
  }
  request.constraint = {Constraint::Kind::json, text::json_text(schema, text::JsonStyle::compact), enforced};
  return std::nullopt;
}

text::InitialStage initial_stage(const text::Conversation& conversation) {
  const bool continues = !conversation.messages.empty() && conversation.messages.back().is_prefix;
  if (!conversation.thinking) return text::InitialStage::content;
  if (!continues) return text::InitialStage::reasoning;
  const auto& content = conversation.messages.back().content;
  const bool has_content =
      std::any_of(content.begin(), content.end(),
                  [](const text::ContentPart& part) { return part.is_image || !part.text.empty(); }) ||
      content.size() > 1;
  if (has_content) return text::InitialStage::content_continuation;
  return conversation.messages.back().reasoning.empty() ? text::InitialStage::reasoning
                                                        : text::InitialStage::reasoning_continuation;
}

void resolve_parsing(RequestDraft& draft, const ApiPolicy& policy) {
  auto& request = draft.request;
  const bool active = !draft.tools.empty() && draft.tool_choice != ToolChoice::none;
  const bool forced = draft.tool_choice == ToolChoice::required || draft.tool_choice == ToolChoice::named;
  request.parsing.initial_stage = initial_stage(request.conversation);
  request.parsing.parse_tool_calls = active;
  request.parsing.starts_in_tool_calls = active && forced && !request.conversation.thinking;
  request.parsing.parse_json_output = draft.format == ResponseFormat::json_object;
  request.parsing.stop = request.sampling.stop;
  request.parsing.min_tokens = request.sampling.min_tokens;
  if (active || policy.prompt_compat.tool_choice_none)
    request.conversation.tool_schemas = tool_lines(draft.tools);
  if (!active) return;
  request.conversation.force_tool_call = request.parsing.starts_in_tool_calls;
  request.constraint = {forced ? Constraint::Kind::tool_call_required : Constraint::Kind::tool_call,
                        tool_constraint(draft.tools, false)};
  const bool differs = std::any_of(draft.tools.begin(), draft.tools.end(),
                                   [](const Tool& tool) { return !tool.enforced_json.empty(); });
  if (differs) request.constraint.enforced_text = tool_constraint(draft.tools, true);
}

std::optional<float> checked_float(const std::optional<double>& value, double low, double high) {
  if (!value) return std::nullopt;
  const auto narrow = static_cast<float>(*value);
  const bool fits = narrow >= static_cast<float>(low) && narrow <= static_cast<float>(high);
  return fits ? narrow : std::nanf("");
}

}  // namespace

bool read_effort(BodyReader& reader, const Json& object, const char* key, const ApiPolicy& policy,
                 RequestDraft& draft) {
  const Json* value = reader.find(object, key);
  if (value == nullptr) return true;
  if (value->is_number() && policy.integer_effort) {
    const auto number = reader.integer(object, key, 1, 100);
    if (number) draft.effort_number = static_cast<int32_t>(*number);
    return reader.ok();
  }
  draft.effort_name =
      reader.variant(object, key, {"none", "minimal", "low", "medium", "high", "xhigh", "ultra", "max"});
  return reader.ok();
}

void read_thinking(BodyReader& reader, const Json& body, RequestDraft& draft) {
  const Json* thinking = reader.find(body, "thinking");
  if (thinking == nullptr || !reader.expect_object(*thinking, "struct with field `type`")) return;
  const auto scope = reader.enter("thinking");
  reader.unsigned_integer(*thinking, "budget_tokens", UINT64_MAX);
  draft.thinking =
      reader.require_variant(*thinking, "type", {"adaptive", "enabled", "disabled"}) != "disabled";
}

namespace {

/// What a request says of the prefix cache and of speculation.
void read_reuse(BodyReader& reader, const Json& body, SamplingFields& sampling) {
  sampling.cache_salt = reader.string(body, "cache_salt").value_or("");
  if (sampling.cache_salt.size() > kMaxSaltBytes) {
    reader.fail("field `cache_salt`: longer than " + std::to_string(kMaxSaltBytes) + " bytes");
  }
  sampling.skip_reading_prefix_cache = reader.boolean_or(body, "skip_reading_prefix_cache", false);
  sampling.replay_trim = reader.integer(body, "replay_trim", 0, INT32_MAX);
  if (const auto drafts = reader.integer(body, "speculative_tokens", 0, kMaxSpeculativeTokens)) {
    sampling.speculative_tokens = static_cast<int32_t>(*drafts);
  }
}

void read_logit_bias(BodyReader& reader, const Json& body, SamplingFields& sampling) {
  const Json* bias = reader.find(body, "logit_bias");
  if (bias == nullptr || !reader.expect_object(*bias, "a map of token ids to numbers")) return;
  for (const auto& [key, value] : bias->items()) {
    int32_t id = -1;
    const auto [end, code] = std::from_chars(key.data(), key.data() + key.size(), id);
    if (code != std::errc() || end != key.data() + key.size() || id < 0 || !value.is_number()) {
      reader.fail("field `logit_bias`: expected token ids with numbers, got \"" + key.substr(0, 40) + "\"");
      return;
    }
    sampling.logit_bias.emplace_back(id, value.get<float>());
  }
}

}  // namespace

void read_extensions(BodyReader& reader, const Json& body, const ApiPolicy& policy,
                     SamplingFields& sampling) {
  if (!policy.extensions) return;
  const auto top_k = reader.integer(body, "top_k", -1, INT32_MAX);
  sampling.top_k = static_cast<int32_t>(std::max<int64_t>(top_k.value_or(0), 0));
  sampling.min_p = static_cast<float>(reader.number(body, "min_p").value_or(0));
  sampling.repetition_penalty = static_cast<float>(reader.number(body, "repetition_penalty").value_or(1));
  sampling.min_tokens = reader.integer(body, "min_tokens", 0, policy.max_tokens_limit).value_or(0);
  sampling.ignore_eos = reader.boolean_or(body, "ignore_eos", false);
  sampling.stop_token_ids = reader.token_ids(body, "stop_token_ids");
  sampling.include_stop_str_in_output = reader.boolean_or(body, "include_stop_str_in_output", false);
  sampling.bad_words = reader.strings(body, "bad_words");
  sampling.allowed_token_ids = reader.token_ids(body, "allowed_token_ids");
  sampling.logprob_token_ids = reader.token_ids(body, "logprob_token_ids");
  sampling.skip_special_tokens = reader.boolean_or(body, "skip_special_tokens", true);
  sampling.priority =
      static_cast<int32_t>(reader.integer(body, "priority", INT32_MIN, INT32_MAX).value_or(0));
  sampling.return_token_ids = reader.boolean_or(body, "return_token_ids", false);
  sampling.return_tokens_as_token_ids = reader.boolean_or(body, "return_tokens_as_token_ids", false);
  const auto prompt_logprobs = reader.integer(body, "prompt_logprobs", -1, INT32_MAX);
  if (prompt_logprobs) sampling.prompt_logprobs = static_cast<int32_t>(*prompt_logprobs);
  sampling.prompt_logprobs_begin = reader.integer(body, "prompt_logprobs_begin", 1, INT32_MAX).value_or(1);
  read_logit_bias(reader, body, sampling);
  read_reuse(reader, body, sampling);
}

std::optional<ApiError> check_model(const std::string& model, const ApiPolicy& policy) {
  const auto& names = policy.model_names;
  if (names.empty() || std::find(names.begin(), names.end(), model) != names.end()) return std::nullopt;
  std::string list;
  for (const auto& name : names) list += (list.empty() ? "" : ", ") + name;
  if (policy.unknown_model_status == 400) {
    return ApiError::conversion(
        "The supported API model names are " + list + ", but you passed " + model + ".", "model");
  }
  ApiError error =
      ApiError::conversion("The model `" + model + "` does not exist. Served here: " + list + ".");
  error.http_status = policy.unknown_model_status;
  error.param = "model";
  error.code = "model_not_found";
  return error;
}

std::optional<ApiError> check_stop(const std::vector<std::string>& stop, bool is_single) {
  if (stop.size() > kMaxStops)
    return ApiError::conversion("Stop string array too long: " + std::to_string(stop.size()), "stop");
  for (size_t i = 0; i < stop.size(); ++i) {
    if (!stop[i].empty()) continue;
    const std::string where = is_single ? "'stop'" : "'stop[" + std::to_string(i) + "]'";
    return ApiError::conversion("Invalid " + where +
                                    ": empty string. Expected a string with minimum length 1, but got an "
                                    "empty string instead.",
                                "stop");
  }
  return std::nullopt;
}

namespace {

std::optional<ApiError> resolve_numbers(RequestDraft& draft, const ApiPolicy& policy) {
  auto& sampling = draft.request.sampling;
  if (draft.n && policy.max_choices == 1 && *draft.n != 1) {
    return ApiError::conversion("Invalid n value (currently only n = 1 is supported)", "n");
  }
  if (draft.n && (*draft.n < 1 || *draft.n > static_cast<uint64_t>(policy.max_choices))) {
    return range_error("n", "[1, " + std::to_string(policy.max_choices) + "]");
  }
  sampling.n = static_cast<int32_t>(draft.n.value_or(1));
  const auto presence = checked_float(draft.presence_penalty, -2, 2);
  if (presence && std::isnan(*presence)) return range_error("presence_penalty", "[-2, 2]");
  const auto frequency = checked_float(draft.frequency_penalty, -2, 2);
  if (frequency && std::isnan(*frequency)) return range_error("frequency_penalty", "[-2, 2]");
  if (policy.apply_penalties) {
    sampling.presence_penalty = presence.value_or(0);
    sampling.frequency_penalty = frequency.value_or(0);
  }
  const auto temperature = checked_float(draft.temperature, 0, 2);
  if (temperature && std::isnan(*temperature)) return range_error("temperature", "[0, 2]");
  const auto top_p = checked_float(draft.top_p, 0, 1);
  if (top_p && (std::isnan(*top_p) || *top_p <= 0)) return range_error("top_p", "(0, 1.0]");
  sampling.temperature = temperature.value_or(1.0f);
  sampling.top_p = top_p.value_or(1.0f);
  if (policy.pin_sampling) {
    const bool thinking = draft.request.conversation.thinking;
    if (thinking) sampling.temperature = 1.0f;
    sampling.top_p = thinking ? std::max(sampling.top_p, kMinThinkingTopP) : 1.0f;
  }
  return std::nullopt;
}

/// Lists that the sampler goes through for each token.
std::optional<ApiError> check_counts(const SamplingFields& sampling) {
  struct List {
    const char* field;
    size_t size, max;
  };

  for (const auto& [field, size, max] :
       {List{"logit_bias", sampling.logit_bias.size(), kMaxLogitBiases},
        List{"stop_token_ids", sampling.stop_token_ids.size(), kMaxStopTokenIds},
        List{"bad_words", sampling.bad_words.size(), kMaxBadWords}}) {
    if (size <= max) continue;
    return ApiError::conversion(std::string(field) + " has " + std::to_string(size) + " entries, at most " +
                                std::to_string(max) + " are accepted");
  }
  return std::nullopt;
}

std::optional<ApiError> check_extensions(const SamplingFields& sampling, const ApiPolicy& policy,
                                         bool stream) {
  if (!(sampling.min_p >= 0 && sampling.min_p <= 1)) return range_error("min_p", "[0, 1]");
  if (!(sampling.repetition_penalty > 0 && sampling.repetition_penalty <= 1e6f)) {
    return range_error("repetition_penalty", "(0, 1000000]");
  }
  if (auto problem = check_counts(sampling)) return problem;
  for (const auto& [id, bias] : sampling.logit_bias) {
    if (!(bias >= -100 && bias <= 100)) return range_error("logit_bias", "[-100, 100]");
  }
  if (!sampling.prompt_logprobs) return std::nullopt;
  if (stream)
    return ApiError::conversion("`prompt_logprobs` are not available when `stream=True`.", "prompt_logprobs");
  const bool over = policy.max_logprobs >= 0 &&
                    (*sampling.prompt_logprobs < 0 || *sampling.prompt_logprobs > policy.max_logprobs);
  if (over) return range_error("prompt_logprobs", "[0, " + std::to_string(policy.max_logprobs) + "]");
  return std::nullopt;
}

}  // namespace

std::optional<ApiError> resolve_sampling(RequestDraft& draft, const ApiPolicy& policy) {
  auto& sampling = draft.request.sampling;
  if (auto problem = resolve_numbers(draft, policy)) return problem;
  if (sampling.top_logprobs) {
    if (!sampling.logprobs) {
      return ApiError::conversion(
          "Invalid top_logprobs and logprobs value, logprobs must be set to true if top_logprobs is used.",
          "top_logprobs");
    }
    const bool is_all = *sampling.top_logprobs == -1 && policy.max_logprobs < 0;
    if (!is_all && (*sampling.top_logprobs < 0 || *sampling.top_logprobs > policy.max_top_logprobs)) {
      return ApiError::conversion("Invalid top_logprobs value, the valid range of top_logprobs is [0, " +
                                      std::to_string(policy.max_top_logprobs) + "].",
                                  "top_logprobs");
    }
  }
  if (!sampling.logprob_token_ids.empty() && !sampling.logprobs) {
    return ApiError::conversion("`logprob_token_ids` needs `logprobs`.", "logprob_token_ids");
  }
  if (sampling.max_tokens) {
    if (draft.clamps_max_tokens)
      sampling.max_tokens = std::min(*sampling.max_tokens, policy.max_tokens_limit);
    if (*sampling.max_tokens < 1 || *sampling.max_tokens > policy.max_tokens_limit) {
      return range_error("max_tokens", "[1, " + std::to_string(policy.max_tokens_limit) + "]");
    }
  }
  if (draft.seed) {
    if (*draft.seed > static_cast<uint64_t>(INT64_MAX)) {
      return ApiError::conversion("Invalid seed value, the valid range of seed is [0, 2^63)", "seed");
    }
    sampling.seed = draft.seed;
  }
  return check_extensions(sampling, policy, draft.request.stream.stream);
}

ApiResult<ChatRequest> finish_request(RequestDraft draft, const ApiPolicy& policy) {
  auto& request = draft.request;
  request.conversation.thinking = draft.thinking.value_or(draft.effort_name != "none");
  request.conversation.effort = effort_of(draft);
  if (draft.format == ResponseFormat::json_object && !mentions_json(request.conversation.messages)) {
    return ApiError::conversion(draft.json_word_message, "messages");
  }
  if (auto problem = resolve_tools(draft, policy)) return *problem;
  if (auto problem = check_prefix(draft)) return *problem;
  if (auto problem = check_stop(request.sampling.stop, draft.stop_is_single)) return *problem;
  if (draft.has_stream_options && !request.stream.stream) {
    return ApiError::conversion("stream_options should be set along with stream = true", "stream_options");
  }
  if (request.constraint.kind != Constraint::Kind::none) {
    if (draft.format != ResponseFormat::text) {
      return ApiError::conversion("structured_outputs should not be used with response_format");
    }
    if (draft.tool_choice != ToolChoice::none) {
      return ApiError::conversion("structured_outputs and structural tags should not be used with tools");
    }
  }
  if (auto problem = resolve_format(draft, policy)) return *problem;
  if (draft.tool_choice != ToolChoice::none) {
    if (auto problem = check_strict_use(draft.tools, draft.has_format))
      return std::move(*problem).in("tools");
  }
  if (auto problem = resolve_sampling(draft, policy)) return *problem;
  resolve_parsing(draft, policy);
  text::apply_prompt_compat(policy.prompt_compat, request.conversation);
  return std::move(request);
}

bool mentions_json(const std::vector<text::Message>& messages) {
  constexpr std::string_view kWord = "json";
  const auto same = [](char a, char b) { return std::tolower(static_cast<unsigned char>(a)) == b; };
  for (const auto& message : messages) {
    for (const auto& part : message.content) {
      const auto& t = part.text;
      if (std::search(t.begin(), t.end(), kWord.begin(), kWord.end(), same) != t.end()) return true;
    }
  }
  return false;
}

std::optional<text::ImageInput> image_from_url(const std::string& url, const std::string& detail,
                                               const std::string& path) {
  std::string lower = url.substr(0, 16);
  std::transform(lower.begin(), lower.end(), lower.begin(), [](unsigned char c) { return std::tolower(c); });
  text::ImageInput image{text::ImageInput::Kind::url, url, detail.empty() ? "high" : detail, path};
  if (lower.starts_with("http://") || lower.starts_with("https://")) return image;
  if (!lower.starts_with("data:image/")) return std::nullopt;
  image.kind = text::ImageInput::Kind::data_url;
  return image;
}

const char* Constraint::kind_name() const {
  switch (kind) {
    case Kind::none:
      return nullptr;
    case Kind::json:
      return "json";
    case Kind::regex:
      return "regex";
    case Kind::tool_call:
      return "tool_call";
    case Kind::tool_call_required:
      return "tool_call_required";
    case Kind::choice:
      return "choice";
    case Kind::grammar:
      return "grammar";
    case Kind::structural_tag:
      return "structural_tag";
  }
  return nullptr;
}

ApiPolicy ApiPolicy::official(std::vector<std::string> names) {
  ApiPolicy policy;
  policy.model_names = std::move(names);
  policy.unknown_model_status = 400;
  policy.developer_as_system = false;
  policy.integer_effort = false;
  policy.pin_sampling = true;
  policy.apply_penalties = false;
  policy.max_completion_tokens = false;
  policy.extensions = false;
  policy.names_fields = false;
  policy.force_tools_in_thinking = false;
  policy.max_choices = 1;
  return policy;
}

std::string context_overflow_message(int64_t max_model_len, int64_t prompt_tokens, int64_t max_tokens) {
  return "This model's maximum context length is " + std::to_string(max_model_len) +
         " tokens. However, you requested " + std::to_string(prompt_tokens + max_tokens) + " tokens (" +
         std::to_string(prompt_tokens) + " in the messages, " + std::to_string(max_tokens) +
         " in the completion). Please reduce the length of the messages or completion.";
}

ApiResult<int64_t> resolve_max_tokens(const ChatRequest& request, int64_t prompt_tokens,
                                      int64_t max_model_len) {
  const int64_t room = max_model_len - prompt_tokens;
  const auto& asked = request.sampling.max_tokens;
  if (asked && *asked > room && room > 0 && request.lowers_max_tokens) return room;
  if (asked ? *asked > room : room < 0) {
    return ApiError::conversion(context_overflow_message(max_model_len, prompt_tokens, asked.value_or(0)),
                                asked && *asked > max_model_len ? "max_tokens" : "messages");
  }
  if (asked) return *asked;
  int64_t tokens = kDefaultTokensChat;
  if (request.conversation.thinking) {
    tokens = request.conversation.effort == 100 ? kDefaultTokensFullEffort : kDefaultTokensThinking;
  }
  return std::max<int64_t>(std::min(tokens, room), 1);
}

}  // namespace rorqual::api
