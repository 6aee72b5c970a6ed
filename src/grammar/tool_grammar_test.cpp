// SPDX-License-Identifier: Apache-2.0
#include "grammar/tool_grammar.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "grammar/test_tokens.h"

namespace rorqual::grammar {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

int32_t marker() {
  return mini_tokenizer().added_token("｜DSML｜").value_or(-1);
}

std::string tool(const std::string& name, const std::string& parameters) {
  return R"({"type":"function","function":{"name":")" + name + R"(","parameters":)" + parameters + "}}";
}

std::shared_ptr<const CompiledGrammar> program(const std::string& tools, bool single_call = false) {
  const auto grammar = tool_grammar("[" + tools + "]", marker(), single_call);
  if (!grammar.ok()) {
    ADD_FAILURE() << grammar.error().message();
    return nullptr;
  }
  return compiled(grammar->text);
}

/// True if the grammar allows the text, in which "D" stands for the marker's token.
bool allows(const std::shared_ptr<const CompiledGrammar>& grammar, const std::string& text) {
  TokenMatcher matcher(grammar);
  for (size_t at = 0; at <= text.size();) {
    const size_t mark = std::min(text.find('D', at), text.size());
    if (mark > at && !matcher.accept_text(text.substr(at, mark - at))) return false;
    if (mark < text.size() && !matcher.accept(marker())) return false;
    at = mark + 1;
  }
  return matcher.accept(kEos);
}

std::string call(const std::string& name, const std::string& lines) {
  return "<D invoke name=\"" + name + "\">\n" + lines + "</D invoke>";
}

std::string block(const std::string& calls) {
  return "\n\n<D calls>\n" + calls + "\n</D calls>";
}

std::string text_line(const std::string& key, const std::string& value) {
  return "<D parameter name=\"" + key + "\" string=\"true\">" + value + "</D parameter>\n";
}

std::string json_line(const std::string& key, const std::string& value) {
  return "<D parameter name=\"" + key + "\" string=\"false\">" + value + "</D parameter>\n";
}

const std::string kWeather = tool(
    "weather",
    R"({"type":"object","properties":{"city":{"type":"string"},"days":{"type":"integer"}},"required":["city"]})");

TEST(ToolGrammar, FollowsNamesAndParameters) {
  const auto grammar = program(kWeather + "," + tool("now", "{}"));
  EXPECT_TRUE(allows(grammar, block(call("weather", text_line("city", "Oslo")))));
  EXPECT_TRUE(allows(
      grammar, block(call("weather", text_line("city", "a <b> \"c\"\n</ x") + json_line("days", "3")))));
  EXPECT_TRUE(allows(grammar, block(call("weather", json_line("days", "3") + text_line("city", "Oslo")))));
  EXPECT_TRUE(allows(grammar, block(call("now", "\n"))));
  EXPECT_TRUE(allows(grammar, block(call("now", "") + "\n" + call("weather", text_line("city", "")))));
  for (const std::string& calls : {
           call("weather", ""),                                                 // required is missing
           call("weather", "\n"),                                               //
           call("weather", json_line("days", "3")),                             //
           call("weather", text_line("city", "a") + text_line("city", "b")),    // twice
           call("weather", text_line("city", "a") + text_line("place", "b")),   // unknown
           call("weather", json_line("city", "\"a\"")),                         // a string as JSON
           call("weather", text_line("city", "a") + text_line("days", "3")),    // a number as text
           call("weather", text_line("city", "a") + json_line("days", "3.5")),  //
           call("forecast", text_line("city", "a")),                            // no such tool
           call("weather", text_line("city", "a")) + call("now", ""),           // no line between calls
           std::string("text"),
       }) {
    EXPECT_FALSE(allows(grammar, block(calls))) << calls;
  }
  EXPECT_FALSE(allows(grammar, block(call("now", "")) + " more"));
  EXPECT_FALSE(allows(grammar, call("now", "")));
}

TEST(ToolGrammar, SingleCallIsOne) {
  const auto grammar = program(kWeather + "," + tool("now", "{}"), true);
  EXPECT_TRUE(allows(grammar, block(call("now", ""))));
  EXPECT_FALSE(allows(grammar, block(call("now", "") + "\n" + call("now", ""))));
}

/// The attribute and the form of the value go together (a record of another project: a string read as a
/// number).
TEST(ToolGrammar, TheStringAttributeIsTiedToTheType) {
  struct Case {
    std::string schema;
    std::vector<std::string> as_text, as_json, neither;
  };

  const Case cases[] = {
      {R"({"type":"string"})", {"42", "", "null"}, {}, {}},
      {R"({"type":"integer"})", {}, {"42"}, {"x"}},
      {R"({"type":["integer","null"]})", {}, {"3", "null"}, {"x"}},
      {R"({"type":["string","null"]})", {"3", "null"}, {"null"}, {}},
      {R"({"anyOf":[{"type":"string","maxLength":2},{"type":"array","items":{"type":"string"}}]})",
       {"ab", "[]"},
       {"[\"a\"]"},
       {"abc"}},
      {R"({"enum":["on",1,null]})", {"on"}, {"1", "null"}, {"off"}},
      {R"({"const":"a\"b\n"})", {"a\"b\n"}, {}, {"a"}},
      {R"({"$ref":"#/$defs/s"})", {"x"}, {}, {"xy"}},
      {R"({})", {"anything 1", "{"}, {"1", "{\"a\": 1}", "true"}, {}},
      {R"(true)", {"x"}, {"[1]"}, {}},
      {R"({"type":"boolean"})", {}, {"true"}, {"True"}},
      {R"({"type":"object","properties":{"k":{"type":"string"}},"required":["k"]})",
       {},
       {"{\"k\": \"v\"}"},
       {"{}"}},
      {R"({"type":"string","pattern":"^[a-z]+$"})", {"abc"}, {}, {"ABC"}},
      {R"({"type":"string","format":"uri-template"})", {"anything"}, {}, {}},
  };
  for (const Case& c : cases) {
    const auto grammar = program(
        tool("f", R"({"$defs":{"s":{"type":"string","maxLength":1}},"type":"object","properties":{"p":)" +
                      c.schema + R"(},"required":["p"]})"));
    ASSERT_NE(grammar, nullptr);
    for (const auto& value : c.as_text)
      EXPECT_TRUE(allows(grammar, block(call("f", text_line("p", value))))) << c.schema << value;
    for (const auto& value : c.as_json)
      EXPECT_TRUE(allows(grammar, block(call("f", json_line("p", value))))) << c.schema << value;
    for (const auto& value : c.neither) {
      EXPECT_FALSE(allows(grammar, block(call("f", text_line("p", value))))) << c.schema << value;
      EXPECT_FALSE(allows(grammar, block(call("f", json_line("p", value))))) << c.schema << value;
    }
    if (c.as_json.empty()) {
      EXPECT_FALSE(allows(grammar, block(call("f", json_line("p", "1"))))) << c.schema;
    }
    if (c.as_text.empty()) {
      EXPECT_FALSE(allows(grammar, block(call("f", text_line("p", "1"))))) << c.schema;
    }
  }
}

