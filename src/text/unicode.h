// SPDX-License-Identifier: Apache-2.0
// Character classes of the pre-tokenizer's regular expressions and the fold used by Engram's token map. The
// tables are generated (scripts/make_unicode_tables.py).
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace rorqual::text {

/// General categories L, N, P, S, M, and White_Space; the sets are disjoint.
enum class CharClass : uint8_t { other, letter, number, punctuation, symbol, mark, space };

/// Class of a scalar value; `other` for anything above U+10FFFF. Any thread.
CharClass char_class(char32_t code_point);

/// NFKC, NFD, removal of combining marks, lower case; character by character, which is the same thing because
/// marks are removed. `text` is valid UTF-8.
std::string fold_text(std::string_view text);

}  // namespace rorqual::text
