// SPDX-License-Identifier: Apache-2.0
// Small parts of the HTTP types that need no network library.
#include "server/http.h"

#include <algorithm>
#include <cerrno>
#include <cstring>

namespace rorqual::server {

namespace {

char lower(char c) {
  return c >= 'A' && c <= 'Z' ? static_cast<char>(c + ('a' - 'A')) : c;
}

}  // namespace

bool equal_ignoring_case(std::string_view a, std::string_view b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(),
                    [](char x, char y) { return lower(x) == lower(y); });
}

std::string_view HttpRequest::header(std::string_view name) const {
  for (const auto& [key, value] : headers) {
    if (equal_ignoring_case(key, name)) return value;
  }
  return {};
}

const char* reason_phrase(int status) {
  switch (status) {
    case 100:
      return "Continue";
    case 200:
      return "OK";
    case 204:
      return "No Content";
    case 304:
      return "Not Modified";
    case 400:
      return "Bad Request";
    case 401:
      return "Unauthorized";
    case 403:
      return "Forbidden";
    case 404:
      return "Not Found";
    case 405:
      return "Method Not Allowed";
    case 408:
      return "Request Timeout";
    case 413:
      return "Content Too Large";
    case 414:
      return "URI Too Long";
    case 415:
      return "Unsupported Media Type";
    case 429:
      return "Too Many Requests";
    case 431:
      return "Request Header Fields Too Large";
    case 501:
      return "Not Implemented";
    case 503:
      return "Service Unavailable";
    case 504:
      return "Gateway Timeout";
    default:
      return status >= 500 ? "Internal Server Error" : "Error";
  }
}

Error bind_error(const HttpConfig& config, int number) {
  const std::string where = "port " + std::to_string(config.port) + " on " + config.host;
  if (number == EADDRINUSE) {
    return {Code::io, where + " is in use by another process", "--port 8001, or --port 0 for any free port"};
  }
  if (number == EACCES) return {Code::io, where + ": permission denied", "use a port above 1023"};
  return {Code::io, "cannot listen on " + where + ": " + std::strerror(number), "check --host and --port"};
}

}  // namespace rorqual::server
