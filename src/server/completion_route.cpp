// SPDX-License-Identifier: Apache-2.0
// POST /v1/completions: prompts (text, token ids, fill-in-the-middle) to engine requests.
#include <algorithm>
#include <utility>

#include "server/completion_answer.h"
#include "server/constraints.h"
#include "server/prompt_limits.h"

namespace rorqual::server {

namespace {

using api::ApiError;
using api::ApiResult;

constexpr const char* kFimBegin = "<｜fim▁begin｜>";
constexpr const char* kFimHole = "<｜fim▁hole｜>";
constexpr const char* kFimEnd = "<｜fim▁end｜>";

ApiResult<std::vector<int32_t>> fill_in_the_middle(const std::string& prefix, const std::string& suffix,
                                                   const text::Tokenizer& tokenizer) {
  std::vector<int32_t> ids;
  const auto add = [&](const char* marker, const std::string& text) {
    const auto id = tokenizer.added_token(marker);
    if (!id) return false;
    ids.push_back(*id);
    const auto plain = tokenizer.encode(text, text::EncodeMode::plain);
    ids.insert(ids.end(), plain.begin(), plain.end());
    return true;
  };
  if (add(kFimBegin, prefix) && add(kFimHole, suffix) && add(kFimEnd, "")) return ids;
  return ApiError::conversion(
      "This model's tokenizer has no fill-in-the-middle tokens; 'suffix' cannot be used.", "suffix");
}

ApiResult<std::vector<int32_t>> encode_prompt(const api::CompletionRequest& request, size_t index,
                                              const Backend& backend) {
  const auto& item = request.prompts[index];
  if (item.is_tokens) {
    for (const int32_t id : item.tokens) {
      if (id < 0 || id >= backend.engine.info().vocab_size) {
        return ApiError::conversion("prompt has the token id " + std::to_string(id) +
                                        ", the vocabulary has " +
                                        std::to_string(backend.engine.info().vocab_size) + " tokens.",
                                    "prompt");
      }
    }
    return item.tokens;
  }
  if (!request.prompt.truncate_tokens) {
    const int64_t max_tokens = request.sampling.max_tokens.value_or(1);
    if (auto error = refuse_long_text(item.text.size(), max_tokens, backend)) return *std::move(error);
  }
  if (request.suffix) return fill_in_the_middle(item.text, *request.suffix, backend.tokenizer);
  return backend.tokenizer.encode(item.text, text::EncodeMode::with_added);
}

ApiResult<CompletionAnswer::Plan> plan_completion(const Service& service, const HttpRequest& http) {
  const Backend& backend = service.backend();
  auto parsed = api::parse_completion_request(http.body, backend.policy);
  if (!parsed.ok()) return parsed.error();
  const size_t num_choices = parsed->prompts.size() * static_cast<size_t>(parsed->sampling.n);
  if (num_choices > kCompletionChoicesMax) {
    return ApiError::conversion("The request asks for " + std::to_string(num_choices) +
                                    " choices (prompts times n); the limit is " +
                                    std::to_string(kCompletionChoicesMax) + ".",
                                "n");
  }
  auto constraint = compile_constraint(*parsed, backend);
  if (!constraint.ok()) return constraint.error();
  CompletionAnswer::Plan plan;
  plan.constraint = *std::move(constraint);
  plan.max_tokens = parsed->sampling.max_tokens.value_or(16);
  for (size_t i = 0; i < parsed->prompts.size(); ++i) {
    auto ids = encode_prompt(*parsed, i, backend);
    if (!ids.ok()) return ids.error();
    if (ids->empty()) return ApiError::conversion("prompt must hold at least one token.", "prompt");
    truncate_prompt(*ids, parsed->prompt, plan.max_tokens, backend);
    const auto prompt_tokens = static_cast<int64_t>(ids->size());
    if (prompt_tokens + plan.max_tokens > backend.max_model_len) {
      return ApiError::conversion(
          api::context_overflow_message(backend.max_model_len, prompt_tokens, plan.max_tokens),
          plan.max_tokens > backend.max_model_len ? "max_tokens" : "prompt");
    }
    plan.prompts.push_back(*std::move(ids));
  }

  plan.head =
      answer_head(service, "cmpl-" + parsed->request_id.value_or(http.id), parsed->model, parsed->stream);
  plan.request = *std::move(parsed);
  return plan;
}

std::vector<runtime::Request> engine_requests(const CompletionAnswer::Plan& plan, const Backend& backend,
                                              const RequestOrigin& origin) {
  std::vector<runtime::Request> requests;
  const api::SamplingFields& fields = plan.request.sampling;
  const int32_t top = engine_logprobs(num_top_logprobs(fields), backend);
  for (const auto& prompt : plan.prompts) {
    for (int32_t k = 0; k < fields.n; ++k) {
      runtime::Request request = engine_request(fields, static_cast<uint32_t>(k), origin);
      request.prompt = prompt;
      request.sampling.max_tokens = plan.max_tokens;
      if (plan.constraint) request.sampling.constraint = plan.constraint->for_reply();
      if (fields.logprobs) request.sampling.logprobs = top;
      if (fields.prompt_logprobs)
        request.sampling.prompt_logprobs = engine_logprobs(*fields.prompt_logprobs, backend);
      if (fields.logprobs && plan.request.echo) {
        request.sampling.prompt_logprobs = std::max(request.sampling.prompt_logprobs, top);
      } else {
        request.sampling.prompt_logprobs_begin = fields.prompt_logprobs_begin;
      }
      requests.push_back(std::move(request));
    }
  }
  return requests;
}

}  // namespace

void handle_completion(Service& service, std::shared_ptr<Exchange> incoming) {
  if (service.refuse_if_full(*incoming)) return;
  service.prepare(std::move(incoming), [&service](const std::shared_ptr<Exchange>& exchange) {
    Service::Preparing preparing(service);
    answer_guarded(*exchange, [&] {
      auto plan = plan_completion(service, exchange->request());
      if (!plan.ok()) {
        respond_error(*exchange, plan.error());
        return;
      }
      auto requests = engine_requests(*plan, service.backend(), service.origin(exchange->request()));
      auto answer = std::make_unique<CompletionAnswer>(service, exchange, *std::move(plan));
      preparing.end();
      start_answer(service, std::move(requests), std::move(answer), exchange);
    });
  });
}

}  // namespace rorqual::server
