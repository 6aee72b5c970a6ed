// SPDX-License-Identifier: Apache-2.0
// A small HTTP client for OpenAI-compatible servers: GET, and POST with a stream of server-sent events.
#pragma once

#include <atomic>
#include <functional>
#include <string>
#include <string_view>

#include "base/result.h"

namespace rorqual::tools {

/// One connection per call. One thread.
class HttpClient {
 public:
  /// `url` is http://host[:port][/prefix]; a trailing /v1 is accepted. `stop`, if not null, ends a running
  /// call with `cancelled` once it is true. Errors: invalid_argument (form of the URL), unsupported (https).
  static Result<HttpClient> create(const std::string& url, std::string api_key,
                                   const std::atomic<bool>* stop);

  /// Body of the answer. Errors: unavailable (no connection), and by status what the server's error object
  /// says.
  Result<std::string> get(const std::string& path) const;

  /// Calls `on_data` with the data of each event until the end or "[DONE]". Errors as get().
  Status post_events(const std::string& path, const std::string& body,
                     const std::function<Status(std::string_view data)>& on_data) const;

  const std::string& url() const { return url_; }

 private:
  HttpClient() = default;

  std::string url_, host_, port_, prefix_, api_key_;
  const std::atomic<bool>* stop_ = nullptr;

  friend class HttpCall;
};

}  // namespace rorqual::tools
