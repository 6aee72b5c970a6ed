// SPDX-License-Identifier: Apache-2.0
// A small HTTP client for OpenAI-compatible servers: GET, POST, and POST with a stream of server-sent events.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>

#include "base/result.h"

namespace rorqual::tools {

/// Any answer of a server, also a refusal.
struct HttpAnswer {
  unsigned status = 0;
  std::string body;
  std::optional<double> retry_after_s;  // Retry-After, if it is a number
};

/// One connection per call. Calls of several threads do not disturb each other.
class HttpClient {
 public:
  /// `url` is http://host[:port][/prefix]; a trailing /v1 is accepted. `stop`, if not null, ends a running
  /// call with `cancelled` once it is true. Errors: invalid_argument (form of the URL), unsupported (https).
  static Result<HttpClient> create(const std::string& url, std::string api_key,
                                   const std::atomic<bool>* stop);

  /// Body of the answer. Errors: unavailable (no connection), and by status what the server's error object
  /// says.
  Result<std::string> get(const std::string& path) const;

  /// The answer, whatever its status. Errors: unavailable (no connection, or it broke), deadline, cancelled,
  /// corrupt_data (body over the limit).
  Result<HttpAnswer> post(const std::string& path, const std::string& body) const;

  /// What an answer with a status other than 2xx means: the server's own message under our code.
  Error error_of(const HttpAnswer& answer) const;

  /// A call ends with `deadline` when nothing arrives for so long. 0 = never.
  void set_timeout(double seconds) { timeout_s_ = seconds; }

  /// The same client with another stop flag.
  HttpClient with_stop(const std::atomic<bool>* stop) const;

  /// Largest body of an answer; 256 MiB unless set.
  void set_body_limit(int64_t bytes) { body_limit_bytes_ = bytes; }

  /// Calls `on_data` with the data of each event until the end or "[DONE]". Errors as get().
  Status post_events(const std::string& path, const std::string& body,
                     const std::function<Status(std::string_view data)>& on_data) const;

  const std::string& url() const { return url_; }

  /// The parts of the URL, for clients with many connections (tools/load_client.h). `prefix` ends before /v1.
  const std::string& host() const { return host_; }

  const std::string& port() const { return port_; }

  const std::string& prefix() const { return prefix_; }

  const std::string& api_key() const { return api_key_; }

 private:
  HttpClient() = default;

  std::string url_, host_, port_, prefix_, api_key_;
  const std::atomic<bool>* stop_ = nullptr;
  double timeout_s_ = 0;
  int64_t body_limit_bytes_ = int64_t{256} << 20;

  friend class HttpCall;
};

}  // namespace rorqual::tools
