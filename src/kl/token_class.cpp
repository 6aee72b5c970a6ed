// SPDX-License-Identifier: Apache-2.0
// Ranges are blocks of the Unicode standard, coarse on purpose: a class is for a table, not for linguistics.
#include "kl/token_class.h"

#include <algorithm>
#include <iterator>

#include "base/check.h"

namespace rorqual::kl {
namespace {

struct Range {
  uint32_t first, last;
  TokenClass token_class;
};

using enum TokenClass;

// Ascending. What lies between is "other script" from U+0080 on.
constexpr Range kRanges[] = {
    {0x00, 0x20, whitespace},
    {0x21, 0x2f, punctuation},
    {0x30, 0x39, digits},
    {0x3a, 0x40, punctuation},
    {0x41, 0x5a, latin},
    {0x5b, 0x60, punctuation},
    {0x61, 0x7a, latin},
    {0x7b, 0x7e, punctuation},
    {0x7f, 0xa0, whitespace},
    {0xa1, 0xa9, punctuation},
    {0xaa, 0xaa, latin},
    {0xab, 0xb1, punctuation},
    {0xb2, 0xb3, digits},
    {0xb4, 0xb8, punctuation},
    {0xb9, 0xb9, digits},
    {0xba, 0xba, latin},
    {0xbb, 0xbf, punctuation},
    {0xc0, 0xd6, latin},
    {0xd7, 0xd7, punctuation},
    {0xd8, 0xf6, latin},
    {0xf7, 0xf7, punctuation},
    {0xf8, 0x2af, latin},
    {0x2b0, 0x36f, punctuation},
    {0x370, 0x3ff, greek},
    {0x400, 0x52f, cyrillic},
    {0x590, 0x5ff, hebrew},
    {0x600, 0x65f, arabic},
    {0x660, 0x669, digits},
    {0x66a, 0x6ef, arabic},
    {0x6f0, 0x6f9, digits},
    {0x6fa, 0x6ff, arabic},
    {0x750, 0x77f, arabic},
    {0x8a0, 0x8ff, arabic},
    {0x900, 0x965, devanagari},
    {0x966, 0x96f, digits},
    {0x970, 0x97f, devanagari},
    {0x1100, 0x11ff, hangul},
    {0x1c80, 0x1c8f, cyrillic},
    {0x1e00, 0x1eff, latin},
    {0x1f00, 0x1fff, greek},
    {0x2000, 0x200a, whitespace},
    {0x200b, 0x2027, punctuation},
    {0x2028, 0x2029, whitespace},
    {0x202a, 0x202e, punctuation},
    {0x202f, 0x202f, whitespace},
    {0x2030, 0x205e, punctuation},
    {0x205f, 0x205f, whitespace},
    {0x2060, 0x206f, punctuation},
    {0x2070, 0x2099, digits},
    {0x20a0, 0x20cf, punctuation},
    {0x2100, 0x2bff, punctuation},
    {0x2c60, 0x2c7f, latin},
    {0x2de0, 0x2dff, cyrillic},
    {0x2e00, 0x2e7f, punctuation},
    {0x2e80, 0x2fdf, han},
    {0x3000, 0x3000, whitespace},
    {0x3001, 0x3004, punctuation},
    {0x3005, 0x3007, han},
    {0x3008, 0x3020, punctuation},
    {0x3021, 0x3029, han},
    {0x302a, 0x3040, punctuation},
    {0x3041, 0x30fa, kana},
    {0x30fb, 0x30fb, punctuation},
    {0x30fc, 0x30ff, kana},
    {0x3100, 0x312f, other_script},
    {0x3130, 0x318f, hangul},
    {0x31f0, 0x31ff, kana},
    {0x3200, 0x33ff, punctuation},
    {0x3400, 0x4dbf, han},
    {0x4dc0, 0x4dff, punctuation},
    {0x4e00, 0x9fff, han},
    {0xa640, 0xa69f, cyrillic},
    {0xa720, 0xa7ff, latin},
    {0xa8e0, 0xa8ff, devanagari},
    {0xa960, 0xa97f, hangul},
    {0xab30, 0xab6f, latin},
    {0xac00, 0xd7ff, hangul},
    {0xe000, 0xf8ff, punctuation},
    {0xf900, 0xfaff, han},
    {0xfb00, 0xfb06, latin},
    {0xfb1d, 0xfb4f, hebrew},
    {0xfb50, 0xfdff, arabic},
    {0xfe00, 0xfe6f, punctuation},
    {0xfe70, 0xfefe, arabic},
    {0xfeff, 0xff0f, punctuation},
    {0xff10, 0xff19, digits},
    {0xff1a, 0xff20, punctuation},
    {0xff21, 0xff3a, latin},
    {0xff3b, 0xff40, punctuation},
    {0xff41, 0xff5a, latin},
    {0xff5b, 0xff65, punctuation},
    {0xff66, 0xff9f, kana},
    {0xffe0, 0xffff, punctuation},
    {0x1d400, 0x1d7ff, punctuation},
    {0x1f000, 0x1faff, punctuation},
    {0x20000, 0x323af, han},
};

TokenClass class_of(uint32_t code) {
  const auto next = std::upper_bound(std::begin(kRanges), std::end(kRanges), code,
                                     [](uint32_t c, const Range& range) { return c < range.first; });
  if (next == std::begin(kRanges)) return other_script;
  const Range& range = *std::prev(next);
  return code <= range.last ? range.token_class : other_script;
}

/// Takes one character off `bytes`; false where they are no UTF-8.
bool take_character(std::string_view& bytes, uint32_t& code) {
  const auto byte = [&](size_t i) { return static_cast<uint32_t>(static_cast<unsigned char>(bytes[i])); };
  const uint32_t lead = byte(0);
  const size_t length = lead < 0x80   ? 1
                        : lead < 0xc2 ? 0
                        : lead < 0xe0 ? 2
                        : lead < 0xf0 ? 3
                        : lead < 0xf5 ? 4
                                      : 0;
  if (length == 0 || length > bytes.size()) return false;
  code = length == 1 ? lead : lead & (0x7fu >> length);
  for (size_t i = 1; i < length; ++i) {
    if ((byte(i) & 0xc0) != 0x80) return false;
    code = code << 6 | (byte(i) & 0x3f);
  }
  bytes.remove_prefix(length);
  constexpr uint32_t kSmallest[] = {0, 0, 0x80, 0x800, 0x10000};
  return code >= kSmallest[length] && code <= 0x10ffff && (code < 0xd800 || code > 0xdfff);
}

}  // namespace

std::string_view token_class_name(TokenClass token_class) {
  constexpr std::string_view kNames[kNumTokenClasses] = {
      "tool markup", "digits", "whitespace", "punctuation",  "Latin",
      "Cyrillic",    "Greek",  "Han",        "kana",         "Hangul",
      "Arabic",      "Hebrew", "Devanagari", "other script", "byte fragment"};
  const auto index = static_cast<size_t>(token_class);
  RORQUAL_CHECK(index < kNumTokenClasses);
  return kNames[index];
}

TokenClass classify_text(std::string_view bytes) {
  std::array<int, kNumTokenClasses> counts{};
  if (bytes.empty()) return byte_fragment;
  while (!bytes.empty()) {
    uint32_t code = 0;
    if (!take_character(bytes, code)) return byte_fragment;
    ++counts[static_cast<size_t>(class_of(code))];
  }
  const auto first = counts.begin() + static_cast<int>(latin);
  const auto most = std::max_element(first, counts.begin() + static_cast<int>(byte_fragment));
  if (*most > 0) return static_cast<TokenClass>(most - counts.begin());
  for (const TokenClass candidate : {digits, punctuation}) {
    if (counts[static_cast<size_t>(candidate)] > 0) return candidate;
  }
  return whitespace;
}

TokenClass classify_token(const text::Tokenizer& tokenizer, int32_t id) {
  if (id < 0 || id >= tokenizer.vocab_size()) return byte_fragment;
  if (tokenizer.is_added(id)) return tool_markup;
  return classify_text(tokenizer.token_bytes(id));
}

std::vector<ClassRow> split_by_class(const text::Tokenizer& tokenizer, const std::vector<int32_t>& tokens,
                                     const Positions& positions) {
  RORQUAL_CHECK(tokens.size() == positions.kl.size());
  std::array<ClassRow, kNumTokenClasses> all{};
  double total = 0;
  for (size_t row = 0; row < tokens.size(); ++row) {
    ClassRow& item = all[static_cast<size_t>(classify_token(tokenizer, tokens[row]))];
    ++item.positions;
    item.mean_kl += positions.kl[row];
    item.top1 += positions.top1_equal[row];
    total += positions.kl[row];
  }
  std::vector<ClassRow> rows;
  for (size_t i = 0; i < all.size(); ++i) {
    ClassRow& item = all[i];
    if (item.positions == 0) continue;
    item.token_class = static_cast<TokenClass>(i);
    item.kl_share = total > 0 ? item.mean_kl / total : 0;
    item.mean_kl /= static_cast<double>(item.positions);
    item.top1 /= static_cast<double>(item.positions);
    rows.push_back(item);
  }
  return rows;
}

}  // namespace rorqual::kl
