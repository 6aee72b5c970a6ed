// SPDX-License-Identifier: Apache-2.0
// Per-sequence state of the model: pages of windows, compressed KV and index keys, open compression rows,
// token history. Layout and bytes per token: docs/formats.md#caches; what a continuation needs:
// docs/model.md#cache.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "base/result.h"
#include "kernels/kernels.h"
#include "model/config.h"
#include "model/page_pools.h"
#include "model/runner.h"
#include "tensor/buffer.h"

namespace rorqual::model {

/// Most drafts of one pass, and how far a sequence can be truncated.
inline constexpr int64_t kMaxDrafts = 7;

/// Rows of draft logits at a time.
inline constexpr int64_t kMaxDraftLogitRows = 128;

static_assert(kPageTokens == kernels::kWindowPageTokens);
inline constexpr int64_t kTruncateSlack = 8;

/// Offsets of everything that one page of either kind, and one sequence, holds.
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
  int64_t window = 0;       // W
  int64_t slack = kTruncateSlack;
  int64_t pending_slots = 0;
  int64_t pending_floats = 0;

  /// Of one layer in a window page.
  int64_t window_layer_bytes() const { return kPageTokens * format.window_bytes(); }

  int64_t window_page_bytes() const { return num_windows * window_layer_bytes(); }

  /// Whole window pages that a continuation needs before a page's end.
  int64_t window_pages() const { return (window + kPageTokens - 1) / kPageTokens; }

  /// Most window pages that a sequence between two steps needs: those of the last W + slack positions.
  int64_t pages_per_sequence() const { return (window + slack - 1 + kPageTokens - 1) / kPageTokens + 1; }

  /// Blocks of `max_sequences` running sequences: what `kv_cache_bytes` hold, at least one; 0 = enough for
  /// `max_model_len` tokens in each.
  int64_t running_blocks(int64_t kv_cache_bytes, int64_t max_model_len, int64_t max_sequences) const;

  /// Window pages that `max_sequences` sequences need at any time, whatever the steps of at most
  /// `max_step_rows` rows are.
  int64_t promised_windows(int64_t max_sequences, int64_t max_step_rows) const;
};

/// Pages that hold `tokens` positions from 0 on.
inline int64_t pages_for(int64_t tokens) {
  return (tokens + kPageTokens - 1) / kPageTokens;
}

CacheLayout make_cache_layout(const Config& config, kernels::Numerics numerics, bool with_drafts);

/// Pages of each kind that a prefix cache of so many bytes may hold: half of the bytes for each kind.
struct PrefixPages {
  int64_t blocks = 0, windows = 0;
};

inline PrefixPages prefix_pages(const CacheLayout& layout, int64_t bytes) {
  if (layout.block_bytes == 0) return {};  // no compressed entries: nothing that a prefix could continue from
  return {bytes / 2 / layout.block_bytes, bytes / 2 / layout.window_page_bytes()};
}

/// State of one sequence: tables of the pages it holds. One thread. Destruction releases the pages.
class SequenceState {
 public:
  static Result<std::unique_ptr<SequenceState>> create(const CacheLayout& layout, PagePools& pools);
  ~SequenceState();
  SequenceState(const SequenceState&) = delete;
  SequenceState& operator=(const SequenceState&) = delete;

  /// Makes an empty sequence begin with the pages of `start`; retains them.
  void restore(const SequenceStart& start);

  int64_t length() const { return length_; }

  /// Positions whose compressed entries exist: length, or more while a replay is under way.
  int64_t entries_end() const { return std::max(length_, opened_entries_); }

  int64_t trim_rows() const { return trim_rows_; }

  /// Grows the page tables to hold `num_tokens`; false and unchanged when the pool is exhausted.
  bool reserve(int64_t num_tokens);

  /// Forgets positions >= length and gives back pages that hold none of the rest. At most `slack` back from
  /// the end of the last step, or everything.
  void truncate(int64_t length);

  // ---- a step: begin_step, claim_targets, the rows, end_step. A failed step ends without end_step.
  /// Claims window pages for the next `num_tokens` rows; those that later steps look at. False: the pool has
  /// none until other sequences drop_extra_windows (may be called again). Also forgets what a failed step
  /// left, and pages that only earlier targets needed.
  bool begin_step(int64_t num_tokens);
  /// Takes further pages for the windows before targets within those rows, latest first, as far as the pool
  /// has unpromised ones.
  void claim_targets(int64_t num_tokens, std::span<const int64_t> targets);
  /// The rows are done: drops pages that neither later steps nor the reached targets need.
  void end_step(int64_t num_tokens, std::span<const int64_t> targets);
  /// Drops the pages that only targets needed.
  void drop_extra_windows();

  /// Whether rows from `length` on may be written: nobody else holds the pages that they are in.
  bool is_writable() const;

  kernels::WindowCache window(int64_t layer) const;
  kernels::CompressedCache compressed(int64_t source) const;

  /// Window records of a layer that are there: positions [window_begin, window_end), below length, and below
  /// window_begin none that may be read.
  int64_t window_begin(int64_t layer) const { return window_begin_[static_cast<size_t>(layer)]; }

  int64_t window_end(int64_t layer) const { return window_end_[static_cast<size_t>(layer)]; }

  /// Records [begin, end) of a layer were written: continues what is there, or starts anew after a gap.
  void add_window(int64_t layer, int64_t begin, int64_t end);

  /// Page number `index` of a kind; kNoPage if it is not held.
  PageId page_at(PageKind kind, int64_t index) const;

  /// Compressed token ids of the whole sequence, -1 for image rows (Engram's history). Grown by the forward
  /// pass.
  std::vector<int32_t>& history() { return history_; }

  // ---- images (sequence_image.cpp)
  int64_t image_bytes() const;
  void save_image(std::span<std::byte> image) const;
  /// Fills an empty sequence. False (still empty) when the pools have too few pages.
  bool load_image(std::span<const std::byte> image);

 private:
  struct Image;  // what a sequence consists of, in order (sequence_image.cpp)

  SequenceState(const CacheLayout& layout, PagePools& pools) : layout_(layout), pools_(pools) {}

  Image describe() const;
  void add_block(PageId page);
  void drop_blocks(int64_t keep);
  void set_window(int64_t index, PageId page);
  void drop_window(int64_t index);
  bool is_extra(int64_t index) const;
  int64_t num_claimed() const;

  int64_t first_kept(int64_t length) const {
    return std::max<int64_t>(0, length - layout_.window - layout_.slack);
  }

  const CacheLayout& layout_;
  PagePools& pools_;
  tensor::Buffer pending_;
  std::vector<PageId> blocks_;
  std::vector<std::vector<std::byte*>> kv_pages_, index_pages_;  // [source][block]
  std::vector<PageId> windows_;                                  // by page number, kNoPage where none is held
  std::vector<std::byte*> window_pages_;            // the same as addresses, null where none is held
  int64_t windows_begin_ = 0;                       // no page below is held
  std::vector<int64_t> extra_windows_;              // page numbers held for targets only, ascending
  std::vector<int64_t> window_begin_, window_end_;  // [window layer]
  std::vector<int32_t> history_;
  int64_t length_ = 0;
  int64_t least_length_ = 0;    // that truncate may go back to
  int64_t opened_length_ = 0;   // where the sequence began
  int64_t opened_entries_ = 0;  // tokens of the blocks that it began with
  int64_t trim_rows_ = 0;
};

}  // namespace rorqual::model
