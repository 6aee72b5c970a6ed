// SPDX-License-Identifier: Apache-2.0
// Random schemas, random walks through the tokens that are allowed: what comes out parses and satisfies the
// schema, judged by a validator that shares nothing with the grammars.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>
#include <nlohmann/json.hpp>
#include <random>
#include <regex>
#include <string>
#include <vector>

#include "grammar/constraint.h"
#include "grammar/test_tokens.h"
#include "text/json_text.h"
#include "text/output_parser.h"
#include "text/utf8.h"

namespace rorqual::grammar {
namespace {

constexpr uint64_t kSeed = 20261130;
constexpr size_t kMaxTokens = 3000;

bool is_valid(const Json& root, const Json& schema, const Json& value);

bool is_valid_number(const Json& schema, const Json& value) {
  const double number = value.get<double>();
  return (!schema.contains("minimum") || number >= schema["minimum"].get<double>()) &&
         (!schema.contains("maximum") || number <= schema["maximum"].get<double>()) &&
         (!schema.contains("exclusiveMinimum") || number > schema["exclusiveMinimum"].get<double>()) &&
         (!schema.contains("exclusiveMaximum") || number < schema["exclusiveMaximum"].get<double>()) &&
         (!schema.contains("multipleOf") || std::fmod(number, schema["multipleOf"].get<double>()) == 0);
}

bool is_valid_string(const Json& schema, const std::string& value) {
  const auto length = static_cast<uint64_t>(text::count_code_points(value));
  return length >= schema.value("minLength", uint64_t{0}) &&
         length <= schema.value("maxLength", UINT64_MAX) &&
         (!schema.contains("pattern") ||
          std::regex_search(value, std::regex(schema["pattern"].get<std::string>())));
}

bool is_valid_array(const Json& root, const Json& schema, const Json& value) {
  if (value.size() < schema.value("minItems", size_t{0}) || value.size() > schema.value("maxItems", SIZE_MAX))
    return false;
  for (const Json& item : value) {
    if (schema.contains("items") && !is_valid(root, schema["items"], item)) return false;
  }
  return true;
}

bool is_valid_object(const Json& root, const Json& schema, const Json& value) {
  for (const Json& name : schema.value("required", Json::array())) {
    if (!value.contains(name.get<std::string>())) return false;
  }
  const Json properties = schema.value("properties", Json::object());
  for (const auto& [name, member] : value.items()) {
    const Json rule =
        properties.contains(name) ? properties[name] : schema.value("additionalProperties", Json(true));
    if (!is_valid(root, rule, member)) return false;
  }
  return value.size() <= schema.value("maxProperties", SIZE_MAX);
}

bool has_type(const std::string& type, const Json& value) {
  if (type == "integer") return value.is_number_integer();
  return type == "number" ? value.is_number() : type == value.type_name();
}

bool is_valid(const Json& root, const Json& schema, const Json& value) {
  if (schema.is_boolean()) return schema.get<bool>();
  if (schema.contains("$ref"))
    return is_valid(root, root[Json::json_pointer(schema["$ref"].get<std::string>().substr(1))], value);
  if (schema.contains("enum")) {
    const Json& values = schema["enum"];
    return std::find(values.begin(), values.end(), value) != values.end();
  }
  if (schema.contains("anyOf")) {
    for (const Json& option : schema["anyOf"]) {
      if (is_valid(root, option, value)) return true;
    }
    return false;
  }
  if (!schema.contains("type")) return true;
  if (!has_type(schema["type"].get<std::string>(), value)) return false;
  if (value.is_number()) return is_valid_number(schema, value);
  if (value.is_string()) return is_valid_string(schema, value.get<std::string>());
  if (value.is_array()) return is_valid_array(root, schema, value);
  return !value.is_object() || is_valid_object(root, schema, value);
}

class RandomSchema {
 public:
  explicit RandomSchema(std::mt19937_64& random) : random_(random) {}

  Json node(int depth) {
    switch (below(depth > 0 ? 10 : 7)) {
      case 0:
        return string();
      case 1:
        return integer();
      case 2:
        return number();
      case 3:
        return Json{{"type", "boolean"}};
      case 4:
        return Json{{"enum", {"a\"b", 5, nullptr, Json::array({true})}}};
      case 5:
        return Json{{"type", "string"}, {"pattern", patterns()[below(patterns().size())]}};
      case 6:
        return Json{{"anyOf", {string(), Json{{"type", "null"}}, integer()}}};
      case 7:
        return Json{{"type", "array"},
                    {"items", node(depth - 1)},
                    {"minItems", below(2)},
                    {"maxItems", 1 + below(4)}};
      default:
        return object(depth);
    }
  }

 private:
  static const std::vector<std::string>& patterns() {
    static const std::vector<std::string> all = {"^[a-f]{2,5}$", "^(x|yz)-[0-9]{1,3}$",
                                                 "^[A-Z][a-z]{0,6}( [A-Z][a-z]{0,6})?$", "^\"\\\\[!-/]$"};
    return all;
  }

  size_t below(size_t n) { return random_() % n; }

