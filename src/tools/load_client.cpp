// SPDX-License-Identifier: Apache-2.0
#include "tools/load_client.h"

#include <fmt/format.h>
#include <simdjson.h>

#include <algorithm>
#include <boost/asio/connect.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/http.hpp>
#include <chrono>
#include <cstdlib>
#include <unordered_set>
#include <utility>

#include "tools/event_lines.h"
#include "tools/load_metrics.h"

namespace rorqual::tools {
namespace asio = boost::asio;
namespace beast = boost::beast;
namespace http = boost::beast::http;
using tcp = asio::ip::tcp;

namespace {

constexpr size_t kReadBytes = 8192;
constexpr size_t kMaxErrorBytes = 16384;
constexpr size_t kShownBytes = 300;
constexpr std::chrono::milliseconds kSilenceCheck{250};

using Element = simdjson::dom::element;

int64_t integer_at(const Element& object, std::string_view key, int64_t otherwise) {
  int64_t value = 0;
  return object[key].get(value) == simdjson::SUCCESS ? value : otherwise;
}

bool has_text(const Element& object, std::string_view key) {
  std::string_view text;
  return object[key].get(text) == simdjson::SUCCESS && !text.empty();
}

void append_ids(const Element& object, std::string_view key, std::vector<int32_t>& ids) {
  simdjson::dom::array array;
  if (object[key].get(array) != simdjson::SUCCESS) return;
  for (const Element entry : array) {
    int64_t id = 0;
    if (entry.get(id) == simdjson::SUCCESS) ids.push_back(static_cast<int32_t>(id));
  }
}

/// Text of a completion or of a chat delta, in any of its fields.
bool choice_has_text(const Element& choice) {
  if (has_text(choice, "text")) return true;
  Element delta;
  if (choice["delta"].get(delta) != simdjson::SUCCESS || !delta.is_object()) return false;
  simdjson::dom::array calls;
  return has_text(delta, "content") || has_text(delta, "reasoning_content") || has_text(delta, "reasoning") ||
         (delta["tool_calls"].get(calls) == simdjson::SUCCESS && calls.size() > 0);
}

}  // namespace

std::string_view outcome_name(LoadOutcome outcome) {
  switch (outcome) {
    case LoadOutcome::success:
      return "success";
    case LoadOutcome::refused:
      return "refused";
    case LoadOutcome::error:
      return "error";
    case LoadOutcome::left:
      return "left";
    case LoadOutcome::incomplete:
      return "incomplete";
  }
  return "?";
}

class LoadStream;

struct LoadClient::Impl {
  asio::io_context context;
  tcp::resolver::results_type endpoints;
  std::string host, prefix, api_key;
  double silence_s = 0;
  asio::steady_timer silence_timer{context};
  simdjson::dom::parser parser;
  std::unordered_set<std::shared_ptr<LoadStream>> streams;

  void watch_silence();
};

/// One call.
class LoadStream : public std::enable_shared_from_this<LoadStream> {
 public:
  LoadStream(LoadClient::Impl& client, LoadCall call, std::function<void(LoadRecord)> on_end)
      : client_(client), call_(std::move(call)), on_end_(std::move(on_end)), socket_(client.context) {
    parser_.body_limit(boost::none);
  }

  void start();
  void cut_off();

  double last_byte_s() const { return last_byte_s_; }

  void fail(std::string why);

 private:
  void send();
  void read_header();
  void on_header();
  void read_body();
  void on_bytes(std::string_view bytes);
  Status on_event(std::string_view data);
  void on_choices(const Element& event, double now_s);
  void count_tokens(const Element& event, bool is_text, double now_s);
  void leave();
  void finish(LoadOutcome outcome);

