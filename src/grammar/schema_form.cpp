// SPDX-License-Identifier: Apache-2.0
// Plain forms of JSON Schema.
#include "grammar/schema_form.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <optional>
#include <set>
#include <utility>

namespace rorqual::grammar {

namespace {

const std::set<std::string> kAssertions = {"$ref",
                                           "type",
                                           "enum",
                                           "const",
                                           "allOf",
                                           "anyOf",
                                           "oneOf",
                                           "minLength",
                                           "maxLength",
                                           "pattern",
                                           "format",
                                           "minimum",
                                           "maximum",
                                           "multipleOf",
                                           "items",
                                           "exclusiveMinimum",
                                           "exclusiveMaximum",
                                           "prefixItems",
                                           "minItems",
                                           "maxItems",
                                           "uniqueItems",
                                           "properties",
                                           "required",
                                           "patternProperties",
                                           "additionalItems",
                                           "minProperties",
                                           "maxProperties",
                                           "propertyNames",
                                           "additionalProperties"};

/// Keywords that mean something and cannot be enforced at all.
const std::vector<std::string> kNeverEnforced = {
    "not",         "if",           "dependentRequired", "dependentSchemas",      "dependencies",
    "contains",    "minContains",  "maxContains",       "unevaluatedProperties", "unevaluatedItems",
    "$dynamicRef", "$recursiveRef"};

const std::map<std::string, std::set<std::string>> kKeywordsOfType = {
    {"string", {"minLength", "maxLength", "pattern", "format"}},
    {"integer", {"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"}},
    {"number", {"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"}},
    {"array", {"items", "prefixItems", "additionalItems", "minItems", "maxItems", "uniqueItems"}},
    {"object",
     {"properties", "required", "additionalProperties", "patternProperties", "propertyNames", "minProperties",
      "maxProperties"}},
    {"boolean", {}},
    {"null", {}}};

bool has_type(const Json& value, const std::string& type) {
  if (type == "integer") {
    return value.is_number_integer() ||
           (value.is_number() && std::floor(value.get<double>()) == value.get<double>());
  }
  if (type == "number") return value.is_number();
  return type == value.type_name();
}

/// "type" as a list; empty = not given.
std::vector<std::string> types_of(const Json& node) {
  const auto type = node.find("type");
  if (type == node.end()) return {};
  if (type->is_string()) return {type->get<std::string>()};
  return type->get<std::vector<std::string>>();
}

Status check_type(const Json& node, const std::string& path) {
  const auto type = node.find("type");
  if (type == node.end()) return Ok{};
  const auto is_name = [](const Json& v) {
    return v.is_string() && kKeywordsOfType.contains(v.get_ref<const std::string&>());
  };
  const bool is_list = type->is_array() && !type->empty() && std::all_of(type->begin(), type->end(), is_name);
  if (is_name(*type) || is_list) return Ok{};
  return schema_error(
      Code::invalid_argument, child_path(path, "type"),
      fmt::format("{} is no JSON type", type->dump(-1, ' ', false, Json::error_handler_t::replace)));
}

/// The values that every value of the node's property `key` is among; empty = unknown.
std::vector<Json> fixed_values(const Json& node, const std::string& key) {
  if (!node.is_object() || !node.contains("properties") || !node["properties"].contains(key)) return {};
  const auto required = node.find("required");
  if (required == node.end() || std::find(required->begin(), required->end(), key) == required->end())
    return {};
  const Json& property = node["properties"][key];
  if (!property.is_object()) return {};
  if (property.contains("const")) return {property["const"]};
  if (property.contains("enum") && property["enum"].is_array()) {
    return {property["enum"].begin(), property["enum"].end()};
  }
  return {};
}

bool are_disjoint(const std::vector<Json>& a, const std::vector<Json>& b) {
  return !a.empty() && !b.empty() && std::none_of(a.begin(), a.end(), [&](const Json& v) {
    return std::find(b.begin(), b.end(), v) != b.end();
  });
}

/// No value satisfies both, as far as types, constants and a required property with constants tell.
bool exclude_each_other(const Json& a, const Json& b) {
  if (!a.is_object() || !b.is_object()) return false;
  const auto values = [](const Json& node) -> std::vector<Json> {
    if (node.contains("const")) return {node["const"]};
    if (node.contains("enum")) return {node["enum"].begin(), node["enum"].end()};
    return {};
  };
  if (are_disjoint(values(a), values(b))) return true;
  const auto types_a = types_of(a), types_b = types_of(b);
  const auto overlap = [](const std::string& x, const std::string& y) {
    const auto is_number = [](const std::string& t) { return t == "integer" || t == "number"; };
    return x == y || (is_number(x) && is_number(y));
  };
  const bool types_differ = !types_a.empty() && !types_b.empty() &&
                            std::none_of(types_a.begin(), types_a.end(), [&](const std::string& x) {
                              return std::any_of(types_b.begin(), types_b.end(),
                                                 [&](const std::string& y) { return overlap(x, y); });
                            });
  if (types_differ) return true;
  if (types_a != std::vector<std::string>{"object"} || types_b != types_a || !a.contains("properties"))
    return false;
  for (const auto& [key, property] : a["properties"].items()) {
    if (are_disjoint(fixed_values(a, key), fixed_values(b, key))) return true;
  }
  return false;
}

int64_t num_nodes(const Json& value) {
  int64_t sum = 1;
  if (value.is_structured()) {
    for (const Json& child : value) sum += num_nodes(child);
  }
  return sum;
}

}  // namespace

Error schema_error(Code code, const std::string& path, const std::string& what) {
  return Error(code, fmt::format("{}: {}", path, what));
}

std::string child_path(const std::string& path, const std::string& key) {
  return path + "." + key;
}

/// Parts that refer to each other can stand for much more than is written.
Status SchemaForms::count_work(const Json& part, size_t times, const std::string& path) {
  work_ += num_nodes(part) * static_cast<int64_t>(times);
  if (work_ <= kMaxWork) return Ok{};
  return schema_error(Code::invalid_argument, path,
                      "the schema is too large when its parts are put together");
}

Status SchemaForms::unenforced(const std::string& path, const std::string& keyword, const std::string& why) {
  if (policy_ == Unenforced::widen) {
    notes_.push_back(path + ": " + keyword);
    return Ok{};
  }
  return schema_error(Code::unsupported, path,
                      fmt::format("'{}' cannot be enforced{}{}", keyword, why.empty() ? "" : ": ", why));
}

Result<Json> SchemaForms::target(const std::string& reference, const std::string& path) const {
  const auto missing = [&] {
    return schema_error(Code::invalid_argument, child_path(path, "$ref"),
                        fmt::format("'{}' leads nowhere in this schema; only '#…' is followed", reference));
  };
  if (reference.empty() || reference[0] != '#') return missing();
  try {
    const Json::json_pointer pointer(reference.substr(1));
    if (!root_.contains(pointer)) return missing();
    return root_[pointer];
  } catch (const Json::exception&) {
    return missing();
  }
}

/// Follows references that have neighbours, and puts the parts of allOf together.
Result<Json> SchemaForms::gathered(const Json& given, const std::string& path) {
  Json node = given;
  for (int step = 0; step < kMaxSteps; ++step) {
    std::vector<Json> parts;
    if (node.contains("$ref") && node.size() > 1) {
      if (!node["$ref"].is_string()) return schema_error(Code::invalid_argument, path, "'$ref' is no string");
      RORQUAL_TRY_ASSIGN(Json part, target(node["$ref"].get<std::string>(), path));
      node.erase("$ref");
      parts.push_back(std::move(part));
    }
    if (node.contains("allOf")) {
      if (!node["allOf"].is_array())
        return schema_error(Code::invalid_argument, child_path(path, "allOf"), "no list");
      for (const Json& part : node["allOf"]) parts.push_back(part);
      node.erase("allOf");
    }
    if (parts.empty()) return node;
    for (const Json& part : parts) {
      RORQUAL_TRY(count_work(part, 1, path));
      RORQUAL_TRY(merge(node, part, path));
    }
  }
  return schema_error(Code::invalid_argument, path,
                      fmt::format("more than {} references and parts in each other, or a circle", kMaxSteps));
}

/// Makes `into` mean itself and `part`.
Status SchemaForms::merge(Json& into, const Json& part, const std::string& path) {
  if (part.is_boolean() && part.get<bool>()) return Ok{};
  if (!part.is_object()) return schema_error(Code::invalid_argument, path, "a part allows nothing");
  const auto closes = [](const Json& node) {
    return node.contains("additionalProperties") && node["additionalProperties"] != Json(true);
  };
  const bool is_split =
      (closes(into) && part.contains("properties")) || (closes(part) && into.contains("properties"));
  if (is_split && into != part) {
    RORQUAL_TRY(unenforced(path, "additionalProperties", "it would exclude the properties of another part"));
  }
  for (const auto& [key, value] : part.items()) {
    if (!kAssertions.contains(key) &&
        std::find(kNeverEnforced.begin(), kNeverEnforced.end(), key) == kNeverEnforced.end())
      continue;
    if (!into.contains(key)) {
      into[key] = value;
      continue;
    }
    if (into[key] == value) continue;
    RORQUAL_TRY_ASSIGN(const bool is_merged, merge_known(into, key, value, path));
    if (!is_merged) RORQUAL_TRY(unenforced(path, key, "two parts give different values"));
  }
  return Ok{};
}

/// True if the two values of `key` became one.
Result<bool> SchemaForms::merge_known(Json& into, const std::string& key, const Json& value,
                                      const std::string& path) {
  Json& old = into[key];
  if (key == "required" && old.is_array() && value.is_array()) {
    for (const Json& name : value) {
      if (std::find(old.begin(), old.end(), name) == old.end()) old.push_back(name);
    }
    return true;
  }
  if (key == "properties" && old.is_object() && value.is_object()) {
    for (const auto& [name, property] : value.items()) {
      old[name] =
          old.contains(name) && old[name] != property ? Json{{"allOf", {old[name], property}}} : property;
    }
    return true;
  }
  const bool is_lower = key.starts_with("min") || key == "exclusiveMinimum";
  const bool is_upper = key.starts_with("max") || key == "exclusiveMaximum";
  if ((is_lower || is_upper) && old.is_number() && value.is_number()) {
    if ((old < value) == is_lower) old = value;
    return true;
  }
  if (key == "type") {
    RORQUAL_TRY(check_type(into, path));
    RORQUAL_TRY(check_type(Json{{"type", value}}, path));
    const auto names = types_of(Json{{"type", value}});
    Json both = Json::array();
    for (const std::string& name : types_of(into)) {
      const auto has = [&](const char* other) {
        return std::find(names.begin(), names.end(), other) != names.end();
      };
      if (has(name.c_str())) both.push_back(name);
      if (name == "number" && !has("number") && has("integer")) both.push_back("integer");
      if (name == "integer" && !has("integer") && has("number")) both.push_back("integer");
    }
    if (both.empty()) return schema_error(Code::invalid_argument, path, "two parts have no type in common");
    old = both;
    return true;
  }
  if (key == "allOf" && old.is_array() && value.is_array()) {
    for (const Json& part : value) old.push_back(part);
    return true;
  }
  return false;
}

Status SchemaForms::drop_unenforced(Json& node, const std::string& path) {
  for (const std::string& key : kNeverEnforced) {
    if (!node.contains(key)) continue;
    const bool is_idle = (key == "if" && !node.contains("then") && !node.contains("else")) ||
                         (key.starts_with("unevaluated") && node[key] == Json(true));
    if (!is_idle) RORQUAL_TRY(unenforced(path, key));
    node.erase(key);
  }
  if (node.contains("uniqueItems")) {
    if (node["uniqueItems"] == Json(true)) RORQUAL_TRY(unenforced(path, "uniqueItems"));
    node.erase("uniqueItems");
  }
  std::vector<std::string> others;
  for (const auto& [key, value] : node.items()) {
    if (!kAssertions.contains(key)) others.push_back(key);
  }
  for (const std::string& key : others) node.erase(key);
  return Ok{};
}

Result<Json> SchemaForms::enumeration(const Json& node, const std::string& path) {
  Json values = node.contains("enum") ? node["enum"] : Json::array({node["const"]});
  if (!values.is_array() || values.empty() || values.size() > kMaxEnumValues) {
    return schema_error(Code::invalid_argument, child_path(path, "enum"),
                        fmt::format("expected a list of 1 to {} values", kMaxEnumValues));
  }
  if (node.contains("enum") && node.contains("const")) {
    if (std::find(values.begin(), values.end(), node["const"]) == values.end()) {
      return schema_error(Code::invalid_argument, path, "'const' is not among the values of 'enum'");
    }
    values = Json::array({node["const"]});
  }
  const auto types = types_of(node);
  Json allowed = Json::array();
  for (const Json& value : values) {
    const bool fits = types.empty() || std::any_of(types.begin(), types.end(), [&](const std::string& type) {
                        return has_type(value, type);
                      });
    if (fits) allowed.push_back(value);
  }
  if (allowed.empty())
    return schema_error(Code::invalid_argument, path, "no value of 'enum' has the type asked for");
  for (const auto& [key, value] : node.items()) {
    if (key == "type" || key == "enum" || key == "const") continue;
    RORQUAL_TRY(unenforced(path, key, "it stands beside 'enum' or 'const'"));
  }
  return Json{{"enum", allowed}};
}

Status SchemaForms::check_one_of(const Json& options, const std::string& path) {
  std::vector<Json> known;
  for (const Json& option : options) {
    Json node = option;
    for (int i = 0; i < kMaxSteps && node.is_object() && node.contains("$ref") && node["$ref"].is_string();
         ++i) {
      RORQUAL_TRY_ASSIGN(node, target(node["$ref"].get<std::string>(), path));
    }
    for (const Json& other : known) {
      if (exclude_each_other(node, other)) continue;
      return unenforced(path, "oneOf",
                        "its options do not exclude each other by type or by a required constant");
    }
    known.push_back(std::move(node));
  }
  return Ok{};
}

/// anyOf and oneOf: what stands beside them goes into every option.
Result<Json> SchemaForms::alternatives(Json node, const std::string& path) {
  if (node.contains("oneOf")) {
    if (!node["oneOf"].is_array() || node["oneOf"].empty()) {
      return schema_error(Code::invalid_argument, child_path(path, "oneOf"),
                          "expected a list of at least one schema");
    }
    RORQUAL_TRY(check_one_of(node["oneOf"], path));
    if (node.contains("anyOf")) {
      RORQUAL_TRY(unenforced(path, "oneOf", "it stands beside 'anyOf'"));
    } else {
      node["anyOf"] = node["oneOf"];
    }
    node.erase("oneOf");
  }
  const Json options = node["anyOf"];
  if (!options.is_array() || options.empty()) {
    return schema_error(Code::invalid_argument, child_path(path, "anyOf"),
                        "expected a list of at least one schema");
  }
  node.erase("anyOf");
  RORQUAL_TRY(count_work(node, options.size(), path));
  Json out = Json::array();
  for (const Json& option : options) {
    if (option == Json(false)) continue;
    if (node.empty()) {
      out.push_back(option);
    } else {
      out.push_back(Json{{"allOf", {node, option}}});
    }
  }
  if (out.empty()) return schema_error(Code::invalid_argument, path, "no option allows anything");
  return Json{{"anyOf", out}};
}

Json SchemaForms::of_one_type(const Json& node) {
  std::vector<std::string> types = types_of(node);
  if (types.empty()) {  // what the keywords are about is what is meant
    for (const auto& [type, keywords] : kKeywordsOfType) {
      if (type == "integer") continue;
      const bool is_meant = std::any_of(keywords.begin(), keywords.end(),
                                        [&](const std::string& key) { return node.contains(key); });
      if (is_meant) types.push_back(type);
    }
    if (types.empty()) return Json::object();
  }
  Json options = Json::array();
  for (const std::string& type : types) {
    Json option{{"type", type}};
    for (const auto& [key, value] : node.items()) {
      if (kKeywordsOfType.at(type).contains(key)) option[key] = value;
    }
    options.push_back(std::move(option));
  }
  if (options.size() > 1) return Json{{"anyOf", options}};
  Json only = std::move(options[0]);
  return only;
}

Result<Json> SchemaForms::plain(const Json& given, const std::string& path) {
  if (given.is_boolean() && given.get<bool>()) return Json::object();
  if (given.is_boolean())
    return schema_error(Code::invalid_argument, path, "the schema 'false' allows nothing");
  if (!given.is_object()) {
    return schema_error(Code::invalid_argument, path, "a schema is an object or a boolean");
  }
  Json kept = given;
  RORQUAL_TRY(drop_unenforced(kept, path));
  RORQUAL_TRY_ASSIGN(Json node, gathered(kept, path));
  RORQUAL_TRY(drop_unenforced(node, path));
  if (node.contains("$ref")) {
    if (!node["$ref"].is_string()) return schema_error(Code::invalid_argument, path, "'$ref' is no string");
    RORQUAL_TRY_ASSIGN(const Json ignored, target(node["$ref"].get<std::string>(), path));
    return Json{{"$ref", node["$ref"]}};
  }
  RORQUAL_TRY(check_type(node, path));
  if (node.contains("enum") || node.contains("const")) return enumeration(node, path);
  if (node.contains("anyOf") || node.contains("oneOf")) return alternatives(std::move(node), path);
  return of_one_type(node);
}

}  // namespace rorqual::grammar
