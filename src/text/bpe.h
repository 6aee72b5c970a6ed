// SPDX-License-Identifier: Apache-2.0
// Byte-pair merges by rank: the lowest rank first, the leftmost of equals. O(n log n) on any piece.
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

 private:
  struct Slot {
    uint64_t key = UINT64_MAX;
    Merge merge{-1, -1};
  };

  size_t slot_of(uint64_t key) const;

  std::vector<Slot> slots_;
};

/// Working memory of bpe_encode, reusable between pieces. One thread.
struct BpeScratch {
  struct Symbol {
    int32_t id, prev, next;
  };

  struct Candidate {
    int32_t rank, left, merged;
    int32_t left_id, right_id;  // stale if the symbols changed meanwhile
  };

  std::vector<Symbol> symbols;
  std::vector<Candidate> heap;
};

/// Appends the ids of one piece. byte_ids[256] gives the id of each single byte.
void bpe_encode(std::string_view piece, const MergeTable& merges, const int32_t* byte_ids,
                BpeScratch& scratch, std::vector<int32_t>& ids);

}  // namespace rorqual::text
