// SPDX-License-Identifier: Apache-2.0
// Typed access to a request body with one sticky error: the first field of the wrong shape decides, later
// reads return defaults. A null field counts as absent unless it is required.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "api/api_error.h"

namespace rorqual::api {

using Json = nlohmann::ordered_json;

/// One thread, one body.
class BodyReader {
 public:
  bool ok() const { return problem_.empty(); }

  ApiError error() const { return ApiError::malformed(problem_); }

  void fail(std::string problem);

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
  std::string problem_;
};

/// Kind and value of a JSON value for messages: "integer `5`", "map", …
std::string describe(const Json& value);

/// Parses the text of a body into an object.
ApiResult<Json> parse_body(std::string_view body);

}  // namespace rorqual::api
