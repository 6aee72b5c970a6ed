// SPDX-License-Identifier: Apache-2.0
// The bytes around a body: chunks and heads of answers, and rules on a request's head that keep a proxy in
// front and this server from seeing different requests (request smuggling). Beast's parser refuses the plain
// contradictions; what it takes silently is refused here.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>

#include "server/http.h"

namespace rorqual::server {

/// What is wrong with the head, for a 400 after which the connection closes; nullopt = nothing.
/// HTTP/1.1 needs exactly one Host, HTTP/1.0 may leave it out; its characters are those of a name or address
/// with a port. Content-Length: at most one field with one number. Transfer-Encoding: at most one field, with
/// the value "chunked", not in HTTP/1.0, never beside Content-Length. Source: RFC 9112, sections 3.2 and 6.
std::optional<std::string> framing_problem(const HttpRequest& request, bool is_http10);

/// What a head says beside the response's own fields.
struct HeadFacts {
  std::optional<size_t> length;  // bytes of the body, absent for a stream
  bool is_chunked = false;
  bool keep_alive = true;
  std::string_view id;  // X-Request-Id
};

/// Status line and fields, with the empty line that ends them.
std::string response_head(const HttpResponse& response, const HeadFacts& facts);

/// Appends `bytes` as one chunk of a chunked body.
void append_chunk(std::string& out, std::string_view bytes);

}  // namespace rorqual::server
