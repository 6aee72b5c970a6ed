// SPDX-License-Identifier: Apache-2.0
// JSON as the prompt format prints it: ", " and ": " separators, raw non-ASCII, numbers in Python's spelling.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>

namespace rorqual::text {

/// Deepest nesting accepted from clients.
inline constexpr int kMaxJsonDepth = 128;

enum class JsonStyle : uint8_t {
  spaced,   // {"a": 1, "b": [1, 2]}
  compact,  // {"a":1,"b":[1,2]}
};

/// JSON text of `value`. Strings escape only ", \ and control characters below U+0020.
std::string json_text(const nlohmann::ordered_json& value, JsonStyle style = JsonStyle::spaced);

/// `text` as a JSON string literal, quotes included.
std::string json_quote(std::string_view text);
/// Appends the escaped form without quotes.
void append_json_escaped(std::string& out, std::string_view text);

/// Shortest digits that round-trip, in Python's repr form: 1.5, 100000.0, 1e-07, 1e+22, -0.0.
std::string python_float(double value);

/// Parses strictly: no trailing text, no NaN, depth at most kMaxJsonDepth, valid UTF-8, no lone surrogates;
/// numbers outside i64/u64 become doubles. A repeated key keeps its first place and its last value. nullopt
/// on any violation; `message` (may be null) receives what and where.
std::optional<nlohmann::ordered_json> parse_json(std::string_view text, std::string* message = nullptr);

/// Is it the text of one object, as parse_json takes it?
bool is_json_object(std::string_view text);
/// The same without the fast way, which must agree with it; for tests.
std::optional<nlohmann::ordered_json> parse_json_strict(std::string_view text,
                                                        std::string* message = nullptr);

}  // namespace rorqual::text
