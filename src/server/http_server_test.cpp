// SPDX-License-Identifier: Apache-2.0
// The HTTP layer against a plain socket: framing, limits, time-outs, disconnects, streams.
#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <future>
#include <mutex>

#include "server/error_body.h"
#include "server/http.h"

namespace rorqual::server {
namespace {

using std::chrono::milliseconds;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

/// A blocking client; reads give up after five seconds so that a failing test ends.
class Client {
 public:
  explicit Client(uint16_t port, int receive_buffer = 0) : fd_(socket(AF_INET, SOCK_STREAM, 0)) {
    const timeval limit{5, 0};
    setsockopt(fd_, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
    if (receive_buffer > 0) setsockopt(fd_, SOL_SOCKET, SO_RCVBUF, &receive_buffer, sizeof receive_buffer);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(port);
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    EXPECT_EQ(connect(fd_, reinterpret_cast<sockaddr*>(&address), sizeof address), 0);
  }

  ~Client() { close(); }

  void close() {
    if (fd_ >= 0) ::close(fd_);
    fd_ = -1;
  }

  void half_close() { shutdown(fd_, SHUT_WR); }

  void send(const std::string& text) {
    size_t sent = 0;
    while (sent < text.size()) {
      const ssize_t n = ::send(fd_, text.data() + sent, text.size() - sent, MSG_NOSIGNAL);
      if (n <= 0) return;  // the server may close early on purpose
      sent += static_cast<size_t>(n);
    }
  }

  /// Reads until `mark` has come or the connection ends; keeps what follows the mark.
  std::string read_until(const std::string& mark) {
    char bytes[4096];
    while (true) {
      if (const size_t at = buffer_.find(mark); at != std::string::npos) {
        const std::string out = buffer_.substr(0, at + mark.size());
        buffer_.erase(0, at + mark.size());
        return out;
      }
      const ssize_t n = recv(fd_, bytes, sizeof bytes, 0);
      if (n <= 0) return std::exchange(buffer_, {}) + (n == 0 ? "<eof>" : "<timeout>");
      buffer_.append(bytes, static_cast<size_t>(n));
    }
  }

  std::string read_all() { return read_until("\x01 never \x01"); }

 private:
  int fd_;
  std::string buffer_;
};

class HttpServerTest : public ::testing::Test {
 protected:
  void start(HttpHandler handler) {
    config_.host = "127.0.0.1";
    config_.handler = std::move(handler);
    if (!config_.check_head) config_.check_head = [](const HttpRequest&) { return std::nullopt; };
    config_.decorate = [](const HttpRequest&, HttpResponse&) {};
    config_.error_response = [](const HttpRequest& request, int status, const std::string& message) {
      return error_response(http_error(status, message), request);
    };
    config_.on_exception = [](const char* what) { ADD_FAILURE() << what; };
    config_.on_access = [this](const AccessRecord& record) {
      const std::lock_guard lock(mutex_);
      statuses_.push_back(record.status);
    };
    auto server = HttpServer::start(config_);
    ASSERT_TRUE(server.ok()) << server.error().message();
    server_ = *std::move(server);
  }

  /// Answers with method, path and body.
  void start_echo() {
    start([](const std::shared_ptr<Exchange>& exchange) {
      HttpResponse response;
      response.content_type = "text/plain";
      response.body =
          exchange->request().method + " " + exchange->request().path + " " + exchange->request().body + "\n";
      exchange->respond(std::move(response));
    });
  }

  std::string exchange_bytes(const std::string& bytes) {
    Client client(server_->port());
    client.send(bytes);
    client.half_close();
    return client.read_all();
  }

  std::string ask_once(const std::string& head_and_body) {
    Client client(server_->port());
    client.send(head_and_body);
    return client.read_all();
  }

