// SPDX-License-Identifier: Apache-2.0
// Grammars of tool calls.
#include "grammar/tool_grammar.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>
#include <utility>

#include "grammar/schema_grammar.h"
#include "text/json_text.h"

namespace rorqual::grammar {

namespace {

constexpr int kMaxUnions = 32;  // unions and references in each other, at a parameter

/// Values of one parameter by how they are written: strings as they are, all else as JSON.
struct ValueForms {
  std::vector<std::string> raw, json;
};

class ToolWriter {
 public:
  ToolWriter(const std::string& name, Json parameters, int32_t marker, Rules& rules)
      : schema_(std::move(parameters), Unenforced::widen, JsonSpace::any, rules),
        rules_(rules),
        name_(name),
        marker_(token(marker)) {}

  /// One whole call, from '<' to '>'.
  Result<std::string> call() {
    const auto where = fmt::format("tool '{}': $", name_);
    RORQUAL_TRY_ASSIGN(const std::string list, parameters(schema_.forms().root(), where, 0));
    return rules_.add(fmt::format("\"<\" {0} {1} {2} \"</\" {0} \" invoke>\"", marker_,
                                  literal(fmt::format(" invoke name=\"{}\">\n", name_)), list));
  }

  std::vector<std::string> notes() { return schema_.forms().notes(); }

 private:
  /// Lines of the parameters.
  Result<std::string> parameters(const Json& schema, const std::string& path, int depth) {
    if (depth > kMaxUnions)
      return schema_error(Code::invalid_argument, path, "too many references in each other");
    RORQUAL_TRY_ASSIGN(const Json plain, schema_.forms().plain(schema, path));
    if (plain.contains("$ref")) {
      RORQUAL_TRY_ASSIGN(const Json target, schema_.forms().target(plain["$ref"].get<std::string>(), path));
      return parameters(target, path, depth + 1);
    }
    if (plain.contains("anyOf")) {
      std::vector<std::string> choices;
      for (const Json& option : plain["anyOf"]) {
        RORQUAL_TRY_ASSIGN(std::string one,
                           parameters(option, fmt::format("{}.anyOf[{}]", path, choices.size()), depth + 1));
        choices.push_back(std::move(one));
      }
      return rules_.add(choice(choices));
    }
    if (plain.empty()) return object(Json{{"type", "object"}}, path);
    if (plain.contains("type") && plain["type"] == "object") return object(plain, path);
    return schema_error(Code::invalid_argument, path, "the parameters are not an object");
  }

  Result<std::string> object(const Json& plain, const std::string& path) {
    Json properties = plain.contains("properties") ? plain["properties"] : Json::object();
    if (!properties.is_object())
      return schema_error(Code::invalid_argument, path, "'properties' is no object");
    std::set<std::string> required;
    for (const Json& name : plain.contains("required") ? plain["required"] : Json::array()) {
      if (!name.is_string())
        return schema_error(Code::invalid_argument, child_path(path, "required"), "expected strings");
      required.insert(name.get<std::string>());
      if (!properties.contains(name.get<std::string>())) properties[name.get<std::string>()] = true;
    }
    if (properties.size() > kMaxProperties) {
      return schema_error(Code::invalid_argument, path,
                          fmt::format("more than {} properties", kMaxProperties));
    }
    for (const char* key : {"patternProperties", "propertyNames", "minProperties", "maxProperties"}) {
      if (plain.contains(key)) RORQUAL_TRY(schema_.forms().unenforced(path, key));
    }
    const bool has_named = !properties.empty();
    const Json additional = plain.contains("additionalProperties")
                                ? plain["additionalProperties"]
                                : Json(!has_named && plain.contains("patternProperties"));
    std::vector<std::string> names, lines;
    for (const auto& [name, schema] : properties.items()) {
      // The parser copies a name into the arguments as it stands there: what JSON escapes is escaped here.
      std::string spelled;
      text::append_json_escaped(spelled, name);
      RORQUAL_TRY_ASSIGN(std::string one,
                         line(literal(spelled), schema, child_path(path + ".properties", name)));
      names.push_back(name);
      lines.push_back(std::move(one));
    }
    std::string others = "\"\"";
    if (additional != Json(false)) {
      CodePoints allowed('a', 'z');
      allowed.add('A', 'Z');
      allowed.add('0', '9');
      allowed.add(CodePoints::any_of("_.-"));
      RORQUAL_TRY_ASSIGN(const std::string other, line(other_names(names, allowed), additional,
                                                       child_path(path, "additionalProperties")));
      others = repeat(other, 0, -1);
    }
    std::vector<bool> must;
    for (const std::string& name : names) must.push_back(required.contains(name));
    const std::string list =
        lines.size() <= kMaxFreeOrder ? any_order(lines, must, others) : given_order(lines, must, others);
    // A call without parameters has an empty line in their place.
    return required.empty() ? rules_.add(choice({list, "\"\\n\""})) : list;
  }

