// SPDX-License-Identifier: Apache-2.0
// HTTP/1.1 over Boost.Asio with Beast's parser: the only file that sees those headers. One IO thread owns all
// connections, so nothing of them is locked. Other threads reach it through one list of calls, which the IO
// thread takes as a whole; then every connection that got bytes sends them by one system call. Each
// connection always reads, also while its request is being answered: that is how a client that goes away is
// noticed.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <boost/asio.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/http.hpp>
#include <mutex>
#include <thread>
#include <unordered_set>

#include "base/check.h"
#include "server/body_budget.h"
#include "server/connection_limit.h"
#include "server/http.h"
#include "server/http_framing.h"
#include "server/ids.h"

namespace rorqual::server {

namespace asio = boost::asio;
namespace http = boost::beast::http;
using asio::ip::tcp;
using boost::system::error_code;
using Clock = std::chrono::steady_clock;

namespace {

constexpr size_t kReadChunk_bytes = 16 * 1024;
constexpr size_t kPipelined_bytes = 256 * 1024;      // read ahead while a request is being answered
constexpr size_t kBodyStep_bytes = 1u << 20;         // each such step renews the body timeout
constexpr size_t kDiscard_bytes = 64u << 20;         // read and thrown away after an early error
constexpr std::chrono::milliseconds kLinger{2'000};  // time for the client to read the error
constexpr std::chrono::milliseconds kAcceptRetry{100};
constexpr size_t kKeptBuffer_bytes = 64 * 1024;  // of a connection whose bytes are all sent
constexpr const char* kSseComment = ": keep-alive\n\n";
constexpr const char* kBlankLine = "\n";  // JSON may begin with any number of them

class Connection;

/// A call from another thread, to be made on the IO thread: `call`, or a write of `bytes` if there is none.
struct Call {
  std::shared_ptr<Connection> connection;
  uint64_t serial = 0;
  std::string bytes;
  std::function<void(Connection&, uint64_t serial)> call;
};

}  // namespace

struct HttpServer::Impl : std::enable_shared_from_this<HttpServer::Impl> {
  explicit Impl(HttpConfig c)
      : config(std::move(c)), body_budget(std::make_shared<BodyBudget>(config.limits.max_total_body_bytes)) {}

  void add_call(Call call);
  void wake();  // any thread
  void run_calls();
  void mark_unsent(std::shared_ptr<Connection> connection);
  void send_all();

  void accept();
  void on_accepted(const error_code& ec, tcp::socket socket);
  void tick();
  void run();
  void refuse(tcp::socket socket);

  HttpConfig config;
  std::shared_ptr<BodyBudget> body_budget;  // shared with exchanges, which may end later
  asio::io_context io{1};
  asio::executor_work_guard<asio::io_context::executor_type> work{io.get_executor()};
  tcp::acceptor acceptor{io};
  asio::steady_timer retry_timer{io}, tick_timer{io}, close_timer{io};
  std::unordered_set<std::shared_ptr<Connection>> connections;
  std::vector<std::shared_ptr<Connection>> unsent;  // have bytes that were not tried to send yet
  bool is_closing = false, is_running_calls = false, is_send_posted = false;
  uint16_t bound_port = 0;

  std::mutex mutex;         // guards the two below
  std::vector<Call> calls;  // from other threads, in order
  bool is_woken = false;    // run_calls is posted

  std::thread thread;
};

namespace {

class SocketExchange;

/// Servers that calls of this thread wait for, while a write batch is open.
thread_local int t_batch_depth = 0;
thread_local std::vector<std::shared_ptr<HttpServer::Impl>> t_batch_servers;

/// One client socket: requests one after the other. IO thread only.
class Connection : public std::enable_shared_from_this<Connection> {
 public:
  Connection(HttpServer::Impl& server, tcp::socket socket)
      : server_(server),
        limits_(server.config.limits),
        socket_(std::move(socket)),
        read_timer_(server.io),
        write_timer_(server.io),
        comment_timer_(server.io) {}

