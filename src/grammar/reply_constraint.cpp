// SPDX-License-Identifier: Apache-2.0
// Masks of one reply.
#include "grammar/reply_constraint.h"

#include <fmt/format.h>

#include <algorithm>
#include <stdexcept>
#include <utility>

#include "base/check.h"
#include "grammar/tool_grammar.h"

namespace rorqual::grammar {

namespace {

void forbid(std::span<uint32_t> mask, int32_t id) {
  mask[static_cast<size_t>(id) / 32] &= ~(uint32_t{1} << (id % 32));
}

}  // namespace

ReplyConstraint::ReplyConstraint(std::shared_ptr<const CompiledConstraint::Shared> shared,
                                 ConstraintPlace place)
    : shared_(std::move(shared)), place_(place) {
  if (place_.after_reasoning) return;
  content_at_ = 0;
  begin_grammar();
}

void ReplyConstraint::mask(std::span<const int32_t> reply, std::span<uint32_t> mask) {
  const size_t known = std::min(reply.size(), seen_.size());
  const auto differs =
      std::mismatch(seen_.begin(), seen_.begin() + static_cast<std::ptrdiff_t>(known), reply.begin());
  go_back(static_cast<size_t>(differs.first - seen_.begin()));
  for (const int32_t token : reply.subspan(seen_.size())) push(token);
  if (!grammar_at_) {
    mask_free(mask);
  } else if (is_after_calls()) {
    return;  // what follows the block is dropped, and min_tokens may ask for it
  } else if (ended_at_) {
    std::fill(mask.begin(), mask.end(), 0);
    mask[static_cast<size_t>(shared_->eos) / 32] |= uint32_t{1} << (shared_->eos % 32);
  } else {
    matcher_->fill(mask);
    if (!shared_->is_tools && shared_->marker >= 0) forbid(mask, shared_->marker);
    end_white_space(mask);
  }
}

/// Forgets all tokens but the first `length` ones.
void ReplyConstraint::go_back(size_t length) {
  if (length == seen_.size()) return;
  if (grammar_at_ && length >= *grammar_at_) {
    const size_t matched = ended_at_.value_or(seen_.size());
    matcher_->rollback(static_cast<int64_t>(matched - std::min(length, matched)));
  } else {
    matcher_.reset();
    grammar_at_.reset();
  }
  if (ended_at_ && length < *ended_at_) ended_at_.reset();
  if (content_at_ && length < *content_at_) content_at_.reset();
  seen_.resize(length);
}

/// At the begin of the content.
void ReplyConstraint::begin_grammar() {
  if (shared_->is_tools && place_.calls == ConstraintPlace::Calls::optional) return;
  matcher_ = std::make_unique<TokenMatcher>(shared_->grammar);
  grammar_at_ = seen_.size();
  if (!shared_->is_tools || place_.calls != ConstraintPlace::Calls::block_opened) return;
  const bool fits = matcher_->accept_text(kBlockOpening) && matcher_->accept(shared_->marker) &&
                    matcher_->accept_text(kBlockName);
  RORQUAL_CHECK(fits);
}

/// After the first marker of a block that the model has opened.
void ReplyConstraint::open_block() {
  matcher_ = std::make_unique<TokenMatcher>(shared_->grammar);
  grammar_at_ = seen_.size();
  const bool fits = matcher_->accept_text(kBlockOpening) && matcher_->accept(shared_->marker);
  RORQUAL_CHECK(fits);
}

/// A marker opens a block after '<' only; anywhere else it would be markup in the text.
bool ReplyConstraint::may_open_block() const {
  return shared_->is_tools && !seen_.empty() && shared_->tokenizer->token_bytes(seen_.back()).ends_with('<');
}

/// The block of calls that the model was free to open is whole.
bool ReplyConstraint::is_after_calls() const {
  return shared_->is_tools && place_.calls == ConstraintPlace::Calls::optional && matcher_ &&
         (ended_at_ || matcher_->is_complete());
}

void ReplyConstraint::push(int32_t token) {
  if (!ended_at_ && is_after_calls()) ended_at_ = seen_.size();
  if (ended_at_) {
    seen_.push_back(token);  // after the calls, or EOS again with ignore_eos
    return;
  }
  if (grammar_at_) {
    if (!matcher_->accept(token)) {
      throw std::logic_error(
          fmt::format("token {} at position {} of the reply is not in the grammar", token, seen_.size()));
    }
    seen_.push_back(token);
    if (matcher_->is_ended()) ended_at_ = seen_.size();
    return;
  }
  const bool opens = token == shared_->marker && may_open_block();
  seen_.push_back(token);
  if (opens) {
    open_block();
  } else if (!content_at_ && token == shared_->think_end) {
    content_at_ = seen_.size();
    begin_grammar();
  }
}

/// Before the grammar: everything, but no markup outside a block, and no end while something is owed.
void ReplyConstraint::mask_free(std::span<uint32_t> mask) const {
  if (shared_->is_tools && !may_open_block()) forbid(mask, shared_->marker);
  const bool is_owed = !shared_->is_tools || place_.calls != ConstraintPlace::Calls::optional;
  if (is_owed) forbid(mask, shared_->eos);
}

/// A model that prints white space without end would do so to the last token: after kMaxSpaceTokens something
/// else must come, where the grammar has it.
void ReplyConstraint::end_white_space(std::span<uint32_t> mask) const {
  const std::vector<uint32_t>& spaces = *shared_->spaces;
  const auto is_space = [&](int32_t id) {
    return (spaces[static_cast<size_t>(id) / 32] >> (id % 32) & 1) != 0;
  };
  const auto own = std::span(seen_).subspan(*grammar_at_);
  if (own.size() < kMaxSpaceTokens) return;
  const auto last = own.last(kMaxSpaceTokens);
  if (!std::all_of(last.rbegin(), last.rend(), is_space)) return;
  bool has_other = false;
  for (size_t i = 0; i < mask.size(); ++i) has_other = has_other || (mask[i] & ~spaces[i]) != 0;
  for (size_t i = 0; has_other && i < mask.size(); ++i) mask[i] &= ~spaces[i];
}

std::shared_ptr<runtime::TokenConstraint> CompiledConstraint::for_reply() const {
  return std::make_shared<ReplyConstraint>(shared_, place_);
}

const std::vector<std::string>& CompiledConstraint::notes() const {
  return shared_->notes;
}

}  // namespace rorqual::grammar
