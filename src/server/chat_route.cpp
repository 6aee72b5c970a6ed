// SPDX-License-Identifier: Apache-2.0
// POST /v1/chat/completions, /v1/messages, /v1/responses: body to prompt to engine requests. The forms of the
// answers are in chat_answer.cpp, messages_answer.cpp, responses_answer.cpp.
#include <algorithm>
#include <utility>

#include "server/chat_answer.h"
#include "server/constraints.h"
#include "server/json_writer.h"
#include "server/messages_answer.h"
#include "server/prompt_limits.h"
#include "server/responses_answer.h"
#include "server/thinking_budget.h"

namespace rorqual::server {

namespace {

using api::ApiError;
using api::ApiResult;

std::optional<ApiError> refuse_images(const text::Conversation& conversation) {
  for (const auto& message : conversation.messages) {
    for (const auto& part : message.content) {
      if (!part.is_image) continue;
      const bool is_remote = part.image.kind == text::ImageInput::Kind::url;
      const char* reason = is_remote ? "remote fetch is off: images are taken as base64 data URLs only."
                                     : "images are not supported by this server yet; send text only.";
      return ApiError::conversion(part.image.path + ": " + reason, part.image.path);
    }
  }
  return std::nullopt;
}

std::optional<ApiError> refuse_budget(const api::ChatRequest& request, const text::Tokenizer& tokenizer) {
  if (!request.sampling.thinking_token_budget) return std::nullopt;
  constexpr const char* kField = "thinking_token_budget";
  const auto end = tokenizer.added_token("</think>");
  if (!end)
    return ApiError::conversion("This model's tokenizer has no </think>: there is no thinking.", kField);
  const auto& allowed = request.sampling.allowed_token_ids;
  if (!allowed.empty() && std::find(allowed.begin(), allowed.end(), *end) == allowed.end()) {
    return ApiError::conversion(
        "`thinking_token_budget` needs </think> (" + std::to_string(*end) + ") among `allowed_token_ids`.",
        kField);
  }
  return std::nullopt;
}

/// How a protocol's bodies are read and its answers are named.
struct ProtocolForm {
  ApiResult<api::ChatRequest> (*parse)(std::string_view body, const api::ApiPolicy& policy);
  const char* id_prefix;
};

struct EncodedRequest {
  api::ChatRequest request;
  std::vector<int32_t> prompt;
  std::string text;
};

ApiResult<EncodedRequest> encode_request(const ProtocolForm& form, const std::string& body,
                                         const Backend& backend) {
  auto parsed = form.parse(body, backend.policy);
  if (!parsed.ok()) return parsed.error();
  if (auto error = refuse_images(parsed->conversation)) return *std::move(error);
  if (auto error = refuse_budget(*parsed, backend.tokenizer)) return *std::move(error);

  // A long text cannot fit however it is cut into tokens: said before the work of cutting it.
  const int64_t max_tokens = parsed->sampling.max_tokens.value_or(1);
  const bool is_cut = parsed->prompt.truncate_tokens.has_value();
  auto prompt =
      backend.prompts->encode(parsed->conversation, is_cut ? SIZE_MAX : longest_text_bytes(backend));
  if (!prompt.ok()) return ApiError::conversion(prompt.error().message());
  if (!is_cut) {
    if (auto error = refuse_long_text(prompt->text_bytes, max_tokens, backend)) return *std::move(error);
  }
  truncate_prompt(prompt->token_ids, parsed->prompt, max_tokens, backend);
  std::string rendered;
  if (parsed->prompt.returns_text) rendered = text::render_chat(parsed->conversation).text;
  return EncodedRequest{*std::move(parsed), std::move(prompt->token_ids), std::move(rendered)};
}

ApiResult<ParsedAnswer::Plan> plan_answer(const ProtocolForm& form, const Service& service,
                                          const HttpRequest& http) {
  const Backend& backend = service.backend();
  auto encoded = encode_request(form, http.body, backend);
  if (!encoded.ok()) return encoded.error();
  auto max_tokens = api::resolve_max_tokens(encoded->request, static_cast<int64_t>(encoded->prompt.size()),
                                            backend.max_model_len);
  if (!max_tokens.ok()) return max_tokens.error();
  auto constraint = compile_constraint(encoded->request, backend);
  if (!constraint.ok()) return constraint.error();

  ParsedAnswer::Plan plan;
  plan.constraint = *std::move(constraint);
  plan.request = std::move(encoded->request);
  plan.prompt = std::move(encoded->prompt);
  plan.max_tokens = *max_tokens;
  if (plan.request.prompt.returns_text) plan.prompt_text = std::move(encoded->text);
  plan.head = answer_head(service, form.id_prefix + plan.request.request_id.value_or(http.id),
                          plan.request.model, plan.request.stream);
  return plan;
}

/// What holds the output to the request's rules, token by token; null = nothing.
std::shared_ptr<runtime::TokenConstraint> constraint_of(const ParsedAnswer::Plan& plan,
                                                        const Backend& backend) {
  using Stage = text::InitialStage;
  std::shared_ptr<runtime::TokenConstraint> rules;
  if (plan.constraint) rules = plan.constraint->for_reply();
  const text::ParserOptions& parsing = plan.request.parsing;
  const bool thinks =
      parsing.initial_stage == Stage::reasoning || parsing.initial_stage == Stage::reasoning_continuation;
  const auto& budget = plan.request.sampling.thinking_token_budget;
  if (!budget || !thinks || parsing.starts_in_tool_calls) return rules;
  return limit_thinking({*budget, parsing.parse_tool_calls}, backend.tokenizer, std::move(rules));
}

std::vector<runtime::Request> engine_requests(const ParsedAnswer::Plan& plan, const Backend& backend,
                                              const RequestOrigin& origin) {
  std::vector<runtime::Request> requests;
  const api::SamplingFields& fields = plan.request.sampling;
  for (int32_t i = 0; i < fields.n; ++i) {
    runtime::Request request = engine_request(fields, static_cast<uint32_t>(i), origin);
    request.prompt = plan.prompt;
    request.sampling.max_tokens = plan.max_tokens;
    request.sampling.constraint = constraint_of(plan, backend);
    if (fields.logprobs) request.sampling.logprobs = engine_logprobs(num_top_logprobs(fields), backend);
    if (fields.prompt_logprobs && i == 0) {
      request.sampling.prompt_logprobs = engine_logprobs(*fields.prompt_logprobs, backend);
    }
    requests.push_back(std::move(request));
  }
  return requests;
}

template <class AnswerForm>
void handle(const ProtocolForm& form, Service& service, std::shared_ptr<Exchange> incoming) {
  if (service.refuse_if_full(*incoming)) return;
  service.prepare(std::move(incoming), [form, &service](const std::shared_ptr<Exchange>& exchange) {
    Service::Preparing preparing(service);
    answer_guarded(*exchange, [&] {
      auto plan = plan_answer(form, service, exchange->request());
      if (!plan.ok()) {
        respond_error(*exchange, plan.error());
        return;
      }
      auto requests = engine_requests(*plan, service.backend(), service.origin(exchange->request()));
      auto answer = std::make_unique<AnswerForm>(service, exchange, *std::move(plan));
      preparing.end();
      start_answer(service, std::move(requests), std::move(answer), exchange);
    });
  });
}

constexpr ProtocolForm kChat{api::parse_chat_request, "chatcmpl-"};
constexpr ProtocolForm kMessages{api::parse_messages_request, "msg_"};
constexpr ProtocolForm kResponses{api::parse_responses_request, "resp_"};

}  // namespace

void handle_chat(Service& service, std::shared_ptr<Exchange> exchange) {
  handle<ChatAnswer>(kChat, service, std::move(exchange));
}

void handle_messages(Service& service, std::shared_ptr<Exchange> exchange) {
  handle<MessagesAnswer>(kMessages, service, std::move(exchange));
}

void handle_responses(Service& service, std::shared_ptr<Exchange> exchange) {
  handle<ResponsesAnswer>(kResponses, service, std::move(exchange));
}

/// Answers without the engine: a prompt that is too long for it is counted as well.
void handle_count_tokens(Service& service, std::shared_ptr<Exchange> incoming) {
  service.prepare(std::move(incoming), [&service](const std::shared_ptr<Exchange>& exchange) {
    answer_guarded(*exchange, [&] {
      auto encoded = encode_request(kMessages, exchange->request().body, service.backend());
      if (!encoded.ok()) {
        respond_error(*exchange, encoded.error());
        return;
      }
      JsonWriter json;
      json.begin_object().field("input_tokens", static_cast<int64_t>(encoded->prompt.size())).end_object();
      HttpResponse response;
      response.body = json.take();
      exchange->respond(std::move(response));
    });
  });
}

}  // namespace rorqual::server