  /// One rule per set of parameters that are there already.
  std::string any_order(const std::vector<std::string>& lines, const std::vector<bool>& must,
                        const std::string& others) {
    const size_t all = size_t{1} << lines.size();
    std::vector<std::string> names(all);
    for (size_t there = all; there-- > 0;) {
      std::vector<std::string> choices;
      bool may_end = true;
      for (size_t i = 0; i < lines.size(); ++i) {
        const size_t bit = size_t{1} << i;
        if ((there & bit) != 0) continue;
        choices.push_back(fmt::format("{} {}", lines[i], names[there | bit]));
        may_end = may_end && !must[i];
      }
      if (may_end) choices.emplace_back("\"\"");
      names[there] = rules_.add(fmt::format("{} {}", others, choice(choices)));
    }
    return names[0];
  }

  std::string given_order(const std::vector<std::string>& lines, const std::vector<bool>& must,
                          const std::string& others) {
    std::string list = others;
    for (size_t i = lines.size(); i-- > 0;) {
      list = rules_.add(fmt::format("{} {}", must[i] ? lines[i] : optional(lines[i]), list));
    }
    return list;
  }

  /// A parameter with its line end. `name` is an expression.
  Result<std::string> line(const std::string& name, const Json& schema, const std::string& path) {
    ValueForms forms;
    RORQUAL_TRY(collect(schema, path, 0, forms));
    std::vector<std::string> choices;
    if (!forms.raw.empty()) choices.push_back(fmt::format("\"true\\\">\" {}", choice(forms.raw)));
    if (!forms.json.empty()) choices.push_back(fmt::format("\"false\\\">\" {}", choice(forms.json)));
    return rules_.add(fmt::format(
        "\"<\" {0} \" parameter name=\\\"\" {1} \"\\\" string=\\\"\" {2} \"</\" {0} \" parameter>\\n\"",
        marker_, name, choice(choices)));
  }

  Status collect(const Json& schema, const std::string& path, int depth, ValueForms& forms) {
    if (depth > kMaxUnions)
      return schema_error(Code::invalid_argument, path, "too many references in each other");
    RORQUAL_TRY_ASSIGN(const Json plain, schema_.forms().plain(schema, path));
    if (plain.empty()) {
      forms.raw.push_back(repeat(character(CodePoints::all()), 0, -1));
      forms.json.push_back(schema_.any_but_string());
      return Ok{};
    }
    if (plain.contains("$ref")) {
      RORQUAL_TRY_ASSIGN(const Json target, schema_.forms().target(plain["$ref"].get<std::string>(), path));
      return collect(target, path, depth + 1, forms);
    }
    if (plain.contains("anyOf")) {
      for (const Json& option : plain["anyOf"]) RORQUAL_TRY(collect(option, path, depth + 1, forms));
      return Ok{};
    }
    if (plain.contains("enum")) {
      for (const Json& value : plain["enum"]) {
        if (value.is_string()) {
          forms.raw.push_back(literal(value.get<std::string>()));
        } else {
          forms.json.push_back(literal(text::json_text(value)));
        }
      }
      return Ok{};
    }
    if (plain["type"] == "string") {
      RORQUAL_TRY_ASSIGN(std::string body, schema_.raw_string(plain, path));
      forms.raw.push_back(std::move(body));
      return Ok{};
    }
    RORQUAL_TRY_ASSIGN(std::string body, schema_.value(plain, path));
    forms.json.push_back(std::move(body));
    return Ok{};
  }

  SchemaGrammar schema_;
  Rules& rules_;
  std::string name_, marker_;
};

}  // namespace

Result<ToolGrammar> tool_grammar(std::string_view tools, int32_t marker, bool single_call) {
  std::string problem;
  const auto list = text::parse_json(tools, &problem);
  if (!list || !list->is_array() || list->empty()) {
    return Error(Code::invalid_argument, "the tools are no list of tools: " + problem);
  }
  Rules rules;
  ToolGrammar out;
  std::vector<std::string> calls;
  for (const Json& tool : *list) {
    const Json function = tool.value("function", Json::object());
    const auto name = function.value("name", std::string());
    Json parameters = function.value("parameters", Json::object());
    if (parameters.empty()) parameters = Json{{"type", "object"}};
    ToolWriter writer(name, std::move(parameters), marker, rules);
    RORQUAL_TRY_ASSIGN(std::string call, writer.call());
    calls.push_back(std::move(call));
    for (const std::string& note : writer.notes()) out.notes.push_back(note);
  }
  if (rules.is_too_large()) {
    return Error(Code::invalid_argument,
                 fmt::format("the tools' schemas are too large: more than {} rules", Rules::kMaxRules));
  }
  const std::string one = rules.add(choice(calls));
  const std::string more = single_call ? "" : fmt::format("(\"\\n\" {})*", one);
  out.text = rules.text(fmt::format("{0} {1} {2} {3} {4} \"\\n</\" {1} \" calls>\"", literal(kBlockOpening),
                                    token(marker), literal(kBlockName), one, more));
  return out;
}

}  // namespace rorqual::grammar
