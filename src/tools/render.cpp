// SPDX-License-Identifier: Apache-2.0
// `rorqual render`: a request body through the API's own parser and the chat encoder.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cstdio>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>

#include "api/policy.h"
#include "api/request.h"
#include "text/chat_encoder.h"
#include "tools/text_tools.h"

namespace rorqual::tools {
namespace {

using Json = nlohmann::ordered_json;

std::string dump(const Json& document) {
  return document.dump(-1, ' ', false, Json::error_handler_t::replace);
}

Error bad_request(const std::string& message) {
  return {Code::invalid_argument, message,
          "the input is a chat completions body, or its list of messages, as JSON"};
}

/// The request with what the endpoint would demand but a prompt does not need.
Result<std::string> request_body(const std::string& input) {
  auto document = Json::parse(input, nullptr, false);
  if (document.is_discarded()) return bad_request("the input is not valid JSON");
  if (document.is_array()) document = Json{{"messages", std::move(document)}};
  if (!document.is_object())
    return bad_request(fmt::format("got a JSON {}, expected an object", document.type_name()));
  if (!document.contains("model")) document["model"] = "rorqual";
  return dump(document);
}

}  // namespace

Status run_render(const RenderOptions& options) {
  RORQUAL_TRY_ASSIGN(const auto tokenizer, load_tokenizer(options.tokenizer));
  RORQUAL_TRY_ASSIGN(const auto input, read_input(options.input));
  RORQUAL_TRY_ASSIGN(const auto body, request_body(input));
  api::ApiPolicy policy;
  policy.prompt_compat = options.prompt_compat;
  auto request = api::parse_chat_request(body, policy);
  if (!request.ok()) return bad_request(request.error().message);
  RORQUAL_TRY_ASSIGN(const auto prompt, text::encode_chat(request->conversation, tokenizer));
  if (options.as_json) {
    Json ranges = Json::array();
    for (const auto& [begin, end] : prompt.special_ranges) ranges.push_back({begin, end});
    const Json document = {{"schema", "rorqual.render/1"},     {"prompt", prompt.text},
                           {"count", prompt.token_ids.size()}, {"ids", prompt.token_ids},
                           {"special_ranges", ranges},         {"images", prompt.images.size()}};
    fmt::print("{}\n", dump(document));
  } else if (options.ids) {
    fmt::print("{}\n", fmt::join(prompt.token_ids, " "));
  } else {
    fmt::print("{}\n", prompt.text);
  }
  return Ok();
}

}  // namespace rorqual::tools