  HttpConfig config_{.limits = {.max_header_bytes = 16 * 1024,
                                .max_headers = 100,
                                .max_body_bytes = 64 * 1024,
                                .max_connections = 100,
                                .max_unsent_bytes = 1u << 20,
                                .max_total_body_bytes = 64u << 20,
                                .header_timeout = milliseconds(5000),
                                .body_timeout = milliseconds(5000),
                                .idle_timeout = milliseconds(5000),
                                .write_timeout = milliseconds(5000),
                                .keep_alive_interval = milliseconds(5000)}};
  std::mutex mutex_;
  std::vector<int> statuses_;
  std::unique_ptr<HttpServer> server_;  // last: its thread uses the others until it is joined
};

TEST_F(HttpServerTest, AnswersSeveralRequestsOnOneConnection) {
  start_echo();
  Client client(server_->port());
  for (int i = 0; i < 3; ++i) {
    client.send("POST /a" + std::to_string(i) + "?x=1 HTTP/1.1\r\nHost: h\r\nContent-Length: 2\r\n\r\nhi");
    EXPECT_THAT(client.read_until("\r\n\r\n"),
                AllOf(StartsWith("HTTP/1.1 200 OK\r\n"), HasSubstr("keep-alive")));
    EXPECT_EQ(client.read_until("\n"), "POST /a" + std::to_string(i) + " hi\n");
  }
}

TEST_F(HttpServerTest, AnswersPipelinedRequestsInOrder) {
  start_echo();
  Client client(server_->port());
  client.send(
      "GET /one HTTP/1.1\r\nHost: h\r\n\r\nGET /two HTTP/1.1\r\nHost: h\r\n\r\n"
      "POST /three HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nab\r\n1\r\nc\r\n0\r\n\r\n");
  EXPECT_THAT(client.read_until("GET /one \n"), StartsWith("HTTP/1.1 200"));
  EXPECT_THAT(client.read_until("GET /two \n"), StartsWith("HTTP/1.1 200"));
  EXPECT_THAT(client.read_until("POST /three abc\n"), StartsWith("HTTP/1.1 200"));
}

TEST_F(HttpServerTest, ReadsARequestThatArrivesByteByByte) {
  start_echo();
  Client client(server_->port());
  for (const char c : std::string("POST /p HTTP/1.1\r\nHost: h\r\nContent-Length: 3\r\n\r\nxyz"))
    client.send(std::string(1, c));
  EXPECT_THAT(client.read_until("POST /p xyz\n"), StartsWith("HTTP/1.1 200"));
}

TEST_F(HttpServerTest, RefusesHeadersAndRequestLinesThatAreTooLong) {
  start_echo();
  const std::string long_text(40'000, 'a');
  EXPECT_THAT(ask_once("GET / HTTP/1.1\r\nHost: h\r\nX: " + long_text + "\r\n\r\n"),
              StartsWith("HTTP/1.1 431"));
  EXPECT_THAT(ask_once("GET /" + long_text + " HTTP/1.1\r\nHost: h\r\n\r\n"), StartsWith("HTTP/1.1 414"));
  std::string many = "GET / HTTP/1.1\r\nHost: h\r\n";
  for (int i = 0; i < 150; ++i) many += "A: b\r\n";
  EXPECT_THAT(ask_once(many + "\r\n"), AllOf(StartsWith("HTTP/1.1 431"), HasSubstr("151 header fields")));
}

TEST_F(HttpServerTest, RefusesBodiesThatAreTooLargeBeforeReadingThem) {
  start_echo();
  EXPECT_THAT(ask_once("POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 1000000000\r\n\r\n"),
              AllOf(StartsWith("HTTP/1.1 413"), HasSubstr("65536"), HasSubstr("Connection: close")));
  std::string chunks = "POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n";
  for (int i = 0; i < 20; ++i) chunks += "2000\r\n" + std::string(0x2000, 'x') + "\r\n";
  EXPECT_THAT(ask_once(chunks), StartsWith("HTTP/1.1 413"));
}

TEST_F(HttpServerTest, RefusesAmbiguousAndMalformedRequests) {
  start_echo();
  for (const char* bytes : {
           "POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
           "POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\nContent-Length: 3\r\n\r\n0\r\n\r\n",
           "POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 3\r\nContent-Length: 4\r\n\r\nabcd",
           "POST / HTTP/1.1\r\nHost: h\r\nContent-Length: -1\r\n\r\n",
           "POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 1x\r\n\r\n",
           "POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\nZZ\r\n",
           "GET / HTTP/1.1\r\nHo st: h\r\n\r\n",
           "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
           "GET /\x01 HTTP/1.1\r\nHost: h\r\n\r\n",
           "nonsense\r\n\r\n",
       }) {
    EXPECT_THAT(ask_once(bytes), StartsWith("HTTP/1.1 400")) << bytes;
  }
}

/// What a proxy in front could read as another request than we do. Beast takes most of these.
TEST_F(HttpServerTest, RefusesFormsOfSmuggling) {
  start_echo();
  for (const char* fields : {
           "Host: h\r\nTransfer-Encoding: gzip\r\n",
           "Host: h\r\nTransfer-Encoding: identity\r\n",
           "Host: h\r\nTransfer-Encoding: xchunked\r\n",
           "Host: h\r\nTransfer-Encoding: chunked, gzip\r\n",
           "Host: h\r\nTransfer-Encoding: gzip, chunked\r\n",
           "Host: h\r\nTransfer-Encoding: chunked, chunked\r\n",
           "Host: h\r\nTransfer-Encoding: gzip\r\nTransfer-Encoding: chunked\r\n",
           "Host: h\r\nTransfer-Encoding: xchunked\r\nContent-Length: 5\r\n",
           "Host: h\r\nTransfer-Encoding: \r\nContent-Length: 5\r\n",
           "Host: h\r\nTransfer-Encoding : chunked\r\n",
           "Host: h\r\nContent-Length: 5\r\nContent-Length: 5\r\n",
           "Host: h\r\nContent-Length: 5, 5\r\n",
           "Host: h\r\nContent-Length: +5\r\n",
           "Host: h\r\nContent-Length: 0x5\r\n",
           "Host: h\r\nContent-Length:\r\n",
           "Host: h\r\nContent-Length: 18446744073709551621\r\n",
           "Host: h\r\nHost: h\r\nContent-Length: 5\r\n",
           "Host: h\r\nX: a\rb\r\nContent-Length: 5\r\n",
           "Host: h\nContent-Length: 5\r\n",
           "Content-Length: 5\r\n",
           "Host: a b\r\nContent-Length: 5\r\n",
           "Host: h@evil\r\nContent-Length: 5\r\n",
           "Host: h/\r\nContent-Length: 5\r\n",
       }) {
    const std::string answer = ask_once(std::string("POST /a HTTP/1.1\r\n") + fields +
                                        "\r\n0\r\n\r\nGET /smuggled HTTP/1.1\r\n\r\n");
    EXPECT_THAT(answer,
                AllOf(StartsWith("HTTP/1.1 400"), HasSubstr("Connection: close"), Not(HasSubstr("smuggled"))))
        << fields;
  }
  EXPECT_THAT(ask_once("POST / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"),
              StartsWith("HTTP/1.1 400"));
  EXPECT_THAT(
      ask_once("POST /a HTTP/1.1\r\nHost: h:1\r\nConnection: close\r\nTransfer-Encoding: Chunked\r\n\r\n"
               "2;x=y\r\nab\r\n0\r\nT: u\r\n\r\n"),
      EndsWith("POST /a ab\n<eof>"));
}

TEST_F(HttpServerTest, BoundsHeadsThatComeFieldByField) {
  start_echo();
  Client client(server_->port());
  client.send("GET / HTTP/1.1\r\nHost: h\r\n");
  for (int i = 0; i < 2000; ++i) client.send("A: 0123456789\r\n");  // 30 KB, without an end
  EXPECT_THAT(client.read_all(), StartsWith("HTTP/1.1 431"));
  const std::string line = "GET / HTTP/1.1\r\n",
                    head = "Host: h\r\nConnection: close\r\nX: ", tail = "\r\n\r\n";
  const size_t room = 16 * 1024 - line.size() - head.size() - tail.size();
  EXPECT_THAT(ask_once(line + head + std::string(room, 'a') + tail), StartsWith("HTTP/1.1 200"));
  EXPECT_THAT(ask_once(line + head + std::string(room + 1, 'a') + tail), StartsWith("HTTP/1.1 431"));
}

TEST_F(HttpServerTest, BoundsTheBytesBetweenChunks) {
  start_echo();
  const std::string head = "POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n";
  const std::string filler(1u << 20, 'a');
  for (const char* begin : {"1;", "1\r\nx\r\n2;n=", "0\r\nTrailer: ", "0;"}) {
    EXPECT_THAT(ask_once(head + begin + filler), AllOf(StartsWith("HTTP/1.1 400"), HasSubstr("16384")))
        << begin;
  }
}

TEST_F(HttpServerTest, RefusesBodiesThatFillTheMemoryKeptForThem) {
  config_.limits.max_body_bytes = 1u << 20;
  config_.limits.max_total_body_bytes = 3u << 19;
  std::promise<std::shared_ptr<Exchange>> first;
  start([&, count = 0](const std::shared_ptr<Exchange>& exchange) mutable {
    if (++count == 1) {
      first.set_value(exchange);
    } else {
      exchange->respond({});
    }
  });
  const auto post = [](size_t bytes) {
    return "POST / HTTP/1.1\r\nHost: h\r\nConnection: close\r\nContent-Length: " + std::to_string(bytes) +
           "\r\n\r\n" + std::string(bytes, 'x');
  };
  Client client(server_->port());
  client.send(post(1u << 20));
  auto held = first.get_future().get();
  EXPECT_THAT(ask_once(post(1u << 20)),
              AllOf(StartsWith("HTTP/1.1 503"), HasSubstr("Retry-After"), HasSubstr("1572864")));
  EXPECT_THAT(ask_once(post(200'000)), StartsWith("HTTP/1.1 200"));  // a small one passes
  held->respond({});
  held.reset();
  client.read_all();
  EXPECT_THAT(ask_once(post(1u << 20)), StartsWith("HTTP/1.1 200"));
}

TEST_F(HttpServerTest, ServesOthersAfterAnError) {
  start_echo();
  ask_once("nonsense\r\n\r\n");
  EXPECT_THAT(ask_once("GET /ok HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n"),
              EndsWith("GET /ok \n<eof>"));
}

TEST_F(HttpServerTest, ClosesConnectionsThatAreTooSlow) {
  config_.limits.header_timeout = milliseconds(50);
  config_.limits.body_timeout = milliseconds(50);
  start_echo();
  EXPECT_EQ(ask_once(""), "<eof>");  // open and silent
  EXPECT_THAT(ask_once("GET / HTTP/1.1\r\nHo"), AllOf(StartsWith("HTTP/1.1 408"), EndsWith("<eof>")));
  EXPECT_THAT(ask_once("POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 9\r\n\r\nabc"),
              AllOf(StartsWith("HTTP/1.1 408"), HasSubstr("body")));
}

TEST_F(HttpServerTest, ClosesIdleConnections) {
  config_.limits.idle_timeout = milliseconds(50);
  start_echo();
  EXPECT_THAT(ask_once("GET /x HTTP/1.1\r\nHost: h\r\n\r\n"), EndsWith("GET /x \n<eof>"));
}

TEST_F(HttpServerTest, SendsNoBodyForHeadAndClosesForHttp10) {
  start_echo();
  EXPECT_THAT(ask_once("HEAD /x HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n"),
              AllOf(HasSubstr("Content-Length: 9\r\n"), EndsWith("\r\n\r\n<eof>")));
  EXPECT_THAT(ask_once("GET /x HTTP/1.0\r\n\r\n"),
              AllOf(HasSubstr("Connection: close"), EndsWith("GET /x \n<eof>")));
}

TEST_F(HttpServerTest, EchoesPlainRequestIdsOnly) {
  start_echo();
  const auto ask = [&](const std::string& id) {
    return ask_once("GET / HTTP/1.1\r\nHost: h\r\nX-Request-Id: " + id + "\r\nConnection: close\r\n\r\n");
  };
  EXPECT_THAT(ask("my-id.1"), HasSubstr("X-Request-Id: my-id.1\r\n"));
  EXPECT_THAT(ask("<script>"), Not(HasSubstr("script")));
  EXPECT_THAT(ask(std::string(200, 'a')), Not(HasSubstr(std::string(200, 'a'))));
}

TEST_F(HttpServerTest, AnswersExpectContinueOnlyWhenTheHeadIsAccepted) {
  config_.check_head = [](const HttpRequest& request) -> std::optional<HttpResponse> {
    if (request.path == "/no") return error_response({.status = 401, .message = "key"}, request);
    return std::nullopt;
  };
  start_echo();
  Client client(server_->port());
  client.send("POST /yes HTTP/1.1\r\nHost: h\r\nExpect: 100-continue\r\nContent-Length: 2\r\n\r\n");
  EXPECT_EQ(client.read_until("\r\n\r\n"), "HTTP/1.1 100 Continue\r\n\r\n");
  client.send("ab");
  EXPECT_THAT(client.read_until("POST /yes ab\n"), StartsWith("HTTP/1.1 200"));
  EXPECT_THAT(ask_once("POST /no HTTP/1.1\r\nHost: h\r\nExpect: 100-continue\r\nContent-Length: 2\r\n\r\n"),
              AllOf(StartsWith("HTTP/1.1 401"), HasSubstr("Connection: close")));
}

TEST_F(HttpServerTest, StreamsInChunksAndKeepsTheConnection) {
  start([](const std::shared_ptr<Exchange>& exchange) {
    exchange->begin_stream({.content_type = "text/event-stream"});
    exchange->write("data: 1\n\n");
    exchange->write("data: 2\n\n");
    exchange->finish();
  });
  Client client(server_->port());
  for (int i = 0; i < 2; ++i) {
    client.send("GET / HTTP/1.1\r\nHost: h\r\n\r\n");
    EXPECT_THAT(client.read_until("\r\n\r\n"), HasSubstr("Transfer-Encoding: chunked"));
    EXPECT_EQ(client.read_until("0\r\n\r\n"), "9\r\ndata: 1\n\n\r\n9\r\ndata: 2\n\n\r\n0\r\n\r\n");
  }
  EXPECT_THAT(ask_once("GET / HTTP/1.0\r\n\r\n"), EndsWith("\r\n\r\ndata: 1\n\ndata: 2\n\n<eof>"));
}

TEST_F(HttpServerTest, SendsCommentsWhileAStreamIsSilent) {
  config_.limits.keep_alive_interval = milliseconds(20);
  std::shared_ptr<Exchange> held;
  std::promise<void> begun;
  start([&](const std::shared_ptr<Exchange>& exchange) {
    exchange->begin_stream({.content_type = "text/event-stream"});
    held = exchange;
    begun.set_value();
  });
  Client client(server_->port());
  client.send("GET / HTTP/1.1\r\nHost: h\r\n\r\n");
  begun.get_future().wait();
  client.read_until(": keep-alive\n\n");
  EXPECT_THAT(client.read_until(": keep-alive\n\n"), EndsWith(": keep-alive\n\n"));
  held->finish();
  EXPECT_THAT(client.read_until("0\r\n\r\n"), EndsWith("0\r\n\r\n"));
}

TEST_F(HttpServerTest, TellsWhenTheClientGoesAway) {
  for (const bool is_stream : {false, true}) {
    for (const bool half : {false, true}) {
      auto gone = std::make_shared<std::promise<void>>();
      std::promise<std::shared_ptr<Exchange>> got;
      start([&, gone](const std::shared_ptr<Exchange>& exchange) {
        if (is_stream) exchange->begin_stream({.content_type = "text/event-stream"});
        exchange->on_disconnect([gone] { gone->set_value(); });
        got.set_value(exchange);
      });
      Client client(server_->port());
      client.send("GET / HTTP/1.1\r\nHost: h\r\n\r\n");
      const auto exchange = got.get_future().get();
      if (half) {
        client.half_close();
      } else {
        client.close();
      }
      EXPECT_EQ(gone->get_future().wait_for(std::chrono::seconds(5)), std::future_status::ready);
      std::promise<void> late;
      exchange->on_disconnect([&late] { late.set_value(); });  // told at once
      EXPECT_EQ(late.get_future().wait_for(std::chrono::seconds(5)), std::future_status::ready);
      exchange->write("ignored");
      exchange->respond({});
      server_.reset();
      EXPECT_THAT(statuses_, ::testing::ElementsAre(499));
      statuses_.clear();
    }
  }
}

TEST_F(HttpServerTest, LetsGoOfARequestWhenItsConnectionCloses) {
  std::weak_ptr<Exchange> exchange;
  start([&exchange](const std::shared_ptr<Exchange>& e) {
    exchange = e;
    e->respond({});
  });
  ask_once("GET / HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n");
  server_.reset();
  EXPECT_TRUE(exchange.expired());
}

TEST_F(HttpServerTest, CutsAStreamThatNobodyReads) {
  std::promise<void> gone;
  std::promise<std::shared_ptr<Exchange>> got;
  start([&](const std::shared_ptr<Exchange>& exchange) {
    exchange->begin_stream({.content_type = "text/event-stream"});
    exchange->on_disconnect([&gone] { gone.set_value(); });
    got.set_value(exchange);
  });
  Client client(server_->port(), 4096);
  client.send("GET / HTTP/1.1\r\nHost: h\r\n\r\n");
  const auto exchange = got.get_future().get();
  for (int i = 0; i < 200; ++i) exchange->write(std::string(100'000, 'x'));
  EXPECT_EQ(gone.get_future().wait_for(std::chrono::seconds(5)), std::future_status::ready);
}

TEST_F(HttpServerTest, CutsAnAnswerWhoseClientStopsReading) {
  config_.limits.write_timeout = milliseconds(50);
  std::promise<void> done;
  start([&](const std::shared_ptr<Exchange>& exchange) {
    HttpResponse response;
    response.body = std::string(64u << 20, 'x');
    exchange->respond(std::move(response));
    done.set_value();
  });
  Client client(server_->port(), 4096);
  client.send("GET / HTTP/1.1\r\nHost: h\r\n\r\n");
  done.get_future().wait();
  server_->close(std::chrono::seconds(20));  // returns when the connection was cut, long before
  EXPECT_THAT(client.read_all(), StartsWith("HTTP/1.1 200"));
}

TEST_F(HttpServerTest, RefusesConnectionsBeyondTheLimitAndRecovers) {
  config_.limits.max_connections = 2;
  start_echo();
  {
    Client a(server_->port()), b(server_->port());
    a.send("GET /a HTTP/1.1\r\nHost: h\r\n\r\n");
    b.send("GET /b HTTP/1.1\r\nHost: h\r\n\r\n");
    a.read_until("GET /a \n");
    b.read_until("GET /b \n");
    EXPECT_THAT(Client(server_->port()).read_all(),
                AllOf(StartsWith("HTTP/1.1 503"), HasSubstr("Retry-After")));
    // Ends one and waits until the server has noticed: its own end of the connection closes, too.
    a.half_close();
    EXPECT_EQ(a.read_all(), "<eof>");
  }
  EXPECT_THAT(ask_once("GET /c HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n"), HasSubstr("GET /c"));
}

TEST_F(HttpServerTest, ReportsAPortInUse) {
  start_echo();
  HttpConfig second = config_;
  second.port = server_->port();
  auto result = HttpServer::start(second);
  ASSERT_FALSE(result.ok());
  EXPECT_EQ(result.error().code(), Code::io);
  EXPECT_THAT(result.error().message(), HasSubstr("in use"));
  second.host = "no.such.host.invalid";
  EXPECT_EQ(HttpServer::start(second).error().code(), Code::invalid_argument);
}

}  // namespace
}  // namespace rorqual::server
