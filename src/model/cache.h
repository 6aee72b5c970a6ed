// SPDX-License-Identifier: Apache-2.0
// Per-sequence state of the model: sliding windows, compressed KV and index keys, open compression rows,
// token history. Layout and bytes per token: docs/formats.md#caches; what a continuation needs:
// docs/model.md#cache.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "base/result.h"
#include "kernels/kernels.h"
#include "model/config.h"
#include "tensor/buffer.h"

namespace rorqual::model {

/// Tokens whose compressed entries of all KV sources share one block of the pool.
inline constexpr int64_t kBlockTokens = 64;

/// Offsets of everything that one block, and one sequence, holds.
struct CacheLayout {
  struct Source {
    int64_t layer = 0;
    int64_t ratio = 1;
    int64_t entries_per_block = 0;
    int64_t kv_offset = 0;        // into a block
    int64_t index_offset = 0;     // into a block
    int64_t pending_offset = -1;  // floats into the sequence's pending rows, -1 for ratio 1
  };

  kernels::CacheFormat format;
  std::vector<Source> sources;
  std::vector<int32_t> source_of_layer;  // [layers], index into sources, -1 = none
  int64_t block_bytes = 0;
  int64_t num_windows = 0;  // backbone layers, then draft stages
  int64_t window_slots = 0;
  int64_t pending_slots = 0;
  int64_t pending_floats = 0;

  int64_t window_layer_bytes() const { return window_slots * format.window_bytes(); }

  /// Host bytes of one sequence beside its blocks.
  int64_t sequence_bytes() const { return num_windows * window_layer_bytes() + pending_floats * 4; }
};

/// `slack`: how many positions a sequence can be truncated by (rejected drafts).
CacheLayout make_cache_layout(const Config& config, kernels::Numerics numerics, bool with_drafts,
                              int64_t slack);

/// Fixed pool of blocks. One thread. A released block's bytes are undefined.
class BlockPool {
 public:
  static Result<BlockPool> create(const CacheLayout& layout, int64_t num_blocks);

  int64_t blocks_total() const { return blocks_total_; }

  int64_t blocks_free() const { return static_cast<int64_t>(free_.size()); }

  std::byte* block(int32_t index) { return memory_.data() + index * block_bytes_; }

  int32_t allocate();  // blocks_free() > 0
  void release(int32_t index);

 private:
  tensor::Buffer memory_;
  int64_t block_bytes_ = 0, blocks_total_ = 0;
  std::vector<int32_t> free_;
};

/// State of one sequence. One thread.
class SequenceState {
 public:
  static Result<std::unique_ptr<SequenceState>> create(const CacheLayout& layout);

  int64_t length() const { return length_; }

  void advance(int64_t num_tokens) { length_ += num_tokens; }

  /// Grows the page tables to hold `num_tokens`; false and unchanged when the pool is exhausted.
  bool reserve(BlockPool& pool, int64_t num_tokens);
  void release(BlockPool& pool);
  /// Forgets positions >= length and gives back blocks that hold none of the rest.
  void truncate(BlockPool& pool, int64_t length);

  kernels::WindowCache window(int64_t layer) const;
  kernels::CompressedCache compressed(int64_t source) const;

  /// Compressed token ids of the whole sequence, -1 for image rows (Engram's history). Grown by the forward
  /// pass.
  std::vector<int32_t>& history() { return history_; }

 private:
  explicit SequenceState(const CacheLayout& layout) : layout_(layout) {}

  const CacheLayout& layout_;
  tensor::Buffer windows_;
  tensor::Buffer pending_;
  std::vector<int32_t> blocks_;
  std::vector<std::vector<std::byte*>> kv_pages_, index_pages_;  // [source][block]
  std::vector<int32_t> history_;
  int64_t length_ = 0;
};

}  // namespace rorqual::model
