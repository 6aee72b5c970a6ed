// SPDX-License-Identifier: Apache-2.0
// Boost.Beast over a socket that is polled, so that Ctrl-C ends a silent stream at once.
#include "tools/http_client.h"

#include <fmt/format.h>
#include <poll.h>

#include <algorithm>
#include <boost/asio/connect.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/http.hpp>
#include <chrono>
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <utility>

#include "tools/event_lines.h"

namespace rorqual::tools {
namespace asio = boost::asio;
namespace beast = boost::beast;
namespace http = boost::beast::http;

namespace {

constexpr int kPoll_ms = 100;
constexpr size_t kReadBytes = 16384;

/// What Beast needs of a stream, with a look at the stop flag while nothing arrives.
class PolledSocket {
 public:
  explicit PolledSocket(asio::io_context& context, const std::atomic<bool>* stop, double timeout_s)
      : socket(context), stop_(stop), timeout_s_(timeout_s) {}

  template <class Buffers>
  size_t read_some(const Buffers& buffers, beast::error_code& error) {
    const auto begin = std::chrono::steady_clock::now();
    while (true) {
      if (stop_ != nullptr && *stop_) {
        error = asio::error::operation_aborted;
        return 0;
      }
      pollfd entry{socket.native_handle(), POLLIN, 0};
      if (poll(&entry, 1, kPoll_ms) > 0) return socket.read_some(buffers, error);
      const double silence_s =
          std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
      if (timeout_s_ > 0 && silence_s > timeout_s_) {
        error = asio::error::timed_out;
        return 0;
      }
    }
  }

  template <class Buffers>
  size_t read_some(const Buffers& buffers) {
    beast::error_code error;
    const auto count = read_some(buffers, error);
    if (error) throw beast::system_error(error);
    return count;
  }

  template <class Buffers>
  size_t write_some(const Buffers& buffers, beast::error_code& error) {
    return socket.write_some(buffers, error);
  }

  template <class Buffers>
  size_t write_some(const Buffers& buffers) {
    return socket.write_some(buffers);
  }

  asio::ip::tcp::socket socket;

 private:
  const std::atomic<bool>* stop_;
  double timeout_s_;
};

Code code_of_status(unsigned status) {
  if (status == 404) return Code::not_found;
  if (status == 429 || status == 503) return Code::unavailable;
  if (status == 408 || status == 504) return Code::deadline;
  return status >= 500 ? Code::internal : Code::invalid_argument;
}

/// The message of an OpenAI error object, or the start of the body.
std::string message_of(const std::string& body) {
  constexpr size_t kShownBytes = 200;
  const auto document = nlohmann::json::parse(body, nullptr, false);
  if (document.is_object() && document.contains("error") && document["error"].is_object()) {
    const auto& message = document["error"].value("message", nlohmann::json());
    if (message.is_string()) return message.get<std::string>();
  }
  return body.substr(0, kShownBytes);
}

/// What to do about an answer, or empty.
std::string hint_of(unsigned status, const std::string& message) {
  if (status == 401 || status == 403) return "give its key by RORQUAL_API_KEY or --api-key";
  if (message.find("prompt_logprobs") != std::string::npos)
    return "start the server with --max-logprobs at least as large as --top-k, or lower --top-k";
  return {};
}

}  // namespace

/// One request and its answer.
class HttpCall {
 public:
  explicit HttpCall(const HttpClient& client)
      : client_(client), stream_(context_, client.stop_, client.timeout_s_) {
    parser_.body_limit(static_cast<uint64_t>(client.body_limit_bytes_));
  }

  Status send(http::verb verb, const std::string& path, const std::string& body) {
    beast::error_code error;
    asio::ip::tcp::resolver resolver(context_);
    const auto endpoints = resolver.resolve(client_.host_, client_.port_, error);
    if (!error) asio::connect(stream_.socket, endpoints, error);
    if (error) {
      return Error(Code::unavailable, fmt::format("no server at {}: {}", client_.url_, error.message()),
                   "start one with `rorqual serve`, or check --url");
    }
    http::request<http::string_body> request(verb, client_.prefix_ + path, 11);
    request.set(http::field::host, fmt::format("{}:{}", client_.host_, client_.port_));
    request.set(http::field::user_agent, "rorqual");
    request.set(http::field::connection, "close");
    if (!client_.api_key_.empty()) request.set(http::field::authorization, "Bearer " + client_.api_key_);
    if (!body.empty()) {
      request.set(http::field::content_type, "application/json");
      request.body() = body;
    }
    request.prepare_payload();
    http::write(stream_, request, error);
    if (!error) http::read_header(stream_, buffer_, parser_, error);
    return error ? failed(error) : Status(Ok());
  }

  /// Gives the body out piece by piece until its end or until `on_bytes` says it is enough.
  template <class OnBytes>
  Status read_body(const OnBytes& on_bytes) {
    beast::error_code error;
    char block[kReadBytes];
    while (!parser_.is_done()) {
      parser_.get().body().data = block;
      parser_.get().body().size = sizeof block;
      http::read_some(stream_, buffer_, parser_, error);
      const size_t count = sizeof block - parser_.get().body().size;
      if (error && error != http::error::need_buffer) return failed(error);
      RORQUAL_TRY_ASSIGN(const bool wants_more, on_bytes(std::string_view(block, count)));
      if (!wants_more) break;
    }
    return Ok();
  }

