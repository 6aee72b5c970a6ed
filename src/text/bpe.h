// SPDX-License-Identifier: Apache-2.0
// Byte-pair merges by rank: the lowest rank first, the leftmost of equals. Near-linear time on any piece.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace rorqual::text {

/// Pair of token ids to (rank, merged id): open addressing, power-of-two size, at most half full.
class MergeTable {
 public:
  struct Merge {
    int32_t rank;  // -1: none
    int32_t merged;
  };

  void reserve(size_t count);
  /// False if the pair is present already.
  bool insert(int32_t left, int32_t right, Merge merge);
  Merge find(int32_t left, int32_t right) const;

  /// One more than the largest rank inserted.
  int32_t num_ranks() const { return num_ranks_; }

 private:
  struct Slot {
    uint64_t key = UINT64_MAX;
    Merge merge{-1, -1};
  };

  size_t slot_of(uint64_t key) const;

  std::vector<Slot> slots_;
  int32_t num_ranks_ = 0;
};

/// Working memory of bpe_encode, reusable between pieces. One thread.
struct BpeScratch {
  struct Symbol {
    int32_t id, prev, next;
  };

  /// Places where one pair was seen; stale ones are recognised by their ids.
  struct Bucket {
    int32_t left_id = 0, right_id = 0, merged = 0;
    std::vector<int32_t> places;
  };

  std::vector<Symbol> symbols;
  std::vector<Bucket> buckets;
  std::vector<int32_t> free_buckets;
  std::vector<int32_t> bucket_of_rank;  // -1: none
  std::vector<int32_t> ranks;           // heap of the ranks that have a bucket, smallest first
};

/// Appends the ids of one piece. byte_ids[256] gives the id of each single byte.
void bpe_encode(std::string_view piece, const MergeTable& merges, const int32_t* byte_ids,
                BpeScratch& scratch, std::vector<int32_t>& ids);

}  // namespace rorqual::text
