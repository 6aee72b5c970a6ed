// SPDX-License-Identifier: Apache-2.0
#include "tools/check_differences.h"

#include <string_view>

#include "text/json_text.h"
#include "text/utf8.h"

namespace rorqual::tools {
namespace {

using Json = nlohmann::ordered_json;

constexpr size_t kShownBytes = 120;

std::string compact(const Json& value) {
  return text::json_text(value, text::JsonStyle::compact);
}

}  // namespace

std::string text_difference(const std::string& what, const std::string& got, const std::string& expected) {
  if (got == expected) return {};
  size_t pos = 0;
  while (pos < got.size() && pos < expected.size() && got[pos] == expected[pos]) ++pos;
  while (pos > 0 && (static_cast<unsigned char>(got[pos < got.size() ? pos : pos - 1]) & 0xC0) == 0x80) --pos;
  const auto offset = text::count_code_points(std::string_view(got).substr(0, pos));
  return what + " differs at code point " + std::to_string(offset) + ": got " +
         text::json_quote(got.substr(pos, kShownBytes)) + ", expected " +
         text::json_quote(expected.substr(pos, kShownBytes));
}

std::string ids_difference(const std::string& what, const std::vector<int32_t>& got,
                           const Json& expected_json) {
  const auto expected = expected_json.get<std::vector<int32_t>>();
  if (got == expected) return {};
  size_t pos = 0;
  while (pos < got.size() && pos < expected.size() && got[pos] == expected[pos]) ++pos;
  const auto show = [pos](const std::vector<int32_t>& ids) {
    return pos < ids.size() ? std::to_string(ids[pos]) : std::string("the end");
  };
  return what + " differ at index " + std::to_string(pos) + ": got " + show(got) + ", expected " +
         show(expected) + " (" + std::to_string(got.size()) + " ids, expected " +
         std::to_string(expected.size()) + ")";
}

std::string value_difference(const std::string& what, const Json& got, const Json& expected) {
  if (got == expected) return {};
  return what + ": got " + compact(got).substr(0, 400) + ", expected " + compact(expected).substr(0, 400);
}

std::string first_of(std::initializer_list<std::string> problems) {
  for (const auto& problem : problems) {
    if (!problem.empty()) return problem;
  }
  return {};
}

}  // namespace rorqual::tools
