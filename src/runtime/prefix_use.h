// SPDX-License-Identifier: Apache-2.0
// What the engine does with the prefix cache: looks prompts up while they wait, opens sequences on what was
// found, offers what steps have computed. Harmless without a cache.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "model/runner.h"
#include "prefix/prefix_cache.h"
#include "runtime/engine.h"
#include "runtime/request_state.h"

namespace rorqual::runtime {

struct PrefixUseOptions {
  std::string model_identity;
  int64_t max_bytes = 0;  // 0 = no cache
  std::shared_ptr<prefix::DiskTier> disk{};
  int64_t snapshot_interval = 0;
};

/// The engine's thread only. Steps may run meanwhile.
class PrefixUse {
 public:
  PrefixUse(model::Runner& runner, PrefixUseOptions options);

  bool is_on() const { return cache_ != nullptr; }

  /// Names the pages of a new request's prompt.
  void begin(RequestState& request);

  /// Looks a waiting request up, and reads of it from disk what `fetch_bytes` allows (see
  /// PrefixCache::fetch). True when the request can be admitted; `refresh` may still find a better hit.
  bool prepare(RequestState& request, int64_t& fetch_bytes);

  /// Looks again if the cache has changed since, right before an admission; the better one stays. True when
  /// the hit is another.
  bool refresh(RequestState& request);

  /// Forgets a lookup (its pages may be needed elsewhere, or the request begins anew).
  static void forget(RequestState& request);

  /// Opens a sequence for a prepared request: sets sequence, num_computed, replay_end, window_targets. The
  /// hit stays; `forget` when the request runs.
  Result<model::SequenceId> open(RequestState& request, bool skips_unread_rows);

  /// Counts the first admission of a request in figures and in the request, and explains its hit: that reads
  /// a little from disk, so it is done this once.
  void count(RequestState& request);

  /// Offers the pages that a step filled, and the windows before the targets that it reached. `begin`: length
  /// of the sequence before the step.
  void keep_step(RequestState& request, int64_t begin);

  /// Offers the windows before the last page ends of a sequence that is about to be closed.
  void keep_end(RequestState& request);

  /// Makes pages of the cache give way until `count` blocks are free.
  bool make_room(int64_t count);

  PrefixStats stats() const;

 private:
  prefix::PrefixCache::Query query(const RequestState& request) const;
  void name_pages(RequestState& request, int64_t count) const;
  void lookup(RequestState& request);
  void conclude(RequestState& request);
  prefix::MissReport report(const RequestState& request) const;
  void offer_page(RequestState& request, int64_t index, bool has_window, prefix::PrefixCache::WindowUse use);

  model::Runner& runner_;
  PrefixUseOptions options_;
  int64_t page_tokens_, window_pages_;
  std::unique_ptr<prefix::PrefixCache> cache_;
  uint64_t generation_ = 1;
  PrefixStats counted_;  // of first lookups
};

}  // namespace rorqual::runtime