  void start();
  void close();
  /// Closes now if nothing is being answered or sent, else after the current answer.
  void close_when_idle();

  // Called by the exchange, on the IO thread; `serial` tells an old exchange from the current one.
  void respond(uint64_t serial, HttpResponse response);
  void begin_stream(uint64_t serial, HttpResponse head);
  void fill_wait(uint64_t serial);
  void send_in_chunk(std::string_view bytes);
  void write(uint64_t serial, std::string_view bytes);
  void finish(uint64_t serial);
  void set_disconnect(uint64_t serial, std::function<void()> callback);
  void set_note(uint64_t serial, std::string note);

  std::shared_ptr<HttpServer::Impl> server() const { return server_.shared_from_this(); }

  /// Sends what there is, as far as the socket takes it. From the top of the IO thread only: it may begin the
  /// next request.
  void send_now();

 private:
  enum class State : uint8_t { idle, head, body, handling, draining, closed };

  void read();
  void on_read(const error_code& ec, size_t num_bytes);
  void parse();
  bool on_head();     // false: the request was answered already
  bool count_body();  // the same
  bool is_head_short(size_t used);
  void dispatch();
  void fail(int status, const std::string& message);
  void parse_failed(const error_code& ec);
  void arm_read_timer(std::chrono::milliseconds timeout);
  void on_read_timeout();
  void send(std::string_view bytes);
  std::string& unsent_for_more();
  void wait_for_room();
  void arm_comment_timer(std::chrono::milliseconds delay);
  void on_comment_time();
  void complete();
  void lost();
  void log(int status);
  std::string head_text(const HttpResponse& response, std::optional<size_t> length) const;
  void next_request();
  void after_answer();

  HttpServer::Impl& server_;
  const HttpLimits& limits_;
  tcp::socket socket_;
  asio::steady_timer read_timer_, write_timer_, comment_timer_;
  std::array<char, kReadChunk_bytes> chunk_;
  boost::beast::flat_buffer buffer_;
  std::optional<http::request_parser<http::string_body>> parser_;
  State state_ = State::idle;
  bool is_reading_ = false, is_marked_ = false, is_blocked_ = false, head_done_ = false;
  bool keep_alive_ = true, is_head_request_ = false, is_http10_ = false;
  bool is_streaming_ = false, close_after_write_ = false;
  bool is_waiting_ = false;  // for an answer in one piece, with blank lines
  uint64_t serial_ = 0;
  size_t head_bytes_ = 0, body_mark_ = 0, discarded_ = 0;
  HttpRequest request_;  // head only while reading the body
  std::optional<BodyShare> share_;
  std::shared_ptr<SocketExchange> exchange_;
  std::function<void()> on_disconnect_;
  std::string note_;
  Clock::time_point started_{}, last_write_{};
  int status_ = 0;
  std::string unsent_;
  size_t sent_ = 0;  // of unsent_
};

/// Forwards calls from any thread to the connection's thread.
class SocketExchange : public Exchange, public std::enable_shared_from_this<SocketExchange> {
 public:
  SocketExchange(std::shared_ptr<Connection> connection, uint64_t serial, HttpRequest request,
                 BodyShare share)
      : server_(connection->server()),
        connection_(std::move(connection)),
        serial_(serial),
        request_(std::move(request)),
        share_(std::move(share)) {}

  const HttpRequest& request() const override { return request_; }

  void drop_body() override {
    std::string().swap(request_.body);
    share_.release();
  }

  void respond(HttpResponse response) override {
    post([response = std::move(response)](Connection& c, uint64_t serial) mutable {
      c.respond(serial, std::move(response));
    });
  }

  void begin_stream(HttpResponse head) override {
    post([head = std::move(head)](Connection& c, uint64_t serial) mutable {
      c.begin_stream(serial, std::move(head));
    });
  }

  void fill_wait_with_lines() override {
    post([](Connection& c, uint64_t serial) { c.fill_wait(serial); });
  }

