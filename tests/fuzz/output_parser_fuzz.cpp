// SPDX-License-Identifier: Apache-2.0
// Model outputs: the first byte chooses the options, the second how the rest is cut. Whatever comes, cutting
// changes nothing, events are in order, and what is held back stays bounded.
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>

#include "text/json_text.h"
#include "text/output_parser.h"
#include "text/test_text.h"
#include "text/utf8.h"

namespace {

using namespace rorqual::text;

ParserOptions options_of(uint8_t byte) {
  ParserOptions options;
  options.initial_stage = static_cast<InitialStage>(byte & 3);
  options.parse_tool_calls = (byte & 4) != 0;
  options.starts_in_tool_calls = (byte & 12) == 12;
  options.parse_json_output = (byte & 16) != 0;
  if ((byte & 32) != 0) options.stop = {"stop", "\n\n<", "｜DSML｜"};
  return options;
}

constexpr size_t kMostHeld = (size_t{1} << 16) + 8192;  // a value without type, a name, markers

void expect(bool holds) {
  if (!holds) std::abort();
}

ParsedOutput parse(const ParserOptions& options, std::string_view text, size_t step) {
  OutputParser parser(mini_tokenizer(), options);
  ParsedOutput out;
  int32_t open_call = -1, last_call = -1;
  const auto take = [&](const std::vector<ParserEvent>& events) {
    for (const auto& event : events) {
      expect(is_valid_utf8(event.text));
      if (event.kind == ParserEvent::Kind::tool_begin) {
        expect(event.tool_index == last_call + 1);
        open_call = last_call = event.tool_index;
      } else if (event.kind == ParserEvent::Kind::tool_arguments ||
                 event.kind == ParserEvent::Kind::tool_end) {
        expect(event.tool_index == open_call);
        if (event.kind == ParserEvent::Kind::tool_end) open_call = -1;
      }
    }
    accumulate(events, out);
  };
  for (size_t at = 0; at < text.size(); at += step) {
    take(parser.push_text(text.substr(at, step)));
    expect(parser.held_bytes() <= kMostHeld);
  }
  take(parser.finish());
  return out;
}

std::string without_spaces(std::string text) {
  std::erase(text, ' ');
  return text;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size < 2) return 0;
  const ParserOptions options = options_of(data[0]);
  const std::string_view text(reinterpret_cast<const char*>(data) + 2, size - 2);
  const ParsedOutput whole = parse(options, text, text.size() + 1);
  const ParsedOutput cut = parse(options, text, 1 + data[1] % 16);
  expect(whole.reasoning == cut.reasoning);
  // Around JSON the number of blanks depends on the cuts.
  expect(options.parse_json_output ? without_spaces(whole.content) == without_spaces(cut.content)
                                   : whole.content == cut.content);
  expect(whole.calls.size() == cut.calls.size());
  for (size_t i = 0; i < whole.calls.size(); ++i) {
    expect(whole.calls[i].name == cut.calls[i].name && whole.calls[i].arguments == cut.calls[i].arguments);
  }
  // The same bytes as tokens: control tokens by their ids.
  OutputParser parser(mini_tokenizer(), options);
  for (const int32_t id : mini_tokenizer().encode(text, EncodeMode::with_added)) parser.push(id);
  parser.finish();
  return 0;
}
