// SPDX-License-Identifier: Apache-2.0
// The constraint that closes the thinking.
#include "server/thinking_budget.h"

#include <algorithm>
#include <utility>

#include "base/check.h"

namespace rorqual::server {

namespace {

constexpr const char* kEndThink = "</think>";
constexpr const char* kCallMarker = "｜DSML｜";

class ThinkingConstraint final : public runtime::TokenConstraint {
 public:
  ThinkingConstraint(const ThinkingBudget& budget, const text::Tokenizer& tokenizer,
                     std::shared_ptr<runtime::TokenConstraint> inner)
      : budget_(budget), tokenizer_(tokenizer), inner_(std::move(inner)) {
    const auto end = tokenizer.added_token(kEndThink);
    RORQUAL_CHECK(end.has_value());
    end_id_ = *end;
    if (budget.calls_end_it) call_id_ = tokenizer.added_token(kCallMarker).value_or(-1);
  }

  void mask(std::span<const int32_t> reply, std::span<uint32_t> mask) override {
    if (inner_) inner_->mask(reply, mask);
    const auto limit = static_cast<size_t>(budget_.max_tokens);
    if (reply.size() < limit || has_ended(reply.first(limit))) return;
    // Beyond the limit it was this constraint that ended it.
    if (reply.size() > limit && reply[limit] == end_id_) return;
    std::fill(mask.begin(), mask.end(), 0U);
    mask[static_cast<size_t>(end_id_) / 32] = 1U << (static_cast<unsigned>(end_id_) % 32);
  }

 private:
  /// Has the output parser left the thinking after these tokens?
  bool has_ended(std::span<const int32_t> reply) const {
    for (size_t i = 0; i < reply.size(); ++i) {
      if (reply[i] == end_id_) return true;
      if (reply[i] == call_id_ && i > 0 && tokenizer_.token_bytes(reply[i - 1]).ends_with('<')) return true;
    }
    return false;
  }

  const ThinkingBudget budget_;
  const text::Tokenizer& tokenizer_;
  const std::shared_ptr<runtime::TokenConstraint> inner_;
  int32_t end_id_ = -1, call_id_ = -1;
};

}  // namespace

std::shared_ptr<runtime::TokenConstraint> limit_thinking(const ThinkingBudget& budget,
                                                         const text::Tokenizer& tokenizer,
                                                         std::shared_ptr<runtime::TokenConstraint> inner) {
  return std::make_shared<ThinkingConstraint>(budget, tokenizer, std::move(inner));
}

}  // namespace rorqual::server
