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

ApiError ApiError::conversion(std::string message) {
  ApiError error;
  error.message = std::move(message);
  return error;
}

ApiError ApiError::malformed(const std::string& what) {
  ApiError error;
  error.error_class = ErrorClass::malformed_body;
  error.message = "Failed to deserialize the JSON body into the target type: " + what;
  return error;
}

}  // namespace rorqual::api
