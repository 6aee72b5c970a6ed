// SPDX-License-Identifier: Apache-2.0
// The official error body.
#include "api/api_error.h"

#include <nlohmann/json.hpp>

#include "text/json_text.h"

namespace rorqual::api {

std::string ApiError::body() const {
  const nlohmann::ordered_json root = {
      {"error",
       {{"message", message},
        {"type", type},
        {"param", param.empty() ? nlohmann::ordered_json(nullptr) : nlohmann::ordered_json(param)},
        {"code", code}}}};
  return text::json_text(root, text::JsonStyle::compact);
}

ApiError ApiError::conversion(std::string message, std::string param) {
  ApiError error;
  error.message = std::move(message);
  error.param = std::move(param);
  return error;
}

ApiError ApiError::in(const std::string& field) && {
  if (param.empty()) param = field;
  return std::move(*this);
}

ApiError ApiError::malformed(const std::string& what, std::string param) {
  ApiError error;
  error.error_class = ErrorClass::malformed_body;
  error.message = "Failed to deserialize the JSON body into the target type: " + what;
  error.param = std::move(param);
  return error;
}

}  // namespace rorqual::api
