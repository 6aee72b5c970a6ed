// SPDX-License-Identifier: Apache-2.0
// Unicode tables: ranges expanded once to one byte per code point.
#include "text/unicode.h"

#include <algorithm>
#include <cstring>
#include <iterator>
#include <memory>

#include "text/utf8.h"

namespace rorqual::text {

namespace {

constexpr char32_t kNumCodePoints = 0x110000;

struct ClassRange {
  char32_t first;
  CharClass value;
};

struct FoldEntry {
  char32_t code_point;
  uint16_t pool_offset;
  uint16_t count;
};

#include "text/unicode_tables.inc"

std::unique_ptr<uint8_t[]> expand_classes() {
  auto table = std::make_unique<uint8_t[]>(kNumCodePoints);
  for (size_t i = 0; i < std::size(kClassRanges); ++i) {
    const char32_t end = i + 1 < std::size(kClassRanges) ? kClassRanges[i + 1].first : kNumCodePoints;
    std::memset(&table[kClassRanges[i].first], static_cast<int>(kClassRanges[i].value),
                end - kClassRanges[i].first);
  }
  return table;
}

void append_hangul_jamo(std::string& out, char32_t syllable) {
  const char32_t index = syllable - 0xAC00;
  append_utf8(out, 0x1100 + index / 588);
  append_utf8(out, 0x1161 + index % 588 / 28);
  if (index % 28 != 0) append_utf8(out, 0x11A7 + index % 28);
}

}  // namespace

CharClass char_class(char32_t code_point) {
  static const std::unique_ptr<uint8_t[]> table = expand_classes();
  return code_point < kNumCodePoints ? static_cast<CharClass>(table[code_point]) : CharClass::other;
}

std::string fold_text(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  for (size_t pos = 0; pos < text.size();) {
    const Utf8Char c = decode_utf8(text, pos);
    pos += c.length;
    if (c.code_point >= 0xAC00 && c.code_point < 0xD7A4) {
      append_hangul_jamo(out, c.code_point);
      continue;
    }
    const auto* entry =
        std::lower_bound(std::begin(kFolds), std::end(kFolds), c.code_point,
                         [](const FoldEntry& e, char32_t value) { return e.code_point < value; });
    if (entry == std::end(kFolds) || entry->code_point != c.code_point) {
      append_utf8(out, c.code_point);
      continue;
    }
    for (uint16_t i = 0; i < entry->count; ++i) append_utf8(out, kFoldPool[entry->pool_offset + i]);
  }
  return out;
}

}  // namespace rorqual::text
