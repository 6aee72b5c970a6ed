// SPDX-License-Identifier: Apache-2.0
#include "text/prompt_memo.h"

#include <xxhash.h>

#include <iterator>
#include <random>
#include <utility>

namespace rorqual::text {

namespace {

constexpr size_t kBookkeepingBytes = 160;  // list, map and counters of one block
constexpr size_t kLargestShare = 4;        // a block may take 1 / this of the memory

uint64_t random_seed() {
  std::random_device device;
  return (uint64_t{device()} << 32) | device();
}

size_t bytes_of(const PromptMemo::Block& block) {
  return block.key.size() + block.ids.size() * sizeof(int32_t) + kBookkeepingBytes;
}

}  // namespace

PromptMemo::PromptMemo(size_t max_bytes) : max_bytes_(max_bytes), seed_(random_seed()) {}

std::shared_ptr<const PromptMemo::Block> PromptMemo::find(std::string_view key) {
  const uint64_t hash = hash_of(key);
  std::shared_ptr<const Block> block;
  {
    const std::lock_guard lock(mutex_);
    const auto found = by_hash_.find(hash);
    if (found != by_hash_.end()) {
      block = *found->second;
      order_.splice(order_.begin(), order_, found->second);
    }
  }
  const bool is_hit = block != nullptr && block->key == key;  // long keys are compared outside the lock
  const std::lock_guard lock(mutex_);
  ++(is_hit ? stats_.hits : stats_.misses);
  if (!is_hit) return nullptr;
  stats_.hit_tokens += static_cast<int64_t>(block->ids.size());
  return block;
}

void PromptMemo::put(std::shared_ptr<const Block> block) {
  const uint64_t hash = hash_of(block->key);
  const size_t size = bytes_of(*block);
  Order dropped;  // freed after the lock
  const std::lock_guard lock(mutex_);
  stats_.miss_tokens += static_cast<int64_t>(block->ids.size());
  if (size > max_bytes_ / kLargestShare) return;
  if (const auto found = by_hash_.find(hash); found != by_hash_.end()) {
    stats_.bytes -= static_cast<int64_t>(bytes_of(**found->second));
    dropped.splice(dropped.end(), order_, found->second);
    by_hash_.erase(found);
  }
  order_.push_front(std::move(block));
  by_hash_[hash] = order_.begin();
  stats_.bytes += static_cast<int64_t>(size);
  while (stats_.bytes > static_cast<int64_t>(max_bytes_)) {
    stats_.bytes -= static_cast<int64_t>(bytes_of(*order_.back()));
    by_hash_.erase(hash_of(order_.back()->key));
    dropped.splice(dropped.end(), order_, std::prev(order_.end()));
  }
}

uint64_t PromptMemo::hash_of(std::string_view key) const {
  return XXH3_64bits_withSeed(key.data(), key.size(), seed_);
}

PromptMemoStats PromptMemo::stats() const {
  const std::lock_guard lock(mutex_);
  PromptMemoStats stats = stats_;
  stats.blocks = static_cast<int64_t>(order_.size());
  return stats;
}

}  // namespace rorqual::text