  LoadClient::Impl& client_;
  LoadCall call_;
  std::function<void(LoadRecord)> on_end_;
  tcp::socket socket_;
  beast::flat_buffer buffer_;
  http::request<http::string_body> request_;
  http::response_parser<http::buffer_body> parser_;
  char block_[kReadBytes];
  std::string error_body_;
  EventLines lines_;
  LoadRecord record_;
  double last_byte_s_ = 0;
  bool has_left_ = false, is_finished_ = false;
};

void LoadStream::start() {
  record_.start_s = last_byte_s_ = unix_now_s();
  asio::async_connect(socket_, client_.endpoints,
                      [self = shared_from_this()](const beast::error_code& error, const tcp::endpoint&) {
                        if (error) return self->fail(fmt::format("connect: {}", error.message()));
                        self->send();
                      });
}

void LoadStream::send() {
  beast::error_code ignored;
  socket_.set_option(tcp::no_delay(true), ignored);
  request_ = {http::verb::post, client_.prefix + call_.path, 11};
  request_.set(http::field::host, client_.host);
  request_.set(http::field::user_agent, "rorqual-bench");
  request_.set(http::field::content_type, "application/json");
  if (!client_.api_key.empty()) request_.set(http::field::authorization, "Bearer " + client_.api_key);
  request_.body() = std::move(call_.body);
  request_.prepare_payload();
  http::async_write(socket_, request_, [self = shared_from_this()](const beast::error_code& error, size_t) {
    // A server may refuse before it has read the body: its answer says more than the broken pipe.
    if (error && error != asio::error::broken_pipe && error != asio::error::connection_reset) {
      return self->fail(fmt::format("send: {}", error.message()));
    }
    self->read_header();
  });
}

void LoadStream::read_header() {
  http::async_read_header(socket_, buffer_, parser_,
                          [self = shared_from_this()](const beast::error_code& error, size_t) {
                            if (error) return self->fail(fmt::format("answer: {}", error.message()));
                            self->on_header();
                          });
}

void LoadStream::on_header() {
  if (is_finished_) return;
  record_.header_s = last_byte_s_ = unix_now_s();
  record_.status = parser_.get().result_int();
  const std::string retry_after(parser_.get()[http::field::retry_after]);
  char* end = nullptr;
  const double seconds = std::strtod(retry_after.c_str(), &end);
  if (end != retry_after.c_str() && seconds >= 0) record_.retry_after_s = seconds;
  if (call_.leave_after_tokens == 0 && record_.status / 100 == 2) leave();
  if (is_finished_) return;
  if (parser_.is_done()) return on_bytes({});  // no body
  read_body();
}

void LoadStream::read_body() {
  parser_.get().body().data = block_;
  parser_.get().body().size = sizeof block_;
  http::async_read_some(
      socket_, buffer_, parser_, [self = shared_from_this()](const beast::error_code& error, size_t) {
        if (self->is_finished_) return;
        if (error && error != http::error::need_buffer) {
          if (self->has_left_) return self->finish(LoadOutcome::left);
          return self->fail(fmt::format("connection: {}", error.message()));
        }
        self->on_bytes({self->block_, sizeof self->block_ - self->parser_.get().body().size});
      });
}

void LoadStream::on_bytes(std::string_view bytes) {
  last_byte_s_ = unix_now_s();
  const bool is_over = parser_.is_done();
  if (record_.status / 100 != 2) {
    if (error_body_.size() < kMaxErrorBytes) error_body_ += bytes;
    if (!is_over) return read_body();
    record_.error = fmt::format("status {}: {}", record_.status, error_body_.substr(0, kShownBytes));
    const bool is_refusal = record_.status == 429 || record_.status == 503;
    return finish(is_refusal ? LoadOutcome::refused : LoadOutcome::error);
  }
  const Status status = lines_.add(bytes, [&](std::string_view data) { return on_event(data); });
  if (is_finished_) return;
  if (!status.ok()) return fail(status.error().message());
  if (lines_.is_done() || is_over) {
    if (has_left_) return finish(LoadOutcome::left);
    if (!lines_.is_done()) return fail("the answer ended without [DONE]");
    if (record_.completion_tokens == 0) return fail("the answer has no token");
    return finish(LoadOutcome::success);
  }
  if (!has_left_ && call_.leave_after_tokens && record_.completion_tokens >= *call_.leave_after_tokens &&
      record_.completion_tokens > 0) {
    leave();
  }
  if (!is_finished_) read_body();
}

Status LoadStream::on_event(std::string_view data) {
  Element event;
  if (client_.parser.parse(data.data(), data.size()).get(event) != simdjson::SUCCESS || !event.is_object()) {
    return Error(Code::corrupt_data, fmt::format("event is no JSON: {}", data.substr(0, kShownBytes)));
  }
  Element error;
  if (event["error"].get(error) == simdjson::SUCCESS && !error.is_null()) {
    return Error(Code::internal, fmt::format("error event: {}", data.substr(0, kShownBytes)));
  }
  on_choices(event, last_byte_s_);
  return Ok();
}

void LoadStream::on_choices(const Element& event, double now_s) {
  append_ids(event, "prompt_token_ids", record_.prompt_ids);
  bool is_text = false;
  simdjson::dom::array choices;
  if (event["choices"].get(choices) == simdjson::SUCCESS) {
    for (const Element choice : choices) {
      is_text = choice_has_text(choice) || is_text;
      append_ids(choice, "prompt_token_ids", record_.prompt_ids);
      append_ids(choice, "token_ids", record_.output_ids);
      std::string_view reason;
      if (choice["finish_reason"].get(reason) == simdjson::SUCCESS) record_.finish_reason = reason;
    }
  }
  if (is_text) {
    if (record_.first_token_s == 0) record_.first_token_s = now_s;
    record_.last_token_s = now_s;
  }
  count_tokens(event, is_text, now_s);
}

void LoadStream::count_tokens(const Element& event, bool is_text, double now_s) {
  const int64_t before = record_.completion_tokens;
  Element usage;
  if (event["usage"].get(usage) == simdjson::SUCCESS && usage.is_object()) {
    record_.usage = simdjson::minify(usage);
    record_.prompt_tokens = integer_at(usage, "prompt_tokens", record_.prompt_tokens);
    record_.completion_tokens = integer_at(usage, "completion_tokens", before);
    Element details;
    if (usage["prompt_tokens_details"].get(details) == simdjson::SUCCESS && details.is_object()) {
      record_.cached_tokens = integer_at(details, "cached_tokens", record_.cached_tokens);
    }
  } else if (is_text && record_.usage.empty()) {
    ++record_.completion_tokens;  // no usage yet: an event counts as a token until there is one
  }
  if (record_.completion_tokens > before) {
    record_.arrivals.push_back({.time_s = now_s, .tokens = record_.completion_tokens - before});
    if (record_.first_token_s == 0) record_.first_token_s = now_s;  // a token without text of its own
    record_.last_token_s = std::max(record_.last_token_s, now_s);
  }
}

void LoadStream::leave() {
  has_left_ = true;
  beast::error_code ignored;
  if (call_.leaving == Leaving::half_close) {
    socket_.shutdown(tcp::socket::shutdown_send, ignored);
    return;
  }
  if (call_.leaving == Leaving::reset) socket_.set_option(asio::socket_base::linger(true, 0), ignored);
  finish(LoadOutcome::left);
}

void LoadStream::fail(std::string why) {
  if (is_finished_) return;
  record_.error = std::move(why);
  finish(has_left_ ? LoadOutcome::left : LoadOutcome::error);
}

void LoadStream::cut_off() {
  if (!is_finished_) finish(has_left_ ? LoadOutcome::left : LoadOutcome::incomplete);
}

/// The callback runs later, so that it may start calls from any place.
void LoadStream::finish(LoadOutcome outcome) {
  if (is_finished_) return;
  is_finished_ = true;
  record_.outcome = outcome;
  record_.end_s = unix_now_s();
  beast::error_code ignored;
  socket_.close(ignored);
  client_.streams.erase(shared_from_this());
  asio::post(client_.context, [self = shared_from_this()] { self->on_end_(std::move(self->record_)); });
}

/// Runs while there are calls.
void LoadClient::Impl::watch_silence() {
  if (silence_s <= 0) return;
  silence_timer.expires_after(kSilenceCheck);
  silence_timer.async_wait([this](const beast::error_code& error) {
    if (error || streams.empty()) return;
    const double now_s = unix_now_s();
    const std::vector<std::shared_ptr<LoadStream>> all(streams.begin(), streams.end());
    for (const auto& stream : all) {
      if (now_s - stream->last_byte_s() > silence_s)
        stream->fail(fmt::format("silent for {:.0f} s", silence_s));
    }
    if (!streams.empty()) watch_silence();
  });
}

LoadClient::LoadClient(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}

LoadClient::~LoadClient() = default;

Result<std::unique_ptr<LoadClient>> LoadClient::create(const HttpClient& server, double silence_s) {
  auto impl = std::make_unique<Impl>();
  beast::error_code error;
  tcp::resolver resolver(impl->context);
  impl->endpoints = resolver.resolve(server.host(), server.port(), error);
  if (error) {
    return Error(Code::unavailable, fmt::format("no server at {}: {}", server.url(), error.message()),
                 "check --url");
  }
  impl->host = fmt::format("{}:{}", server.host(), server.port());
  impl->prefix = server.prefix();
  impl->api_key = server.api_key();
  impl->silence_s = silence_s;
  return std::unique_ptr<LoadClient>(new LoadClient(std::move(impl)));
}

void LoadClient::start(LoadCall call, std::function<void(LoadRecord)> on_end) {
  const bool was_idle = impl_->streams.empty();
  const auto stream = std::make_shared<LoadStream>(*impl_, std::move(call), std::move(on_end));
  impl_->streams.insert(stream);
  stream->start();
  if (was_idle) impl_->watch_silence();
}

void LoadClient::after(double seconds, std::function<void()> action) {
  const auto delay =
      std::chrono::duration_cast<std::chrono::steady_clock::duration>(std::chrono::duration<double>(seconds));
  const auto timer = std::make_shared<asio::steady_timer>(impl_->context, delay);
  timer->async_wait([timer, action = std::move(action)](const beast::error_code& error) {
    if (!error) action();
  });
}

void LoadClient::cut_off() {
  const std::vector<std::shared_ptr<LoadStream>> all(impl_->streams.begin(), impl_->streams.end());
  for (const auto& stream : all) stream->cut_off();
}

void LoadClient::run() {
  impl_->context.run();
}

void LoadClient::stop() {
  impl_->context.stop();
}

}  // namespace rorqual::tools
