// SPDX-License-Identifier: Apache-2.0
// Typed access to a request body with one sticky error: the first field of the wrong shape decides, later
// reads return defaults. A null field counts as absent unless it is required. The error names the field it
// was found in: the last one looked up, inside the scopes that are open.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "api/api_error.h"

namespace rorqual::api {

using Json = nlohmann::ordered_json;

/// One thread, one body.
class BodyReader {
 public:
  bool ok() const { return problem_.empty(); }

  ApiError error() const { return ApiError::malformed(problem_, param_); }

  void fail(std::string problem);

  /// A part of the body that is being read: "messages[3]" in front of the names of its fields.
  class [[nodiscard]] Scope {
   public:
    Scope(BodyReader& reader, const char* name, std::optional<size_t> index) : reader_(reader) {
      reader_.path_.emplace_back(name, index);
      reader_.last_key_ = nullptr;
    }

    ~Scope() {
      reader_.path_.pop_back();
      reader_.last_key_ = nullptr;
    }

    Scope(const Scope&) = delete;
    Scope& operator=(const Scope&) = delete;

   private:
    BodyReader& reader_;
  };

  /// `name` is a literal.
  Scope enter(const char* name, std::optional<size_t> index = std::nullopt) { return {*this, name, index}; }

  /// nullptr if absent or null.
  const Json* find(const Json& object, const char* key) const;
  /// nullptr (and an error) if absent; a null value is returned.
  const Json* require(const Json& object, const char* key);

  bool expect_object(const Json& value, const char* what);
  bool expect_array(const Json& value, const char* what);

  std::string require_string(const Json& object, const char* key);
  std::optional<std::string> string(const Json& object, const char* key);
  std::optional<bool> boolean(const Json& object, const char* key);
  bool boolean_or(const Json& object, const char* key, bool fallback);
  /// Integers and floats; not checked for a range.
  std::optional<double> number(const Json& object, const char* key);
  /// Integers only, in [0, max].
  std::optional<uint64_t> unsigned_integer(const Json& object, const char* key, uint64_t max);
  std::optional<int64_t> integer(const Json& object, const char* key, int64_t min, int64_t max);
  std::vector<std::string> strings(const Json& object, const char* key);
  std::vector<int32_t> token_ids(const Json& object, const char* key);
  /// Array of objects (empty if absent).
  const Json* objects(const Json& object, const char* key, const char* what);
  /// A string out of `names`; "" if absent.
  std::string variant(const Json& object, const char* key, std::initializer_list<std::string_view> names);
  std::string require_variant(const Json& object, const char* key,
                              std::initializer_list<std::string_view> names);

 private:
  std::string field_path() const;

  std::string problem_, param_;
  std::vector<std::pair<const char*, std::optional<size_t>>> path_;
  mutable const char* last_key_ = nullptr;
};

/// Kind and value of a JSON value for messages: "integer `5`", "map", …
std::string describe(const Json& value);

/// Parses the text of a body into an object.
ApiResult<Json> parse_body(std::string_view body);

}  // namespace rorqual::api
