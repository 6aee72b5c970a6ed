// SPDX-License-Identifier: Apache-2.0
// Checks and normal forms of tool schemas.
#include "api/tool_schema.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>
#include <string_view>

#include "api/body_reader.h"
#include "api/limits.h"
#include "text/chat_encoder.h"
#include "text/json_text.h"

namespace rorqual::api {

namespace {

constexpr std::string_view kTypes[] = {"object", "string", "number", "integer", "boolean", "array", "null"};
constexpr std::string_view kSimpleTypes[] = {"string", "number", "integer", "boolean", "null"};
constexpr std::string_view kFormats[] = {"email", "hostname", "ipv4", "ipv6", "uuid"};

template <size_t N>
bool is_one_of(std::string_view name, const std::string_view (&names)[N]) {
  return std::find(std::begin(names), std::end(names), name) != std::end(names);
}

template <size_t N>
std::string list_of(const std::string_view (&names)[N]) {
  std::string out;
  for (const auto& name : names) out += (out.empty() ? "`" : ", `") + std::string(name) + "`";
  return out;
}

ApiError schema_error(bool is_tool, const std::string& what) {
  return ApiError::conversion(
      std::string(is_tool ? "Invalid tool parameters schema : " : "Invalid json schema: ") + what);
}

/// Strict normaliser: keeps a fixed set of keywords in a fixed order.
class StrictSchema {
 public:
  explicit StrictSchema(bool is_tool) : is_tool_(is_tool) {}

  ApiResult<Json> node(const Json& schema, bool is_top) {
    if (!schema.is_object()) return fail("one of `type`, `anyOf`, `$ref` field is required");
    const auto type = schema.find("type");
    if (type != schema.end()) {
      if (type->is_array()) {
        RORQUAL_API_TRY_ASSIGN(const Json list, type_list(schema));
        if (is_top) return ApiError::conversion(top_message());
        return list;
      }
      if (!type->is_string())
        return fail("invalid type: " + describe(*type) + ", expected variant identifier");
      return typed(schema, type->get<std::string>(), is_top);
    }
    const auto any_of = schema.find("anyOf");
    if (any_of != schema.end()) {
      RORQUAL_API_TRY_ASSIGN(const Json list, alternatives(schema, *any_of));
      if (is_top) return ApiError::conversion(top_message());
      return list;
    }
    const auto reference = schema.find("$ref");
    if (reference == schema.end()) return fail("one of `type`, `anyOf`, `$ref` field is required");
    if (!reference->is_string())
      return fail("field `$ref`: invalid type: " + describe(*reference) + ", expected a string");
    if (is_top) return ApiError::conversion(top_message());
    return Json{{"$ref", *reference}};
  }

  std::string top_message() const {
    return is_tool_ ? "The top level of the function parameters schema must be an object."
                    : "The top level of the json schema must be an object.";
  }

 private:
  ApiError fail(const std::string& what) const { return schema_error(is_tool_, place_ + what); }

  enum class Kind : uint8_t { string, strings, number, integer };

  /// Copies a keyword of the right type; returns what is wrong with it, or "".
  static std::string keep(Json& out, const Json& schema, const char* key, Kind kind) {
    const auto it = schema.find(key);
    if (it == schema.end() || it->is_null()) return {};
    const auto problem = [](const Json& value, const char* expected) {
      return "invalid type: " + describe(value) + ", expected " + expected;
    };
    if (kind == Kind::string && !it->is_string()) return problem(*it, "a string");
    if (kind == Kind::number && !it->is_number()) return problem(*it, "a JSON number");
    if (kind == Kind::integer && !it->is_number_integer()) return problem(*it, "i64");
    if (kind == Kind::strings) {
      if (!it->is_array()) return problem(*it, "a sequence");
      for (const auto& item : *it) {
        if (!item.is_string()) return problem(item, "a string");
      }
    }
    out[key] = *it;
    return {};
  }

