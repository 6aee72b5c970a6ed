// SPDX-License-Identifier: Apache-2.0
#include "report/characters.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <optional>

#include "base/check.h"

namespace rorqual::report {
namespace {

struct Range {
  uint32_t first, last;
};

// Unicode 15, EastAsianWidth W and F; blocks of emoji are taken whole.
constexpr std::array kWide = {
    Range{0x1100, 0x115F},   Range{0x231A, 0x231B},   Range{0x2329, 0x232A},   Range{0x23E9, 0x23EC},
    Range{0x23F0, 0x23F0},   Range{0x23F3, 0x23F3},   Range{0x25FD, 0x25FE},   Range{0x2614, 0x2615},
    Range{0x2648, 0x2653},   Range{0x267F, 0x267F},   Range{0x2693, 0x2693},   Range{0x26A1, 0x26A1},
    Range{0x26AA, 0x26AB},   Range{0x26BD, 0x26BE},   Range{0x26C4, 0x26C5},   Range{0x26CE, 0x26CE},
    Range{0x26D4, 0x26D4},   Range{0x26EA, 0x26EA},   Range{0x26F2, 0x26F3},   Range{0x26F5, 0x26F5},
    Range{0x26FA, 0x26FA},   Range{0x26FD, 0x26FD},   Range{0x2705, 0x2705},   Range{0x270A, 0x270B},
    Range{0x2728, 0x2728},   Range{0x274C, 0x274C},   Range{0x274E, 0x274E},   Range{0x2753, 0x2755},
    Range{0x2757, 0x2757},   Range{0x2795, 0x2797},   Range{0x27B0, 0x27B0},   Range{0x27BF, 0x27BF},
    Range{0x2B1B, 0x2B1C},   Range{0x2B50, 0x2B50},   Range{0x2B55, 0x2B55},   Range{0x2E80, 0x303E},
    Range{0x3041, 0x33FF},   Range{0x3400, 0x4DBF},   Range{0x4E00, 0xA4CF},   Range{0xA960, 0xA97C},
    Range{0xAC00, 0xD7A3},   Range{0xF900, 0xFAFF},   Range{0xFE10, 0xFE19},   Range{0xFE30, 0xFE6B},
    Range{0xFF01, 0xFF60},   Range{0xFFE0, 0xFFE6},   Range{0x16FE0, 0x18CFF}, Range{0x1AFF0, 0x1B2FF},
    Range{0x1F004, 0x1F004}, Range{0x1F0CF, 0x1F0CF}, Range{0x1F18E, 0x1F18E}, Range{0x1F191, 0x1F19A},
    Range{0x1F200, 0x1F265}, Range{0x1F300, 0x1F320}, Range{0x1F32D, 0x1F335}, Range{0x1F337, 0x1F37C},
    Range{0x1F37E, 0x1F393}, Range{0x1F3A0, 0x1F3CA}, Range{0x1F3CF, 0x1F3D3}, Range{0x1F3E0, 0x1F3F0},
    Range{0x1F3F4, 0x1F3F4}, Range{0x1F3F8, 0x1F43E}, Range{0x1F440, 0x1F440}, Range{0x1F442, 0x1F4FC},
    Range{0x1F4FF, 0x1F53D}, Range{0x1F54B, 0x1F54E}, Range{0x1F550, 0x1F567}, Range{0x1F57A, 0x1F57A},
    Range{0x1F595, 0x1F596}, Range{0x1F5A4, 0x1F5A4}, Range{0x1F5FB, 0x1F64F}, Range{0x1F680, 0x1F6C5},
    Range{0x1F6CC, 0x1F6CC}, Range{0x1F6D0, 0x1F6D2}, Range{0x1F6D5, 0x1F6DF}, Range{0x1F6EB, 0x1F6EC},
    Range{0x1F6F4, 0x1F6FC}, Range{0x1F7E0, 0x1F7F0}, Range{0x1F90C, 0x1F93A}, Range{0x1F93C, 0x1F945},
    Range{0x1F947, 0x1F9FF}, Range{0x1FA70, 0x1FAFF}, Range{0x20000, 0x3FFFD}};

// Marks drawn over or under the character before them, of the scripts that occur most.
constexpr std::array kZeroWidth = {
    Range{0x0300, 0x036F}, Range{0x0483, 0x0489}, Range{0x0591, 0x05BD},  Range{0x05BF, 0x05BF},
    Range{0x05C1, 0x05C2}, Range{0x05C4, 0x05C5}, Range{0x0610, 0x061A},  Range{0x064B, 0x065F},
    Range{0x0670, 0x0670}, Range{0x06D6, 0x06DC}, Range{0x06DF, 0x06E4},  Range{0x0900, 0x0902},
    Range{0x093A, 0x093A}, Range{0x093C, 0x093C}, Range{0x0941, 0x0948},  Range{0x094D, 0x094D},
    Range{0x0981, 0x0981}, Range{0x09BC, 0x09BC}, Range{0x09C1, 0x09C4},  Range{0x09CD, 0x09CD},
    Range{0x0E31, 0x0E31}, Range{0x0E34, 0x0E3A}, Range{0x0E47, 0x0E4E},  Range{0x1AB0, 0x1ACE},
    Range{0x1DC0, 0x1DFF}, Range{0x20D0, 0x20F0}, Range{0x302A, 0x302D},  Range{0x3099, 0x309A},
    Range{0xFE00, 0xFE0F}, Range{0xFE20, 0xFE2F}, Range{0xE0100, 0xE01EF}};

// Characters without a shape, and those that change the direction of what follows.
constexpr std::array kInvisible = {Range{0x0080, 0x009F}, Range{0x00AD, 0x00AD},   Range{0x034F, 0x034F},
                                   Range{0x061C, 0x061C}, Range{0x115F, 0x1160},   Range{0x17B4, 0x17B5},
                                   Range{0x180B, 0x180F}, Range{0x200B, 0x200F},   Range{0x2028, 0x202E},
                                   Range{0x2060, 0x206F}, Range{0x3164, 0x3164},   Range{0xFE00, 0xFE0E},
                                   Range{0xFEFF, 0xFEFF}, Range{0xFFA0, 0xFFA0},   Range{0xFFF0, 0xFFFB},
                                   Range{0xFFFE, 0xFFFF}, Range{0x1D173, 0x1D17A}, Range{0xE0000, 0x10FFFF}};

template <size_t N>
bool contains(const std::array<Range, N>& ranges, uint32_t code) {
  const auto after = std::upper_bound(ranges.begin(), ranges.end(), code,
                                      [](uint32_t value, const Range& range) { return value < range.first; });
  return after != ranges.begin() && code <= std::prev(after)->last;
}

/// Bytes of a sequence that begins with `lead`, 0 if none does.
size_t sequence_length(uint8_t lead) {
  if (lead < 0x80) return 1;
  if (lead >= 0xC2 && lead <= 0xDF) return 2;
  if (lead >= 0xE0 && lead <= 0xEF) return 3;
  if (lead >= 0xF0 && lead <= 0xF4) return 4;
  return 0;
}

/// How a character is shown when it cannot stand for itself.
std::optional<std::string> sign_of(const Character& character) {
  if (!character.is_valid) return fmt::format("\\x{:02X}", character.code);
  const uint32_t code = character.code;
  if (code == '\n') return "\\n";
  if (code == '\r') return "\\r";
  if (code == '\t') return "\\t";
  if (code < 0x20 || code == 0x7F) return fmt::format("\\x{:02X}", code);
  const bool is_noncharacter = (code & 0xFFFE) == 0xFFFE || (code >= 0xFDD0 && code <= 0xFDEF);
  if (is_noncharacter || contains(kInvisible, code)) return fmt::format("\\u{{{:X}}}", code);
  return std::nullopt;
}

void append_escaped(std::string& out, std::string_view bytes) {
  for (const char c : bytes) {
    switch (c) {
      case '&':
        out += "&amp;";
        break;
      case '<':
        out += "&lt;";
        break;
      case '>':
        out += "&gt;";
        break;
      case '"':
        out += "&quot;";
        break;
      case '\'':
        out += "&#39;";
        break;
      default:
        out += c;
    }
  }
}

/// Calls plain(bytes) or sign(text) for each character in turn.
template <class Plain, class Sign>
void walk(std::string_view text, const Plain& plain, const Sign& sign) {
  while (!text.empty()) {
    const auto character = first_character(text);
    if (const auto shown = sign_of(character)) {
      sign(*shown);
    } else {
      plain(text.substr(0, character.num_bytes));
    }
    text.remove_prefix(character.num_bytes);
  }
}

}  // namespace

Character first_character(std::string_view text) {
  RORQUAL_CHECK(!text.empty());
  const auto byte = [&](size_t i) { return static_cast<uint8_t>(text[i]); };
  const Character invalid{byte(0), 1, false};
  const size_t length = sequence_length(byte(0));
  if (length == 0 || length > text.size()) return invalid;
  if (length == 1) return {byte(0), 1, true};
  uint32_t code = byte(0) & (0xFFU >> (length + 1));
  for (size_t i = 1; i < length; ++i) {
    if ((byte(i) & 0xC0) != 0x80) return invalid;
    code = code << 6 | (byte(i) & 0x3FU);
  }
  const bool is_overlong = (length == 3 && code < 0x800) || (length == 4 && code < 0x10000);
  if (is_overlong || code > 0x10FFFF || (code >= 0xD800 && code <= 0xDFFF)) return invalid;
  return {code, length, true};
}

int64_t display_width(std::string_view text) {
  int64_t width = 0;
  while (!text.empty()) {
    const auto character = first_character(text);
    if (character.is_valid && contains(kWide, character.code)) {
      width += 2;
    } else if (!character.is_valid || !contains(kZeroWidth, character.code)) {
      width += 1;
    }
    text.remove_prefix(character.num_bytes);
  }
  return width;
}

std::string visible(std::string_view text) {
  std::string out;
  walk(
      text, [&](std::string_view bytes) { out += bytes; }, [&](const std::string& sign) { out += sign; });
  return out;
}

std::string escaped(std::string_view text) {
  std::string out;
  append_escaped(out, visible(text));
  return out;
}

std::string escaped_with_signs(std::string_view text) {
  std::string out;
  walk(
      text, [&](std::string_view bytes) { append_escaped(out, bytes); },
      [&](const std::string& sign) { out += "<span class=\"sign\">" + sign + "</span>"; });
  return out;
}

}  // namespace rorqual::report
