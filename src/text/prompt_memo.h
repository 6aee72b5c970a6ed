// SPDX-License-Identifier: Apache-2.0
// Token ids of blocks of prompts by what they were rendered from: least recently used first out. A hit is
// compared byte by byte, so it is never a matter of probability. docs/text.md#memo.
#pragma once

#include <cstddef>
#include <cstdint>
#include <list>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace rorqual::text {

struct PromptMemoStats {
  int64_t hits = 0, misses = 0;  // blocks
  int64_t hit_tokens = 0, miss_tokens = 0;
  int64_t blocks = 0, bytes = 0;  // held now
};

/// Any thread. Shared by all requests: what one request may learn of another is at most that the same block
/// was seen, by its time.
class PromptMemo {
 public:
  struct Block {
    std::string key;
    std::vector<int32_t> ids;
    size_t text_bytes = 0;  // of the rendered block
  };

  /// Units: bytes of keys and ids. 0 = remembers nothing.
  explicit PromptMemo(size_t max_bytes);

  /// Null if `key` is not remembered.
  std::shared_ptr<const Block> find(std::string_view key);

  /// Drops the oldest blocks until all fit; a block larger than a quarter of the memory is not kept.
  void put(std::shared_ptr<const Block> block);

  PromptMemoStats stats() const;

 private:
  using Order = std::list<std::shared_ptr<const Block>>;

  uint64_t hash_of(std::string_view key) const;

  const size_t max_bytes_;
  const uint64_t seed_;  // of the hash: clients cannot choose keys that meet
  mutable std::mutex mutex_;
  Order order_;  // most recently used first
  std::unordered_map<uint64_t, Order::iterator> by_hash_;
  PromptMemoStats stats_;
};

}  // namespace rorqual::text