  ApiResult<Json> with_description(const Json& schema, Json out) const {
    const std::string problem = keep(out, schema, "description", Kind::string);
    if (!problem.empty()) return fail("field `description`: " + problem);
    return out;
  }

  ApiResult<Json> type_list(const Json& schema) {
    for (const auto& name : schema["type"]) {
      if (name.is_string() && is_one_of(name.get_ref<const std::string&>(), kSimpleTypes)) continue;
      return fail("field `type`: unknown variant `" +
                  (name.is_string() ? name.get<std::string>() : text::json_text(name)) +
                  "`, expected one of " + list_of(kSimpleTypes));
    }
    return with_description(schema, Json{{"type", schema["type"]}});
  }

  ApiResult<Json> alternatives(const Json& schema, const Json& any_of) {
    place_ = "field `anyOf`: ";
    if (!any_of.is_array()) return fail("invalid type: " + describe(any_of) + ", expected a sequence");
    Json list = Json::array();
    for (const auto& item : any_of) {
      if (!item.is_object()) {
        return fail("invalid type: " + describe(item) + ", expected internally tagged enum JsonSchemaType");
      }
      const auto type = item.find("type");
      if (type == item.end()) return fail("missing field `type`");
      if (!type->is_string())
        return fail("invalid type: " + describe(*type) + ", expected variant identifier");
      RORQUAL_API_TRY_ASSIGN(auto normal, node(item, false));
      list.push_back(std::move(normal));
    }
    place_.clear();
    return with_description(schema, Json{{"anyOf", std::move(list)}});
  }

  ApiResult<Json> typed(const Json& schema, const std::string& type, bool is_top) {
    if (!is_one_of(type, kTypes)) {
      return fail("unknown variant `" + type + "`, expected one of " + list_of(kTypes));
    }
    if (is_top && type != "object") {  // what is wrong inside comes first
      RORQUAL_API_TRY_ASSIGN(const Json ignored, typed(schema, type, false));
      return ApiError::conversion(top_message());
    }
    if (type == "object") return object(schema, is_top);
    Json out{{"type", type}};
    if (type == "array") {
      const auto items = schema.find("items");
      if (items == schema.end()) return fail("missing field `items`");
      RORQUAL_API_TRY_ASSIGN(out["items"], node(*items, false));
    }
    std::string problem = keep(out, schema, "description", Kind::string);
    if (type == "string" && problem.empty()) return string(schema, std::move(out));
    if (type == "number" || type == "integer") {
      const Kind kind = type == "number" ? Kind::number : Kind::integer;
      for (const char* key :
           {"const", "default", "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"}) {
        if (problem.empty()) problem = keep(out, schema, key, kind);
      }
    }
    if (!problem.empty()) return fail(problem);
    return out;
  }

  ApiResult<Json> string(const Json& schema, Json out) {
    const auto format = schema.find("format");
    if (format != schema.end() && format->is_string() &&
        !is_one_of(format->get_ref<const std::string&>(), kFormats)) {
      return fail("unknown variant `" + format->get<std::string>() + "`, expected one of " +
                  list_of(kFormats));
    }
    for (const auto& [key, kind] :
         {std::pair{"pattern", Kind::string}, {"format", Kind::string}, {"enum", Kind::strings}}) {
      const std::string problem = keep(out, schema, key, kind);
      if (!problem.empty()) return fail(problem);
    }
    return out;
  }

