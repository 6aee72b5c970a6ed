// SPDX-License-Identifier: Apache-2.0
#include "server/thinking_budget.h"

#include <gtest/gtest.h>

#include <bit>

#include "text/test_text.h"

namespace rorqual::server {
namespace {

int32_t id(const char* token) {
  return text::mini_tokenizer().added_token(token).value();
}

/// Ids that may follow, out of all.
int64_t count_allowed(runtime::TokenConstraint& constraint, const std::vector<int32_t>& reply) {
  std::vector<uint32_t> mask(static_cast<size_t>(text::mini_tokenizer().vocab_size() + 31) / 32,
                             ~uint32_t{0});
  constraint.mask(reply, mask);
  const auto end = static_cast<size_t>(id("</think>"));
  EXPECT_TRUE((mask[end / 32] >> (end % 32) & 1U) != 0) << "</think> may always follow";
  int64_t count = 0;
  for (const uint32_t word : mask) count += std::popcount(word);
  return count;
}

constexpr int64_t kMany = 1000;

TEST(ThinkingBudget, AllowsNothingButTheEndAfterTheLastToken) {
  const auto limit = limit_thinking({.max_tokens = 3}, text::mini_tokenizer(), nullptr);
  EXPECT_GT(count_allowed(*limit, {}), kMany);
  EXPECT_GT(count_allowed(*limit, {300, 301}), kMany);
  EXPECT_EQ(count_allowed(*limit, {300, 301, 302}), 1);
  EXPECT_GT(count_allowed(*limit, {300, 301, 302, id("</think>")}), kMany);
  EXPECT_GT(count_allowed(*limit, {300, 301, 302, id("</think>"), 303, 304, 305}), kMany);
}

TEST(ThinkingBudget, OfNothingBeginsWithTheEnd) {
  const auto limit = limit_thinking({.max_tokens = 0}, text::mini_tokenizer(), nullptr);
  EXPECT_EQ(count_allowed(*limit, {}), 1);
  EXPECT_GT(count_allowed(*limit, {id("</think>")}), kMany);
}

TEST(ThinkingBudget, DoesNotTouchThinkingThatEndedByItself) {
  const auto limit = limit_thinking({.max_tokens = 3}, text::mini_tokenizer(), nullptr);
  EXPECT_GT(count_allowed(*limit, {300, id("</think>"), 301, 302, 303, 304}), kMany);
}

TEST(ThinkingBudget, ACallEndsTheThinkingWhereTheParserSaysSo) {
  const int32_t angle = text::mini_tokenizer().encode("<", text::EncodeMode::plain).at(0);
  const std::vector<int32_t> call = {300, angle, id("｜DSML｜"), 301, 302};
  const auto with_tools =
      limit_thinking({.max_tokens = 3, .calls_end_it = true}, text::mini_tokenizer(), nullptr);
  EXPECT_GT(count_allowed(*with_tools, call), kMany);
  EXPECT_EQ(count_allowed(*with_tools, {300, 301, id("｜DSML｜"), 301}), 1) << "without its angle it is text";
  const auto without = limit_thinking({.max_tokens = 3}, text::mini_tokenizer(), nullptr);
  EXPECT_EQ(count_allowed(*without, call), 1);
}

TEST(ThinkingBudget, IsAPureFunctionOfTheReply) {
  const auto limit = limit_thinking({.max_tokens = 2}, text::mini_tokenizer(), nullptr);
  const std::vector<int32_t> drafted = {300, 301, 302, 303};  // rejected: the reply is shorter again
  EXPECT_EQ(count_allowed(*limit, drafted), 1);
  EXPECT_GT(count_allowed(*limit, {300}), kMany);
}

/// Forbids one id.
class Without final : public runtime::TokenConstraint {
 public:
  explicit Without(int32_t token) : token_(static_cast<size_t>(token)) {}

  void mask(std::span<const int32_t>, std::span<uint32_t> mask) override {
    mask[token_ / 32] &= ~(1U << (token_ % 32));
  }

 private:
  size_t token_;
};

TEST(ThinkingBudget, KeepsTheOtherConstraint) {
  const auto free = limit_thinking({.max_tokens = 3}, text::mini_tokenizer(), nullptr);
  const auto both = limit_thinking({.max_tokens = 3}, text::mini_tokenizer(), std::make_shared<Without>(300));
  EXPECT_EQ(count_allowed(*both, {}) + 1, count_allowed(*free, {}));
  EXPECT_EQ(count_allowed(*both, {1, 2, 3}), 1);
}

}  // namespace
}  // namespace rorqual::server
