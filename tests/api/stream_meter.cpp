// SPDX-License-Identifier: Apache-2.0
// Opens many completion streams at once and notes when each token arrives, at little cost of its own: the
// client of scripts/serve_overhead. stream_meter PORT STREAMS TOKENS PAUSE_MS TOKEN_BYTES MODEL
// [TOKENS_PER_STEP]. The server must send a step of every stream each PAUSE_MS without drift; how late a
// token is counts from the earliest that its stream's rhythm allows. Prints one JSON object.
#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <string_view>
#include <vector>

namespace {

constexpr std::string_view kTextField = "\"text\":\"";
constexpr std::string_view kDone = "data: [DONE]";

struct Stream {
  int socket = -1;
  std::string tail;              // bytes that are not a whole line yet
  std::vector<double> arrivals;  // seconds, one per token
  bool is_done = false;
};

double now_s() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

int open_stream(uint16_t port, const std::string& request) {
  const int fd = socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(port);
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  if (connect(fd, reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0) return -1;
  const int on = 1;
  setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
  if (send(fd, request.data(), request.size(), 0) != static_cast<ssize_t>(request.size())) return -1;
  return fd;
}

std::string request_text(int tokens, const std::string& model) {
  const std::string body = "{\"model\":\"" + model +
                           "\",\"prompt\":\"a\",\"stream\":true,\"ignore_eos\":true," +
                           "\"temperature\":0,\"max_tokens\":" + std::to_string(tokens) + "}";
  return "POST /v1/completions HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: "
         "application/json\r\nContent-Length: " +
         std::to_string(body.size()) + "\r\n\r\n" + body;
}

/// Counts the tokens of the whole lines in `bytes`.
void take(Stream& stream, std::string_view bytes, size_t token_bytes, double at_s) {
  stream.tail.append(bytes);
  size_t begin = 0;
  for (size_t end = stream.tail.find('\n'); end != std::string::npos; end = stream.tail.find('\n', begin)) {
    const std::string_view line = std::string_view(stream.tail).substr(begin, end - begin);
    begin = end + 1;
    if (line.starts_with(kDone)) stream.is_done = true;
    const size_t field = line.find(kTextField);
    if (field == std::string_view::npos) continue;
    const size_t text = field + kTextField.size();
    const size_t count = (line.find('"', text) - text) / token_bytes;
    stream.arrivals.insert(stream.arrivals.end(), count, at_s);
  }
  stream.tail.erase(0, begin);
}

/// How late each token is, in milliseconds.
std::vector<double> lateness_ms(const std::vector<Stream>& streams, double pause_s, size_t per_step) {
  std::vector<double> all;
  for (const Stream& stream : streams) {
    double base = 1e300;
    const auto offset = [&](size_t i) {
      return stream.arrivals[i] - static_cast<double>(i / per_step) * pause_s;
    };
    for (size_t i = 0; i < stream.arrivals.size(); ++i) base = std::min(base, offset(i));
    for (size_t i = 0; i < stream.arrivals.size(); ++i) all.push_back(1e3 * (offset(i) - base));
  }
  std::sort(all.begin(), all.end());
  return all;
}

bool receive(Stream& stream, size_t token_bytes) {
  static char buffer[65536];
  const ssize_t got = recv(stream.socket, buffer, sizeof buffer, MSG_DONTWAIT);
  const double at_s = now_s();
  if (got > 0) take(stream, {buffer, static_cast<size_t>(got)}, token_bytes, at_s);
  if (got == 0 || (got < 0 && errno != EAGAIN)) stream.is_done = true;
  return stream.is_done;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 7) {
    std::fprintf(stderr,
                 "usage: stream_meter PORT STREAMS TOKENS PAUSE_MS TOKEN_BYTES MODEL [TOKENS_PER_STEP]\n");
    return 2;
  }
  const auto port = static_cast<uint16_t>(std::atoi(argv[1]));
  const int num_streams = std::atoi(argv[2]), tokens = std::atoi(argv[3]);
  const double pause_s = std::atof(argv[4]) / 1e3;
  const auto token_bytes = static_cast<size_t>(std::atoi(argv[5]));
  const size_t per_step = argc > 7 ? static_cast<size_t>(std::atoi(argv[7])) : 1;
  const std::string request = request_text(tokens, argv[6]);
  const int poller = epoll_create1(0);
  std::vector<Stream> streams(static_cast<size_t>(num_streams));
  for (size_t i = 0; i < streams.size(); ++i) {
    streams[i].arrivals.reserve(static_cast<size_t>(tokens));
    streams[i].socket = open_stream(port, request);
    if (streams[i].socket < 0) return std::perror("stream_meter: connect"), 1;
    epoll_event event{};
    event.events = EPOLLIN;
    event.data.u64 = i;
    epoll_ctl(poller, EPOLL_CTL_ADD, streams[i].socket, &event);
  }
  size_t num_open = streams.size();
  epoll_event events[256];
  while (num_open > 0) {
    const int count = epoll_wait(poller, events, 256, 10'000);
    if (count <= 0) break;
    for (int i = 0; i < count; ++i) {
      Stream& stream = streams[events[i].data.u64];
      if (stream.is_done || !receive(stream, token_bytes)) continue;
      close(stream.socket);
      --num_open;
    }
  }
  size_t total = 0;
  for (const Stream& stream : streams) total += stream.arrivals.size();
  const std::vector<double> late = lateness_ms(streams, pause_s, per_step);
  const auto at = [&](double share) {
    return late.empty() ? 0.0
                        : late[std::min(late.size() - 1,
                                        static_cast<size_t>(share * static_cast<double>(late.size())))];
  };
  std::printf(
      "{\"streams\":%d,\"tokens\":%zu,\"unfinished_streams\":%zu,\"late_ms\":{\"p50\":%.3f,\"p90\":%.3f,"
      "\"p99\":%.3f,\"max\":%.3f}}\n",
      num_streams, total, num_open, at(0.5), at(0.9), at(0.99), late.empty() ? 0.0 : late.back());
  return num_open == 0 ? 0 : 1;
}
