// SPDX-License-Identifier: Apache-2.0
// For tests: a real tokenizer, texts against grammars, and random walks through what a grammar allows.
#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <random>
#include <string>
#include <vector>

#include "grammar/constraint.h"
#include "grammar/token_matcher.h"
#include "text/test_text.h"

namespace rorqual::grammar {

using text::mini_tokenizer;

inline constexpr int32_t kEos = 1;

inline std::shared_ptr<const TokenTable> mini_table() {
  static const auto table = std::make_shared<const TokenTable>(
      mini_tokenizer(), TokenTable::Ids{mini_tokenizer().vocab_size(), kEos,
                                        mini_tokenizer().added_token("｜DSML｜").value_or(-1)});
  return table;
}

inline std::shared_ptr<const CompiledGrammar> compiled(const std::string& grammar) {
  auto out = CompiledGrammar::compile(mini_table(), grammar, 2);
  if (!out.ok()) {
    ADD_FAILURE() << out.error().message() << "\n" << grammar.substr(0, 3000);
    return nullptr;
  }
  return *std::move(out);
}

/// True if the grammar allows exactly this text.
inline bool matches(const std::shared_ptr<const CompiledGrammar>& grammar, const std::string& text) {
  TokenMatcher matcher(grammar);
  return (text.empty() || matcher.accept_text(text)) && matcher.accept(kEos);
}

inline std::vector<int32_t> allowed_ids(std::span<const uint32_t> mask) {
  std::vector<int32_t> ids;
  for (size_t i = 0; i < mask.size() * 32; ++i) {
    if ((mask[i / 32] >> (i % 32) & 1) != 0) ids.push_back(static_cast<int32_t>(i));
  }
  return ids;
}

/// Tokens drawn evenly from what is allowed, up to EOS; EOS is taken where it is allowed half of the time.
/// Without EOS after `max_tokens`, the result is empty: the text is not finished.
inline std::vector<int32_t> random_walk(runtime::TokenConstraint& constraint, std::mt19937_64& random,
                                        size_t max_tokens) {
  std::vector<int32_t> reply;
  std::vector<uint32_t> mask((static_cast<size_t>(mini_table()->ids().vocab_size) + 31) / 32);
  while (reply.size() < max_tokens) {
    std::fill(mask.begin(), mask.end(), ~uint32_t{0});
    constraint.mask(reply, mask);
    const auto ids = allowed_ids(mask);
    if (ids.empty()) {
      ADD_FAILURE() << "nothing is allowed after " << mini_tokenizer().decode(reply, false);
      return {};
    }
    const bool may_end =
        ids.size() > static_cast<size_t>(0) && std::find(ids.begin(), ids.end(), kEos) != ids.end();
    if (may_end && (ids.size() == 1 || random() % 2 == 0)) return reply;
    int32_t id = kEos;
    while (id == kEos) id = ids[random() % ids.size()];
    reply.push_back(id);
  }
  return {};
}

}  // namespace rorqual::grammar
