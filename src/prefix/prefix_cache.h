// SPDX-License-Identifier: Apache-2.0
// Content-addressed pages of past prompts and replies, in memory and on disk, so that a later prompt with the
// same beginning continues from there with the same bits. A tree of pages: a node is one page of tokens after
// its parent's, with a block and perhaps a window page.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/result.h"
#include "model/pages.h"
#include "prefix/disk_tier.h"
#include "prefix/miss.h"
#include "prefix/page_key.h"

namespace rorqual::prefix {

struct PrefixCacheOptions {
  std::string model_identity;  // of weights, numerics and page layout; names the root
  /// Most bytes of pages that the cache holds (pages that running sequences hold as well count too), half for
  /// each kind. 0 = off.
  int64_t max_bytes = 0;
  int64_t window_pages = 1;        // that a continuation needs (Runner::window_pages)
  int64_t replay_rows = 0;         // of an exact replay
  int64_t replay_cost = 0;         // of an exact replay, in rows through all layers
  int64_t max_ghosts = 65536;      // evicted pages that are remembered, to tell "evicted" from "first seen"
  std::shared_ptr<DiskTier> disk;  // none = memory only
};

class PageTree;

/// A prefix that was found. Its pages are held until it is destroyed or the sequence has retained them.
/// Movable; refers to its cache.
class PrefixHit {
 public:
  PrefixHit();
  PrefixHit(PrefixHit&&) noexcept;
  PrefixHit& operator=(PrefixHit&&) noexcept;
  ~PrefixHit();

  /// For Runner::open_sequence.
  std::span<const model::PageId> blocks() const;
  std::span<const model::PageId> windows() const;  // empty = none, or a replay is due

  int64_t cached_tokens() const;    // tokens whose compressed entries are reused; a multiple of the page
  int64_t replayed_tokens() const;  // rows to replay before cached_tokens; 0 = windows() are complete
  int64_t resume_position() const;  // cached_tokens - replayed_tokens
  int64_t disk_tokens() const;      // of cached_tokens, read from disk

 private:
  friend class PrefixCache;
  struct State;
  std::unique_ptr<State> state_;
};

/// Figures since the start, and now.
struct PrefixCacheStats {
  int64_t blocks = 0, windows = 0, bytes = 0;  // held now
  int64_t evicted_blocks = 0, evicted_windows = 0;
  int64_t mismatches = 0;  // equal keys of different tokens (never served)
};

/// One thread (the engine's).
class PrefixCache {
 public:
  PrefixCache(model::PageStore& pages, PrefixCacheOptions options);
  ~PrefixCache();  // releases all pages; disk writes are finished first

  /// A prompt to look up.
  struct Query {
    std::span<const int32_t> tokens;  // of the whole prompt
    std::span<const PageKey> keys;    // of its whole pages, from the root on (page_keys)
    PageKey root;
    int64_t limit = 0;  // most tokens to reuse; less than the prompt, so that a token is left to compute
    int64_t trim_rows =
        0;  // of a request with replay trim: takes blocks only, replays so many rows; 0 = exact
  };

  /// Finds the longest kept prefix in memory and on disk and takes hold of what is in memory.
  PrefixHit find(const Query& query);

  /// Reads what the hit still has on disk, page by page while `budget` is above 0; each page lowers it by its
  /// bytes, to 0 at least. True when nothing is left to read, or what is left is given up because too many
  /// reads have failed. Pages are taken from the store, others are evicted for them.
  bool fetch(PrefixHit& hit, int64_t& budget);

  /// Decides where to continue: windows, replay or an earlier restart. Reads nothing from disk.
  void finish(const Query& query, PrefixHit& hit);

  /// Why a finished hit is not longer. Reads up to kMaxDiskSiblings records on disk, so ask once.
  MissReport explain(const Query& query, const PrefixHit& hit) const;

  /// What a window page is kept for. When room is short, of pages of about the same age the first kind leaves
  /// first, so that a short reply never drives out the end of its own prompt.
  enum class WindowUse : uint8_t { interval, reply_end, prompt_end };

  /// A page to keep: its tokens, its name and that of the page before it (the root for the first), which must
  /// be kept already, or nothing happens. `window` = kNoPage: none.
  struct Offer {
    PageKey key, parent;
    std::span<const int32_t> tokens;
    model::PageId block = model::kNoPage;
    model::PageId window = model::kNoPage;
    WindowUse window_use = WindowUse::prompt_end;  // also of breakpoints
  };

  /// Retains the pages; a page that is kept already is refreshed, and gets the window if it had none. Written
  /// to disk in the background.
  void offer(const Offer& offer);

  /// Makes at least `count` pages of the kind free in the store by letting go of the least recently used ones
  /// that nothing else holds. False when there are not so many.
  bool make_room(model::PageKind kind, int64_t count);

  const PrefixCacheStats& stats() const { return stats_; }

 private:
  bool is_off() const { return options_.max_bytes <= 0; }

  void plan(PrefixHit::State& hit) const;
  int64_t windowed_depth(PrefixHit::State& hit) const;
  int64_t read_page(PrefixHit::State& hit, int64_t index);
  int64_t missing_page(const PrefixHit::State& hit) const;
  model::PageId take_page(model::PageKind kind, std::span<const std::byte> content);
  void keep_block(PrefixHit::State& hit, model::PageId block);
  void keep_window(PrefixHit::State& hit, int64_t index, model::PageId window);
  void write_to_disk(const Offer& offer);
  void repair_disk(const PrefixHit::State& hit);
  int64_t window_bonus(WindowUse use) const;
  void update_figures();

  model::PageStore& pages_;
  PrefixCacheOptions options_;
  PrefixCacheStats stats_;
  std::unique_ptr<PageTree> tree_;
};

/// Positions at which the windows of a prompt are kept, ascending: the last two page ends at or before its
/// end, page ends at or before the `breakpoints`, and every `interval` tokens (a multiple of the page; 0 =
/// none).
std::vector<int64_t> window_targets(int64_t prompt_tokens, std::span<const int64_t> breakpoints,
                                    int64_t interval, int64_t page_tokens);

}  // namespace rorqual::prefix
