// SPDX-License-Identifier: Apache-2.0
// POST /v1/chat/completions: body to prompt to engine requests. The answer's form is chat_answer.cpp.
#include <utility>

#include "server/chat_answer.h"
#include "server/error_body.h"
#include "server/ids.h"
#include "server/prompt_limits.h"

namespace rorqual::server {

namespace {

using api::ApiError;
using api::ApiResult;

std::optional<ApiError> refuse_unsupported(const api::ChatRequest& request) {
  using Kind = api::Constraint::Kind;
  switch (request.constraint.kind) {
    case Kind::regex:
    case Kind::choice:
    case Kind::grammar:
    case Kind::structural_tag:
      return ApiError::conversion(std::string("Constrained output of the kind '") +
                                  request.constraint.kind_name() + "' is not supported by this server yet.");
    case Kind::none:
    case Kind::json:  // asked for in the prompt, not enforced
    case Kind::tool_call:
    case Kind::tool_call_required:
      break;
  }
  for (const auto& message : request.conversation.messages) {
    for (const auto& part : message.content) {
      if (part.is_image) return ApiError::conversion("Images are not supported by this server yet.");
    }
  }
  return std::nullopt;
}

ApiResult<ChatAnswer::Plan> plan_chat(const Backend& backend, const HttpRequest& http) {
  auto parsed = api::parse_chat_request(http.body, backend.policy);
  if (!parsed.ok()) return parsed.error();
  if (auto error = refuse_unsupported(*parsed)) return *std::move(error);

  // A long text cannot fit however it is cut into tokens: said before the work of cutting it.
  auto prompt = backend.prompts->encode(parsed->conversation, longest_text_bytes(backend));
  if (!prompt.ok()) return ApiError::conversion(prompt.error().message());
  if (auto error = refuse_long_text(prompt->text_bytes, parsed->sampling.max_tokens.value_or(1), backend)) {
    return *std::move(error);
  }
  const auto prompt_tokens = static_cast<int64_t>(prompt->token_ids.size());
  auto max_tokens = api::resolve_max_tokens(*parsed, prompt_tokens, backend.max_model_len);
  if (!max_tokens.ok()) return max_tokens.error();

  ChatAnswer::Plan plan;
  plan.max_tokens = *max_tokens;
  plan.prompt = std::move(prompt->token_ids);
  plan.head.id = "chatcmpl-" + parsed->request_id.value_or(http.id);
  plan.head.model = parsed->model;
  plan.head.created_s = unix_time_s();
  plan.head.stream = parsed->stream;
  plan.request = *std::move(parsed);
  return plan;
}

std::vector<runtime::Request> engine_requests(const ChatAnswer::Plan& plan, const Backend& backend,
                                              const RequestOrigin& origin) {
  std::vector<runtime::Request> requests;
  const api::SamplingFields& fields = plan.request.sampling;
  for (int32_t i = 0; i < fields.n; ++i) {
    runtime::Request request = engine_request(fields, static_cast<uint32_t>(i), origin);
    request.prompt = plan.prompt;
    request.sampling.max_tokens = plan.max_tokens;
    if (fields.logprobs)
      request.sampling.logprobs = engine_logprobs(fields.top_logprobs.value_or(0), backend);
    if (fields.prompt_logprobs && i == 0) {
      request.sampling.prompt_logprobs = engine_logprobs(*fields.prompt_logprobs, backend);
    }
    requests.push_back(std::move(request));
  }
  return requests;
}

}  // namespace

void handle_chat(Service& service, std::shared_ptr<Exchange> exchange) {
  if (service.refuse_if_full(*exchange)) return;
  service.prepare_pool.post([&service, exchange = std::move(exchange)] {
    Service::Preparing preparing(service);
    answer_guarded(*exchange, [&] {
      const Backend& backend = service.backend();
      auto plan = plan_chat(backend, exchange->request());
      if (!plan.ok()) {
        respond_error(*exchange, plan.error());
        return;
      }
      auto requests = engine_requests(*plan, backend, service.origin(exchange->request()));
      auto answer = std::make_unique<ChatAnswer>(service, exchange, *std::move(plan));
      preparing.end();
      start_answer(service, std::move(requests), std::move(answer), exchange);
    });
  });
}

}  // namespace rorqual::server
