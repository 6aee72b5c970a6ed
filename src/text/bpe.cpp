// SPDX-License-Identifier: Apache-2.0
// Byte-pair encoding. Short pieces: scan for the best pair. Long pieces: linked list and a heap of
// candidates.
#include "text/bpe.h"

#include <algorithm>
#include <bit>

#include "base/check.h"

namespace rorqual::text {

namespace {

constexpr size_t kScanLimit = 24;  // bytes; below it scanning beats the heap

uint64_t key_of(int32_t left, int32_t right) {
  return (static_cast<uint64_t>(static_cast<uint32_t>(left)) << 32) | static_cast<uint32_t>(right);
}

struct WorseCandidate {
  bool operator()(const BpeScratch::Candidate& a, const BpeScratch::Candidate& b) const {
    return a.rank != b.rank ? a.rank > b.rank : a.left > b.left;
  }
};

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

void push_candidate(int32_t left, const MergeTable& merges, BpeScratch& scratch) {
  const auto& symbol = scratch.symbols[static_cast<size_t>(left)];
  if (symbol.next < 0) return;
  const int32_t right_id = scratch.symbols[static_cast<size_t>(symbol.next)].id;
  const MergeTable::Merge merge = merges.find(symbol.id, right_id);
  if (merge.rank < 0) return;
  scratch.heap.push_back({merge.rank, left, merge.merged, symbol.id, right_id});
  std::push_heap(scratch.heap.begin(), scratch.heap.end(), WorseCandidate{});
}

void encode_long(std::string_view piece, const MergeTable& merges, const int32_t* byte_ids,
                 BpeScratch& scratch, std::vector<int32_t>& ids) {
  const auto count = static_cast<int32_t>(piece.size());
  auto& symbols = scratch.symbols;
  symbols.resize(piece.size());
  for (int32_t i = 0; i < count; ++i) {
    const auto index = static_cast<size_t>(i);
    symbols[index] = {byte_ids[static_cast<uint8_t>(piece[index])], i - 1, i + 1 < count ? i + 1 : -1};
  }
  scratch.heap.clear();
  for (int32_t i = 0; i < count; ++i) push_candidate(i, merges, scratch);
  while (!scratch.heap.empty()) {
    std::pop_heap(scratch.heap.begin(), scratch.heap.end(), WorseCandidate{});
    const BpeScratch::Candidate best = scratch.heap.back();
    scratch.heap.pop_back();
    auto& left = symbols[static_cast<size_t>(best.left)];
    if (left.id != best.left_id || left.next < 0) continue;
    auto& right = symbols[static_cast<size_t>(left.next)];
    if (right.id != best.right_id) continue;
    right.id = -1;  // dead
    left.id = best.merged;
    left.next = right.next;
    if (left.next >= 0) symbols[static_cast<size_t>(left.next)].prev = best.left;
    push_candidate(best.left, merges, scratch);
    if (left.prev >= 0) push_candidate(left.prev, merges, scratch);
  }
  for (int32_t i = 0; i >= 0; i = symbols[static_cast<size_t>(i)].next) {
    ids.push_back(symbols[static_cast<size_t>(i)].id);
  }
}

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
    encode_long(piece, merges, byte_ids, scratch, ids);
  }
}

}  // namespace rorqual::text
