// SPDX-License-Identifier: Apache-2.0
// The byte-level alphabet: each byte as one printable character, as tokenizer.json spells ordinary tokens.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace rorqual::text {

/// Character that stands for `byte`.
char32_t byte_to_char(uint8_t byte);

/// Bytes of a byte-level spelling; nullopt if a character is not in the alphabet.
std::optional<std::string> bytes_of_spelling(std::string_view spelling);

}  // namespace rorqual::text
