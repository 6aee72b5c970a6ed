// SPDX-License-Identifier: Apache-2.0
// POST /v1/completions, /tokenize and /detokenize: body to request, vLLM's fields and rules.
#include "api/body_reader.h"
#include "api/extension_fields.h"
#include "api/limits.h"
#include "api/request.h"
#include "api/request_draft.h"
#include "api/structured_outputs.h"
#include "text/json_text.h"

namespace rorqual::api {

namespace {

constexpr int64_t kDefaultMaxTokens = 16;

bool is_token(const Json& value) {
  return value.is_number_unsigned() && value.get<uint64_t>() <= static_cast<uint64_t>(INT32_MAX);
}

bool read_tokens(BodyReader& reader, const Json& list, CompletionRequest::PromptItem& item) {
  item.is_tokens = true;
  for (const auto& id : list) {
    if (!is_token(id)) {
      reader.fail("field `prompt`: token ids must be integers in 0..2147483647");
      return false;
    }
    item.tokens.push_back(id.get<int32_t>());
  }
  if (item.tokens.empty()) reader.fail("field `prompt`: an empty list of token ids");
  return reader.ok();
}

/// A string, an array of strings, an array of ids, or an array of arrays of ids.
void read_prompts(BodyReader& reader, const Json& body, std::vector<CompletionRequest::PromptItem>& prompts) {
  const Json* prompt = reader.require(body, "prompt");
  if (prompt == nullptr) return;
  if (prompt->is_string()) {
    prompts.push_back({false, prompt->get<std::string>(), {}});
    return;
  }
  if (!prompt->is_array() || prompt->empty()) {
    reader.fail("field `prompt`: expected a string, token ids, or a non-empty array of them");
    return;
  }
  if (prompt->front().is_number()) {
    prompts.emplace_back();
    read_tokens(reader, *prompt, prompts.back());
    return;
  }
  if (prompt->size() > kMaxPrompts) {
    reader.fail("field `prompt`: " + std::to_string(prompt->size()) + " prompts, at most " +
                std::to_string(kMaxPrompts) + " are accepted");
    return;
  }
  for (const auto& entry : *prompt) {
    if (entry.is_string()) {
      prompts.push_back({false, entry.get<std::string>(), {}});
    } else if (entry.is_array()) {
      prompts.emplace_back();
      if (!read_tokens(reader, entry, prompts.back())) return;
    } else {
      reader.fail("field `prompt`: an entry is neither a string nor a list of token ids");
      return;
    }
  }
}

void read_sampling(BodyReader& reader, const Json& body, const ApiPolicy& policy, RequestDraft& draft) {
  auto& sampling = draft.request.sampling;
  draft.temperature = reader.number(body, "temperature");
  draft.top_p = reader.number(body, "top_p");
  draft.presence_penalty = reader.number(body, "presence_penalty");
  draft.frequency_penalty = reader.number(body, "frequency_penalty");
  draft.n = reader.unsigned_integer(body, "n", UINT32_MAX);
  draft.seed = reader.unsigned_integer(body, "seed", UINT64_MAX);
  const auto tokens = reader.unsigned_integer(body, "max_tokens", UINT32_MAX);
  sampling.max_tokens = tokens ? static_cast<int64_t>(*tokens) : kDefaultMaxTokens;
  if (const Json* stop = reader.find(body, "stop")) {
    draft.stop_is_single = stop->is_string();
    if (draft.stop_is_single) {
      sampling.stop.push_back(stop->get<std::string>());
    } else {
      sampling.stop = reader.strings(body, "stop");
    }
  }
  if (const auto logprobs = reader.integer(body, "logprobs", -1, INT32_MAX)) {
    sampling.logprobs = true;
    sampling.top_logprobs = static_cast<int32_t>(*logprobs);
  }
  read_extensions(reader, body, policy, sampling);
  read_length_fields(reader, body, policy, sampling);
}

void read_stream(BodyReader& reader, const Json& body, const ApiPolicy& policy, StreamFields& stream) {
  stream.stream = reader.boolean_or(body, "stream", false);
  if (policy.extensions) stream.interval = reader.integer(body, "stream_interval", 1, INT32_MAX).value_or(1);
  const Json* options = reader.find(body, "stream_options");
  if (options == nullptr || !reader.expect_object(*options, "struct with field `include_usage`")) return;
  const auto scope = reader.enter("stream_options");
  stream.include_usage = reader.boolean_or(*options, "include_usage", false);
  stream.continuous_usage_stats = reader.boolean_or(*options, "continuous_usage_stats", false);
}

/// Rules of completions: logprobs have their own limit, max_tokens may be 0 with echo.
std::optional<ApiError> check_completion(RequestDraft& draft, const CompletionRequest& request,
                                         const ApiPolicy& policy) {
  auto& sampling = draft.request.sampling;
  const auto tokens = sampling.max_tokens;
  const auto top = sampling.top_logprobs;
  if (top && policy.max_logprobs >= 0 && (*top < 0 || *top > policy.max_logprobs)) {
    return ApiError::conversion("Invalid logprobs value, the valid range of logprobs is [0, " +
                                    std::to_string(policy.max_logprobs) + "]",
                                "logprobs");
  }
  if (*tokens == 0 && !request.echo && !sampling.prompt_logprobs) {
    return ApiError::conversion(
        "max_tokens 0 needs echo or prompt_logprobs: there would be nothing to return", "max_tokens");
  }
  if (request.suffix && request.echo) return ApiError::conversion("echo cannot be used with suffix", "echo");
  if (sampling.thinking_token_budget) {
    return ApiError::conversion("`thinking_token_budget` needs a chat: a completion has no thinking part.",
                                "thinking_token_budget");
  }
  if (auto problem = check_stop(sampling.stop, draft.stop_is_single)) return problem;
  sampling.max_tokens = std::max<int64_t>(*tokens, 1);
  sampling.top_logprobs.reset();
  ApiPolicy relaxed = policy;
  relaxed.pin_sampling = false;
  draft.request.stream = request.stream;
  if (auto problem = resolve_sampling(draft, relaxed)) return problem;
  sampling.max_tokens = tokens;
  sampling.top_logprobs = top;
  return std::nullopt;
}

ApiResult<CompletionRequest> parse(std::string_view text, const ApiPolicy& policy) {
  RORQUAL_API_TRY_ASSIGN(const Json body, parse_body(text));
  BodyReader reader;
  RequestDraft draft;
  CompletionRequest request;
  request.model = reader.require_string(body, "model");
  read_prompts(reader, body, request.prompts);
  request.suffix = reader.string(body, "suffix");
  request.echo = reader.boolean_or(body, "echo", false);
  request.add_special_tokens = reader.boolean_or(body, "add_special_tokens", true);
  request.request_id = reader.string(body, "request_id");
  read_sampling(reader, body, policy, draft);
  read_stream(reader, body, policy, request.stream);
  read_prompt_fields(reader, body, policy, request.prompt);
  check_fields_without_effect(reader, body, policy);
  read_response_constraint(reader, body, policy, request.constraint);
  read_structured_outputs(reader, body, policy, request.constraint);
  if (!reader.ok()) return reader.error();
  if (auto problem = check_model(request.model, policy)) return *problem;
  if (auto problem = refuse_fields(body, policy)) return *problem;
  if (auto problem = check_completion(draft, request, policy)) return *problem;
  request.sampling = std::move(draft.request.sampling);
  return request;
}

}  // namespace

ApiResult<CompletionRequest> parse_completion_request(std::string_view text, const ApiPolicy& policy) {
  return in_policy_form(parse(text, policy), policy);
}

ApiResult<TokenizeRequest> parse_tokenize_request(std::string_view text, const ApiPolicy& policy) {
  RORQUAL_API_TRY_ASSIGN(Json body, parse_body(text));
  BodyReader reader;
  TokenizeRequest request;
  request.return_token_strs = reader.boolean_or(body, "return_token_strs", false);
  request.prompt = reader.string(body, "prompt");
  const bool has_messages = reader.find(body, "messages") != nullptr;
  if (request.prompt.has_value() == has_messages)
    reader.fail("exactly one of `prompt` and `messages` is expected");
  if (!reader.ok()) return reader.error();
  if (!has_messages) return request;
  if (!body.contains("model")) body["model"] = policy.model_names.empty() ? "" : policy.model_names.front();
  auto chat = parse_chat_request(text::json_text(body, text::JsonStyle::compact), policy);
  if (!chat.ok()) return chat.error();
  request.conversation = std::move(chat->conversation);
  return request;
}

ApiResult<std::vector<int32_t>> parse_detokenize_request(std::string_view text) {
  RORQUAL_API_TRY_ASSIGN(const Json body, parse_body(text));
  BodyReader reader;
  const Json* list = reader.require(body, "tokens");
  if (list != nullptr) reader.expect_array(*list, "a sequence");
  auto tokens = reader.token_ids(body, "tokens");
  if (!reader.ok()) return reader.error();
  return tokens;
}

}  // namespace rorqual::api
