// SPDX-License-Identifier: Apache-2.0
// Error bodies in the official form.
#include "server/error_body.h"

#include "server/json_writer.h"

namespace rorqual::server {

namespace {

const char* anthropic_type(int status) {
  switch (status) {
    case 400:
    case 405:
    case 408:
    case 415:
      return "invalid_request_error";
    case 401:
      return "authentication_error";
    case 403:
      return "permission_error";
    case 404:
      return "not_found_error";
    case 413:
    case 414:
    case 431:
      return "request_too_large";
    case 429:
      return "rate_limit_error";
    case 503:
      return "overloaded_error";
    case 504:
      return "timeout_error";
    default:
      return "api_error";
  }
}

}  // namespace

ErrorForm error_form(const HttpRequest& request) {
  const std::string_view path = request.path;
  const bool is_messages = path.starts_with("/v1/messages") || path.starts_with("/anthropic/");
  return is_messages ? ErrorForm::anthropic : ErrorForm::openai;
}

std::string error_json(const HttpError& error, ErrorForm form) {
  JsonWriter json;
  if (form == ErrorForm::anthropic) {
    json.begin_object().field("type", "error").key("error").begin_object();
    json.field("type", anthropic_type(error.status)).field("message", error.message);
    if (!error.hint.empty()) json.field("hint", error.hint);
    json.end_object().end_object();
    return json.take();
  }
  json.begin_object().key("error").begin_object();
  json.field("message", error.message).field("type", error.type);
  if (error.param.empty()) {
    json.null_field("param");
  } else {
    json.field("param", error.param);
  }
  json.field("code", error.code);
  if (!error.hint.empty()) json.field("hint", error.hint);
  json.end_object().end_object();
  return json.take();
}

HttpResponse error_response(const HttpError& error, const HttpRequest& request) {
  HttpResponse response;
  response.status = error.status;
  response.body = error_json(error, error_form(request));
  if (error.retry_after_s > 0)
    response.headers.emplace_back("Retry-After", std::to_string(error.retry_after_s));
  return response;
}

HttpError http_error(const Error& error) {
  HttpError out{.message = error.message(), .hint = error.hint()};
  const auto set = [&out](int status, const char* type, const char* code) {
    out.status = status;
    out.type = type;
    out.code = code;
  };
  switch (error.code()) {
    case Code::invalid_argument:
    case Code::unsupported:
      set(400, "invalid_request_error", "invalid_request_error");
      break;
    case Code::not_found:
      set(404, "invalid_request_error", "not_found");
      break;
    case Code::unavailable:
      out.retry_after_s = 1;
      if (error.limit() == Limit::none) {
        set(503, "server_error", "unavailable");
      } else {
        set(429, "rate_limit_error", "queue_full");
      }
      break;
    case Code::out_of_memory:
      set(503, "server_error", code_name(error.code()));
      out.retry_after_s = 1;
      break;
    case Code::deadline:
      set(504, "timeout", code_name(error.code()));
      break;
    default:
      set(500, "server_error", code_name(error.code()));
      break;
  }
  return out;
}

HttpError http_error(int status, const std::string& message) {
  HttpError out{.status = status, .message = message};
  if (status >= 500) out.type = out.code = "server_error";
  if (status == 408) out.type = out.code = "timeout";
  if (status == 503) out.retry_after_s = 1;
  return out;
}

}  // namespace rorqual::server
