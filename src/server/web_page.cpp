// SPDX-License-Identifier: Apache-2.0
// Embedded files of src/server/web (cmake/embed_file.cmake) as routes.
#include "server/web_page.h"

#include <string_view>

extern "C" {
extern const char rorqual_embed_chat_html[], rorqual_embed_chat_html_end[];
extern const char rorqual_embed_chat_css[], rorqual_embed_chat_css_end[];
extern const char rorqual_embed_chat_js[], rorqual_embed_chat_js_end[];
}

namespace rorqual::server {

namespace {

constexpr const char* kContentPolicy =
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

void add_file(Router& router, const char* path, const char* content_type, std::string_view content) {
  router.add({.method = "GET",
              .path = path,
              .handler =
                  [content_type, content](const std::shared_ptr<Exchange>& exchange) {
                    HttpResponse response;
                    response.content_type = content_type;
                    response.headers = {{"Content-Security-Policy", kContentPolicy},
                                        {"Referrer-Policy", "no-referrer"},
                                        {"Cross-Origin-Opener-Policy", "same-origin"},
                                        {"Cache-Control", "no-cache"}};
                    response.body = content;
                    exchange->respond(std::move(response));
                  },
              .is_open = true});
}

}  // namespace

void add_web_page(Router& router) {
  add_file(router, "/", "text/html; charset=utf-8", {rorqual_embed_chat_html, rorqual_embed_chat_html_end});
  add_file(router, "/chat.css", "text/css; charset=utf-8",
           {rorqual_embed_chat_css, rorqual_embed_chat_css_end});
  add_file(router, "/chat.js", "text/javascript; charset=utf-8",
           {rorqual_embed_chat_js, rorqual_embed_chat_js_end});
}

}  // namespace rorqual::server
