// SPDX-License-Identifier: Apache-2.0
// Who may call: API keys, Host names on loopback binds (DNS rebinding), browser origins (other sites' pages).
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "server/error_body.h"
#include "server/http.h"

namespace rorqual::server {

struct AccessOptions {
  std::vector<std::string> api_keys = {};
  std::vector<std::string> allowed_origins = {};
  std::vector<std::string> allowed_hosts = {};
  std::string bind_host = {};
  bool is_loopback = true;
};

/// Immutable; any thread. Keys are kept as SHA-256 only, and compared in constant time.
class AccessRules {
 public:
  explicit AccessRules(const AccessOptions& options);

  /// nullopt = allowed. A loopback bind takes loopback names and listed ones; another bind takes any, or with
  /// a list only listed names and plain addresses.
  std::optional<HttpError> check_host(const HttpRequest& request) const;
  std::optional<HttpError> check_origin(const HttpRequest& request) const;
  std::optional<HttpError> check_key(const HttpRequest& request) const;

  /// Name of the caller: the beginning of its key's hash; empty without keys.
  std::string client_key(const HttpRequest& request) const;

  bool has_keys() const { return !key_hashes_.empty(); }

  /// Value of Access-Control-Allow-Origin for this request; empty = send no CORS headers.
  std::string cors_origin(const HttpRequest& request) const;

 private:
  bool is_listed_origin(std::string_view origin) const;

  std::vector<std::string> key_hashes_;
  std::vector<std::string> origins_;
  std::vector<std::string> hosts_;
  bool is_loopback_, has_host_list_;
};

/// Four numbers, or an IPv6 address in brackets: no name that somebody's name server could point elsewhere.
bool is_ip_address(std::string_view host);

/// "localhost", 127.x.x.x, ::1 or [::1].
bool is_loopback_name(std::string_view host);

/// Host header without its port: "[::1]:80" gives "[::1]".
std::string_view host_without_port(std::string_view host);

}  // namespace rorqual::server
