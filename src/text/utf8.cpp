// SPDX-License-Identifier: Apache-2.0
// UTF-8 decoding: table 3-7 of the Unicode Standard, maximal subparts replaced as section 3.9 recommends.
#include "text/utf8.h"

namespace rorqual::text {

namespace {

struct Lead {
  uint32_t length;     // 0: not a lead byte
  uint8_t second_min;  // allowed range of the second byte
  uint8_t second_max;
};

Lead lead_of(uint8_t byte) {
  if (byte >= 0xC2 && byte <= 0xDF) return {2, 0x80, 0xBF};
  if (byte == 0xE0) return {3, 0xA0, 0xBF};
  if (byte == 0xED) return {3, 0x80, 0x9F};
  if (byte >= 0xE1 && byte <= 0xEF) return {3, 0x80, 0xBF};
  if (byte == 0xF0) return {4, 0x90, 0xBF};
  if (byte >= 0xF1 && byte <= 0xF3) return {4, 0x80, 0xBF};
  if (byte == 0xF4) return {4, 0x80, 0x8F};
  return {0, 0, 0};
}

}  // namespace

Utf8Char decode_utf8(std::string_view text, size_t pos) {
  const auto first = static_cast<uint8_t>(text[pos]);
  if (first < 0x80) return {first, 1, true, false};
  const Lead lead = lead_of(first);
  if (lead.length == 0) return {0xFFFD, 1, false, false};
  char32_t value = first & (0x7Fu >> lead.length);
  for (uint32_t i = 1; i < lead.length; ++i) {
    if (pos + i >= text.size()) return {0xFFFD, i, false, true};
    const auto byte = static_cast<uint8_t>(text[pos + i]);
    const uint8_t low = i == 1 ? lead.second_min : 0x80;
    const uint8_t high = i == 1 ? lead.second_max : 0xBF;
    if (byte < low || byte > high) return {0xFFFD, i, false, false};
    value = (value << 6) | (byte & 0x3Fu);
  }
  return {value, lead.length, true, false};
}

void append_utf8(std::string& out, char32_t code_point) {
  const auto c = static_cast<uint32_t>(code_point);
  const auto put = [&out](uint32_t byte) { out.push_back(static_cast<char>(static_cast<uint8_t>(byte))); };
  if (c < 0x80) {
    put(c);
  } else if (c < 0x800) {
    put(0xC0 | (c >> 6));
    put(0x80 | (c & 0x3F));
  } else if (c < 0x10000) {
    put(0xE0 | (c >> 12));
    put(0x80 | ((c >> 6) & 0x3F));
    put(0x80 | (c & 0x3F));
  } else {
    put(0xF0 | (c >> 18));
    put(0x80 | ((c >> 12) & 0x3F));
    put(0x80 | ((c >> 6) & 0x3F));
    put(0x80 | (c & 0x3F));
  }
}

void drain_utf8(std::string& pending, std::string& out, bool is_final) {
  size_t pos = 0;
  while (pos < pending.size()) {
    const Utf8Char c = decode_utf8(pending, pos);
    if (c.is_valid) {
      out.append(pending, pos, c.length);
    } else {
      if (c.is_incomplete && !is_final) break;
      append_utf8(out, 0xFFFD);
    }
    pos += c.length;
  }
  pending.erase(0, pos);
}

bool is_valid_utf8(std::string_view text) {
  for (size_t pos = 0; pos < text.size();) {
    const Utf8Char c = decode_utf8(text, pos);
    if (!c.is_valid) return false;
    pos += c.length;
  }
  return true;
}

int64_t count_code_points(std::string_view text) {
  int64_t count = 0;
  for (size_t pos = 0; pos < text.size(); ++count) pos += decode_utf8(text, pos).length;
  return count;
}

}  // namespace rorqual::text
