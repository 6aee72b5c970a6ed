// SPDX-License-Identifier: Apache-2.0
// Rules on a request's head that keep a proxy in front and this server from seeing different requests
// (request smuggling). Beast's parser refuses the plain contradictions; what it takes silently is refused
// here.
#pragma once

#include <optional>
#include <string>

#include "server/http.h"

namespace rorqual::server {

/// What is wrong with the head, for a 400 after which the connection closes; nullopt = nothing.
/// HTTP/1.1 needs exactly one Host, HTTP/1.0 may leave it out; its characters are those of a name or address
/// with a port. Content-Length: at most one field with one number. Transfer-Encoding: at most one field, with
/// the value "chunked", not in HTTP/1.0, never beside Content-Length. Source: RFC 9112, sections 3.2 and 6.
std::optional<std::string> framing_problem(const HttpRequest& request, bool is_http10);

}  // namespace rorqual::server
