// SPDX-License-Identifier: Apache-2.0
#include "kl/token_class.h"

#include <gtest/gtest.h>

#include <string>

#include "text/test_text.h"

namespace rorqual::kl {
namespace {

TEST(TokenClasses, FollowTheCharacters) {
  const std::pair<std::string, TokenClass> cases[] = {
      {" the", TokenClass::latin},
      {"\xc3\xbc"
       "ber",
       TokenClass::latin},
      {"x1", TokenClass::latin},
      {"123", TokenClass::digits},
      {" 7", TokenClass::digits},
      {"\n\n  ", TokenClass::whitespace},
      {"\xe3\x80\x80", TokenClass::whitespace},
      {"();", TokenClass::punctuation},
      {" {", TokenClass::punctuation},
      {"\xf0\x9f\x98\x80", TokenClass::punctuation},
      {"\xe2\x82\xac", TokenClass::punctuation},
      {" \xd0\xb4\xd0\xb0", TokenClass::cyrillic},
      {"\xce\xb1", TokenClass::greek},
      {"\xe4\xb8\xad\xe6\x96\x87", TokenClass::han},
      {"\xe3\x81\xae", TokenClass::kana},
      {"\xed\x95\x9c", TokenClass::hangul},
      {"\xd8\xb3", TokenClass::arabic},
      {"\xd7\xa9", TokenClass::hebrew},
      {"\xe0\xa4\xb9", TokenClass::devanagari},
      {"\xe0\xb8\x81", TokenClass::other_script},
      {"\xe0\xae\xa4", TokenClass::other_script},
      {"\xe4\xb8", TokenClass::byte_fragment},
      {"\x80", TokenClass::byte_fragment},
      {"\xed\xa0\x80", TokenClass::byte_fragment},
      {"\xc0\x80", TokenClass::byte_fragment},
      {"", TokenClass::byte_fragment},
      {"\xe3\x81\xae\xe4\xb8\xad\xe6\x96\x87", TokenClass::han},
      {"\xd9\xa3", TokenClass::digits}};
  for (const auto& [text, expected] : cases) {
    EXPECT_EQ(token_class_name(classify_text(text)), token_class_name(expected)) << '"' << text << '"';
  }
}

TEST(TokenClasses, SplitAComparisonByItsTokens) {
  const text::Tokenizer& tokenizer = text::mini_tokenizer();
  const auto letter = tokenizer.encode("a", text::EncodeMode::plain).at(0);
  const auto digit = tokenizer.encode("7", text::EncodeMode::plain).at(0);
  int32_t added = 0;
  while (!tokenizer.is_added(added)) ++added;
  Positions positions;
  positions.kl = {0.5, 0.25, 0.25, 1.0};
  positions.top1_equal = {1, 0, 1, 0};
  positions.common_mass = {1, 1, 1, 1};
  const auto rows = split_by_class(tokenizer, {letter, digit, letter, added}, positions);
  ASSERT_EQ(rows.size(), 3u);
  EXPECT_EQ(rows[0].token_class, TokenClass::tool_markup);
  EXPECT_DOUBLE_EQ(rows[0].kl_share, 0.5);
  EXPECT_EQ(rows[1].token_class, TokenClass::digits);
  EXPECT_DOUBLE_EQ(rows[1].top1, 0);
  EXPECT_EQ(rows[2].token_class, TokenClass::latin);
  EXPECT_EQ(rows[2].positions, 2);
  EXPECT_DOUBLE_EQ(rows[2].mean_kl, 0.375);
  EXPECT_DOUBLE_EQ(rows[2].top1, 1);
  EXPECT_EQ(classify_token(tokenizer, 1 << 30), TokenClass::byte_fragment);
}

}  // namespace
}  // namespace rorqual::kl
