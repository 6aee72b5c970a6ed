// SPDX-License-Identifier: Apache-2.0
// Errors of the HTTP APIs: status, official JSON body and class. Never used below the api layer.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <variant>

namespace rorqual::api {

enum class ErrorClass : uint8_t {
  malformed_body,  // not JSON, or not the expected shape: the text is ours, only class and status are
                   // promised
  conversion,      // a well-formed request that is not allowed: the text is the official one
};

struct ApiError {
  ErrorClass error_class = ErrorClass::conversion;
  int http_status = 400;
  std::string message;
  std::string type = "invalid_request_error";
  std::string code = "invalid_request_error";
  std::string param = {};  // the offending field, "messages[2].content"; "" prints null

  /// {"error":{"message":…,"type":…,"param":…,"code":…}}
  std::string body() const;

  static ApiError conversion(std::string message, std::string param = {});

  /// Itself, with `field` as the param if it names none yet.
  ApiError in(const std::string& field) &&;

  static ApiError malformed(const std::string& what, std::string param = {});
};

/// A value or an ApiError.
template <class T>
class [[nodiscard]] ApiResult {
 public:
  ApiResult(T value) : value_(std::in_place_index<0>, std::move(value)) {}

  ApiResult(ApiError error) : value_(std::in_place_index<1>, std::move(error)) {}

  bool ok() const { return value_.index() == 0; }

  T& operator*() & { return std::get<0>(value_); }

  const T& operator*() const& { return std::get<0>(value_); }

  T&& operator*() && { return std::get<0>(std::move(value_)); }

  T* operator->() { return &std::get<0>(value_); }

  const T* operator->() const { return &std::get<0>(value_); }

  const ApiError& error() const { return std::get<1>(value_); }

 private:
  std::variant<T, ApiError> value_;
};

#define RORQUAL_API_CONCAT_2(a, b) a##b
#define RORQUAL_API_CONCAT(a, b) RORQUAL_API_CONCAT_2(a, b)

/// RORQUAL_API_TRY_ASSIGN(auto x, f()): declares x with the value, or returns the ApiError.
#define RORQUAL_API_TRY_ASSIGN(declaration, expr)              \
  auto RORQUAL_API_CONCAT(rorqual_api_, __LINE__) = (expr);    \
  if (!RORQUAL_API_CONCAT(rorqual_api_, __LINE__).ok()) {      \
    return RORQUAL_API_CONCAT(rorqual_api_, __LINE__).error(); \
  }                                                            \
  declaration = *std::move(RORQUAL_API_CONCAT(rorqual_api_, __LINE__))

}  // namespace rorqual::api
