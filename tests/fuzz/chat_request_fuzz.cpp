// SPDX-License-Identifier: Apache-2.0
// Bodies of chat requests: both JSON readers agree; a refusal is a 400 with a JSON body; an accepted request
// renders to valid text, and its ids are the same with and without the memo.
#include <cstdint>
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "api/request.h"
#include "text/json_text.h"
#include "text/prompt_encoder.h"
#include "text/test_text.h"
#include "text/utf8.h"

namespace {

using namespace rorqual;

void expect(bool holds) {
  if (!holds) std::abort();
}

void check_request(const api::ApiResult<api::ChatRequest>& request) {
  static text::PromptEncoder encoder(text::mini_tokenizer(), 1 << 20);
  if (!request.ok()) {
    expect(request.error().http_status >= 400 && request.error().http_status < 500);
    expect(nlohmann::json::accept(request.error().body()));
    return;
  }
  const auto prompt = text::encode_chat(request->conversation, text::mini_tokenizer());
  if (!prompt.ok()) return;
  expect(text::is_valid_utf8(prompt->text));
  const auto again = encoder.encode(request->conversation);
  expect(again.ok() && again->token_ids == prompt->token_ids && again->text_bytes == prompt->text.size());
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view body(reinterpret_cast<const char*>(data), size);
  const auto fast = text::parse_json(body), strict = text::parse_json_strict(body);
  expect(fast.has_value() == strict.has_value());
  if (fast) expect(text::json_text(*fast) == text::json_text(*strict));
  api::ApiPolicy all_switches;
  for (const auto& item : text::prompt_compat_switches()) all_switches.prompt_compat.*(item.field) = true;
  check_request(api::parse_chat_request(body, api::ApiPolicy{}));
  check_request(api::parse_chat_request(body, all_switches));
  check_request(api::parse_chat_request(body, api::ApiPolicy::official({"m"})));
  return 0;
}
