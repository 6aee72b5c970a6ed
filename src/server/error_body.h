// SPDX-License-Identifier: Apache-2.0
// Errors as HTTP answers: status, official JSON body, Retry-After. The table is docs/errors.md.
#pragma once

#include <string>

#include "base/result.h"
#include "server/http.h"

namespace rorqual::server {

struct HttpError {
  int status = 400;
  std::string message;
  std::string type = "invalid_request_error";
  std::string code = "invalid_request_error";
  std::string param = {};  // "" prints null
  std::string hint = {};   // printed as an own field if there is one
  int retry_after_s = 0;
};

/// openai: {"error":{"message":…,"type":…,"param":…,"code":…}}, also the official form. anthropic, for
/// /v1/messages:
/// {"type":"error","error":{"type":…,"message":…}}, where the type follows from the status.
enum class ErrorForm : uint8_t { openai, anthropic };

ErrorForm error_form(const HttpRequest& request);

std::string error_json(const HttpError& error, ErrorForm form = ErrorForm::openai);

HttpResponse error_response(const HttpError& error, const HttpRequest& request);

/// Status, type and code of an expected failure. `unavailable` becomes 429 when it names a limit (queue
/// full), else 503.
HttpError http_error(const Error& error);

/// Errors that the HTTP layer finds by itself.
HttpError http_error(int status, const std::string& message);

}  // namespace rorqual::server
