// SPDX-License-Identifier: Apache-2.0
// Byte-level alphabet: printable Latin-1 stands for itself, the other 68 bytes follow from U+0100 on.
#include "text/byte_alphabet.h"

#include <array>

#include "text/utf8.h"

namespace rorqual::text {

namespace {

constexpr bool stands_for_itself(uint32_t byte) {
  return (byte >= 0x21 && byte <= 0x7E) || (byte >= 0xA1 && byte <= 0xAC) || byte >= 0xAE;
}

constexpr char32_t kFirstSubstitute = 0x100;
constexpr uint32_t kNumSubstitutes = 68;

struct Alphabet {
  std::array<char32_t, 256> chars{};
  std::array<uint8_t, kNumSubstitutes> substitutes{};

  constexpr Alphabet() {
    uint32_t next = 0;
    for (uint32_t byte = 0; byte < 256; ++byte) {
      if (stands_for_itself(byte)) {
        chars[byte] = byte;
      } else {
        substitutes[next] = static_cast<uint8_t>(byte);
        chars[byte] = kFirstSubstitute + next++;
      }
    }
  }
};

constexpr Alphabet kAlphabet;

}  // namespace

char32_t byte_to_char(uint8_t byte) {
  return kAlphabet.chars[byte];
}

std::optional<std::string> bytes_of_spelling(std::string_view spelling) {
  std::string bytes;
  bytes.reserve(spelling.size());
  for (size_t pos = 0; pos < spelling.size();) {
    const Utf8Char c = decode_utf8(spelling, pos);
    pos += c.length;
    const auto value = static_cast<uint32_t>(c.code_point);
    if (!c.is_valid) return std::nullopt;
    if (value < 256 && stands_for_itself(value)) {
      bytes.push_back(static_cast<char>(static_cast<uint8_t>(value)));
    } else if (value >= kFirstSubstitute && value < kFirstSubstitute + kNumSubstitutes) {
      bytes.push_back(static_cast<char>(kAlphabet.substitutes[value - kFirstSubstitute]));
    } else {
      return std::nullopt;
    }
  }
  return bytes;
}

}  // namespace rorqual::text
