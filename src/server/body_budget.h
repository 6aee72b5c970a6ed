// SPDX-License-Identifier: Apache-2.0
// Bytes of request bodies in memory, over all connections: each body may be large, a thousand of them at once
// may not.
#pragma once

#include <atomic>
#include <cstddef>
#include <memory>
#include <utility>

namespace rorqual::server {

/// Bodies up to this size are counted, but never refused.
inline constexpr size_t kSmallBody_bytes = 256 * 1024;

/// Any thread.
struct BodyBudget {
  explicit BodyBudget(size_t max) : max_bytes(max) {}

  const size_t max_bytes;
  std::atomic<size_t> used_bytes{0};
};

/// What one body takes of the budget; given back at its end. One thread at a time.
class BodyShare {
 public:
  explicit BodyShare(std::shared_ptr<BodyBudget> budget) : budget_(std::move(budget)) {}

  BodyShare(BodyShare&& other) noexcept
      : budget_(std::move(other.budget_)), bytes_(std::exchange(other.bytes_, 0)) {}

  BodyShare& operator=(BodyShare&&) = delete;
  BodyShare(const BodyShare&) = delete;
  BodyShare& operator=(const BodyShare&) = delete;

  ~BodyShare() {
    if (bytes_ > 0) release();
  }

  /// Gives back what it took.
  void release() { budget_->used_bytes -= std::exchange(bytes_, 0); }

  /// False if a body of `num_bytes` does not fit now; the share stays as it was then.
  bool grow_to(size_t num_bytes) {
    if (num_bytes <= bytes_) return true;
    const size_t more = num_bytes - bytes_;
    const size_t used = budget_->used_bytes.fetch_add(more) + more;
    if (used > budget_->max_bytes && num_bytes > kSmallBody_bytes) {
      budget_->used_bytes -= more;
      return false;
    }
    bytes_ = num_bytes;
    return true;
  }

 private:
  std::shared_ptr<BodyBudget> budget_;
  size_t bytes_ = 0;
};

}  // namespace rorqual::server