TEST(ToolGrammar, UnknownParametersNeedTheSchemasLeave) {
  const auto open = program(tool(
      "f",
      R"({"type":"object","properties":{"a":{"type":"integer"}},"additionalProperties":{"type":"boolean"}})"));
  EXPECT_TRUE(allows(
      open, block(call("f", json_line("x", "true") + json_line("a", "1") + json_line("ab", "false")))));
  EXPECT_FALSE(allows(open, block(call("f", json_line("a", "true")))));
  EXPECT_FALSE(allows(open, block(call("f", json_line("x", "1")))));
}

TEST(ToolGrammar, ManyParametersKeepTheSchemasOrder) {
  const auto grammar = program(tool(
      "f",
      R"({"type":"object","properties":{"a":{"type":"integer"},"b":{"type":"integer"},"c":{"type":"integer"},"d":{"type":"integer"},"e":{"type":"integer"},"g":{"type":"integer"}},"required":["b"]})"));
  EXPECT_TRUE(allows(grammar, block(call("f", json_line("b", "1")))));
  EXPECT_TRUE(
      allows(grammar, block(call("f", json_line("a", "1") + json_line("b", "1") + json_line("g", "1")))));
  EXPECT_FALSE(allows(grammar, block(call("f", json_line("b", "1") + json_line("a", "1")))));
  EXPECT_FALSE(allows(grammar, block(call("f", json_line("a", "1")))));
}

