// SPDX-License-Identifier: Apache-2.0
// UTF-8 decoding one character at a time, with the standard's replacement of ill-formed parts.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace rorqual::text {

struct Utf8Char {
  char32_t code_point = 0;  // U+FFFD if not valid
  uint32_t length = 0;      // bytes; of the maximal ill-formed part if not valid
  bool is_valid = false;
  bool is_incomplete = false;  // not valid only because the text ends here
};

/// Character at `pos` (< text.size()). Overlong forms, surrogates and values above U+10FFFF are not valid.
Utf8Char decode_utf8(std::string_view text, size_t pos);

void append_utf8(std::string& out, char32_t code_point);

/// Moves whole characters from `pending` to `out`, ill-formed parts as U+FFFD. An incomplete character at the
/// end stays unless `is_final`.
void drain_utf8(std::string& pending, std::string& out, bool is_final);

bool is_valid_utf8(std::string_view text);

/// Number of code points; every ill-formed part counts as one.
int64_t count_code_points(std::string_view text);

}  // namespace rorqual::text
