// SPDX-License-Identifier: Apache-2.0
// Checks of Host, Content-Length and Transfer-Encoding; heads and chunks of answers.
#include "server/http_framing.h"

#include <algorithm>
#include <charconv>
#include <vector>

namespace rorqual::server {

namespace {

constexpr size_t kQuoted_bytes = 100;  // of a value, in a message

std::vector<std::string_view> values_of(const HttpRequest& request, std::string_view name) {
  std::vector<std::string_view> values;
  for (const auto& [key, value] : request.headers) {
    if (equal_ignoring_case(key, name)) values.push_back(value);
  }
  return values;
}

/// Letters of other scripts and percent sequences are left out: clients send names in their ASCII form.
bool is_host_text(std::string_view host) {
  return std::all_of(host.begin(), host.end(), [](char c) {
    const bool is_word = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9');
    return is_word || c == '.' || c == '-' || c == '_' || c == ':' || c == '[' || c == ']';
  });
}

std::string quoted(std::string_view value) {
  return "'" + std::string(value.substr(0, kQuoted_bytes)) + "'";
}

std::optional<std::string> host_problem(const HttpRequest& request, bool is_http10) {
  const auto hosts = values_of(request, "host");
  if (hosts.size() > 1 || (hosts.empty() && !is_http10)) {
    return "The request has " + std::to_string(hosts.size()) + " Host fields, expected one.";
  }
  if (!hosts.empty() && !is_host_text(hosts.front())) {
    return "Host is " + quoted(hosts.front()) + ", expected a name or an address, perhaps with a port.";
  }
  return std::nullopt;
}

}  // namespace

std::optional<std::string> framing_problem(const HttpRequest& request, bool is_http10) {
  if (auto problem = host_problem(request, is_http10)) return problem;
  const auto lengths = values_of(request, "content-length");
  if (lengths.size() > 1 || (!lengths.empty() && lengths.front().find(',') != std::string_view::npos)) {
    return "Content-Length is given more than once, expected one number.";
  }
  const auto codings = values_of(request, "transfer-encoding");
  if (codings.empty()) return std::nullopt;
  if (is_http10) return "Transfer-Encoding is not a part of HTTP/1.0; send HTTP/1.1 or Content-Length.";
  if (!lengths.empty())
    return "Content-Length and Transfer-Encoding contradict each other; send one of them.";
  if (codings.size() > 1 || !equal_ignoring_case(codings.front(), "chunked")) {
    return "Transfer-Encoding is " + quoted(codings.front()) + ", expected chunked, once.";
  }
  return std::nullopt;
}

std::string response_head(const HttpResponse& response, const HeadFacts& facts) {
  std::string head =
      "HTTP/1.1 " + std::to_string(response.status) + " " + reason_phrase(response.status) + "\r\n";
  const auto add = [&head](std::string_view name, std::string_view value) {
    head.append(name).append(": ").append(value).append("\r\n");
  };
  if (!response.content_type.empty()) add("Content-Type", response.content_type);
  const bool has_length = facts.length && response.status != 204 && response.status != 304;
  if (has_length) add("Content-Length", std::to_string(*facts.length));
  if (facts.is_chunked) add("Transfer-Encoding", "chunked");
  add("X-Request-Id", facts.id);
  add("X-Content-Type-Options", "nosniff");
  for (const auto& [name, value] : response.headers) add(name, value);
  add("Connection", facts.keep_alive ? "keep-alive" : "close");
  return head + "\r\n";
}

void append_chunk(std::string& out, std::string_view bytes) {
  char size[20];
  const auto end = std::to_chars(size, size + 16, bytes.size(), 16).ptr;
  out.append(size, end).append("\r\n").append(bytes).append("\r\n");
}

}  // namespace rorqual::server
