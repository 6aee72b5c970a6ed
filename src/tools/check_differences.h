// SPDX-License-Identifier: Apache-2.0
// How the checks of vectors describe what differs: got and expected, and where they part. "" = equal.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace rorqual::tools {

/// Where two texts part, in code points, with what follows on both sides.
std::string text_difference(const std::string& what, const std::string& got, const std::string& expected);

std::string ids_difference(const std::string& what, const std::vector<int32_t>& got,
                           const nlohmann::ordered_json& expected);

std::string value_difference(const std::string& what, const nlohmann::ordered_json& got,
                             const nlohmann::ordered_json& expected);

/// The first that is not empty.
std::string first_of(std::initializer_list<std::string> problems);

/// The value, or null.
nlohmann::ordered_json optional_json(const auto& value) {
  return value ? nlohmann::ordered_json(*value) : nlohmann::ordered_json(nullptr);
}

}  // namespace rorqual::tools
