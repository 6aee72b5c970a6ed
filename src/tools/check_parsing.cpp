// SPDX-License-Identifier: Apache-2.0
#include "tools/check_parsing.h"

#include <cstddef>
#include <nlohmann/json.hpp>
#include <string_view>
#include <utility>
#include <vector>

#include "text/json_text.h"
#include "text/output_parser.h"
#include "tools/check_differences.h"

namespace rorqual::tools {
namespace {

using Json = nlohmann::ordered_json;

text::ParserOptions parser_options(const Json& options) {
  text::ParserOptions out;
  const Json& stage = options.at("thinking_initial_stage");
  if (stage == "ReasoningStart") out.initial_stage = text::InitialStage::reasoning;
  if (stage == "ReasoningContinuation") out.initial_stage = text::InitialStage::reasoning_continuation;
  if (stage == "ContentContinuation") out.initial_stage = text::InitialStage::content_continuation;
  out.parse_tool_calls = options.at("parse_tool_calls");
  out.starts_in_tool_calls = options.at("starts_in_tool_calls");
  out.parse_json_output = options.at("parse_json_output");
  out.stop = options.at("stop_sequences").get<std::vector<std::string>>();
  return out;
}

/// One event as the chat API prints its delta; null where it prints none.
Json delta_json(const text::ParserEvent& event) {
  using Kind = text::ParserEvent::Kind;
  switch (event.kind) {
    case Kind::reasoning:
      return {{"reasoning_content", event.text}};
    case Kind::content:
      return {{"content", event.text}};
    case Kind::tool_begin:
      return {{"tool_calls", Json::array({{{"index", event.tool_index},
                                           {"type", "function"},
                                           {"function", {{"name", event.text}, {"arguments", ""}}}}})}};
    case Kind::tool_arguments:
      return {{"tool_calls",
               Json::array({{{"index", event.tool_index}, {"function", {{"arguments", event.text}}}}})}};
    case Kind::tool_end:
      break;
  }
  return nullptr;
}

struct ParseRun {
  Json deltas = Json::array();
  text::ParsedOutput output;
  std::string finish_reason;
};

/// `feed(parser, take)` gives the parser the output and `take` its events.
template <class Feed>
ParseRun run_parser(const Json& row, const text::Tokenizer& tokenizer, const Feed& feed) {
  ParseRun run;
  run.deltas.push_back({{"content", ""}});
  text::OutputParser parser(tokenizer, parser_options(row.at("options")));
  const auto take = [&run](const std::vector<text::ParserEvent>& events) {
    text::accumulate(events, run.output);
    for (const auto& event : events) {
      Json delta = delta_json(event);
      if (!delta.is_null()) run.deltas.push_back(std::move(delta));
    }
  };
  feed(parser, take);
  take(parser.finish());
  run.finish_reason = parser.finish_reason(row.at("backend_finish") == "length" ? text::StopCause::length
                                                                                : text::StopCause::stop);
  run.deltas.push_back({{"content", ""}, {"finish_reason", run.finish_reason}});
  return run;
}

ParseRun run_ids(const Json& row, const text::Tokenizer& tokenizer, const std::vector<int32_t>& ids) {
  return run_parser(row, tokenizer, [&](text::OutputParser& parser, const auto& take) {
    for (const int32_t id : ids) take(parser.push(id));
  });
}

ParseRun run_text(const Json& row, const text::Tokenizer& tokenizer,
                  const std::vector<std::string_view>& pieces) {
  return run_parser(row, tokenizer, [&](text::OutputParser& parser, const auto& take) {
    for (const std::string_view piece : pieces) take(parser.push_text(piece));
  });
}

/// A parameter without its string attribute: the official stream is broken there, ours is repaired.
bool is_outside_grammar(const Json& row) {
  const auto text = row.at("text").get<std::string>();
  for (size_t pos = text.find("parameter name=\""); pos != std::string::npos;
       pos = text.find("parameter name=\"", pos + 1)) {
    const size_t end = text.find("\">", pos);
    if (end != std::string::npos && text.find("\" string=\"", pos) > end) return true;
  }
  return false;
}

/// Runs of spaces as one: text around JSON becomes one space per piece, so their number depends on the cuts.
std::string collapse_spaces(const std::string& text) {
  std::string out;
  for (const char c : text) {
    if (c != ' ' || out.empty() || out.back() != ' ') out += c;
  }
  return out;
}

Json calls_json(const text::ParsedOutput& output) {
  Json calls = Json::array();
  for (const auto& call : output.calls) calls.push_back({{"name", call.name}, {"arguments", call.arguments}});
  return calls;
}

/// What a client that joins all deltas has in the end.
Json outcome_of(const ParseRun& run) {
  return {{"reasoning_content", optional_json(run.output.reasoning)},
          {"content", run.output.content},
          {"tool_calls", calls_json(run.output)},
          {"finish_reason", run.finish_reason}};
}

std::string outcome_difference(const Json& row, const Json& got, const Json& expected) {
  const bool depends_on_cuts =
      row.at("options").at("parse_json_output").get<bool>() || !row.value("split_invariant", true);
  const auto content = [&](const Json& outcome) {
    const auto text = outcome.at("content").get<std::string>();
    return depends_on_cuts ? collapse_spaces(text) : text;
  };
  return first_of(
      {value_difference("reasoning_content", got.at("reasoning_content"), expected.at("reasoning_content")),
       text_difference("content", content(got), content(expected)),
       value_difference("tool_calls", got.at("tool_calls"), expected.at("tool_calls")),
       value_difference("finish_reason", got.at("finish_reason"), expected.at("finish_reason"))});
}

std::string at_cut(const std::string& problem, const char* way, size_t cut) {
  return problem.empty() ? problem
                         : std::string(way) + " cut at byte " + std::to_string(cut) + ": " + problem;
}

/// The same ids, but the token that holds byte `cut` comes as two: the bytes before and after. Control tokens
/// are whole or nothing.
std::string check_id_cuts(const Json& row, const text::Tokenizer& tokenizer, const std::vector<int32_t>& ids,
                          const Json& expected) {
  size_t begin = 0;
  for (size_t i = 0; i < ids.size(); ++i) {
    const std::string_view bytes = tokenizer.token_bytes(ids[i]);
    for (size_t at = 1; at < bytes.size() && !tokenizer.is_added(ids[i]); ++at) {
      std::vector<int32_t> cut(ids.begin(), ids.begin() + static_cast<std::ptrdiff_t>(i));
      for (const auto part : {bytes.substr(0, at), bytes.substr(at)})
        tokenizer.append_ids(part, text::EncodeMode::plain, cut);
      cut.insert(cut.end(), ids.begin() + static_cast<std::ptrdiff_t>(i) + 1, ids.end());
      const Json got = outcome_of(run_ids(row, tokenizer, cut));
      if (auto problem = outcome_difference(row, got, expected); !problem.empty())
        return at_cut(problem, "ids", begin + at);
    }
    begin += bytes.size();
  }
  return {};
}

/// Does the text spell a marker that the ids do not have? Then text mode rightly gives another outcome.
bool spells_markers(const std::string& text, const text::Tokenizer& tokenizer,
                    const std::vector<int32_t>& ids) {
  for (const std::string_view marker : {"</think>", "｜DSML｜"}) {
    const auto id = tokenizer.added_token(marker);
    int64_t balance = 0;
    for (size_t at = text.find(marker); at != std::string::npos; at = text.find(marker, at + 1)) ++balance;
    for (const int32_t token : ids) balance -= id && token == *id ? 1 : 0;
    if (balance != 0) return true;
  }
  return false;
}

std::string check_text_cuts(const Json& row, const text::Tokenizer& tokenizer,
                            const std::vector<int32_t>& ids, const Json& expected_of_ids) {
  text::Detokenizer stream(tokenizer, false);
  std::vector<std::string> streamed;
  std::string text;
  for (const int32_t id : ids) streamed.push_back(stream.push(id));
  streamed.push_back(stream.flush());
  for (const auto& piece : streamed) text += piece;
  Json expected = expected_of_ids;
  if (spells_markers(text, tokenizer, ids)) expected = outcome_of(run_text(row, tokenizer, {text}));
  const Json got = outcome_of(run_text(row, tokenizer, {streamed.begin(), streamed.end()}));
  if (auto problem = outcome_difference(row, got, expected); !problem.empty())
    return "text as streamed: " + problem;
  const std::string_view whole = text;
  for (size_t cut = 0; cut <= whole.size(); ++cut) {
    const Json cut_once = outcome_of(run_text(row, tokenizer, {whole.substr(0, cut), whole.substr(cut)}));
    if (auto problem = outcome_difference(row, cut_once, expected); !problem.empty())
      return at_cut(problem, "text", cut);
  }
  return {};
}

}  // namespace

std::string check_parsing_case(const Json& row, const text::Tokenizer& tokenizer) {
  const Json& expected = row.at("expected");
  const auto ids = row.at("token_ids").get<std::vector<int32_t>>();
  const ParseRun run = run_ids(row, tokenizer, ids);
  const Json outcome = outcome_of(run);
  std::string problem;
  if (is_outside_grammar(row)) {  // only the repair is checked: every argument text is JSON
    for (const auto& call : run.output.calls) {
      if (!text::parse_json(call.arguments)) return "repaired arguments are not JSON: " + call.arguments;
    }
    problem = value_difference("number of calls", run.output.calls.size(), expected.at("tool_calls").size());
  } else {
    problem =
        first_of({outcome_difference(row, outcome, expected),
                  value_difference("stream_token_by_token", run.deltas, row.at("stream_token_by_token"))});
  }
  if (problem.empty()) problem = check_id_cuts(row, tokenizer, ids, outcome);
  if (problem.empty()) problem = check_text_cuts(row, tokenizer, ids, outcome);
  return problem;
}

}  // namespace rorqual::tools
