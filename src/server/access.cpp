// SPDX-License-Identifier: Apache-2.0
// Checks of keys, hosts and origins.
#include "server/access.h"

#include <algorithm>
#include <span>

#include "base/sha256.h"

namespace rorqual::server {

namespace {

std::string hash(std::string_view text) {
  return sha256_hex(std::as_bytes(std::span(text.data(), text.size())));
}

/// Time depends on the lengths only.
bool equal_in_constant_time(const std::string& a, const std::string& b) {
  if (a.size() != b.size()) return false;
  volatile unsigned difference = 0;
  for (size_t i = 0; i < a.size(); ++i) difference = difference | static_cast<unsigned>(a[i] ^ b[i]);
  return difference == 0;
}

std::string_view sent_key(const HttpRequest& request) {
  const std::string_view authorization = request.header("authorization");
  constexpr std::string_view kScheme = "bearer ";
  if (authorization.size() > kScheme.size() &&
      equal_ignoring_case(authorization.substr(0, kScheme.size()), kScheme)) {
    return authorization.substr(kScheme.size());
  }
  return request.header("x-api-key");
}

}  // namespace

bool is_ip_address(std::string_view host) {
  if (host.starts_with('[')) return host.ends_with(']');
  return !host.empty() && host.find_first_not_of("0123456789.") == std::string_view::npos;
}

bool is_loopback_name(std::string_view host) {
  if (equal_ignoring_case(host, "localhost") || host == "[::1]" || host == "::1") return true;
  return host.starts_with("127.") && host.find_first_not_of("0123456789.") == std::string_view::npos;
}

std::string_view host_without_port(std::string_view host) {
  if (host.starts_with('[')) {
    const size_t end = host.find(']');
    return end == std::string_view::npos ? host : host.substr(0, end + 1);
  }
  return host.substr(0, host.find(':'));
}

AccessRules::AccessRules(const AccessOptions& options)
    : origins_(options.allowed_origins),
      hosts_(options.allowed_hosts),
      is_loopback_(options.is_loopback),
      has_host_list_(!options.allowed_hosts.empty()) {
  for (const auto& key : options.api_keys) key_hashes_.push_back(hash(key));
  hosts_.push_back(options.bind_host);
}

std::optional<HttpError> AccessRules::check_host(const HttpRequest& request) const {
  const std::string_view header = request.header("host");
  if (header.empty() || (!is_loopback_ && !has_host_list_)) return std::nullopt;  // no Host: it is no browser
  const std::string_view host = host_without_port(header);
  const bool listed = std::any_of(hosts_.begin(), hosts_.end(),
                                  [host](const auto& name) { return equal_ignoring_case(name, host); });
  if (listed || is_loopback_name(host) || (!is_loopback_ && is_ip_address(host))) return std::nullopt;
  return HttpError{.status = 403,
                   .message = "The Host header names '" + std::string(host.substr(0, 100)) +
                              "', but this server " +
                              (is_loopback_ ? "listens on this machine only." : "has a list of its names."),
                   .code = "host_not_allowed",
                   .hint = "use the address, or list the name with --allowed-hosts"};
}

bool AccessRules::is_listed_origin(std::string_view origin) const {
  return std::any_of(origins_.begin(), origins_.end(),
                     [origin](const auto& o) { return o == "*" || equal_ignoring_case(o, origin); });
}

std::optional<HttpError> AccessRules::check_origin(const HttpRequest& request) const {
  const std::string_view origin = request.header("origin");
  if (origin.empty() || is_listed_origin(origin)) return std::nullopt;
  const size_t scheme_end = origin.find("://");
  if (scheme_end != std::string_view::npos &&
      equal_ignoring_case(origin.substr(scheme_end + 3), request.header("host"))) {
    return std::nullopt;
  }
  return HttpError{
      .status = 403,
      .message = "Pages of '" + std::string(origin.substr(0, 100)) + "' may not use this server.",
      .code = "origin_not_allowed",
      .hint = "start the server with --allowed-origins to admit them"};
}

std::optional<HttpError> AccessRules::check_key(const HttpRequest& request) const {
  if (key_hashes_.empty()) return std::nullopt;
  const std::string_view key = sent_key(request);
  const std::string sent = hash(key);
  bool found = false;
  for (const auto& known : key_hashes_) found = equal_in_constant_time(known, sent) || found;
  if (found && !key.empty()) return std::nullopt;
  return HttpError{.status = 401,
                   .message = key.empty() ? "This server needs an API key." : "The API key is not valid.",
                   .type = "authentication_error",
                   .code = "invalid_api_key",
                   .hint = "send the header 'Authorization: Bearer KEY'"};
}

std::string AccessRules::client_key(const HttpRequest& request) const {
  constexpr size_t kDigits = 16;
  return key_hashes_.empty() ? std::string() : hash(sent_key(request)).substr(0, kDigits);
}

std::string AccessRules::cors_origin(const HttpRequest& request) const {
  const std::string_view origin = request.header("origin");
  return !origin.empty() && is_listed_origin(origin) ? std::string(origin) : std::string();
}

}  // namespace rorqual::server