  ApiResult<Json> object(const Json& schema, bool is_top) {
    Json properties = Json::object();
    const auto given = schema.find("properties");
    if (given != schema.end() && given->is_object()) {
      for (const auto& [name, item] : given->items()) {
        RORQUAL_API_TRY_ASSIGN(auto normal, node(item, false));
        properties[name] = std::move(normal);
      }
    }
    if (properties.empty() && !(is_top && is_tool_)) {
      return ApiError::conversion("An object with no properties is not allowed.");
    }
    const auto additional = schema.find("additionalProperties");
    if (additional != schema.end() && !additional->is_null()) {
      if (!additional->is_boolean()) {
        return fail(std::string("invalid type: ") +
                    (additional->is_object() ? "map" : additional->type_name()) + ", expected a boolean");
      }
      if (additional->get<bool>()) return ApiError::conversion("additionalProperties should not be true");
    }
    if (auto problem = required_problem(schema, properties)) return *problem;
    Json required = Json::array();
    for (const auto& [name, item] : properties.items()) required.push_back(name);
    Json out{{"type", "object"},
             {"properties", properties},
             {"additionalProperties", false},
             {"required", required}};
    RORQUAL_API_TRY_ASSIGN(out, with_description(schema, std::move(out)));
    return definitions(schema, std::move(out));
  }

  ApiResult<Json> definitions(const Json& schema, Json out) {
    const auto given = schema.find("$def");
    if (given == schema.end() || !given->is_object()) return out;
    Json normal = Json::object();
    for (const auto& [name, item] : given->items()) {
      RORQUAL_API_TRY_ASSIGN(auto definition, node(item, false));
      normal[name] = std::move(definition);
    }
    out["$def"] = std::move(normal);
    return out;
  }

  std::optional<ApiError> required_problem(const Json& schema, const Json& properties) const {
    const auto required = schema.find("required");
    if (required == schema.end() || required->is_null()) return std::nullopt;
    if (!required->is_array()) return fail("field `required`: expected a sequence");
    std::set<std::string> seen;
    for (const auto& item : *required) {
      if (!item.is_string()) return fail("field `required`: expected a string");
      const auto name = item.get<std::string>();
      if (!properties.contains(name)) {
        return ApiError::conversion("Required property '" + name + "' not found in object");
      }
      if (!seen.insert(name).second)
        return ApiError::conversion("Duplicate required property '" + name + "'");
    }
    if (seen.size() != properties.size()) {
      return ApiError::conversion("Required properties must match all properties in the object");
    }
    return std::nullopt;
  }

