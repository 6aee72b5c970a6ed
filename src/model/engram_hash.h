// SPDX-License-Identifier: Apache-2.0
// From token history to rows of the Engram tables: prime bucket sizes, hash multipliers, n-gram hashes.
// docs/model.md#engram.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/result.h"
#include "model/config.h"

namespace rorqual::model {

/// Exact for every 64-bit value.
bool is_prime(uint64_t value);

/// Bucket sizes of the Engram layers: [slot][column], column = (n - 2) * heads + head for n-grams of 2 to
/// max_ngram. One ascending run over all primes from `search_start` on; no prime is used twice. Limits:
/// search_start in [0, 2^40], all counts non-negative and their product small.
std::vector<std::vector<int64_t>> prime_layout(int64_t num_slots, int64_t columns, int64_t search_start);

/// Odd multipliers of one layer, one per look-back distance; products with compressed ids fit int64.
/// `layer_id` is the id in the full model. The same values as numpy's default_rng(10007 * layer_id) gives;
/// compressed_vocab < 2^30.
std::vector<int64_t> hash_multipliers(int64_t layer_id, int64_t count, int64_t compressed_vocab);

/// Bucket sizes of this config's Engram layers: [layer][column]. With layer_origin, a layer may have been any
/// of the full model's Engram layers: its row count tells which. Errors (corrupt_data): engram_num_embeddings
/// is no sum of primes.
Result<std::vector<std::vector<int64_t>>> engram_primes(const Config& config);

/// Any thread after creation.
class NgramHasher {
 public:
  /// `token_map`: compressed id of every token. Errors (corrupt_data) when it does not fit the config's
  /// sizes.
  static Result<NgramHasher> create(const Config& config, std::span<const int32_t> token_map);

  /// Rows of positions [start, start + count). `history`: compressed ids of the sequence from position 0 on,
  /// at least up to start + count; -1 marks positions that take part in no n-gram (image rows). rows: out
  /// [count, engram layers, columns], table row numbers.
  void hash(std::span<const int32_t> history, int64_t start, int64_t count, int64_t* rows) const;

  int64_t num_layers() const { return static_cast<int64_t>(layers_.size()); }

  int64_t columns() const { return columns_; }

 private:
  struct Layer {
    std::vector<int64_t> multipliers;  // [max_ngram]
    std::vector<int64_t> primes;       // [columns]
    std::vector<int64_t> offsets;      // [columns], first row of each bucket range
  };

  std::vector<Layer> layers_;
  int64_t columns_ = 0;
  int64_t heads_ = 0;
  int64_t max_ngram_ = 1;
  int64_t pad_ = 0;  // compressed id of the pad token, stands for what lies before the sequence
};

}  // namespace rorqual::model
