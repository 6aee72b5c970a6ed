// SPDX-License-Identifier: Apache-2.0
#include "grammar/schema_grammar.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "grammar/constraint.h"
#include "grammar/test_tokens.h"

namespace rorqual::grammar {
namespace {

using testing::HasSubstr;

Result<std::string> grammar_of(const std::string& schema, JsonSpace space = JsonSpace::any) {
  std::vector<std::string> notes;
  return grammar_text({ConstraintSpec::Kind::json, schema, space, false}, -1, notes);
}

struct Case {
  std::string schema;
  std::vector<std::string> allowed, forbidden;
};

void PrintTo(const Case& c, std::ostream* out) {
  *out << c.schema;
}

class SchemaTexts : public testing::TestWithParam<Case> {};

TEST_P(SchemaTexts, AreAllowedOrForbidden) {
  const auto grammar = grammar_of(GetParam().schema);
  ASSERT_TRUE(grammar.ok()) << grammar.error().message();
  const auto program = compiled(*grammar);
  ASSERT_NE(program, nullptr);
  for (const std::string& text : GetParam().allowed) EXPECT_TRUE(matches(program, text)) << text;
  for (const std::string& text : GetParam().forbidden) EXPECT_FALSE(matches(program, text)) << text;
}

INSTANTIATE_TEST_SUITE_P(
    Scalars, SchemaTexts,
    testing::Values(
        Case{R"({"type":"string"})",
             {R"("")", R"("a\n\"\\\u00e9é𝄞")", R"("\ud83d\ude00")"},
             {"\"a\nb\"", "\"\t\"", "\"\x01\"", R"("\x")", R"("\ud83d")", R"("\ude00")", "a", R"("a)", ""}},
        Case{R"({"type":"string","minLength":2,"maxLength":3})",
             {R"("ab")", R"("é €")", R"("𝄞𝄞𝄞")"},
             {R"("a")", R"("abcd")", "\"a\tb\"", "\"ab\x1f\""}},
        Case{R"({"type":"string","pattern":"^[a-c]+$"})", {R"("abc")"}, {R"("")", R"("abd")", R"("xabc")"}},
        Case{
            R"({"type":"string","pattern":"b"})", {R"("b")", R"("abc")", R"("\n\"b")"}, {R"("ac")", R"("")"}},
        Case{R"({"type":"string","pattern":"^a|b$"})", {R"("ax")", R"("xb")"}, {R"("xa")", R"("bx")"}},
        Case{R"({"type":"string","pattern":"^[^a]$"})",
             {R"("\"")", R"("\\")", R"("\n")", R"("é")"},
             {R"("a")", "\"\n\"", R"(""")"}},
        Case{R"({"type":"string","format":"date"})",
             {R"("2024-02-28")"},
             {R"("2024-13-01")", R"("2024-02-30")"}},
        Case{R"({"type":"string","format":"ipv6"})",
             {R"("::")", R"("1::")", R"("::1")", R"("1:2:3:4:5:6:7:8")", R"("1::8")"},
             {R"("1:2")", R"(":::")"}},
        Case{R"({"type":"string","format":"uuid"})",
             {R"("123e4567-e89b-12d3-a456-426614174000")"},
             {R"("123e4567")"}},
        Case{R"({"type":"integer"})",
             {"0", "-1", "42", "999999999999999999"},
             {"-0", "01", "1.0", "1e3", "1000000000000000000", "+1"}},
        Case{R"({"type":"integer","minimum":-12,"maximum":105})",
             {"-12", "-1", "0", "7", "99", "100", "105"},
             {"-13", "106", "-0", "999"}},
        Case{R"({"type":"integer","exclusiveMinimum":0,"exclusiveMaximum":2.5})", {"1", "2"}, {"0", "3"}},
        Case{R"({"type":"integer","minimum":1234,"maximum":56789})",
             {"1234", "9999", "10000", "56789", "20000"},
             {"1233", "56790", "999", "100000"}},
        Case{R"({"type":"integer","multipleOf":3,"minimum":-4,"maximum":7})",
             {"-3", "0", "3", "6"},
             {"-4", "1", "9"}},
        Case{R"({"type":"integer","multipleOf":5})", {"0", "5", "-10", "1235"}, {"1", "12", "-0"}},
        Case{R"({"type":"integer","multipleOf":100})", {"0", "100", "12300"}, {"10", "50", "1230"}},
        Case{R"({"type":"number"})",
             {"0", "-0", "1.5", "-12.25e+10", "3E-7"},
             {".5", "1.", "1e", "1e400", "NaN", "01"}},
        Case{R"({"type":"number","minimum":0.5,"maximum":2})",
             {"0.5", "0.75", "1", "1.999", "2", "2.0"},
             {"0.4", "0", "2.1", "2.01", "0.49", "-1"}},
        Case{R"({"type":"number","exclusiveMinimum":-1.25,"exclusiveMaximum":-1})",
             {"-1.2", "-1.01", "-1.249"},
             {"-1", "-1.0", "-1.25", "-1.3", "1.1"}},
        Case{R"({"type":"number","minimum":-2,"maximum":3.5})",
             {"-2", "-0.5", "0", "3.5", "3.49", "-2.0"},
             {"-2.1", "3.51", "4"}},
        Case{R"({"type":"number","exclusiveMinimum":0})", {"0.001", "1", "12.5"}, {"0", "0.0", "-1"}},
        Case{R"({"type":["string","null"]})", {R"("x")", "null"}, {"0", "nul"}},
        Case{R"({"enum":["a",1,null,{"k":[1,2]}]})",
             {R"("a")", "1", "null", R"({"k": [1, 2]})"},
             {"a", "2", R"({"k": [1]})"}},
        Case{R"({"type":"string","enum":["a",1]})", {R"("a")"}, {"1"}},
        Case{R"({"const":"x\ny"})", {R"("x\ny")"}, {R"("x")"}},
        Case{R"({})", {"1", R"({"a": [true, {}]})", "[]", R"("s")"}, {"", "[1,]", "{a:1}"}},
        Case{R"(true)", {"null"}, {"nil"}}));

INSTANTIATE_TEST_SUITE_P(
    Containers, SchemaTexts,
    testing::Values(
        Case{
            R"({"type":"object","properties":{"a":{"type":"integer"},"b":{"type":"string"},"c":{"type":"boolean"}},"required":["b"]})",
            {R"({"b": "x"})", R"({"a":1,"b":"x"})", R"({"a": 1, "b": "x", "c": true})",
             "{\n  \"b\": \"x\"\n}"},
            {R"({})", R"({"a": 1})", R"({"b": "x", "a": 1})", R"({"b": "x", "d": 1})", R"({"b":"x","b":"y"})",
             "{\n\n\"b\":\"\"}", R"({  "b": "x"})"}},
        Case{
            R"({"type":"object","properties":{"ab":{"type":"integer"},"a":{"type":"integer"}},"additionalProperties":{"type":"boolean"}})",
            {R"({})", R"({"x": true})", R"({"ab": 1, "a": 2, "abc": true, "b": false})"},
            {R"({"ab": true})", R"({"a": true})", R"({"\u0061": true})", R"({"x": 1})"}},
        Case{R"({"type":"object","required":["a","z"],"properties":{"a":{"type":"null"}}})",
             {R"({"a": null, "z": [1]})"},
             {R"({"a": null})"}},
        Case{R"({"type":"object"})", {R"({"anything": [1]})", "{}"}, {"[]"}},
        Case{
            R"({"type":"object","additionalProperties":{"type":"integer"},"propertyNames":{"pattern":"^[a-z]+$"},"maxProperties":2})",
            {"{}", R"({"a": 1, "b": 2})"},
            {R"({"A": 1})", R"({"a": 1, "b": 2, "c": 3})", R"({"a": "x"})"}},
        Case{
            R"({"type":"object","patternProperties":{"^x":{"type":"integer"}},"additionalProperties":false})",
            {R"({"x1": 1})", "{}"},
            {R"({"y": 1})"}},
        Case{R"({"type":"array","items":{"type":"integer"},"minItems":1,"maxItems":3})",
             {"[1]", "[1, 2,3]"},
             {"[]", "[1,2,3,4]", "[true]"}},
        Case{R"({"type":"array","prefixItems":[{"type":"integer"},{"type":"string"}],"items":false})",
             {"[]", "[1]", R"([1, "a"])"},
             {R"(["a"])", R"([1, "a", 2])"}},
        Case{
            R"({"type":"array","prefixItems":[{"type":"integer"},{"type":"string"}],"items":{"type":"null"},"minItems":2,"maxItems":3})",
            {R"([1, "a"])", R"([1, "a", null])"},
            {"[1]", R"([1, "a", null, null])"}},
        Case{R"({"type":"array","items":[{"type":"integer"}],"additionalItems":false})",
             {"[1]", "[]"},
             {"[1, 2]"}},
        Case{R"({"type":"array","maxItems":0})", {"[]"}, {"[1]"}},
        Case{
            R"({"anyOf":[{"type":"integer"},{"type":"object","properties":{"k":{"const":1}},"required":["k"]}]})",
            {"5", R"({"k": 1})"},
            {R"({"k": 2})", "{}"}},
        Case{
            R"({"type":"object","properties":{"a":{"type":"integer"},"b":{"type":"integer"}},"anyOf":[{"required":["a"]},{"required":["b"]}]})",
            {R"({"a": 1})", R"({"b": 1})", R"({"a": 1, "b": 2})"},
            {"{}"}},
        Case{
            R"({"oneOf":[{"type":"object","properties":{"t":{"const":"x"}},"required":["t"]},{"type":"object","properties":{"t":{"const":"y"},"n":{"type":"integer"}},"required":["t"]}]})",
            {R"({"t": "x"})", R"({"t": "y", "n": 1})"},
            {R"({"t": "x", "n": 1})"}},
        Case{
            R"({"allOf":[{"type":"object","properties":{"a":{"type":"integer"}},"required":["a"]},{"properties":{"b":{"type":"integer"}},"required":["b"]}]})",
            {R"({"a": 1, "b": 2})"},
            {R"({"a": 1})"}},
        Case{R"({"allOf":[{"type":"integer","minimum":1},{"minimum":5,"maximum":9}]})",
             {"5", "9"},
             {"4", "10"}},
        Case{
            R"({"$defs":{"n":{"type":"object","properties":{"v":{"type":"integer"},"next":{"anyOf":[{"$ref":"#/$defs/n"},{"type":"null"}]}},"required":["v","next"]}},"$ref":"#/$defs/n"})",
            {R"({"v": 1, "next": {"v": 2, "next": null}})"},
            {R"({"v": 1})", R"({"v": 1, "next": {}})"}},
        Case{R"({"type":"array","items":{"$ref":"#"}})", {"[]", "[[], [[]]]"}, {"[1]"}},
        Case{
            R"({"properties":{"a":{"$ref":"#/definitions/p","description":"x"}},"required":["a"],"definitions":{"p":{"type":"integer"}}})",
            {R"({"a": 3})"},
            {R"({"a": "3"})"}},
        Case{R"({"items":{"type":"integer"}})", {"[1]"}, {"1", "{}"}}));

TEST(SchemaGrammar, KnowsTheseFormats) {
  const std::pair<const char*, const char*> examples[] = {
      {"date", "2024-12-28"},
      {"time", "23:59:59.5+01:00"},
      {"date-time", "2024-12-28T00:00:00Z"},
      {"duration", "P3W"},
      {"email", "ab.c+d@mail.example.org"},
      {"hostname", "a-b.example.org"},
      {"ipv4", "192.168.0.255"},
      {"ipv6", "2001:db8::1"},
      {"uri", "https://example.org:8080/a?b=c"},
      {"uuid", "123e4567-e89b-12d3-a456-426614174000"},
  };
  for (const auto& [format, text] : examples) {
    const auto grammar = grammar_of(std::string(R"({"type":"string","format":")") + format + "\"}");
    ASSERT_TRUE(grammar.ok()) << format << ": " << grammar.error().message();
    const auto program = compiled(*grammar);
    EXPECT_TRUE(matches(program, '"' + std::string(text) + '"')) << format;
    EXPECT_FALSE(matches(program, "\"x y\"")) << format;
  }
}

TEST(SchemaGrammar, EmptyTextMeansAnyObject) {
  const auto grammar = grammar_of("");
  ASSERT_TRUE(grammar.ok());
  const auto program = compiled(*grammar);
  EXPECT_TRUE(matches(program, R"({"a": [1, {"b": null}]})"));
  EXPECT_FALSE(matches(program, "[1]"));
}

TEST(SchemaGrammar, CompactSpaceIsAtMostOneBlankAfterMarks) {
  const auto grammar = grammar_of(R"({"type":"array","items":{"type":"object"}})", JsonSpace::compact);
  ASSERT_TRUE(grammar.ok());
  const auto program = compiled(*grammar);
  EXPECT_TRUE(matches(program, R"([{"a": 1,"b":2}, {}])"));
  EXPECT_FALSE(matches(program, "[ ]"));
  EXPECT_FALSE(matches(program, "[{\"a\":\n1}]"));
}

struct Refusal {
  std::string schema, part;  // of the message
};

TEST(SchemaGrammar, RefusesWhatItCannotEnforceAndSaysWhere) {
  const Refusal refusals[] = {
      {R"({"properties":{"a":{"not":{"type":"string"}}}})", "$.properties.a: 'not' cannot be enforced"},
      {R"({"if":{"type":"string"},"then":{}})", "$: 'if'"},
      {R"({"type":"array","uniqueItems":true})", "uniqueItems"},
      {R"({"type":"array","contains":{}})", "contains"},
      {R"({"type":"object","dependentRequired":{"a":["b"]}})", "dependentRequired"},
      {R"({"type":"object","unevaluatedProperties":false})", "unevaluatedProperties"},
      {R"({"type":"string","format":"idn-email"})", "format"},
      {R"({"type":"string","pattern":"a","maxLength":3})", "minLength, maxLength"},
      {R"({"type":"string","pattern":"(?=a)b"})", "look-ahead"},
      {R"({"type":"string","pattern":"(a)\\1"})", "back-reference"},
      {R"({"type":"number","multipleOf":0.01})", "multipleOf"},
      {R"({"type":"integer","multipleOf":7})", "multipleOf"},
      {R"({"oneOf":[{"type":"integer"},{"type":"number"}]})", "oneOf"},
      {R"({"type":"object","minProperties":3,"properties":{"a":{}}})", "minProperties"},
      {R"({"allOf":[{"properties":{"a":{}},"additionalProperties":false},{"properties":{"b":{}}}]})",
       "additionalProperties"},
      {R"({"type":"string","enum":["a"],"minLength":1})", "minLength"},
  };
  for (const Refusal& refusal : refusals) {
    const auto grammar = grammar_of(refusal.schema);
    ASSERT_FALSE(grammar.ok()) << refusal.schema;
    EXPECT_EQ(grammar.error().code(), Code::unsupported) << grammar.error().message();
    EXPECT_THAT(grammar.error().message(), HasSubstr(refusal.part)) << refusal.schema;
  }
}

TEST(SchemaGrammar, RefusesSchemasThatAreWrong) {
  const Refusal refusals[] = {
      {R"({"type":5})", "$.type: 5 is no JSON type"},
      {R"({"type":"nope"})", "$.type"},
      {R"({"properties":{"a":{"type":"string","pattern":"("}}})",
       "$.properties.a.pattern: at character 1: '(' without ')'"},
      {R"({"type":"string","pattern":"a{1000000}"})", "a count above 160"},
      {R"({"type":"string","pattern":"(a{100}){100}"})", "more than 160 characters"},
      {R"({"type":"string","minLength":5,"maxLength":2})", "minLength is above maxLength"},
      {R"({"type":"string","minLength":-1})", "minLength"},
      {R"({"type":"string","minLength":1000000})", "at most 100000"},
      {R"({"type":"integer","minimum":5,"maximum":2})", "no number lies in the range"},
      {R"({"type":"integer","minimum":"5"})", "expected a number"},
      {R"({"type":"array","items":3})", "a schema is an object or a boolean"},
      {R"({"properties":[]})", "properties"},
      {R"({"enum":[]})", "enum"},
      {R"({"type":"integer","enum":["a"]})", "no value of 'enum'"},
      {R"({"$ref":"#/$defs/none"})", "leads nowhere"},
      {R"({"$ref":"http://example.org/x"})", "only '#"},
      {R"({"$ref":"#"})", "nothing but itself"},
      {R"({"anyOf":[{"$ref":"#"},{"type":"null"}]})", "nothing but itself"},
      {R"({"allOf":[{"$ref":"#"}],"type":"string"})", "circle"},
      {R"({"properties":{"a":false},"required":["a"]})", "allows nothing"},
      {R"({"required":["a"],"properties":{"b":{}},"additionalProperties":false})", "'a' is required"},
      {"{", "no JSON"},
      {"3", "a schema is an object or a boolean"},
  };
  for (const Refusal& refusal : refusals) {
    const auto grammar = grammar_of(refusal.schema);
    ASSERT_FALSE(grammar.ok()) << refusal.schema;
    EXPECT_EQ(grammar.error().code(), Code::invalid_argument) << grammar.error().message();
    EXPECT_THAT(grammar.error().message(), HasSubstr(refusal.part)) << refusal.schema;
  }
}

std::string nested(int depth, const std::string& open, const std::string& close) {
  std::string out;
  for (int i = 0; i < depth; ++i) out += open;
  out += R"({"type":"integer"})";
  for (int i = 0; i < depth; ++i) out += close;
  return out;
}

TEST(SchemaGrammar, LargeSchemasEndInAnErrorNotInWork) {
  std::string wide = R"({"type":"object","properties":{)";
  for (int i = 0; i < 10'000; ++i)
    wide += (i > 0 ? ",\"p" : "\"p") + std::to_string(i) + R"(":{"type":"string"})";
  wide += "}}";
  // Every level stands twice in the one above, with a neighbour that makes it be written out.
  std::string doubling = R"({"$defs":{"l0":{"type":"integer"})";
  for (int i = 1; i <= 60; ++i) {
    const std::string below = std::to_string(i - 1);
    doubling += ",\"l" + std::to_string(i) + R"(":{"type":"array","prefixItems":[{"$ref":"#/$defs/l)" +
                below + R"(","minItems":0},{"$ref":"#/$defs/l)" + below + R"(","maxItems":9}]})";
  }
  doubling += R"(},"$ref":"#/$defs/l60"})";
  const Refusal refusals[] = {
      {wide, "more than 400 properties"},
      {R"({"enum":[")" + std::string(1'000'000, 'x') + "\"]}", "at most 524288"},
      {nested(50, R"({"type":"array","items":)", "}"), ""},
      {nested(120, R"({"items":)", "}"), "deeper than 64 levels"},
      {nested(500, R"({"items":)", "}"), "no JSON"},
      {doubling, "too large"},
  };
  for (const Refusal& refusal : refusals) {
    const auto grammar = grammar_of(refusal.schema);
    EXPECT_EQ(grammar.ok(), refusal.part.empty()) << refusal.schema.substr(0, 60);
    EXPECT_THAT(grammar.ok() ? "" : grammar.error().message(), HasSubstr(refusal.part));
  }
}

TEST(OtherNames, AreAllButTheNamed) {
  Rules rules;
  const auto program = compiled(rules.text(other_names({"a", "ab", "x-y", "ü"}, CodePoints('a', 'z'))));
  for (const char* text : {"b", "aa", "abc", "xy", "ac"}) EXPECT_TRUE(matches(program, text)) << text;
  for (const char* text : {"", "a", "ab", "x-y", "A"}) EXPECT_FALSE(matches(program, text)) << text;
}

}  // namespace
}  // namespace rorqual::grammar
