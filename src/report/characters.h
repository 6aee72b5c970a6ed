// SPDX-License-Identifier: Apache-2.0
// Text that may hold anything (tokens cut inside a character, control characters, markup) made fit for a
// terminal, HTML or SVG. Nothing is dropped: what has no shape of its own is shown by a sign.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace rorqual::report {

/// The first character of a text. An invalid byte counts as one character of one byte.
struct Character {
  uint32_t code = 0;  // the byte itself if invalid
  size_t num_bytes = 0;
  bool is_valid = false;
};

/// `text` must not be empty. Overlong forms, surrogates and codes above U+10FFFF are invalid.
Character first_character(std::string_view text);

/// Columns in a terminal: East Asian wide characters and emoji count 2, combining marks 0, invalid bytes 1.
int64_t display_width(std::string_view text);

/// Control characters as their pictures ("␊"), invisible and direction-changing ones as "⟨U+202E⟩", bytes
/// that are not UTF-8 as "\xE4". The result is valid UTF-8 on one line.
std::string visible(std::string_view text);

/// visible(), then & < > " ' as entities: fit for element content and quoted attributes of HTML and SVG.
std::string escaped(std::string_view text);

/// As escaped(), with each sign that visible() puts in wrapped in <span class="sign">, so that it cannot be
/// taken for the text's own. Element content only.
std::string escaped_with_signs(std::string_view text);

}  // namespace rorqual::report