  void write(std::string bytes) override { server_->add_call({connection_, serial_, std::move(bytes), {}}); }

  void finish() override {
    post([](Connection& c, uint64_t serial) { c.finish(serial); });
  }

  void on_disconnect(std::function<void()> callback) override {
    post([callback = std::move(callback)](Connection& c, uint64_t serial) mutable {
      c.set_disconnect(serial, std::move(callback));
    });
  }

  void set_log_note(std::string note) override {
    post([note = std::move(note)](Connection& c, uint64_t serial) mutable {
      c.set_note(serial, std::move(note));
    });
  }

 private:
  void post(std::function<void(Connection&, uint64_t)> function) {
    server_->add_call({connection_, serial_, {}, std::move(function)});
  }

  std::shared_ptr<HttpServer::Impl> server_;  // before connection_: a socket must not outlive its io_context
  std::shared_ptr<Connection> connection_;
  uint64_t serial_;
  HttpRequest request_;
  BodyShare share_;  // as long as the body is kept
};

void Connection::start() {
  error_code ignored;
  socket_.set_option(tcp::no_delay(true), ignored);
  socket_.non_blocking(true, ignored);  // send_now never waits
  next_request();
  arm_read_timer(limits_.header_timeout);  // a fresh connection must speak soon
}

void Connection::close() {
  if (state_ == State::closed) return;
  auto self = shared_from_this();
  if (state_ == State::handling) lost();
  state_ = State::closed;
  error_code ignored;
  socket_.close(ignored);
  read_timer_.cancel();
  write_timer_.cancel();
  comment_timer_.cancel();
  exchange_.reset();  // it holds this connection in turn
  server_.connections.erase(self);
  if (server_.is_closing && server_.connections.empty()) server_.close_timer.cancel();
}

void Connection::close_when_idle() {
  keep_alive_ = false;
  close_after_write_ = true;
  if (state_ != State::handling && unsent_.empty()) close();
}

void Connection::next_request() {
  parser_.emplace();
  parser_->header_limit(static_cast<uint32_t>(limits_.max_header_bytes));
  parser_->body_limit(limits_.max_body_bytes);
  state_ = State::idle;
  head_done_ = false;
  head_bytes_ = 0;
  share_.emplace(server_.body_budget);
  exchange_.reset();
  on_disconnect_ = nullptr;
  is_waiting_ = false;
  note_.clear();
  status_ = 0;
  ++serial_;
  arm_read_timer(limits_.idle_timeout);
  if (buffer_.size() > 0) {
    parse();
  } else {
    read();
  }
}

void Connection::read() {
  if (is_reading_ || state_ == State::closed) return;
  if (state_ == State::handling && buffer_.size() >= kPipelined_bytes) return;
  is_reading_ = true;
  // Not straight into buffer_: the parser may consume from it while this read is pending.
  socket_.async_read_some(asio::buffer(chunk_), [self = shared_from_this()](const error_code& ec, size_t n) {
    self->on_read(ec, n);
  });
}

void Connection::on_read(const error_code& ec, size_t num_bytes) {
  is_reading_ = false;
  if (state_ == State::closed) return;
  if (ec) {
    close();
    return;
  }
  if (state_ == State::draining) {
    discarded_ += num_bytes;
    if (discarded_ > kDiscard_bytes) {
      close();
    } else {
      read();
    }
    return;
  }
  buffer_.commit(asio::buffer_copy(buffer_.prepare(num_bytes), asio::buffer(chunk_.data(), num_bytes)));
  if (state_ == State::handling) {
    read();
  } else {
    parse();
  }
}

void Connection::parse() {
  if (state_ == State::idle) {
    state_ = State::head;
    started_ = Clock::now();
    arm_read_timer(limits_.header_timeout);
  }
  while (true) {
    error_code ec;
    const size_t used = buffer_.size() > 0 ? parser_->put(buffer_.data(), ec) : 0;
    buffer_.consume(used);
    if (ec == http::error::need_more) ec = {};
    if (!ec && !head_done_ && !is_head_short(used)) ec = http::error::header_limit;
    if (ec) {
      parse_failed(ec);
      return;
    }
    if (parser_->is_header_done() && !head_done_) {
      head_done_ = true;
      parser_->eager(true);  // not before: so that what it uses of the head is the head alone
      if (!on_head()) return;
    }
    if (head_done_ && !count_body()) return;
    if (parser_->is_done()) {
      dispatch();
      return;
    }
    if (used == 0 || buffer_.size() == 0) break;
  }
  // Of a body, only the line with a chunk's size and the trailer wait here until they are whole.
  if (state_ == State::body && buffer_.size() > limits_.max_header_bytes) {
    fail(400, "The line with a chunk's size, or the trailer, is longer than " +
                  std::to_string(limits_.max_header_bytes) + " bytes.");
    return;
  }
  if (state_ == State::body && parser_->get().body().size() >= body_mark_ + kBodyStep_bytes) {
    body_mark_ = parser_->get().body().size();
    arm_read_timer(limits_.body_timeout);
  }
  read();
}

bool Connection::on_head() {
  const auto& message = parser_->get();
  state_ = State::body;
  body_mark_ = 0;
  arm_read_timer(limits_.body_timeout);
  keep_alive_ = message.keep_alive() && !close_after_write_;
  is_http10_ = message.version() < 11;
  is_head_request_ = message.method() == http::verb::head;

  request_ = {};
  request_.arrival = started_;
  request_.method = std::string(message.method_string());
  request_.target = std::string(message.target());
  request_.path = request_.target.substr(0, request_.target.find('?'));
  for (const auto& field : message) {
    request_.headers.emplace_back(std::string(field.name_string()), std::string(field.value()));
  }
  const std::string_view id = request_.header("x-request-id");
  request_.id = is_plain_id(id) ? std::string(id) : random_hex(24);
  if (request_.headers.size() > limits_.max_headers) {
    fail(431, "The request has " + std::to_string(request_.headers.size()) + " header fields; the limit is " +
                  std::to_string(limits_.max_headers) + ".");
    return false;
  }
  if (const auto problem = framing_problem(request_, is_http10_)) {
    fail(400, *problem);
    return false;
  }
  if (auto response = server_.config.check_head(request_)) {
    // Without a body the connection is in step and may serve the next request; else it cannot be trusted to
    // be.
    if (!parser_->is_done()) keep_alive_ = false;
    state_ = State::handling;
    respond(serial_, *std::move(response));
    return false;
  }
  if (!parser_->is_done() && equal_ignoring_case(request_.header("expect"), "100-continue")) {
    send("HTTP/1.1 100 Continue\r\n\r\n");
  }
  return true;
}

/// The parser's own limit holds for the part that it has not taken yet: fields that come one by one never
/// meet it.
bool Connection::is_head_short(size_t used) {
  head_bytes_ += used;
  const size_t waiting = parser_->is_header_done() ? 0 : buffer_.size();
  return head_bytes_ + waiting <= limits_.max_header_bytes;
}

bool Connection::count_body() {
  const size_t bytes = parser_->get().body().size();
  if (share_->grow_to(bytes)) return true;
  fail(503, "Request bodies fill the " + std::to_string(server_.body_budget->max_bytes) +
                " bytes that this server keeps for them; this one has come to " + std::to_string(bytes) +
                " bytes. Try again later.");
  return false;
}

void Connection::dispatch() {
  state_ = State::handling;
  read_timer_.cancel();
  request_.body = std::move(parser_->get().body());
  exchange_ =
      std::make_shared<SocketExchange>(shared_from_this(), serial_, std::move(request_), *std::move(share_));
  share_.reset();
  read();
  server_.config.handler(exchange_);
}

/// Answers a request that never reached a route, then closes.
void Connection::fail(int status, const std::string& message) {
  if (request_.id.empty()) request_.id = random_hex(24);
  state_ = State::handling;
  keep_alive_ = false;
  respond(serial_, server_.config.error_response(request_, status, message));
}

void Connection::parse_failed(const error_code& ec) {
  if (!head_done_) request_ = {};
  if (ec == http::error::header_limit) {
    const bool in_target = parser_->get().target().empty();
    fail(in_target ? 414 : 431, fmt::format("The request {} is longer than {} bytes.",
                                            in_target ? "line" : "header", limits_.max_header_bytes));
  } else if (ec == http::error::body_limit) {
    fail(413, fmt::format("The request body is larger than the limit of {} bytes.", limits_.max_body_bytes));
  } else {
    fail(400, "The request is not valid HTTP/1.1: " + ec.message() + ".");
  }
}

void Connection::arm_read_timer(std::chrono::milliseconds timeout) {
  read_timer_.expires_after(timeout);
  read_timer_.async_wait([self = shared_from_this()](const error_code& ec) {
    if (!ec && self->read_timer_.expiry() <= Clock::now()) self->on_read_timeout();
  });
}

void Connection::on_read_timeout() {
  if (state_ == State::head || state_ == State::body) {
    if (!head_done_) request_ = {};
    fail(408, state_ == State::head ? "The request header did not arrive in time."
                                    : "The request body did not arrive in time.");
  } else if (state_ == State::idle || state_ == State::draining) {
    close();
  }
}

/// `length`: bytes of the body, absent for a stream.
std::string Connection::head_text(const HttpResponse& response, std::optional<size_t> length) const {
  return response_head(response, {.length = length,
                                  .is_chunked = !length && !is_http10_,
                                  .keep_alive = keep_alive_,
                                  .id = exchange_ ? exchange_->request().id : request_.id});
}

void Connection::respond(uint64_t serial, HttpResponse response) {
  if (serial != serial_ || state_ != State::handling) return;
  const bool was_waiting = std::exchange(is_waiting_, false);
  if (was_waiting) comment_timer_.cancel();
  if (is_streaming_) {
    if (!was_waiting) return;
    send_in_chunk(response.body);  // the head has gone
    finish(serial);
    return;
  }
  status_ = response.status;
  if (server_.is_closing) keep_alive_ = false;
  server_.config.decorate(exchange_ ? exchange_->request() : request_, response);
  std::string bytes = head_text(response, response.body.size());
  if (!is_head_request_) bytes += response.body;
  complete();
  send(bytes);
}

void Connection::begin_stream(uint64_t serial, HttpResponse head) {
  if (serial != serial_ || state_ != State::handling || is_streaming_) return;
  status_ = head.status;
  is_streaming_ = true;
  server_.config.decorate(exchange_->request(), head);
  if (server_.is_closing || is_http10_) keep_alive_ = false;
  send(head_text(head, std::nullopt));
  last_write_ = Clock::now();
  if (!is_waiting_) arm_comment_timer(limits_.keep_alive_interval);
}

void Connection::fill_wait(uint64_t serial) {
  if (serial != serial_ || state_ != State::handling || is_streaming_ || is_head_request_) return;
  is_waiting_ = true;
  last_write_ = Clock::now();
  arm_comment_timer(limits_.keep_alive_interval);
}

void Connection::write(uint64_t serial, std::string_view bytes) {
  if (serial != serial_ || state_ != State::handling || !is_streaming_ || bytes.empty()) return;
  if (unsent_.size() - sent_ + bytes.size() > limits_.max_unsent_bytes) {
    close();  // the client does not read: the answer is dropped, its generation cancelled
    return;
  }
  send_in_chunk(bytes);
  last_write_ = Clock::now();
}

/// Of an answer without Content-Length.
void Connection::send_in_chunk(std::string_view bytes) {
  if (is_http10_) {
    send(bytes);
  } else {
    append_chunk(unsent_for_more(), bytes);
  }
}

void Connection::finish(uint64_t serial) {
  if (serial != serial_ || state_ != State::handling || !is_streaming_) return;
  comment_timer_.cancel();
  is_streaming_ = false;
  complete();
  if (!is_http10_) {
    send("0\r\n\r\n");
  } else {
    send({});  // what follows an answer begins in send_now
  }
}

void Connection::set_disconnect(uint64_t serial, std::function<void()> callback) {
  if (serial == serial_ && state_ == State::handling) {
    on_disconnect_ = std::move(callback);
  } else if (serial == serial_ && state_ == State::closed && status_ == 499) {
    callback();
  }
}

void Connection::set_note(uint64_t serial, std::string note) {
  if (serial == serial_) note_ = std::move(note);
}

/// One timer for the whole stream: writes only note their time, so that a token costs no timer.
void Connection::arm_comment_timer(std::chrono::milliseconds delay) {
  comment_timer_.expires_after(delay);
  comment_timer_.async_wait([self = shared_from_this()](const error_code& ec) {
    const bool is_due = self->is_streaming_ || self->is_waiting_;
    if (!ec && is_due && self->state_ == State::handling) self->on_comment_time();
  });
}

void Connection::on_comment_time() {
  const auto silence = std::chrono::duration_cast<std::chrono::milliseconds>(Clock::now() - last_write_);
  if (silence < limits_.keep_alive_interval) {
    arm_comment_timer(limits_.keep_alive_interval - silence);
    return;
  }
  const bool is_first_line = is_waiting_ && !is_streaming_;
  if (is_first_line) begin_stream(serial_, {});
  if (unsent_.empty() || is_first_line) send_in_chunk(is_waiting_ ? kBlankLine : kSseComment);
  arm_comment_timer(limits_.keep_alive_interval);
}

/// The answer is complete (perhaps not sent yet): logs it and decides what follows.
void Connection::complete() {
  on_disconnect_ = nullptr;
  log(status_);
  close_after_write_ = close_after_write_ || !keep_alive_;
}

/// The client went away while its request was being answered.
void Connection::lost() {
  status_ = 499;
  auto callback = std::move(on_disconnect_);
  on_disconnect_ = nullptr;
  is_streaming_ = false;
  log(499);
  if (callback) callback();
}

void Connection::log(int status) {
  if (!server_.config.on_access) return;
  const HttpRequest& request = exchange_ ? exchange_->request() : request_;
  server_.config.on_access({request, status, note_,
                            std::chrono::duration_cast<std::chrono::milliseconds>(Clock::now() - started_)});
}

/// The buffer, to append to; what is in it goes out when the IO thread has made all waiting calls.
std::string& Connection::unsent_for_more() {
  if (!is_marked_ && !is_blocked_) {
    is_marked_ = true;
    server_.mark_unsent(shared_from_this());
  }
  return unsent_;
}

void Connection::send(std::string_view bytes) {
  unsent_for_more().append(bytes);
}

void Connection::send_now() {
  is_marked_ = false;
  if (state_ == State::closed || is_blocked_) return;
  error_code ec;
  while (sent_ < unsent_.size()) {
    sent_ += socket_.write_some(asio::buffer(unsent_.data() + sent_, unsent_.size() - sent_), ec);
    if (ec == asio::error::would_block) {
      wait_for_room();
      return;
    }
    if (ec == asio::error::interrupted) continue;
    if (ec) {
      close();
      return;
    }
  }
  unsent_.clear();
  sent_ = 0;
  if (unsent_.capacity() > kKeptBuffer_bytes) unsent_.shrink_to_fit();
  if (state_ == State::handling && !is_streaming_ && status_ != 0) after_answer();
}

/// The client reads slowly: the rest goes when the socket has room again.
void Connection::wait_for_room() {
  is_blocked_ = true;
  unsent_.erase(0, sent_);
  sent_ = 0;
  write_timer_.expires_after(limits_.write_timeout);
  write_timer_.async_wait([self = shared_from_this()](const error_code& ec) {
    if (!ec && self->is_blocked_ && self->write_timer_.expiry() <= Clock::now()) self->close();
  });
  socket_.async_wait(tcp::socket::wait_write, [self = shared_from_this()](const error_code& ec) {
    if (self->state_ == State::closed) return;
    self->is_blocked_ = false;
    self->write_timer_.cancel();
    if (ec) {
      self->close();
    } else {
      self->send_now();
    }
  });
}

/// Everything of the answer has been sent.
void Connection::after_answer() {
  if (!close_after_write_) {
    next_request();
    return;
  }
  // Closing with unread input would reset the connection and may cost the client the answer.
  state_ = State::draining;
  parser_.reset();  // it may hold the beginning of a body, the exchange a whole one
  share_.reset();
  exchange_.reset();
  error_code ignored;
  socket_.shutdown(tcp::socket::shutdown_send, ignored);
  buffer_.consume(buffer_.size());
  arm_read_timer(kLinger);
  read();
}

}  // namespace

/// Any thread. The IO thread is woken at once, or at the end of this thread's write batch.
void HttpServer::Impl::add_call(Call call) {
  {
    const std::lock_guard lock(mutex);
    calls.push_back(std::move(call));
    if (is_woken) return;
    if (t_batch_depth == 0) is_woken = true;
  }
  if (t_batch_depth == 0) {
    asio::post(io, [this] { run_calls(); });
  } else if (t_batch_servers.empty() || t_batch_servers.back().get() != this) {
    t_batch_servers.push_back(shared_from_this());
  }
}

void HttpServer::Impl::wake() {
  {
    const std::lock_guard lock(mutex);
    if (is_woken || calls.empty()) return;
    is_woken = true;
  }
  asio::post(io, [this] { run_calls(); });
}

void HttpServer::Impl::run_calls() {
  std::vector<Call> taken;
  {
    const std::lock_guard lock(mutex);
    taken.swap(calls);
    is_woken = false;
  }
  is_running_calls = true;
  for (Call& c : taken) {
    try {
      if (c.call) {
        c.call(*c.connection, c.serial);
      } else {
        c.connection->write(c.serial, c.bytes);
      }
    } catch (const std::exception& e) {  // the calls after it belong to others
      config.on_exception(e.what());
    }
  }
  is_running_calls = false;
  send_all();
}

void HttpServer::Impl::mark_unsent(std::shared_ptr<Connection> connection) {
  unsent.push_back(std::move(connection));
  if (is_running_calls || is_send_posted) return;
  is_send_posted = true;
  asio::post(io, [this] { send_all(); });
}

/// What becomes unsent meanwhile (the answer to a next request) is sent by a later call.
void HttpServer::Impl::send_all() {
  is_send_posted = false;
  std::vector<std::shared_ptr<Connection>> taken;
  taken.swap(unsent);
  for (const auto& connection : taken) {
    try {
      connection->send_now();
    } catch (const std::exception& e) {
      config.on_exception(e.what());
    }
  }
}

void begin_write_batch() {
  ++t_batch_depth;
}

void end_write_batch() {
  RORQUAL_CHECK(t_batch_depth > 0);
  if (--t_batch_depth > 0) return;
  for (const auto& server : t_batch_servers) server->wake();
  t_batch_servers.clear();
}

void HttpServer::Impl::accept() {
  acceptor.async_accept(
      [this](const error_code& ec, tcp::socket socket) { on_accepted(ec, std::move(socket)); });
}

void HttpServer::Impl::on_accepted(const error_code& ec, tcp::socket socket) {
  if (is_closing || ec == asio::error::operation_aborted) return;
  if (ec) {  // out of descriptors or the like: try again a little later instead of spinning
    retry_timer.expires_after(kAcceptRetry);
    retry_timer.async_wait([this](const error_code& e) {
      if (!e && !is_closing) accept();
    });
    return;
  }
  if (connections.size() >= config.limits.max_connections) {
    refuse(std::move(socket));
  } else {
    auto connection = std::make_shared<Connection>(*this, std::move(socket));
    connections.insert(connection);
    connection->start();
  }
  accept();
}

void HttpServer::Impl::refuse(tcp::socket socket) {
  const HttpResponse response =
      config.error_response({}, 503,
                            "The server has reached its limit of " +
                                std::to_string(config.limits.max_connections) + " connections.");
  const std::string text =
      "HTTP/1.1 503 Service Unavailable\r\nContent-Type: application/json\r\nRetry-After: 1\r\n"
      "Connection: close\r\nContent-Length: " +
      std::to_string(response.body.size()) + "\r\n\r\n" + response.body;
  error_code ignored;
  socket.non_blocking(true, ignored);
  socket.write_some(asio::buffer(text), ignored);
}

void HttpServer::Impl::tick() {
  tick_timer.expires_after(std::chrono::seconds(1));
  tick_timer.async_wait([this](const error_code& ec) {
    if (ec || is_closing) return;
    config.on_tick();
    tick();
  });
}

/// One handler that throws (out of memory, most likely) must not end the server.
void HttpServer::Impl::run() {
  while (true) {
    try {
      io.run();
      return;
    } catch (const std::exception& e) {
      config.on_exception(e.what());
    }
  }
}

HttpServer::HttpServer(std::shared_ptr<Impl> impl) : impl_(std::move(impl)) {}

HttpServer::~HttpServer() {
  close(std::chrono::milliseconds(0));
}

Result<std::unique_ptr<HttpServer>> HttpServer::start(HttpConfig config) {
  RORQUAL_CHECK(config.handler && config.check_head && config.error_response && config.decorate &&
                config.on_exception);
  auto impl = std::make_shared<Impl>(std::move(config));
  HttpConfig& c = impl->config;
  c.limits.max_connections = connection_limit(c.limits.max_connections);

  error_code ec;
  tcp::resolver resolver(impl->io);
  const auto found = resolver.resolve(c.host, std::to_string(c.port), tcp::resolver::passive, ec);
  if (ec || found.empty()) {
    return Error(Code::invalid_argument,
                 "--host '" + c.host + "' is not an address of this machine: " + ec.message(),
                 "use 127.0.0.1, 0.0.0.0 (all interfaces) or an address that `ip addr` shows");
  }
  const tcp::endpoint endpoint = found.begin()->endpoint();
  impl->acceptor.open(endpoint.protocol(), ec);
  if (!ec) impl->acceptor.set_option(tcp::acceptor::reuse_address(true), ec);
  if (!ec) impl->acceptor.bind(endpoint, ec);
  if (!ec) impl->acceptor.listen(asio::socket_base::max_listen_connections, ec);
  if (ec) return bind_error(c, ec.value());
  impl->bound_port = impl->acceptor.local_endpoint(ec).port();

  impl->accept();
  if (c.on_tick) impl->tick();
  impl->thread = std::thread([impl = impl.get()] { impl->run(); });
  return std::unique_ptr<HttpServer>(new HttpServer(std::move(impl)));
}

uint16_t HttpServer::port() const {
  return impl_->bound_port;
}

void HttpServer::close(std::chrono::milliseconds timeout) {
  if (!impl_->thread.joinable()) return;
  asio::post(impl_->io, [impl = impl_.get(), timeout] {
    impl->is_closing = true;
    error_code ignored;
    impl->acceptor.close(ignored);
    impl->retry_timer.cancel();
    impl->tick_timer.cancel();
    const auto close_all = [impl] {
      const auto all = impl->connections;  // close() erases from the set
      for (const auto& connection : all) connection->close();
    };
    const auto idle = impl->connections;
    for (const auto& connection : idle) connection->close_when_idle();
    impl->work.reset();
    if (timeout.count() == 0) {
      close_all();
      return;
    }
    if (impl->connections.empty()) return;
    impl->close_timer.expires_after(timeout);
    impl->close_timer.async_wait([close_all](const error_code& ec) {
      if (!ec) close_all();
    });
  });
  impl_->thread.join();
}

}  // namespace rorqual::server
