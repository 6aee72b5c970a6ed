// SPDX-License-Identifier: Apache-2.0
#include "tools/text_tools.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <string_view>
#include <utility>

#include "text/output_parser.h"

namespace rorqual::tools {
namespace {

using Json = nlohmann::ordered_json;

/// JSON text; bytes that are no UTF-8 become U+FFFD.
std::string dump(const Json& document, int indent) {
  return document.dump(indent, ' ', false, Json::error_handler_t::replace);
}

void print_text(std::string_view text) {
  std::fwrite(text.data(), 1, text.size(), stdout);
}

/// A piece on one line: control characters and backslashes escaped.
std::string visible(std::string_view bytes) {
  std::string out;
  for (const char c : bytes) {
    const auto byte = static_cast<unsigned char>(c);
    if (c == '\n') {
      out += "\\n";
    } else if (c == '\t') {
      out += "\\t";
    } else if (c == '\\') {
      out += "\\\\";
    } else if (byte < 0x20 || byte == 0x7F) {
      out += fmt::format("\\x{:02x}", byte);
    } else {
      out += c;
    }
  }
  return out;
}

Status print_ids(const text::Tokenizer& tokenizer, const std::vector<int32_t>& ids,
                 const TokenizeOptions& options) {
  if (options.as_json) {
    Json document = {{"schema", "rorqual.tokenize/1"}, {"count", ids.size()}, {"ids", ids}};
    if (options.pieces) {
      document["pieces"] = Json::array();
      for (const auto id : ids) document["pieces"].push_back(tokenizer.token_string(id));
    }
    print_text(dump(document, -1) + "\n");
  } else if (options.pieces) {
    for (const auto id : ids) fmt::print("{}\t{}\n", id, visible(tokenizer.token_bytes(id)));
  } else {
    fmt::print("{}\n", fmt::join(ids, " "));
  }
  return Ok();
}

Result<text::InitialStage> stage_from_name(const std::string& name) {
  if (name == "content") return text::InitialStage::content;
  if (name == "reasoning") return text::InitialStage::reasoning;
  return Error(Code::invalid_argument, fmt::format("stage: got '{}', expected content or reasoning", name));
}

Json message_json(const text::ParsedOutput& output, const std::string& finish_reason) {
  Json message = {{"role", "assistant"}, {"content", output.content}};
  message["reasoning_content"] = output.reasoning ? Json(*output.reasoning) : Json(nullptr);
  if (!output.calls.empty()) {
    message["tool_calls"] = Json::array();
    for (const auto& call : output.calls) {
      message["tool_calls"].push_back(
          {{"type", "function"}, {"function", {{"name", call.name}, {"arguments", call.arguments}}}});
    }
  }
  return {{"schema", "rorqual.parse/1"}, {"message", message}, {"finish_reason", finish_reason}};
}

}  // namespace

Result<std::vector<int32_t>> parse_token_ids(const std::string& text, int32_t vocab_size) {
  std::vector<int32_t> ids;
  constexpr std::string_view kBetween = " \t\r\n,[]";
  for (size_t begin = text.find_first_not_of(kBetween); begin != std::string::npos;) {
    const size_t end = std::min(text.find_first_of(kBetween, begin), text.size());
    int32_t id = 0;
    const auto [stop, error] = std::from_chars(text.data() + begin, text.data() + end, id);
    if (error != std::errc() || stop != text.data() + end || id < 0 || id >= vocab_size) {
      return Error(Code::invalid_argument,
                   fmt::format("token {}: got '{}', expected an id from 0 to {}", ids.size(),
                               visible(std::string_view(text).substr(begin, end - begin)), vocab_size - 1),
                   "write ids like `1 2 3` or `[1, 2, 3]`");
    }
    ids.push_back(id);
    begin = text.find_first_not_of(kBetween, end);
  }
  return ids;
}

Status run_tokenize(const TokenizeOptions& options) {
  RORQUAL_TRY_ASSIGN(const auto tokenizer, load_tokenizer(options.tokenizer));
  RORQUAL_TRY_ASSIGN(const auto input, read_input(options.input));
  if (!options.decode) {
    const auto mode = options.plain ? text::EncodeMode::plain : text::EncodeMode::with_added;
    return print_ids(tokenizer, tokenizer.encode(input, mode), options);
  }
  RORQUAL_TRY_ASSIGN(const auto ids, parse_token_ids(input, tokenizer.vocab_size()));
  const auto text = tokenizer.decode(ids, options.skip_special);
  print_text(options.as_json ? dump(Json{{"schema", "rorqual.detokenize/1"}, {"text", text}}, -1) + "\n"
                             : text + "\n");
  return Ok();
}

Status run_parse(const ParseOptions& options) {
  RORQUAL_TRY_ASSIGN(const auto tokenizer, load_tokenizer(options.tokenizer));
  RORQUAL_TRY_ASSIGN(const auto input, read_input(options.input));
  text::ParserOptions parsing;
  RORQUAL_TRY_ASSIGN(parsing.initial_stage, stage_from_name(options.stage));
  parsing.parse_tool_calls = options.tool_calls;
  parsing.parse_json_output = options.json_output;
  parsing.stop = options.stop;
  text::OutputParser parser(tokenizer, parsing);
  text::ParsedOutput output;
  if (options.ids) {
    RORQUAL_TRY_ASSIGN(const auto ids, parse_token_ids(input, tokenizer.vocab_size()));
    for (const auto id : ids) text::accumulate(parser.push(id), output);
  } else {
    text::accumulate(parser.push_text(input), output);
  }
  text::accumulate(parser.finish(), output);
  const auto cause = options.hit_length ? text::StopCause::length : text::StopCause::stop;
  print_text(dump(message_json(output, parser.finish_reason(cause)), -1) + "\n");
  return Ok();
}

}  // namespace rorqual::tools
