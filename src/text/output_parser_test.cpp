// SPDX-License-Identifier: Apache-2.0
#include "text/output_parser.h"

#include <gtest/gtest.h>

#include <fstream>
#include <random>
#include <sstream>

#include "text/json_text.h"

namespace rorqual::text {
namespace {

const Tokenizer& mini() {
  static const Tokenizer tokenizer = [] {
    std::ifstream file(std::string(RORQUAL_SOURCE_DIR) + "/models/mini/tokenizer.json", std::ios::binary);
    std::ostringstream out;
    out << file.rdbuf();
    return *Tokenizer::from_json(std::move(out).str());
  }();
  return tokenizer;
}

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
  OutputParser parser(mini(), parser_options);
  ParsedOutput out;
  for (const int32_t id : mini().encode(text, EncodeMode::with_added)) accumulate(parser.push(id), out);
  accumulate(parser.finish(), out);
  return out;
}

ParsedOutput parse_text(const std::vector<std::string>& chunks, const ParserOptions& parser_options) {
  OutputParser parser(mini(), parser_options);
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
  OutputParser parser(mini(), options(InitialStage::reasoning, true));
  ParsedOutput out;
  const std::string text = std::string("a</think>b") + kCall;
  for (const int32_t id : mini().encode(text, EncodeMode::plain)) accumulate(parser.push(id), out);
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
  OutputParser parser(mini(), options(InitialStage::content, true));
  ParsedOutput out;
  const std::string text = std::string(kCall).substr(0, std::string(kCall).find("is</"));
  for (const int32_t id : mini().encode(text, EncodeMode::with_added)) accumulate(parser.push(id), out);
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
  OutputParser parser(mini(), with_stop);
  ParsedOutput out;
  for (const int32_t id : mini().encode("a STOP b</think>x STOP y", EncodeMode::with_added)) {
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

TEST(OutputParser, TellsTheSectionOfEachToken) {
  OutputParser parser(mini(), options(InitialStage::reasoning, true));
  const auto ids = mini().encode("a</think>b", EncodeMode::with_added);
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
