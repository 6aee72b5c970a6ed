// SPDX-License-Identifier: Apache-2.0
#include "grammar/tag_grammar.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "grammar/test_tokens.h"

namespace rorqual::grammar {
namespace {

using testing::HasSubstr;

struct Case {
  std::string tag;
  std::vector<std::string> allowed, forbidden;
};

TEST(TagGrammar, CombinesTextAndParts) {
  const std::string number = R"({"type":"json_schema","json_schema":{"type":"integer"}})";
  const Case cases[] = {
      {R"({"type":"structural_tag","format":{"type":"tag","begin":"<a>","content":)" + number +
           R"(,"end":"</a>"}})",
       {"<a>5</a>"},
       {"<a>x</a>", "5", "<a>5"}},
      {R"({"format":{"type":"sequence","elements":[{"type":"const_string","value":"n="},)" + number +
           R"(]}})",
       {"n=5"},
       {"n=", "5"}},
      {R"({"format":{"type":"or","elements":[{"type":"regex","pattern":"[ab]"},)" + number + R"(]}})",
       {"a", "7"},
       {"c", "a7"}},
      {R"({"format":{"type":"sequence","elements":[{"type":"optional","content":{"type":"const_string","value":"a"}},{"type":"star","content":{"type":"const_string","value":"b"}},{"type":"plus","content":{"type":"const_string","value":"c"}},{"type":"repeat","min":1,"max":2,"content":{"type":"const_string","value":"d"}}]}})",
       {"cd", "abbccdd"},
       {"ad", "cddd", "c"}},
      {R"({"format":{"type":"tag","begin":"<t>","content":{"type":"any_text"},"end":"</t>"}})",
       {"<t>any <b> text</t>", "<t></t>"},
       {"<t>x</t>y</t>", "<t>x"}},
      {R"({"format":{"type":"triggered_tags","triggers":["<f"],"tags":[{"begin":"<f=a>","content":)" +
           number +
           R"(,"end":"</f>"},{"begin":"<f=b>","content":{"type":"const_string","value":"x"},"end":["</f>","</g>"]}]}})",
       {"free text", "x <f=a>5</f> y <f=b>x</g>", ""},
       {"<f=a>x</f>", "<f=c>", "<f"}},
      {R"({"format":{"type":"triggered_tags","triggers":["<f"],"at_least_one":true,"stop_after_first":true,"tags":[{"begin":"<f>","content":)" +
           number + R"(,"end":"</f>"}]}})",
       {"<f>5</f>"},
       {"", "x<f>5</f>", "<f>5</f><f>5</f>"}},
      {R"({"format":{"type":"tags_with_separator","separator":",","at_least_one":true,"tags":[{"begin":"<","content":)" +
           number + R"(,"end":">"}]}})",
       {"<1>", "<1>,<2>"},
       {"", "<1><2>"}},
      {R"({"structures":[{"begin":"<f>","schema":{"type":"integer"},"end":"</f>"}],"triggers":["<f>"]})",
       {"a<f>5</f>b", "a"},
       {"<f>a</f>"}},
  };

  for (const Case& c : cases) {
    const auto grammar = tag_grammar(c.tag, JsonSpace::any);
    ASSERT_TRUE(grammar.ok()) << c.tag << grammar.error().message();
    const auto program = compiled(*grammar);
    ASSERT_NE(program, nullptr) << c.tag;
    for (const std::string& text : c.allowed) EXPECT_TRUE(matches(program, text)) << c.tag << " " << text;
    for (const std::string& text : c.forbidden) EXPECT_FALSE(matches(program, text)) << c.tag << " " << text;
  }
}

TEST(TagGrammar, SaysWhatIsWrongAndWhere) {
  const std::pair<const char*, const char*> cases[] = {
      {"[]", "a JSON object"},
      {"{}", "format: expected an object with a 'type'"},
      {R"({"format":{"type":"token","token":5}})", "format: the format 'token' is not supported"},
      {R"({"format":{"type":"grammar","grammar":"root ::= \"a\""}})", "'grammar' is not supported"},
      {R"({"format":{"type":"sequence","elements":[{"type":"const_string"}]}})",
       "format.elements[0]: 'value' is missing"},
      {R"({"format":{"type":"json_schema","json_schema":{"type":5}}})", "format.json_schema: $.type"},
      {R"({"format":{"type":"json_schema","json_schema":{},"style":"qwen_xml"}})", "format.style"},
      {R"({"format":{"type":"regex","pattern":"("}})", "format.pattern: at character 1"},
      {R"({"format":{"type":"tag","begin":{"type":"token","token":5},"content":{"type":"any_text"},"end":"x"}})",
       "format: a tag has the texts"},
      {R"({"format":{"type":"triggered_tags","triggers":["<x"],"tags":[{"begin":"<f>","content":{"type":"any_text"},"end":"x"}]}})",
       "tags[0]: its 'begin' starts with no trigger"},
      {R"({"format":{"type":"any_text","max_tokens":5}})", "max_tokens"},
  };
  for (const auto& [tag, part] : cases) {
    const auto grammar = tag_grammar(tag, JsonSpace::any);
    ASSERT_FALSE(grammar.ok()) << tag;
    EXPECT_THAT(grammar.error().message(), HasSubstr(part)) << tag;
  }
}

}  // namespace
}  // namespace rorqual::grammar