TEST(ToolGrammar, TheMarkerIsAnIdNeverText) {
  const auto grammar = program(kWeather);
  TokenMatcher matcher(grammar);
  ASSERT_TRUE(matcher.accept_text("\n\n<"));
  EXPECT_FALSE(matcher.accept_text("｜DSML｜ calls>"));
  ASSERT_TRUE(matcher.accept(marker()));
  ASSERT_TRUE(matcher.accept_text(" calls>\n<"));
  ASSERT_TRUE(matcher.accept(marker()));
  ASSERT_TRUE(matcher.accept_text(" invoke name=\"weather\">\n<"));
  ASSERT_TRUE(matcher.accept(marker()));
  ASSERT_TRUE(matcher.accept_text(
      " parameter name=\"city\" string=\"true\">x<｜DSML｜ parameter>"));  // spelled: a value
  for (const char* name : {"<｜User｜>", "<｜Assistant｜>", "</think>", "<｜begin▁of▁sentence｜>"}) {
    const auto id = mini_tokenizer().added_token(name);
    ASSERT_TRUE(id.has_value()) << name;
    EXPECT_FALSE(matcher.accept(*id)) << name;
  }
  EXPECT_FALSE(matcher.accept(marker()));  // only after '<' or '</'
}

TEST(ToolGrammar, WidensWhatItCannotEnforceAndNotesIt) {
  const auto grammar = tool_grammar(
      "[" +
          tool(
              "f",
              R"({"type":"object","properties":{"a":{"type":"array","items":{"type":"string"},"uniqueItems":true},"b":{"not":{}}}})") +
          "]",
      marker(), false);
  ASSERT_TRUE(grammar.ok()) << grammar.error().message();
  EXPECT_THAT(grammar->notes,
              ElementsAre(HasSubstr("tool 'f': $.properties.a: uniqueItems"), HasSubstr("not")));
}

TEST(ToolGrammar, RefusesListsThatAreWrongOrTooLarge) {
  const auto message = [](const std::string& tools) {
    const auto grammar = tool_grammar(tools, marker(), false);
    return grammar.ok() ? std::string() : grammar.error().message();
  };
  EXPECT_THAT(message("{"), HasSubstr("no list"));
  EXPECT_THAT(message("[]"), HasSubstr("no list"));
  EXPECT_THAT(message("[" + tool("f", R"({"type":"array"})") + "]"),
              HasSubstr("tool 'f': $: the parameters are not an object"));
  EXPECT_THAT(message("[" + tool("f", R"({"type":"object","properties":{"a":{"type":"nope"}}})") + "]"),
              HasSubstr("tool 'f': $.properties.a.type"));
  std::string many = tool("f0", "{}");
  for (int i = 1; i < 10'000; ++i)
    many += "," + tool("f" + std::to_string(i), R"({"type":"object","properties":{"a)" + std::to_string(i) +
                                                    R"(":{"type":"string"}}})");
  EXPECT_THAT(message("[" + many + "]"), HasSubstr("too large"));
}

}  // namespace
}  // namespace rorqual::grammar
