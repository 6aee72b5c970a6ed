// SPDX-License-Identifier: Apache-2.0
// The masks of one reply: free text, reasoning, and the part that follows a grammar.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "grammar/compiled_constraint.h"
#include "grammar/constraint.h"
#include "grammar/token_matcher.h"
#include "runtime/engine.h"

namespace rorqual::grammar {

/// Most tokens in a row that are nothing but white space, where anything else may come.
inline constexpr size_t kMaxSpaceTokens = 32;

/// A pure function of the reply, kept fast by remembering the last one: it goes back to what both have in
/// common and on from there.
class ReplyConstraint : public runtime::TokenConstraint {
 public:
  ReplyConstraint(std::shared_ptr<const CompiledConstraint::Shared> shared, ConstraintPlace place);

  void mask(std::span<const int32_t> reply, std::span<uint32_t> mask) override;

 private:
  void go_back(size_t length);
  void push(int32_t token);
  void begin_grammar();
  void open_block();
  bool may_open_block() const;
  bool is_after_calls() const;
  void mask_free(std::span<uint32_t> mask) const;
  void end_white_space(std::span<uint32_t> mask) const;

  std::shared_ptr<const CompiledConstraint::Shared> shared_;
  ConstraintPlace place_;
  std::vector<int32_t> seen_;         // the reply that the state below belongs to
  std::optional<size_t> content_at_;  // tokens before the content; none: still in the reasoning
  std::optional<size_t> grammar_at_;  // tokens before those that the matcher has
  std::optional<size_t>
      ended_at_;  // tokens before those that the grammar has no say in: after EOS, or after optional calls
  std::unique_ptr<TokenMatcher> matcher_;
};

}  // namespace rorqual::grammar
