// SPDX-License-Identifier: Apache-2.0
#include "text/output_parser.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <random>

#include "text/json_text.h"
#include "text/test_text.h"

namespace rorqual::text {
namespace {

constexpr const char* kCall =
    "\n\n<｜DSML｜ calls>\n<｜DSML｜ invoke name=\"f\">\n<｜DSML｜ parameter name=\"city\" "
    "string=\"true\">Par\"is"
    "</｜DSML｜ parameter>\n<｜DSML｜ parameter name=\"n\" string=\"false\">[1, 2]</｜DSML｜ parameter>\n"
    "</｜DSML｜ invoke>\n<｜DSML｜ invoke name=\"g\">\n\n</｜DSML｜ invoke>\n</｜DSML｜ calls>";

ParserOptions options(InitialStage stage, bool tools) {
  ParserOptions out;
  out.initial_stage = stage;
  out.parse_tool_calls = tools;
  return out;
}

ParsedOutput parse_ids(const std::string& text, const ParserOptions& parser_options) {
  OutputParser parser(mini_tokenizer(), parser_options);
  ParsedOutput out;
  for (const int32_t id : mini_tokenizer().encode(text, EncodeMode::with_added))
    accumulate(parser.push(id), out);
  accumulate(parser.finish(), out);
  return out;
}

ParsedOutput parse_text(const std::vector<std::string>& chunks, const ParserOptions& parser_options) {
  OutputParser parser(mini_tokenizer(), parser_options);
  ParsedOutput out;
  for (const auto& chunk : chunks) accumulate(parser.push_text(chunk), out);
  accumulate(parser.finish(), out);
  return out;
}

void expect_two_calls(const ParsedOutput& out) {
  ASSERT_EQ(out.calls.size(), 2u);
  EXPECT_EQ(out.calls[0].name, "f");
  EXPECT_EQ(out.calls[0].arguments, R"({"city": "Par\"is", "n": [1, 2]})");
  EXPECT_EQ(out.calls[1].name, "g");
  EXPECT_EQ(out.calls[1].arguments, "{}");
}

TEST(OutputParser, SeparatesReasoningContentAndCalls) {
  const auto out = parse_ids(std::string("\nthink\n</think>\n\nanswer") + kCall + "rest",
                             options(InitialStage::reasoning, true));
  EXPECT_EQ(out.reasoning, "think");
  EXPECT_EQ(out.content, "answer");
  expect_two_calls(out);
}

TEST(OutputParser, GivesTheSameResultForEveryCutOfTheText) {
  const std::string text = std::string("r</think>hi") + kCall;
  for (size_t cut = 0; cut <= text.size(); ++cut) {
    const auto out =
        parse_text({text.substr(0, cut), text.substr(cut)}, options(InitialStage::reasoning, true));
    EXPECT_EQ(out.reasoning, "r") << cut;
    EXPECT_EQ(out.content, "hi") << cut;
    expect_two_calls(out);
  }
}

TEST(OutputParser, TakesSpelledMarkersOfOrdinaryTokensAsText) {
  OutputParser parser(mini_tokenizer(), options(InitialStage::reasoning, true));
  ParsedOutput out;
  const std::string text = std::string("a</think>b") + kCall;
  for (const int32_t id : mini_tokenizer().encode(text, EncodeMode::plain)) accumulate(parser.push(id), out);
  accumulate(parser.finish(), out);
  EXPECT_EQ(out.reasoning, text);
  EXPECT_TRUE(out.calls.empty());
}

TEST(OutputParser, LeavesMarkupAloneWithoutTools) {
  const auto out = parse_ids(kCall, options(InitialStage::content, false));
  EXPECT_TRUE(out.calls.empty());
  EXPECT_NE(out.content.find("<｜DSML｜ calls>"), std::string::npos);
}

TEST(OutputParser, ReportsACutCallAsLength) {
  OutputParser parser(mini_tokenizer(), options(InitialStage::content, true));
  ParsedOutput out;
  const std::string text = std::string(kCall).substr(0, std::string(kCall).find("is</"));
  for (const int32_t id : mini_tokenizer().encode(text, EncodeMode::with_added))
    accumulate(parser.push(id), out);
  accumulate(parser.finish(), out);
  ASSERT_EQ(out.calls.size(), 1u);
  EXPECT_EQ(out.calls[0].arguments, R"({"city": "Par\")");
  EXPECT_EQ(out.content, "");
  EXPECT_EQ(parser.finish_reason(StopCause::length), "length");
  EXPECT_EQ(parser.num_calls_completed(), 0);
}

TEST(OutputParser, RepairsParametersWithoutStringAttribute) {
  const auto out = parse_ids(
      "\n\n<｜DSML｜ calls>\n<｜DSML｜ invoke name=\"f\">\n<｜DSML｜ parameter name=\"a\">5</｜DSML｜ "
      "parameter>\n"
      "<｜DSML｜ parameter name=\"b\">some text</｜DSML｜ parameter>\n</｜DSML｜ invoke>\n</｜DSML｜ calls>",
      options(InitialStage::content, true));
  ASSERT_EQ(out.calls.size(), 1u);
  EXPECT_EQ(out.calls[0].arguments, R"({"a": 5, "b": "some text"})");
}

TEST(OutputParser, EscapesEveryControlCharacterInStringValues) {
  std::string value;
  for (char c = 1; c < 32; ++c) value += c;
  value += "\"\\\u2028";
  value.insert(value.begin(), '\0');
  const std::string text =
      "<｜DSML｜ calls><｜DSML｜ invoke name=\"f\"><｜DSML｜ parameter name=\"a\" string=\"true\">" + value +
      "</｜DSML｜ parameter></｜DSML｜ invoke></｜DSML｜ calls>";
  const auto out = parse_ids(text, options(InitialStage::content, true));
  ASSERT_EQ(out.calls.size(), 1u);
  EXPECT_EQ(out.calls[0].arguments, "{\"a\": " + json_quote(value) + "}");
}

TEST(OutputParser, StopsAtAStopStringInContentOnly) {
  ParserOptions with_stop = options(InitialStage::reasoning, true);
  with_stop.stop = {"STOP"};
  OutputParser parser(mini_tokenizer(), with_stop);
  ParsedOutput out;
  for (const int32_t id : mini_tokenizer().encode("a STOP b</think>x STOP y", EncodeMode::with_added)) {
    accumulate(parser.push(id), out);
  }
  EXPECT_TRUE(parser.is_done());
  EXPECT_EQ(parser.matched_stop(), "STOP");
  accumulate(parser.finish(), out);
  EXPECT_EQ(out.reasoning, "a STOP b");
  EXPECT_EQ(out.content, "x ");
}

TEST(OutputParser, NeedsLinearTimeAndLosesNothingOnHostileOutput) {
  for (const std::string& unit :
       {std::string("<"), std::string("\n"), std::string("<｜DSML"), std::string("\"")}) {
    std::string text;
    while (text.size() < 500'000) text += unit;
    const auto out = parse_ids("x" + text + "y", options(InitialStage::content, true));
    EXPECT_EQ(out.content, "x" + text + "y");
  }
  std::string block =
      "<｜DSML｜ calls><｜DSML｜ invoke name=\"f\"><｜DSML｜ parameter name=\"a\" string=\"true\">";
  block += std::string(1'000'000, 'z');
  const auto out = parse_ids(block, options(InitialStage::content, true));
  ASSERT_EQ(out.calls.size(), 1u);
  EXPECT_EQ(out.calls[0].arguments.size(), 1'000'000u + std::string("{\"a\": \"").size());
}

size_t most_held(const std::vector<int32_t>& ids, ParsedOutput& out) {
  OutputParser parser(mini_tokenizer(), options(InitialStage::content, true));
  size_t most = 0;
  for (const int32_t id : ids) {
    accumulate(parser.push(id), out);
    most = std::max(most, parser.held_bytes());
  }
  accumulate(parser.finish(), out);
  return most;
}

TEST(OutputParser, HoldsLittleBackHoweverLongTheOutput) {
  const auto ids = [](const std::string& text) {
    return mini_tokenizer().encode(text, EncodeMode::with_added);
  };
  ParsedOutput angles, markers, block, name, untyped;
  EXPECT_LE(most_held(std::vector<int32_t>(1'000'000, ids("<").front()), angles), 8u);
  EXPECT_EQ(angles.content, std::string(1'000'000, '<'));
  EXPECT_LE(most_held(std::vector<int32_t>(1'000'000, ids("｜DSML｜").front()), markers), 8u);
  EXPECT_EQ(markers.content.size(), 1'000'000 * std::string("｜DSML｜").size());  // without "<" it is no tag
  const std::string open = "<｜DSML｜ calls>invoke name=\"f\">";
  EXPECT_LE(
      most_held(ids(open + "parameter name=\"a\" string=\"true\">" + std::string(1'000'000, 'z')), block),
      16u);
  ASSERT_EQ(block.calls.size(), 1u);
  EXPECT_EQ(block.calls[0].arguments.size(), 1'000'000 + std::string("{\"a\": \"").size());
  EXPECT_LE(most_held(ids("<｜DSML｜ calls>invoke name=\"" + std::string(500'000, 'n')), name), 4200u);
  EXPECT_TRUE(name.calls.empty() && name.content.empty());
  const std::string value(500'000, '7');
  EXPECT_LE(most_held(ids(open + "parameter name=\"a\">" + value + "</｜DSML｜ parameter></｜DSML｜ invoke>"),
                      untyped),
            66'000u);
  ASSERT_EQ(untyped.calls.size(), 1u);
  EXPECT_EQ(untyped.calls[0].arguments, "{\"a\": \"" + value + "\"}");
}

TEST(OutputParser, ReadsEveryDialectAndStopsAtItsEnd) {
  for (const std::string block : {" calls", "tool_calls", "function_calls"}) {
    for (const std::string space : {" ", ""}) {
      const std::string text = "hi\n\n<｜DSML｜" + block + ">\n<｜DSML｜" + space +
                               "invoke name=\"f\">\n<｜DSML｜" + space +
                               "parameter name=\"a\" string=\"false\">1</｜DSML｜" + space +
                               "parameter>\n</｜DSML｜" + space + "invoke>\n</｜DSML｜" + block + ">more";
      OutputParser parser(mini_tokenizer(), options(InitialStage::content, true));
      ParsedOutput out;
      for (const int32_t id : mini_tokenizer().encode(text, EncodeMode::with_added))
        accumulate(parser.push(id), out);
      EXPECT_TRUE(parser.is_done()) << text;
      accumulate(parser.finish(), out);
      EXPECT_EQ(out.content, "hi") << text;
      ASSERT_EQ(out.calls.size(), 1u) << text;
      EXPECT_EQ(out.calls[0].arguments, "{\"a\": 1}") << text;
    }
  }
}

TEST(OutputParser, GivesArgumentsThatEveryJsonReaderTakes) {
  const auto call = [](const std::string& name, const std::string& flag, const std::string& value) {
    return "<｜DSML｜ parameter name=\"" + name + "\" string=\"" + flag + "\">" + value +
           "</｜DSML｜ parameter>";
  };
  std::string text = "<｜DSML｜ calls>invoke name=\"f\">";
  text += call("nul", "true", std::string("a\0b", 3)) + call("escape", "true", "\\ud800") +
          call("big", "false", "1e308") + call("twice", "false", "1") + call("twice", "true", "2") +
          call("encoded", "true", "x\xED\xA0\x80y");
  text += "</｜DSML｜ invoke>";
  const auto out = parse_ids(text, options(InitialStage::content, true));
  ASSERT_EQ(out.calls.size(), 1u);
  EXPECT_EQ(
      out.calls[0].arguments,
      "{\"nul\": \"a\\u0000b\", \"escape\": \"\\\\ud800\", \"big\": 1e308, \"twice\": 1, \"twice\": \"2\", "
      "\"encoded\": \"x\uFFFD\uFFFD\uFFFDy\"}");
  EXPECT_TRUE(parse_json(out.calls[0].arguments).has_value());
}

TEST(OutputParser, TakesLookAlikesOfMarkersAsText) {
  for (const std::string text :
       {"<|DSML| calls>", "<｜DSML| calls>", "<｜D\u200dSML｜ calls>", "<｜dsml｜ calls>",
        "<\uFF5C\u200bDSML｜ calls>", "</thin\u200dk>", "</Think>", "\uFF1C｜DSML\uFF5C\u200b"}) {
    const auto by_ids = parse_ids(text + "x", options(InitialStage::content, true));
    EXPECT_EQ(by_ids.content, text + "x");
    EXPECT_TRUE(by_ids.calls.empty());
    EXPECT_EQ(parse_text({text, "x"}, options(InitialStage::content, true)).content, text + "x");
  }
}

TEST(OutputParser, DropsAMarkerThatTheTextCutsOff) {
  const std::string marker = "｜DSML｜";
  for (size_t size = 1; size <= marker.size(); ++size) {
    const auto out = parse_text({"hi\n\n<" + marker.substr(0, size)}, options(InitialStage::content, true));
    EXPECT_EQ(out.content, size < 3 ? "hi\n\n<" : size == marker.size() ? "hi" : "hi\n\n<") << size;
  }
  EXPECT_EQ(parse_text({"a <｜"}, options(InitialStage::content, false)).content, "a <｜");
}

TEST(OutputParser, TellsTheSectionOfEachToken) {
  OutputParser parser(mini_tokenizer(), options(InitialStage::reasoning, true));
  const auto ids = mini_tokenizer().encode("a</think>b", EncodeMode::with_added);
  ASSERT_EQ(ids.size(), 3u);
  parser.push(ids[0]);
  EXPECT_EQ(parser.last_place(), TokenPlace::reasoning);
  parser.push(ids[1]);
  EXPECT_EQ(parser.last_place(), TokenPlace::none);
  parser.push(ids[2]);
  EXPECT_EQ(parser.last_place(), TokenPlace::content);
}

}  // namespace
}  // namespace rorqual::text
