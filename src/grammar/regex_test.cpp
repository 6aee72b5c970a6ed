// SPDX-License-Identifier: Apache-2.0
#include "grammar/regex.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "grammar/ebnf.h"
#include "grammar/test_tokens.h"

namespace rorqual::grammar {
namespace {

using testing::HasSubstr;

struct Case {
  std::string pattern;
  std::vector<std::string> allowed, forbidden;
};

TEST(Regex, MatchesTheWholeText) {
  const Case cases[] = {
      {"a|bc", {"a", "bc"}, {"", "abc", "b"}},
      {"^a$|^b$", {"a", "b"}, {"ab"}},
      {"^(a|b)$", {"a"}, {"ab"}},
      {"(?:ab)+c?", {"ab", "ababc"}, {"", "abb"}},
      {"(?<n>a)(?P<m>b)", {"ab"}, {"a"}},
      {"[a-c]{2,3}", {"ab", "abc"}, {"a", "abcd", "ad"}},
      {"a{2}b{1,}", {"aab", "aabbb"}, {"ab", "aa"}},
      {"{x}", {"{x}"}, {"x"}},
      {"[^\\d\\s]", {"x", "é", "-"}, {"5", " ", "\xC2\xA0"}},
      {"[\\]\\-^]", {"]", "-", "^"}, {"\\", "a"}},
      {"[-a]|[a-]", {"-", "a"}, {"b"}},
      {"\\u00e9\\x41\\u{1F600}", {"éA😀"}, {"eA"}},
      {".", {"x", "𝄞"}, {"\n", "", "xy"}},
      {"[^]", {"\n"}, {""}},
      {"\\w+@\\w+\\.(com|org)", {"a_1@b.org"}, {"a@b.net"}},
      {"a*?b", {"b", "aab"}, {"a"}},
      {"", {""}, {"a"}},
      {"(|a)", {"", "a"}, {"b"}},
      {"\\/\\.\\n", {"/.\n"}, {"/."}},
      {"(a+)+$", {"a", std::string(3000, 'a')}, {std::string(3000, 'a') + "!"}},
  };
  for (const Case& c : cases) {
    const auto node = parse_regex(c.pattern, RegexMatch::whole);
    ASSERT_TRUE(node.ok()) << c.pattern << ": " << node.error().message();
    const auto program = compiled(Rules().text(regex_expression(*node, RegexText::raw)));
    ASSERT_NE(program, nullptr) << c.pattern;
    for (const std::string& text : c.allowed) EXPECT_TRUE(matches(program, text)) << c.pattern << " " << text;
    for (const std::string& text : c.forbidden)
      EXPECT_FALSE(matches(program, text)) << c.pattern << " " << text;
  }
}

struct Refusal {
  std::string pattern;
  Code code;
  std::string part;
};

TEST(Regex, SaysWhatIsWrongAndWhere) {
  const Refusal refusals[] = {
      {"(", Code::invalid_argument, "at character 1: '(' without ')'"},
      {"a)", Code::invalid_argument, "at character 2: ')' without '('"},
      {"[a", Code::invalid_argument, "'[' without ']'"},
      {"[]", Code::invalid_argument, "class without characters"},
      {"*a", Code::invalid_argument, "nothing to repeat"},
      {"a**", Code::invalid_argument, "repetition of a repetition"},
      {"a{3,2}", Code::invalid_argument, "below its smallest"},
      {"a{1000000}", Code::invalid_argument, "above 160"},
      {"((a{50}){50}){50}", Code::invalid_argument, "more than 160"},
      {"[b-a]", Code::invalid_argument, "whose end is before"},
      {"\\", Code::invalid_argument, "'\\' at the end"},
      {"\\q", Code::invalid_argument, "no escape"},
      {"\\ud800", Code::invalid_argument, "no character"},
      {std::string(5000, 'a'), Code::invalid_argument, "5000 bytes"},
      {std::string(100, '(') + std::string(100, ')'), Code::invalid_argument, "more than 64 groups"},
      {"a(?=b)", Code::unsupported, "at character 3: look-ahead"},
      {"(?<!b)a", Code::unsupported, "look-behind"},
      {"(?i)a", Code::unsupported, "kind of group"},
      {"\\bword", Code::unsupported, "word boundary"},
      {"(a)\\1", Code::unsupported, "back-reference"},
      {"\\p{L}", Code::unsupported, "Unicode property"},
      {"a++", Code::unsupported, "possessive"},
      {"a^b", Code::unsupported, "'^' or '$' inside"},
      {"(^a)b", Code::unsupported, "'^' or '$' inside"},
  };
  for (const Refusal& refusal : refusals) {
    const auto node = parse_regex(refusal.pattern, RegexMatch::anywhere);
    ASSERT_FALSE(node.ok()) << refusal.pattern;
    EXPECT_EQ(node.error().code(), refusal.code) << refusal.pattern;
    EXPECT_THAT(node.error().message(), HasSubstr(refusal.part)) << refusal.pattern;
  }
}

TEST(CodePoints, ComplementTwiceIsTheSetWithoutSurrogates) {
  CodePoints set('a', 'c');
  set.add('d', 'f');
  set.add(0x10FFFF, 0x10FFFF);
  ASSERT_EQ(set.ranges().size(), 2u);
  EXPECT_EQ(set.ranges()[0].last, U'f');
  const CodePoints again = set.complement().complement();
  ASSERT_EQ(again.ranges().size(), 2u);
  EXPECT_EQ(again.ranges()[0].first, U'a');
  EXPECT_FALSE(set.complement().contains(0xD800));
  EXPECT_TRUE(set.complement().contains(0xE000));
}

}  // namespace
}  // namespace rorqual::grammar
