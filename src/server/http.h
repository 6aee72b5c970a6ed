// SPDX-License-Identifier: Apache-2.0
// Requests, responses and the exchange between them, free of any network library. Routes are written against
// this header; http_server.cpp implements it over sockets, tests with a recorder.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/result.h"

namespace rorqual::server {

using HeaderList = std::vector<std::pair<std::string, std::string>>;

struct HttpRequest {
  std::string method;  // upper case
  std::string target;  // as sent, query included
  std::string path;    // without query, percent sequences untouched
  HeaderList headers;
  std::string body;
  std::string id;  // X-Request-Id of the client if it is short and plain, else drawn
  std::chrono::steady_clock::time_point arrival{};  // first byte

  /// First value of a header, empty if absent; `name` in any case.
  std::string_view header(std::string_view name) const;
};

struct HttpResponse {
  int status = 200;
  std::string content_type = "application/json";
  HeaderList headers = {};
  std::string body = {};
};

/// One request and its answer. Any thread. Exactly one of: respond, or begin_stream + write* + finish.
/// Calls after the client has gone are ignored.
class Exchange {
 public:
  virtual ~Exchange() = default;
  virtual const HttpRequest& request() const = 0;

  /// The body is not needed any more: it is empty from here on. By the thread that reads it.
  virtual void drop_body() {}

  virtual void respond(HttpResponse response) = 0;
  /// Sends the head at once (body ignored) and keeps the line alive with SSE comments while it is silent.
  virtual void begin_stream(HttpResponse head) = 0;
  /// Before respond(), when it may take long: if it has not come after the keep-alive interval, the head of a
  /// 200 goes out and blank lines follow until it does. A failure is then told by the body only.
  virtual void fill_wait_with_lines() = 0;
  virtual void write(std::string bytes) = 0;
  virtual void finish() = 0;
  /// `callback` runs once when the client goes away before the answer is complete; at once if it has gone
  /// already.
  virtual void on_disconnect(std::function<void()> callback) = 0;
  /// Names and figures for the access log line, "prompt=12 cached=0 …"; the last call wins.
  virtual void set_log_note(std::string note) = 0;
};

/// Runs on the IO thread: must return fast and must not throw.
using HttpHandler = std::function<void(std::shared_ptr<Exchange>)>;

/// Fields that came back from the wire, for the log.
struct AccessRecord {
  const HttpRequest& request;
  int status = 0;  // 499 = the client went away first
  std::string note;
  std::chrono::milliseconds duration{0};
};

struct HttpLimits {
  size_t max_header_bytes = 0, max_headers = 0, max_body_bytes = 0, max_connections = 0, max_unsent_bytes = 0;
  size_t max_total_body_bytes = 0;  // of all connections together; small bodies are read beyond it, too
  std::chrono::milliseconds header_timeout{0}, body_timeout{0}, idle_timeout{0}, write_timeout{0},
      keep_alive_interval{0};
};

struct HttpConfig {
  std::string host = {};
  uint16_t port = 0;
  HttpLimits limits = {};
  HttpHandler handler = {};
  /// Called when the head is complete, before any body is read: an answer here ends the request.
  std::function<std::optional<HttpResponse>(const HttpRequest&)> check_head = {};
  /// Adds headers that depend on the request (CORS) to every answer.
  std::function<void(const HttpRequest&, HttpResponse&)> decorate = {};
  /// Builds the body of errors that the HTTP layer itself answers (limits, malformed requests: then the
  /// request is empty).
  std::function<HttpResponse(const HttpRequest&, int status, const std::string& message)> error_response = {};
  std::function<void(const AccessRecord&)> on_access = {};
  std::function<void(const char* what)> on_exception = {};  // a handler threw; the server goes on
  std::function<void()> on_tick = {};                       // every second, on the IO thread
};

/// Listening socket, connections and one IO thread.
class HttpServer {
 public:
  /// Errors: io (in use, no permission), invalid_argument (no such address).
  static Result<std::unique_ptr<HttpServer>> start(HttpConfig config);
  ~HttpServer();

  uint16_t port() const;

  /// Stops accepting, lets queued bytes out up to `timeout`, closes everything and joins the thread.
  void close(std::chrono::milliseconds timeout);

  struct Impl;  // in http_server.cpp

 private:
  explicit HttpServer(std::shared_ptr<Impl> impl);
  std::shared_ptr<Impl> impl_;  // shared with exchanges, which others may hold longer than the server
};

/// Between the two, calls of this thread to exchanges are kept back, so that the IO thread wakes once for all
/// of them. May be nested.
void begin_write_batch();
void end_write_batch();

const char* reason_phrase(int status);

/// Why the server cannot listen, `number` being that of the system's error.
Error bind_error(const HttpConfig& config, int number);

bool equal_ignoring_case(std::string_view a, std::string_view b);

}  // namespace rorqual::server
