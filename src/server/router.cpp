// SPDX-License-Identifier: Apache-2.0
// Route look-up and head checks.
#include "server/router.h"

#include <algorithm>
#include <cctype>

#include "base/check.h"

namespace rorqual::server {

namespace {

bool matches(const Route& route, std::string_view path) {
  if (route.path.size() > 1 && route.path.ends_with('/')) {
    return path.starts_with(route.path) && path.size() > route.path.size();
  }
  if (path == route.path) return true;
  // A trailing slash is forgiven ("/metrics/"), but not added to "/".
  return route.path.size() > 1 && path.ends_with('/') && path.substr(0, path.size() - 1) == route.path;
}

constexpr const char* kUsualHeaders =
    "Authorization, Content-Type, X-Api-Key, X-Request-Id, Anthropic-Version, Anthropic-Beta";

/// Names, commas and blanks only, so that it may be repeated in an answer.
bool is_header_list(std::string_view list) {
  constexpr size_t kLongest = 1024;
  return !list.empty() && list.size() <= kLongest &&
         std::all_of(list.begin(), list.end(), [](unsigned char c) {
           return std::isalnum(c) != 0 || c == '-' || c == '_' || c == ',' || c == ' ';
         });
}

std::string_view media_type(std::string_view content_type) {
  std::string_view type = content_type.substr(0, content_type.find(';'));
  while (type.ends_with(' ') || type.ends_with('\t')) type.remove_suffix(1);
  return type;
}

}  // namespace

const Route* Router::find(std::string_view method, std::string_view path) const {
  for (const Route& route : routes_) {
    if (matches(route, path) && (route.method == method || (method == "HEAD" && route.method == "GET")))
      return &route;
  }
  return nullptr;
}

std::string Router::allowed_methods(std::string_view path) const {
  std::string methods;
  for (const Route& route : routes_) {
    if (!matches(route, path) || methods.find(route.method) != std::string::npos) continue;
    methods += (methods.empty() ? "" : ", ") + route.method + (route.method == "GET" ? ", HEAD" : "");
  }
  return methods.empty() ? methods : methods + ", OPTIONS";
}

HttpResponse Router::answer_options(const HttpRequest& request, const std::string& allowed) const {
  HttpResponse response;
  response.status = 204;
  response.content_type.clear();
  response.headers.emplace_back("Allow", allowed);
  if (!rules_.cors_origin(request).empty()) {
    response.headers.emplace_back("Access-Control-Allow-Methods", allowed);
    // Clients in browsers send headers of their own (versions, betas, telemetry); none of them is trusted
    // here.
    const std::string_view asked = request.header("access-control-request-headers");
    response.headers.emplace_back("Access-Control-Allow-Headers",
                                  is_header_list(asked) ? std::string(asked) : kUsualHeaders);
    response.headers.emplace_back("Access-Control-Max-Age", "600");
  }
  return response;
}

std::optional<HttpError> Router::check_body_headers(const HttpRequest& request) const {
  if (auto error = rules_.check_origin(request)) return error;
  const std::string_view type = media_type(request.header("content-type"));
  if (!type.empty() && !equal_ignoring_case(type, "application/json")) {
    return HttpError{.status = 415,
                     .message = "Content-Type is '" + std::string(type.substr(0, 100)) +
                                "'; this route takes application/json.",
                     .code = "unsupported_media_type"};
  }
  const std::string_view encoding = request.header("content-encoding");
  if (!encoding.empty() && !equal_ignoring_case(encoding, "identity")) {
    return HttpError{.status = 415,
                     .message = "Content-Encoding '" + std::string(encoding.substr(0, 100)) +
                                "' is not supported; send the body uncompressed.",
                     .code = "unsupported_media_type"};
  }
  return std::nullopt;
}

std::optional<HttpError> Router::check_readiness(const Route& route) const {
  const Readiness readiness = readiness_();
  if (readiness == Readiness::ready || route.needs == Route::Needs::nothing) return std::nullopt;
  if (readiness == Readiness::draining && route.needs == Route::Needs::attached) return std::nullopt;
  const bool is_loading = readiness == Readiness::loading;
  return HttpError{
      .status = 503,
      .message = is_loading ? "The model is still loading." : "The server is draining before it stops.",
      .type = "server_error",
      .code = is_loading ? "loading" : "draining",
      .hint = is_loading ? "GET /ready tells the progress" : "send the request to another server",
      .retry_after_s = is_loading ? 2 : 1};
}

std::optional<HttpResponse> Router::check(const HttpRequest& request) const {
  if (auto error = rules_.check_host(request)) return error_response(*error, request);
  const std::string allowed = allowed_methods(request.path);
  if (request.method == "OPTIONS" && !allowed.empty()) return answer_options(request, allowed);

  const Route* route = find(request.method, request.path);
  if (route == nullptr || !route->is_open) {
    if (auto error = rules_.check_key(request)) {
      HttpResponse response = error_response(*error, request);
      response.headers.emplace_back("WWW-Authenticate", "Bearer");
      return response;
    }
  }
  if (allowed.empty()) {
    return error_response({.status = 404,
                           .message = "There is no route " + request.path.substr(0, 200) + " here.",
                           .code = "not_found",
                           .hint = "the API is under /v1, the chat page at /"},
                          request);
  }
  if (route == nullptr) {
    HttpResponse response = error_response({.status = 405,
                                            .message = request.method.substr(0, 20) + " is not possible on " +
                                                       request.path.substr(0, 200) + "; use " + allowed + ".",
                                            .code = "method_not_allowed"},
                                           request);
    response.headers.emplace_back("Allow", allowed);
    return response;
  }
  if (request.method == "POST") {
    if (auto error = check_body_headers(request)) return error_response(*error, request);
  }
  if (auto error = check_readiness(*route)) return error_response(*error, request);
  return std::nullopt;
}

void Router::dispatch(std::shared_ptr<Exchange> exchange) const {
  const Route* route = find(exchange->request().method, exchange->request().path);
  RORQUAL_CHECK(route != nullptr);
  route->handler(std::move(exchange));
}

void Router::decorate(const HttpRequest& request, HttpResponse& response) const {
  const std::string origin = rules_.cors_origin(request);
  if (origin.empty()) return;
  response.headers.emplace_back("Access-Control-Allow-Origin", origin);
  response.headers.emplace_back("Access-Control-Expose-Headers", "X-Request-Id, Retry-After");
  response.headers.emplace_back("Vary", "Origin");
}

}  // namespace rorqual::server
