// SPDX-License-Identifier: Apache-2.0
// The wall around the grammar engine: its types and its exceptions end here.
#include "grammar/token_matcher.h"

#include <dlpack/dlpack.h>
#include <xgrammar/xgrammar.h>

#include <algorithm>
#include <exception>
#include <optional>
#include <utility>
#include <vector>

#include "base/check.h"

namespace rorqual::grammar {

struct TokenTable::Impl {
  xgrammar::TokenizerInfo tokens;
  Ids ids;
};

struct CompiledGrammar::Impl {
  std::shared_ptr<const TokenTable> table;
  xgrammar::CompiledGrammar grammar;
};

struct TokenMatcher::Impl {
  std::shared_ptr<const CompiledGrammar> grammar;
  xgrammar::GrammarMatcher matcher;
};

TokenTable::TokenTable(const text::Tokenizer& tokenizer, const Ids& ids) {
  std::vector<std::string> bytes(static_cast<size_t>(ids.vocab_size));
  const int64_t num_known = std::min<int64_t>(ids.vocab_size, tokenizer.vocab_size());
  for (int32_t id = 0; id < num_known; ++id) {
    if (!tokenizer.is_added(id)) bytes[static_cast<size_t>(id)] = tokenizer.token_bytes(id);
  }
  // The engine matches no token without text, also by its id: a byte that no character has.
  if (ids.marker >= 0) bytes[static_cast<size_t>(ids.marker)] = "\xFF";
  impl_ = std::make_unique<Impl>(
      Impl{xgrammar::TokenizerInfo(bytes, xgrammar::VocabType::RAW, static_cast<int>(ids.vocab_size),
                                   std::vector<int32_t>{ids.eos}),
           ids});
}

TokenTable::~TokenTable() = default;

const TokenTable::Ids& TokenTable::ids() const {
  return impl_->ids;
}

CompiledGrammar::CompiledGrammar(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}

CompiledGrammar::~CompiledGrammar() = default;

Result<std::shared_ptr<const CompiledGrammar>> CompiledGrammar::compile(
    std::shared_ptr<const TokenTable> table, const std::string& text, int num_threads) {
  try {
    xgrammar::GrammarCompiler compiler(table->impl_->tokens, num_threads, /*cache_enabled=*/false);
    xgrammar::CompiledGrammar grammar = compiler.CompileGrammar(text);
    auto impl = std::make_unique<Impl>(Impl{std::move(table), std::move(grammar)});
    return std::shared_ptr<const CompiledGrammar>(new CompiledGrammar(std::move(impl)));
  } catch (const std::bad_alloc&) {
    return Error(Code::out_of_memory, "no memory to compile the grammar", "use a smaller grammar or schema");
  } catch (const std::exception& e) {
    return Error(Code::invalid_argument, std::string("the grammar cannot be used: ") + e.what());
  }
}

size_t CompiledGrammar::memory_bytes() const {
  return impl_->grammar.MemorySizeBytes();
}

Result<std::string> CompiledGrammar::normal_text(const std::string& text) {
  try {
    return xgrammar::Grammar::FromEBNF(text).ToString();
  } catch (const std::exception& e) {
    return Error(Code::invalid_argument, std::string("the grammar cannot be used: ") + e.what());
  }
}

TokenMatcher::TokenMatcher(std::shared_ptr<const CompiledGrammar> grammar) {
  xgrammar::GrammarMatcher matcher(grammar->impl_->grammar);
  impl_ = std::make_unique<Impl>(Impl{std::move(grammar), std::move(matcher)});
}

TokenMatcher::~TokenMatcher() = default;

bool TokenMatcher::accept(int32_t token) {
  return impl_->matcher.AcceptToken(token);
}

bool TokenMatcher::accept_text(std::string_view text) {
  return impl_->matcher.AcceptString(std::string(text));
}

void TokenMatcher::rollback(int64_t num_steps) {
  if (num_steps > 0) impl_->matcher.Rollback(static_cast<int>(num_steps));
}

void TokenMatcher::fill(std::span<uint32_t> mask) {
  const int64_t vocab_size = impl_->grammar->impl_->table->ids().vocab_size;
  RORQUAL_CHECK(static_cast<int64_t>(mask.size()) == (vocab_size + 31) / 32);
  int64_t shape[1] = {static_cast<int64_t>(mask.size())};
  DLTensor tensor{};
  tensor.data = mask.data();
  tensor.device = {kDLCPU, 0};
  tensor.ndim = 1;
  tensor.dtype = {kDLInt, 32, 1};
  tensor.shape = shape;
  impl_->matcher.FillNextTokenBitmask(&tensor);
}

bool TokenMatcher::is_complete() const {
  return impl_->matcher.IsCompleted();
}

bool TokenMatcher::is_ended() const {
  return impl_->matcher.IsTerminated();
}

}  // namespace rorqual::grammar
