// SPDX-License-Identifier: Apache-2.0
// Shape checks of request bodies.
#include "api/body_reader.h"

#include <algorithm>
#include <utility>

#include "api/json_values.h"
#include "api/limits.h"
#include "text/json_text.h"

namespace rorqual::api {

std::string describe(const Json& value) {
  switch (value.type()) {
    case Json::value_t::object:
      return "map";
    case Json::value_t::array:
      return "sequence";
    case Json::value_t::string:
      return "string " + text::json_quote(value.get_ref<const std::string&>().substr(0, 100));
    case Json::value_t::null:
      return "null";
    case Json::value_t::boolean:
      return value.get<bool>() ? "boolean `true`" : "boolean `false`";
    case Json::value_t::number_float:
      return "floating point `" + text::json_text(value) + "`";
    default:
      return "integer `" + text::json_text(value) + "`";
  }
}

void BodyReader::fail(std::string problem) {
  if (!problem_.empty()) return;
  problem_ = std::move(problem);
  param_ = field_path();
}

std::string BodyReader::field_path() const {
  std::string path;
  for (const auto& [name, index] : path_) {
    path += (path.empty() ? "" : ".") + std::string(name);
    if (index) path += "[" + std::to_string(*index) + "]";
  }
  if (last_key_ != nullptr) path += (path.empty() ? "" : ".") + std::string(last_key_);
  return path;
}

const Json* BodyReader::find(const Json& object, const char* key) const {
  last_key_ = key;
  if (!object.is_object()) return nullptr;
  const auto it = object.find(key);
  return it == object.end() || it->is_null() ? nullptr : &*it;
}

const Json* BodyReader::require(const Json& object, const char* key) {
  last_key_ = key;
  const auto it = object.is_object() ? object.find(key) : object.end();
  if (it != object.end()) return &*it;
  fail(std::string("missing field `") + key + "`");
  return nullptr;
}

bool BodyReader::expect_object(const Json& value, const char* what) {
  if (value.is_object()) return true;
  fail("invalid type: " + describe(value) + ", expected " + what);
  return false;
}

bool BodyReader::expect_array(const Json& value, const char* what) {
  if (value.is_array()) return true;
  fail("invalid type: " + describe(value) + ", expected " + what);
  return false;
}

std::string BodyReader::require_string(const Json& object, const char* key) {
  const Json* value = require(object, key);
  if (value == nullptr) return {};
  if (value->is_string()) return value->get<std::string>();
  fail(std::string("field `") + key + "`: invalid type: " + describe(*value) + ", expected a string");
  return {};
}

std::optional<std::string> BodyReader::string(const Json& object, const char* key) {
  if (find(object, key) == nullptr) return std::nullopt;
  return require_string(object, key);
}

std::optional<bool> BodyReader::boolean(const Json& object, const char* key) {
  const Json* value = find(object, key);
  if (value == nullptr) return std::nullopt;
  if (value->is_boolean()) return value->get<bool>();
  fail(std::string("field `") + key + "`: invalid type: " + describe(*value) + ", expected a boolean");
  return std::nullopt;
}

bool BodyReader::boolean_or(const Json& object, const char* key, bool fallback) {
  return boolean(object, key).value_or(fallback);
}

std::optional<double> BodyReader::number(const Json& object, const char* key) {
  const Json* value = find(object, key);
  if (value == nullptr) return std::nullopt;
  if (value->is_number()) return value->get<double>();
  fail(std::string("field `") + key + "`: invalid type: " + describe(*value) + ", expected a number");
  return std::nullopt;
}

std::optional<uint64_t> BodyReader::unsigned_integer(const Json& object, const char* key, uint64_t max) {
  const Json* value = find(object, key);
  if (value == nullptr) return std::nullopt;
  if (value->is_number_unsigned() && value->get<uint64_t>() <= max) return value->get<uint64_t>();
  fail(std::string("field `") + key + "`: invalid value: " + describe(*value) +
       ", expected an integer in 0.." + std::to_string(max));
  return std::nullopt;
}

std::optional<int64_t> BodyReader::integer(const Json& object, const char* key, int64_t min, int64_t max) {
  const Json* value = find(object, key);
  if (value == nullptr) return std::nullopt;
  const bool fits = value->is_number_unsigned() ? value->get<uint64_t>() <= static_cast<uint64_t>(INT64_MAX)
                                                : value->is_number_integer();
  if (fits && value->get<int64_t>() >= min && value->get<int64_t>() <= max) return value->get<int64_t>();
  fail(std::string("field `") + key + "`: invalid value: " + describe(*value) + ", expected an integer in " +
       std::to_string(min) + ".." + std::to_string(max));
  return std::nullopt;
}

std::vector<std::string> BodyReader::strings(const Json& object, const char* key) {
  const Json* value = find(object, key);
  std::vector<std::string> out;
  if (value == nullptr || !expect_array(*value, "a sequence")) return out;
  for (const auto& item : *value) {
    if (!item.is_string()) {
      fail(std::string("field `") + key + "`: invalid type: " + describe(item) + ", expected a string");
      return {};
    }
    out.push_back(item.get<std::string>());
  }
  return out;
}

std::vector<int32_t> BodyReader::token_ids(const Json& object, const char* key) {
  const Json* value = find(object, key);
  std::vector<int32_t> out;
  if (value == nullptr || !expect_array(*value, "a sequence")) return out;
  for (const auto& item : *value) {
    if (!item.is_number_unsigned() || item.get<uint64_t>() > static_cast<uint64_t>(INT32_MAX)) {
      fail(std::string("field `") + key + "`: invalid value: " + describe(item) + ", expected a token id");
      return {};
    }
    out.push_back(item.get<int32_t>());
  }
  return out;
}

const Json* BodyReader::objects(const Json& object, const char* key, const char* what) {
  const Json* value = find(object, key);
  if (value == nullptr || !expect_array(*value, "a sequence")) return nullptr;
  for (const auto& item : *value) {
    if (!expect_object(item, what)) return nullptr;
  }
  return value;
}

std::string BodyReader::variant(const Json& object, const char* key,
                                std::initializer_list<std::string_view> names) {
  return find(object, key) == nullptr ? std::string() : require_variant(object, key, names);
}

std::string BodyReader::require_variant(const Json& object, const char* key,
                                        std::initializer_list<std::string_view> names) {
  const Json* value = require(object, key);
  if (value == nullptr) return {};
  if (!value->is_string()) {
    fail(std::string("field `") + key + "`: invalid type: " + describe(*value) + ", expected a string");
    return {};
  }
  auto name = value->get<std::string>();
  if (std::find(names.begin(), names.end(), name) != names.end()) return name;
  std::string expected;
  for (const auto& item : names) expected += (expected.empty() ? "`" : ", `") + std::string(item) + "`";
  fail("unknown variant `" + name.substr(0, 100) + "`, expected one of " + expected);
  return {};
}

ApiResult<Json> parse_body(std::string_view body) {
  if (has_more_values(body, kMaxJsonValues)) {
    return ApiError::malformed("more than " + std::to_string(kMaxJsonValues) + " values in the body");
  }
  std::string problem;
  auto parsed = text::parse_json(body, &problem);
  if (!parsed) return ApiError::malformed(problem);
  if (!parsed->is_object())
    return ApiError::malformed("invalid type: " + describe(*parsed) + ", expected an object");
  return *std::move(parsed);
}

}  // namespace rorqual::api
