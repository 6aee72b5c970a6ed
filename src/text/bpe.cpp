// SPDX-License-Identifier: Apache-2.0
// Byte-pair encoding. Short pieces: scan for the best pair. Long pieces: linked list and a heap of
// candidates.
#include "text/bpe.h"

#include <algorithm>
#include <bit>
#include <functional>
#include <utility>

#include "base/check.h"

namespace rorqual::text {

namespace {

constexpr size_t kScanLimit = 24;  // bytes; below it scanning beats the heap

uint64_t key_of(int32_t left, int32_t right) {
  return (static_cast<uint64_t>(static_cast<uint32_t>(left)) << 32) | static_cast<uint32_t>(right);
}

void encode_short(std::string_view piece, const MergeTable& merges, const int32_t* byte_ids,
                  std::vector<int32_t>& ids) {
  int32_t symbols[kScanLimit];
  MergeTable::Merge pairs[kScanLimit];  // pairs[i]: symbols i and i+1
  size_t count = piece.size();
  for (size_t i = 0; i < count; ++i) symbols[i] = byte_ids[static_cast<uint8_t>(piece[i])];
  for (size_t i = 0; i + 1 < count; ++i) pairs[i] = merges.find(symbols[i], symbols[i + 1]);
  while (count > 1) {
    size_t best = count;
    for (size_t i = 0; i + 1 < count; ++i) {
      if (pairs[i].rank >= 0 && (best == count || pairs[i].rank < pairs[best].rank)) best = i;
    }
    if (best == count) break;
    symbols[best] = pairs[best].merged;
    std::copy(symbols + best + 2, symbols + count, symbols + best + 1);
    if (best + 2 < count) std::copy(pairs + best + 2, pairs + count - 1, pairs + best + 1);
    --count;
    if (best > 0) pairs[best - 1] = merges.find(symbols[best - 1], symbols[best]);
    if (best + 1 < count) pairs[best] = merges.find(symbols[best], symbols[best + 1]);
  }
  ids.insert(ids.end(), symbols, symbols + count);
}

/// Long pieces: places are collected per pair and merged rank by rank from left to right, so that memory is
/// walked in order; a heap over places would miss the cache on each step.
class LongPieceEncoder {
 public:
  LongPieceEncoder(const MergeTable& merges, BpeScratch& scratch) : merges_(merges), s_(scratch) {
    s_.bucket_of_rank.resize(static_cast<size_t>(merges.num_ranks()), -1);
  }

  void run(std::string_view piece, const int32_t* byte_ids, std::vector<int32_t>& ids) {
    const auto count = static_cast<int32_t>(piece.size());
    s_.symbols.resize(piece.size());
    for (int32_t i = 0; i < count; ++i) {
      const auto index = static_cast<size_t>(i);
      s_.symbols[index] = {byte_ids[static_cast<uint8_t>(piece[index])], i - 1, i + 1 < count ? i + 1 : -1};
    }
    for (int32_t i = 0; i < count; ++i) note_pair(i);
    while (!s_.ranks.empty()) {
      std::pop_heap(s_.ranks.begin(), s_.ranks.end(), std::greater<>());
      const int32_t rank = s_.ranks.back();
      s_.ranks.pop_back();
      merge_bucket(rank);
    }
    for (int32_t i = 0; i >= 0; i = symbol(i).next) ids.push_back(symbol(i).id);
  }

 private:
  BpeScratch::Symbol& symbol(int32_t index) { return s_.symbols[static_cast<size_t>(index)]; }

  int32_t take_bucket() {
    if (s_.free_buckets.empty()) {
      s_.buckets.emplace_back();
      return static_cast<int32_t>(s_.buckets.size() - 1);
    }
    const int32_t index = s_.free_buckets.back();
    s_.free_buckets.pop_back();
    return index;
  }

