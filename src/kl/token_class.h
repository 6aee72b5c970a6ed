// SPDX-License-Identifier: Apache-2.0
// What kind of text a token is, by its own characters, and a comparison split by it.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>
#include <vector>

#include "kl/compare.h"
#include "text/tokenizer.h"

namespace rorqual::kl {

enum class TokenClass : uint8_t {
  tool_markup,  // added tokens: DSML, roles, control
  digits,
  whitespace,
  punctuation,  // and symbols
  latin,
  cyrillic,
  greek,
  han,
  kana,
  hangul,
  arabic,
  hebrew,
  devanagari,
  other_script,
  byte_fragment,  // a part of a character
};

inline constexpr int kNumTokenClasses = 15;

std::string_view token_class_name(TokenClass token_class);

/// Letters decide before digits, those before punctuation, that before white space; among letters the script
/// with the most. Bytes that are no UTF-8 text make a fragment.
TokenClass classify_text(std::string_view bytes);

/// Added tokens are markup whatever their spelling; ids that the tokenizer does not know are fragments.
TokenClass classify_token(const text::Tokenizer& tokenizer, int32_t id);

struct ClassRow {
  TokenClass token_class = TokenClass::tool_markup;
  int64_t positions = 0;
  double mean_kl = 0;
  double top1 = 0;      // share
  double kl_share = 0;  // of the sum over all positions; 0 when that is 0
};

/// By the actual token of each position; classes without positions are left out.
std::vector<ClassRow> split_by_class(const text::Tokenizer& tokenizer, const std::vector<int32_t>& tokens,
                                     const Positions& positions);

}  // namespace rorqual::kl
