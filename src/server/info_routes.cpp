// SPDX-License-Identifier: Apache-2.0
// Routes that only tell the state: models, metrics, health, readiness, version, load.
#include <algorithm>

#include "server/error_body.h"
#include "server/json_writer.h"
#include "server/service.h"

namespace rorqual::server {

namespace {

HttpResponse json_response(JsonWriter& json, int status = 200) {
  HttpResponse response;
  response.status = status;
  response.body = json.take();
  return response;
}

void write_model(JsonWriter& json, const Service& service, const std::string& name) {
  const Backend& backend = service.backend();
  json.begin_object().field("id", name).field("object", "model").field("created", service.started_at_s);
  json.field("owned_by", "rorqual").field("root", backend.model_names.front()).null_field("parent");
  json.field("max_model_len", backend.max_model_len).key("permission").begin_array().end_array();
  json.key("modalities").begin_array().string("text").end_array();
  json.key("demonstration").boolean(service.options.is_demonstration);
  json.end_object();
}

/// %41 to A; a broken sequence stays as it is.
std::string percent_decoded(std::string_view text) {
  const auto digit = [](char c) {
    if (c >= '0' && c <= '9') return c - '0';
    if (c >= 'a' && c <= 'f') return c - 'a' + 10;
    if (c >= 'A' && c <= 'F') return c - 'A' + 10;
    return -1;
  };
  std::string out;
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '%' && i + 2 < text.size() && digit(text[i + 1]) >= 0 && digit(text[i + 2]) >= 0) {
      out += static_cast<char>(digit(text[i + 1]) * 16 + digit(text[i + 2]));
      i += 2;
    } else {
      out += text[i];
    }
  }
  return out;
}

}  // namespace

void handle_models(const Service& service, const std::shared_ptr<Exchange>& exchange) {
  JsonWriter json;
  json.begin_object().field("object", "list").key("data").begin_array();
  for (const auto& name : service.backend().model_names) write_model(json, service, name);
  json.end_array().end_object();
  exchange->respond(json_response(json));
}

void handle_model(const Service& service, const std::shared_ptr<Exchange>& exchange) {
  const std::string& path = exchange->request().path;
  const std::string name = percent_decoded(path.substr(path.find("/models/") + 8));
  const auto& names = service.backend().model_names;
  if (std::find(names.begin(), names.end(), name) == names.end()) {
    std::string served;
    for (const auto& n : names) served += (served.empty() ? "" : ", ") + n;
    exchange->respond(error_response({.status = 404,
                                      .message = "The model '" + name.substr(0, 200) +
                                                 "' does not exist; this server has: " + served + ".",
                                      .code = "model_not_found",
                                      .param = "model"},
                                     exchange->request()));
    return;
  }
  JsonWriter json;
  write_model(json, service, name);
  exchange->respond(json_response(json));
}

void handle_metrics(const Service& service, const std::shared_ptr<Exchange>& exchange) {
  HttpResponse response;
  response.content_type = "text/plain; version=0.0.4; charset=utf-8";
  response.body =
      service.metrics().text(service.backend().engine.stats(), service.backend().prompts->memo_stats());
  exchange->respond(std::move(response));
}

void handle_health(const Service& service, const std::shared_ptr<Exchange>& exchange) {
  if (service.is_attached() && !service.backend().engine.stats().is_alive) {
    exchange->respond(error_response({.status = 503,
                                      .message = "The engine has failed; restart the server.",
                                      .type = "server_error",
                                      .code = "engine_dead"},
                                     exchange->request()));
    return;
  }
  HttpResponse response;
  response.content_type = "text/plain";
  exchange->respond(std::move(response));
}

void handle_ready(const Service& service, const std::shared_ptr<Exchange>& exchange) {
  const char* status = "ready";
  if (!service.is_attached()) {
    status = "loading";
  } else if (!service.backend().engine.stats().is_alive) {
    status = "dead";
  } else if (service.is_draining) {
    status = "draining";
  }
  const bool is_ready = std::string_view(status) == "ready";
  JsonWriter json;
  json.begin_object().field("status", status).key("progress");
  json.number(service.is_attached() ? 1.0 : service.load_progress.load()).end_object();
  exchange->respond(json_response(json, is_ready ? 200 : 503));
}

void handle_version(const Service& service, const std::shared_ptr<Exchange>& exchange) {
  JsonWriter json;
  json.begin_object().field("version", service.options.version).field("commit", service.options.commit);
  if (service.is_attached()) {
    const runtime::EngineInfo& engine = service.backend().engine.info();
    json.field("model", engine.model_name)
        .field("numerics", engine.numerics)
        .field("kernels", engine.kernels);
    json.field("switches", engine.switches).field("vocab_size", engine.vocab_size);
    const Backend& backend = service.backend();
    json.key("prompt").begin_object().field("encoding", text::kPromptEncodingRevision);
    json.field("compat", text::prompt_compat_names(service.options.prompt_compat));
    json.field("tokenizer_sha256", backend.tokenizer.sha256()).key("checkpoint_encoder");
    if (backend.checkpoint_encoder.empty()) {
      json.null();
    } else {
      json.string(backend.checkpoint_encoder);
    }
    json.end_object();
    json.field("eos_token_id", int64_t{engine.eos_token_id}).field("max_model_len", engine.max_model_len);
  }
  json.end_object();
  exchange->respond(json_response(json));
}

void handle_stored_response(const Service& /*service*/, const std::shared_ptr<Exchange>& exchange) {
  exchange->respond(error_response(
      {.status = 404,
       .message =
           "This server stores no responses (`store` is false): there is nothing to get, cancel or delete.",
       .code = "not_found",
       .param = "response_id",
       .hint = "send the whole conversation as `input` of POST /v1/responses"},
      exchange->request()));
}

void handle_load(const Service& service, const std::shared_ptr<Exchange>& exchange) {
  const runtime::EngineStats stats = service.backend().engine.stats();
  JsonWriter json;
  json.begin_object().field("server_load", stats.requests_running + stats.requests_waiting);
  json.field("running", stats.requests_running).field("waiting", stats.requests_waiting).end_object();
  exchange->respond(json_response(json));
}

}  // namespace rorqual::server