  bool is_tool_;
  std::string place_;  // inside anyOf
};

/// Keywords whose value has one JSON type.
std::string keyword_problem(const std::string& key, const Json& value) {
  static const std::set<std::string> kObjects = {"properties", "patternProperties", "$defs", "definitions",
                                                 "dependentSchemas"};
  static const std::set<std::string> kArrays = {"required", "enum", "allOf", "anyOf", "oneOf", "prefixItems"};
  static const std::set<std::string> kCounts = {"minLength", "maxLength",     "minItems",
                                                "maxItems",  "minProperties", "maxProperties"};
  static const std::set<std::string> kNumbers = {"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum",
                                                 "multipleOf"};
  static const std::set<std::string> kStrings = {"title", "description", "pattern", "format",
                                                 "$ref",  "$id",         "$comment"};
  const std::string shown = text::json_text(value, text::JsonStyle::compact);
  if (kObjects.contains(key) && !value.is_object()) return shown + " is not of type \"object\"";
  if (kArrays.contains(key) && !value.is_array()) return shown + " is not of type \"array\"";
  if (kNumbers.contains(key) && !value.is_number()) return shown + " is not of type \"number\"";
  if (kStrings.contains(key) && !value.is_string()) return shown + " is not of type \"string\"";
  if (!kCounts.contains(key)) return {};
  if (!value.is_number()) return shown + " is not of type \"integer\"";
  return value.get<double>() < 0 ? shown + " is less than the minimum of 0" : std::string();
}

std::string type_problem(const Json& value) {
  const std::string message = " is not valid under any of the schemas listed in the 'anyOf' keyword";
  const bool is_name = value.is_string() && is_one_of(value.get_ref<const std::string&>(), kTypes);
  const bool is_list =
      value.is_array() && !value.empty() && std::all_of(value.begin(), value.end(), [](const Json& v) {
        return v.is_string() && is_one_of(v.get_ref<const std::string&>(), kTypes);
      });
  return is_name || is_list ? std::string() : text::json_text(value, text::JsonStyle::compact) + message;
}

/// A local reference must lead somewhere.
std::string reference_problem(const Json& root, const Json& value) {
  if (!value.is_string()) return {};
  const auto target = value.get<std::string>();
  if (!target.starts_with("#/")) return {};
  const Json* node = &root;
  for (size_t begin = 2; begin <= target.size();) {
    const size_t end = std::min(target.find('/', begin), target.size());
    const std::string key = target.substr(begin, end - begin);
    if (!node->is_object() || !node->contains(key))
      return "Pointer '" + target.substr(1) + "' does not exist";
    node = &(*node)[key];
    begin = end + 1;
  }
  return {};
}

std::string node_problem(const Json& root, const Json& schema);

std::string children_problem(const Json& root, const std::string& key, const Json& value) {
  static const std::set<std::string> kMaps = {"properties", "patternProperties", "$defs", "definitions",
                                              "dependentSchemas"};
  static const std::set<std::string> kLists = {"allOf", "anyOf", "oneOf", "prefixItems"};
  static const std::set<std::string> kSingle = {
      "items", "additionalProperties", "not", "if", "then", "else", "contains", "propertyNames"};
  if (key == "$ref") return reference_problem(root, value);
  if (kSingle.contains(key)) return node_problem(root, value);
  if (kLists.contains(key) && value.empty()) return "[] has less than 1 item";
  if (!kMaps.contains(key) && !kLists.contains(key)) return {};
  for (const auto& item : value) {
    std::string problem = node_problem(root, item);
    if (!problem.empty()) return problem;
  }
  return {};
}

std::string node_problem(const Json& root, const Json& schema) {
  if (schema.is_boolean()) return {};
  if (!schema.is_object()) {
    return text::json_text(schema, text::JsonStyle::compact) + " is not of types \"boolean\", \"object\"";
  }
  for (const auto& [key, value] : schema.items()) {
    std::string problem = key == "type" ? type_problem(value) : keyword_problem(key, value);
    if (problem.empty()) problem = children_problem(root, key, value);
    if (!problem.empty()) return problem;
  }
  return {};
}

/// Parameters of one tool; replaced by the normal form when strict.
std::optional<ApiError> check_parameters(Tool& tool) {
  if (tool.strict.value_or(false)) {
    Json schema = Json{{"type", "object"}};
    if (!tool.parameters_json.empty()) schema = Json::parse(tool.parameters_json, nullptr, false);
    auto normal = normalise_strict_schema(schema, true);
    if (!normal.ok()) return normal.error();
    tool.enforced_json = with_definitions(*normal, schema, true);
    tool.parameters_json = text::json_text(*normal, text::JsonStyle::compact);
    return std::nullopt;
  }
  if (tool.parameters_json.empty()) return std::nullopt;
  const Json schema = *text::parse_json(tool.parameters_json);
  const std::string prefix = "Invalid schema for function '" + tool.name + "': ";
  const std::string problem = schema_problem(schema);
  if (!problem.empty()) return ApiError::conversion(prefix + problem);
  const auto type = schema.is_object() ? schema.find("type") : schema.end();
  if (type != schema.end() && *type == "object") return std::nullopt;
  return ApiError::conversion(
      prefix + "schema must be a JSON Schema of 'type: \"object\"', got 'type: " +
      (type == schema.end() ? "null" : text::json_text(*type, text::JsonStyle::compact)) + "'.");
}

}  // namespace

std::optional<ApiError> check_tool_name(const std::string& name, const std::string& where) {
  const std::string prefix = "Invalid '" + where + "': ";
  if (name.empty()) {
    return ApiError::conversion(
        prefix + "empty string. Expected a string with minimum length 1, but got an empty string instead.");
  }
  if (name.size() > kMaxToolNameBytes) {
    return ApiError::conversion(
        prefix + "string too long. Expected a string with maximum length 128, but got a string with length " +
        std::to_string(name.size()) + " instead.");
  }
  const bool fits = std::all_of(name.begin(), name.end(), [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' || c == '-';
  });
  if (fits) return std::nullopt;
  return ApiError::conversion(
      prefix +
      "string does not match pattern. Expected a string that matches the pattern '^[a-zA-Z0-9_-]+$'.");
}

std::optional<ApiError> check_and_normalise_tools(std::vector<Tool>& tools, bool names_only) {
  std::set<std::string> names;
  for (const auto& tool : tools) {
    if (!names.insert(tool.name).second) return ApiError::conversion("Tool names must be unique.");
  }
  for (auto& tool : tools) {
    if (names_only) break;
    if (auto problem = check_parameters(tool)) return problem;
  }
  return std::nullopt;
}

std::optional<ApiError> check_strict_use(const std::vector<Tool>& tools, bool has_response_format) {
  const auto strict =
      std::count_if(tools.begin(), tools.end(), [](const Tool& t) { return t.strict.value_or(false); });
  if (strict == 0) return std::nullopt;
  if (static_cast<size_t>(strict) == tools.size()) {
    if (!has_response_format) return std::nullopt;
    return ApiError::conversion("response_format should not be used with tools");
  }
  return ApiError::conversion("Cannot use strict tool with non-strict tool in the same request");
}

ApiResult<Json> normalise_strict_schema(const Json& schema, bool is_tool) {
  return StrictSchema(is_tool).node(schema, true);
}

std::string with_definitions(const Json& normal, const Json& schema, bool is_tool) {
  Json out = normal;
  for (const char* key : {"$defs", "definitions"}) {
    const auto given = schema.is_object() ? schema.find(key) : schema.end();
    if (given == schema.end() || !given->is_object()) continue;
    for (const auto& [name, definition] : given->items()) {
      // What has no strict form (enumerations of numbers, say) is enforced as it was sent.
      auto strict = StrictSchema(is_tool).node(definition, false);
      out[key][name] = strict.ok() ? *strict : definition;
    }
  }
  return out == normal ? std::string() : text::json_text(out, text::JsonStyle::compact);
}

std::string schema_problem(const Json& schema) {
  return node_problem(schema, schema);
}

std::vector<std::string> tool_lines(const std::vector<Tool>& tools) {
  std::vector<std::string> lines;
  for (const auto& tool : tools) {
    if (tool.defer_loading) continue;
    if (!tool.function_json.empty()) {
      lines.push_back(tool.function_json);
      continue;
    }
    std::string parameters;
    if (!tool.parameters_json.empty()) parameters = text::json_text(*text::parse_json(tool.parameters_json));
    lines.push_back(text::tool_schema_line(tool.name, tool.description.value_or(""), parameters));
  }
  return lines;
}

std::string tool_constraint(const std::vector<Tool>& tools, bool for_grammar) {
  const auto boolean = [](bool value) { return value ? "true" : "false"; };
  std::string list = "[";
  for (const auto& tool : tools) {
    if (list.size() > 1) list += ',';
    list += "{\"type\":\"function\",\"function\":{\"name\":" + text::json_quote(tool.name);
    list += ",\"description\":" + (tool.description ? text::json_quote(*tool.description) : "null");
    const std::string& schema =
        for_grammar && !tool.enforced_json.empty() ? tool.enforced_json : tool.parameters_json;
    // Compact JSON already: a long list is neither parsed nor printed again for every request.
    list += ",\"parameters\":" + (schema.empty() ? "{}" : schema);
    list += std::string(",\"strict\":") + (tool.strict ? boolean(*tool.strict) : "null") + "}";
    if (tool.defer_loading) list += ",\"defer_loading\":true";
    list += '}';
  }
  return list + "]";
}

}  // namespace rorqual::api
