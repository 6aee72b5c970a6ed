// SPDX-License-Identifier: Apache-2.0
// POST /tokenize and /detokenize.
#include <utility>

#include "api/request.h"
#include "server/answer.h"
#include "server/json_writer.h"
#include "server/prompt_limits.h"
#include "server/service.h"

namespace rorqual::server {

namespace {

HttpResponse json_response(std::string body) {
  HttpResponse response;
  response.body = std::move(body);
  return response;
}

api::ApiResult<std::string> tokenize(const Backend& backend, const std::string& body) {
  auto request = api::parse_tokenize_request(body, backend.policy);
  if (!request.ok()) return request.error();
  std::vector<int32_t> ids;
  if (request->prompt) {
    ids = backend.tokenizer.encode(*request->prompt, text::EncodeMode::with_added);
  } else {
    auto prompt = backend.prompts->encode(*request->conversation);
    if (!prompt.ok()) return api::ApiError::conversion(prompt.error().message());
    ids = std::move(prompt->token_ids);
  }
  JsonWriter json;
  json.begin_object()
      .field("count", static_cast<int64_t>(ids.size()))
      .field("max_model_len", backend.max_model_len);
  json.key("tokens").begin_array();
  for (const int32_t id : ids) json.integer(id);
  json.end_array().key("token_strs");
  if (request->return_token_strs) {
    json.begin_array();
    for (const int32_t id : ids) json.string(backend.tokenizer.token_string(id));
    json.end_array();
  } else {
    json.null();
  }
  json.end_object();
  return json.take();
}

api::ApiResult<std::string> detokenize(const Backend& backend, const std::string& body) {
  auto ids = api::parse_detokenize_request(body);
  if (!ids.ok()) return ids.error();
  for (const int32_t id : *ids) {
    if (id < 0 || id >= backend.tokenizer.vocab_size()) {
      return api::ApiError::conversion("tokens has the id " + std::to_string(id) + ", the vocabulary has " +
                                       std::to_string(backend.tokenizer.vocab_size()) + " tokens.");
    }
  }
  JsonWriter json;
  json.begin_object().field("prompt", backend.tokenizer.decode(*ids, false)).end_object();
  return json.take();
}

template <class Function>
void answer_with(Service& service, std::shared_ptr<Exchange> incoming, const Function& function) {
  service.prepare(std::move(incoming), [&service, function](const std::shared_ptr<Exchange>& exchange) {
    answer_guarded(*exchange, [&] {
      auto body = function(service.backend(), exchange->request().body);
      if (body.ok()) {
        exchange->respond(json_response(*std::move(body)));
      } else {
        respond_error(*exchange, body.error());
      }
    });
  });
}

}  // namespace

void handle_tokenize(Service& service, std::shared_ptr<Exchange> exchange) {
  answer_with(service, std::move(exchange), tokenize);
}

void handle_detokenize(Service& service, std::shared_ptr<Exchange> exchange) {
  answer_with(service, std::move(exchange), detokenize);
}

}  // namespace rorqual::server