  Result<HttpAnswer> answer() {
    HttpAnswer answer;
    RORQUAL_TRY(read_body([&](std::string_view bytes) -> Result<bool> {
      answer.body += bytes;
      return true;
    }));
    answer.status = parser_.get().result_int();
    const std::string header(parser_.get()[http::field::retry_after]);
    if (!header.empty()) {
      char* end = nullptr;
      const double seconds = std::strtod(header.c_str(), &end);
      if (end != header.c_str() && *end == 0 && seconds >= 0) answer.retry_after_s = seconds;
    }
    return answer;
  }

  Result<std::string> whole_body() {
    RORQUAL_TRY_ASSIGN(HttpAnswer whole, answer());
    if (whole.status / 100 != 2) return client_.error_of(whole);
    return std::move(whole.body);
  }

  bool is_success() const { return parser_.get().result_int() / 100 == 2; }

 private:
  Error failed(const beast::error_code& error) const {
    if (error == asio::error::operation_aborted) return {Code::cancelled, "interrupted"};
    if (error == asio::error::timed_out) {
      return {Code::deadline, fmt::format("{} was silent for {:.0f} s", client_.url_, client_.timeout_s_),
              "raise --timeout"};
    }
    if (error == http::error::body_limit) {
      return {Code::corrupt_data, fmt::format("the answer of {} is larger than {} bytes", client_.url_,
                                              client_.body_limit_bytes_)};
    }
    return {Code::unavailable, fmt::format("connection to {} broke: {}", client_.url_, error.message())};
  }

  const HttpClient& client_;
  asio::io_context context_;
  PolledSocket stream_;
  beast::flat_buffer buffer_;
  http::response_parser<http::buffer_body> parser_;
};

Result<HttpClient> HttpClient::create(const std::string& url, std::string api_key,
                                      const std::atomic<bool>* stop) {
  constexpr std::string_view kScheme = "http://";
  if (url.rfind("https://", 0) == 0) {
    return Error(Code::unsupported, fmt::format("--url {}: https is not built in", url),
                 "use an http:// address");
  }
  if (url.rfind(kScheme, 0) != 0) {
    return Error(Code::invalid_argument, fmt::format("--url: got '{}', expected http://host:port", url));
  }
  HttpClient client;
  auto rest = url.substr(kScheme.size());
  const auto slash = std::min(rest.find('/'), rest.size());
  client.prefix_ = rest.substr(slash);
  rest.resize(slash);
  while (!client.prefix_.empty() && client.prefix_.back() == '/') client.prefix_.pop_back();
  if (client.prefix_.size() >= 3 && client.prefix_.compare(client.prefix_.size() - 3, 3, "/v1") == 0) {
    client.prefix_.resize(client.prefix_.size() - 3);
  }
  const auto bracket = rest.find(']');
  const auto colon = rest.find(':', bracket == std::string::npos ? 0 : bracket);
  client.host_ = rest.substr(0, colon);
  client.port_ = colon == std::string::npos ? "80" : rest.substr(colon + 1);
  if (client.host_.size() > 2 && client.host_.front() == '[')
    client.host_ = client.host_.substr(1, client.host_.size() - 2);
  if (client.host_.empty() || client.port_.empty()) {
    return Error(Code::invalid_argument, fmt::format("--url: got '{}', expected http://host:port", url));
  }
  client.url_ = url;
  client.api_key_ = std::move(api_key);
  client.stop_ = stop;
  return client;
}

Result<std::string> HttpClient::get(const std::string& path) const {
  HttpCall call(*this);
  RORQUAL_TRY(call.send(http::verb::get, path, {}));
  return call.whole_body();
}

HttpClient HttpClient::with_stop(const std::atomic<bool>* stop) const {
  HttpClient other = *this;
  other.stop_ = stop;
  return other;
}

Result<HttpAnswer> HttpClient::post(const std::string& path, const std::string& body) const {
  HttpCall call(*this);
  RORQUAL_TRY(call.send(http::verb::post, path, body));
  return call.answer();
}

Error HttpClient::error_of(const HttpAnswer& answer) const {
  const std::string message = message_of(answer.body);
  return {code_of_status(answer.status), fmt::format("{} answered {}: {}", url_, answer.status, message),
          hint_of(answer.status, message)};
}

Status HttpClient::post_events(const std::string& path, const std::string& body,
                               const std::function<Status(std::string_view data)>& on_data) const {
  HttpCall call(*this);
  RORQUAL_TRY(call.send(http::verb::post, path, body));
  if (!call.is_success()) {
    RORQUAL_TRY_ASSIGN(const auto text, call.whole_body());
    return Error(Code::internal, fmt::format("unexpected answer: {}", text));
  }
  EventLines lines;
  return call.read_body([&](std::string_view bytes) -> Result<bool> {
    RORQUAL_TRY(lines.add(bytes, on_data));
    return !lines.is_done();
  });
}

}  // namespace rorqual::tools
