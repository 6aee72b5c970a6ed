// SPDX-License-Identifier: Apache-2.0
// Grammars over token ids: which tokens may come next. The only part of the program that knows the grammar
// engine (third_party/xgrammar).
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "base/result.h"
#include "text/tokenizer.h"

namespace rorqual::grammar {

/// A model's tokens, prepared for matching. Immutable; any thread.
class TokenTable {
 public:
  /// `vocab_size` counts logits, it may exceed the tokenizer's.
  struct Ids {
    int64_t vocab_size = 0;
    int32_t eos = 1;
    int32_t marker = -1;  // ｜DSML｜; -1 = none
  };

  /// Added tokens (control tokens) have no text here and match nothing, but EOS ends a text, and the marker
  /// is matched by grammars that name its id. About 50 ms for 129,280 tokens.
  TokenTable(const text::Tokenizer& tokenizer, const Ids& ids);
  ~TokenTable();

  const Ids& ids() const;

 private:
  friend class CompiledGrammar;
  friend class TokenMatcher;
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

/// A grammar with the masks of its states computed. Immutable; any thread.
class CompiledGrammar {
 public:
  /// `text` in the notation of grammar/ebnf.h, start rule `root`. Uses `num_threads` threads. Errors:
  /// invalid_argument (syntax, rules without definition, token ids outside the table).
  static Result<std::shared_ptr<const CompiledGrammar>> compile(std::shared_ptr<const TokenTable> table,
                                                                const std::string& text, int num_threads);
  ~CompiledGrammar();

  size_t memory_bytes() const;

  /// The grammar as the engine prints it; for checks on grammars of clients.
  static Result<std::string> normal_text(const std::string& text);

 private:
  friend class TokenMatcher;
  struct Impl;
  explicit CompiledGrammar(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

/// A place in a grammar. One thread at a time.
class TokenMatcher {
 public:
  explicit TokenMatcher(std::shared_ptr<const CompiledGrammar> grammar);
  ~TokenMatcher();

  /// False, and nothing changes, if `token` is not allowed here. EOS ends the text.
  bool accept(int32_t token);

  /// As one step of rollback. False if the text does not fit.
  bool accept_text(std::string_view text);

  void rollback(int64_t num_steps);

  /// Sets exactly the bits of the tokens that may come next: id i is bit i % 32 of word i / 32. EOS is among
  /// them iff the text may end here. Not after EOS.
  void fill(std::span<uint32_t> mask);

  /// The text may end here.
  bool is_complete() const;

  /// EOS was accepted.
  bool is_ended() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace rorqual::grammar