  /// Remembers the pair that starts at `left`, if it can be merged.
  void note_pair(int32_t left) {
    const BpeScratch::Symbol& first = symbol(left);
    if (first.next < 0) return;
    const int32_t right_id = symbol(first.next).id;
    const MergeTable::Merge merge = merges_.find(first.id, right_id);
    if (merge.rank < 0) return;
    int32_t& index = s_.bucket_of_rank[static_cast<size_t>(merge.rank)];
    if (index < 0) {
      index = take_bucket();
      auto& fresh = s_.buckets[static_cast<size_t>(index)];
      fresh.left_id = first.id;
      fresh.right_id = right_id;
      fresh.merged = merge.merged;
      s_.ranks.push_back(merge.rank);
      std::push_heap(s_.ranks.begin(), s_.ranks.end(), std::greater<>());
    }
    s_.buckets[static_cast<size_t>(index)].places.push_back(left);
  }

  /// Merges all places of one rank from left to right. A merge that makes a better pair possible interrupts:
  /// the rest of the bucket is queued again.
  void merge_bucket(int32_t rank) {
    const int32_t index = std::exchange(s_.bucket_of_rank[static_cast<size_t>(rank)], -1);
    const BpeScratch::Bucket bucket{s_.buckets[static_cast<size_t>(index)].left_id,
                                    s_.buckets[static_cast<size_t>(index)].right_id,
                                    s_.buckets[static_cast<size_t>(index)].merged,
                                    {}};
    std::vector<int32_t> places = std::exchange(s_.buckets[static_cast<size_t>(index)].places, {});
    if (!std::is_sorted(places.begin(), places.end())) std::sort(places.begin(), places.end());
    size_t done = 0;
    for (; done < places.size() && (s_.ranks.empty() || s_.ranks.front() > rank); ++done) {
      merge_at(places[done], bucket);
    }
    for (; done < places.size(); ++done) {
      const BpeScratch::Symbol& left = symbol(places[done]);
      if (left.id == bucket.left_id) note_pair(places[done]);
    }
    places.clear();
    s_.buckets[static_cast<size_t>(index)].places = std::move(places);
    s_.free_buckets.push_back(index);
  }

  void merge_at(int32_t place, const BpeScratch::Bucket& bucket) {
    BpeScratch::Symbol& left = symbol(place);
    if (left.id != bucket.left_id || left.next < 0) return;
    BpeScratch::Symbol& right = symbol(left.next);
    if (right.id != bucket.right_id) return;
    right.id = -1;  // dead
    left.id = bucket.merged;
    left.next = right.next;
    if (left.next >= 0) symbol(left.next).prev = place;
    note_pair(place);
    if (left.prev >= 0) note_pair(left.prev);
  }

  const MergeTable& merges_;
  BpeScratch& s_;
};

}  // namespace

void MergeTable::reserve(size_t count) {
  slots_.assign(std::bit_ceil(std::max<size_t>(count * 2, 16)), Slot{});
}

size_t MergeTable::slot_of(uint64_t key) const {
  const size_t mask = slots_.size() - 1;
  uint64_t hash = key * 0x9E3779B97F4A7C15ull;
  hash ^= hash >> 32;
  size_t slot = static_cast<size_t>(hash) & mask;
  while (slots_[slot].key != key && slots_[slot].key != UINT64_MAX) slot = (slot + 1) & mask;
  return slot;
}

bool MergeTable::insert(int32_t left, int32_t right, Merge merge) {
  const uint64_t key = key_of(left, right);
  Slot& slot = slots_[slot_of(key)];
  if (slot.key == key) return false;
  slot = {key, merge};
  num_ranks_ = std::max(num_ranks_, merge.rank + 1);
  return true;
}

MergeTable::Merge MergeTable::find(int32_t left, int32_t right) const {
  return slots_[slot_of(key_of(left, right))].merge;
}

void bpe_encode(std::string_view piece, const MergeTable& merges, const int32_t* byte_ids,
                BpeScratch& scratch, std::vector<int32_t>& ids) {
  if (piece.empty()) return;
  RORQUAL_CHECK(piece.size() < static_cast<size_t>(INT32_MAX));
  if (piece.size() <= kScanLimit) {
    encode_short(piece, merges, byte_ids, ids);
  } else {
    LongPieceEncoder(merges, scratch).run(piece, byte_ids, ids);
  }
}

}  // namespace rorqual::text