  Json string() {
    const size_t min = below(4);
    return Json{{"type", "string"}, {"minLength", min}, {"maxLength", min + below(10)}};
  }

  Json integer() {
    const int64_t min = static_cast<int64_t>(below(2000)) - 1000;
    Json out{{"type", "integer"}};
    if (below(2) == 0) out[below(2) == 0 ? "minimum" : "exclusiveMinimum"] = min;
    if (below(2) == 0) out["maximum"] = min + 2 + static_cast<int64_t>(below(5000));
    if (out.size() == 1 && below(2) == 0) out["multipleOf"] = std::vector<int>{2, 5, 10, 25, 100}[below(5)];
    return out;
  }

  Json number() {
    const double min = (static_cast<double>(below(4000)) - 2000) / 16;
    Json out{{"type", "number"}};
    if (below(2) == 0) out[below(2) == 0 ? "minimum" : "exclusiveMinimum"] = min;
    if (below(2) == 0)
      out[below(2) == 0 ? "maximum" : "exclusiveMaximum"] = min + 0.25 + static_cast<double>(below(400)) / 8;
    return out;
  }

  Json object(int depth) {
    Json properties = Json::object(), required = Json::array();
    const size_t count = 1 + below(5);
    for (size_t i = 0; i < count; ++i) {
      const std::string name = std::vector<std::string>{"id", "na\"me", "größe", "x", "a b"}[i];
      properties[name] = node(depth - 1);
      if (below(2) == 0) required.push_back(name);
    }
    Json out{{"type", "object"}, {"properties", properties}, {"required", required}};
    if (below(2) == 0) out["additionalProperties"] = false;
    return out;
  }

  std::mt19937_64& random_;
};

ConstraintCompiler& compiler() {
  static ConstraintCompiler out(mini_tokenizer(), mini_tokenizer().vocab_size(), kEos);
  return out;
}

TEST(ConstraintProperty, WalksThroughSchemasParseAndValidate) {
  std::mt19937_64 random(kSeed);
  int finished = 0;
  for (int round = 0; round < 150; ++round) {
    const Json schema = RandomSchema(random).node(2);
    const auto constraint =
        compiler().compile({ConstraintSpec::Kind::json, text::json_text(schema), JsonSpace::any, false}, {});
    ASSERT_TRUE(constraint.ok()) << constraint.error().message() << " " << schema;
    for (int walk = 0; walk < 3; ++walk) {
      const auto masks = constraint->for_reply();
      const auto reply = random_walk(*masks, random, kMaxTokens);
      if (reply.empty()) continue;
      ++finished;
      const std::string text = mini_tokenizer().decode(reply, false);
      std::string problem;
      const auto value = text::parse_json(text, &problem);
      ASSERT_TRUE(value.has_value()) << problem << "\n" << text << "\n" << schema;
      EXPECT_TRUE(is_valid(schema, schema, *value)) << text << "\n" << schema;
      if (testing::Test::HasFailure()) return;
    }
  }
  EXPECT_GT(finished, 400);
}

/// Calls of random tools: what the parser of the program makes of them satisfies the parameters' schema.
TEST(ConstraintProperty, WalksThroughToolsAreCallsThatSatisfyTheSchema) {
  std::mt19937_64 random(kSeed + 1);
  int finished = 0;
  for (int round = 0; round < 80; ++round) {
    Json parameters = RandomSchema(random).node(2);
    while (parameters.value("type", "") != "object") parameters = RandomSchema(random).node(2);
    const Json tools = Json::array(
        {Json{{"type", "function"}, {"function", Json{{"name", "f"}, {"parameters", parameters}}}}});
    ConstraintSpec spec{ConstraintSpec::Kind::tools, text::json_text(tools), JsonSpace::any, round % 2 == 0};
    const auto constraint = compiler().compile(spec, {false, ConstraintPlace::Calls::block_opened});
    ASSERT_TRUE(constraint.ok()) << constraint.error().message() << " " << parameters;
    const auto masks = constraint->for_reply();
    const auto reply = random_walk(*masks, random, kMaxTokens);
    if (reply.empty()) continue;
    ++finished;
    text::ParserOptions options;
    options.parse_tool_calls = options.starts_in_tool_calls = true;
    text::OutputParser parser(mini_tokenizer(), options);
    text::ParsedOutput output;
    for (const int32_t id : reply) text::accumulate(parser.push(id), output);
    text::accumulate(parser.finish(), output);
    ASSERT_FALSE(output.calls.empty()) << mini_tokenizer().decode(reply, false);
    EXPECT_TRUE(output.content.empty());
    for (const auto& call : output.calls) {
      EXPECT_EQ(call.name, "f");
      std::string problem;
      const auto arguments = text::parse_json(call.arguments, &problem);
      ASSERT_TRUE(arguments.has_value()) << problem << "\n" << call.arguments;
      EXPECT_TRUE(is_valid(parameters, parameters, *arguments)) << call.arguments << "\n" << parameters;
    }
  }
  EXPECT_GT(finished, 60);
}

}  // namespace
}  // namespace rorqual::grammar
