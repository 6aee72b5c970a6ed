// SPDX-License-Identifier: Apache-2.0
// Inside of Tokenizer, shared by the reader of tokenizer.json and the encoder.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "text/added_tokens.h"
#include "text/bpe.h"
#include "text/tokenizer.h"

namespace rorqual::text {

struct Tokenizer::Impl {
  struct Token {
    std::string spelling;  // as in tokenizer.json
    std::string bytes;     // what it decodes to
    bool is_added = false;
    bool is_special = false;
  };

  std::vector<Token> tokens;
  std::string sha256;
  MergeTable merges;
  int32_t byte_ids[256] = {};
  bool ignore_merges = false;                         // a piece that is a token is not merged
  std::unordered_map<std::string, int32_t> by_bytes;  // base vocabulary; filled only if ignore_merges
  std::unordered_map<std::string, int32_t> added;
  SpellingTrie verbatim;    // added tokens matched in the raw text, first pass
  SpellingTrie normalized;  // matched in what the first pass left over

  void encode_plain(std::string_view text, std::vector<int32_t>& ids) const;
  void encode_with(const SpellingTrie& trie, bool is_last_pass, std::string_view text,
                   std::vector<int32_t>& ids) const;
};

}  // namespace rorqual::text
