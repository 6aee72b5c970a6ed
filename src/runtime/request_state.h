// SPDX-License-Identifier: Apache-2.0
// An unfinished request: what it asked for, how far it is, what it holds. Owned by the scheduler.
#pragma once

#include <algorithm>
#include <compare>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "model/runner.h"
#include "prefix/prefix_cache.h"
#include "runtime/delivery.h"
#include "runtime/draft_length.h"
#include "runtime/engine.h"
#include "runtime/sampler.h"

namespace rorqual::runtime {

/// Place of a request in the order of service, smaller first. Total, because arrivals differ.
struct ServiceOrder {
  int32_t priority = 0;
  uint64_t turn = 0;     // round of the request's client (scheduler.h)
  uint64_t arrival = 0;  // count of accepted requests

  auto operator<=>(const ServiceOrder&) const = default;
};

/// A request's dealings with the prefix cache (prefix_use.h).
struct PrefixState {
  enum class Phase : uint8_t { wanted, fetching, ready };

  bool reads = false;  // may be served from the cache …
  bool keeps = false;  // … and its pages may enter it
  std::string salt;
  prefix::PageKey root;
  std::vector<prefix::PageKey> keys;  // of the whole pages of the tokens, as far as they were needed
  Phase phase = Phase::wanted;
  prefix::PrefixHit hit;            // while waiting
  uint64_t generation = 0;          // of the cache at its lookup
  int64_t disk_tokens = 0;          // of the hit; those read by an earlier lookup of this wait count
  int64_t num_offered = 0;          // pages that the cache was offered
  bool is_counted = false;          // figures know the hit of the first admission …
  prefix::MissReport first_report;  // … and this is why it was not longer
};

struct RequestState {
  RequestId id = 0;
  SamplingParams sampling;
  std::string client_key;
  ServiceOrder order;
  std::shared_ptr<Delivery> delivery;
  uint64_t seed = 0;

  std::vector<int32_t> tokens;  // prompt and reply; the last one is not yet in the cache while decoding
  int64_t num_prompt_tokens = 0;
  TokenCounts counts;  // filled only if the penalties need it

  std::optional<model::SequenceId> sequence;  // open while running
  int64_t num_computed = 0;                   // tokens in the cache of `sequence` (or of `image`)
  int64_t replay_end = 0;               // rows below are replayed: their entries came from the prefix cache
  std::vector<int64_t> window_targets;  // ascending; of this run of the prompt
  int64_t whole_from = 0;               // windows before every position from here on are complete
  std::vector<model::PageId> blocks;    // that figures count for it
  std::vector<std::byte> image;         // while swapped out
  int64_t num_preemptions = 0;

  PrefixState prefix;
  std::vector<int64_t> breakpoints;
  int64_t trim_rows = 0;  // replay trim, 0 = exact
  int64_t cached_tokens = 0, disk_tokens = 0, replayed_tokens = 0;

  int32_t max_drafts = 0;
  DraftHistory draft_history;
  int64_t drafted_tokens = 0, accepted_tokens = 0;

  std::vector<std::optional<PositionLogprobs>> prompt_logprobs;  // rows so far; kept over a preemption
  int64_t num_scored = 1;          // prompt tokens [.., num_scored) have their row, or want none
  bool is_prompt_counted = false;  // prompt done once: counters and sink know

  // 0 = not yet
  int64_t queued_ns = 0, scheduled_ns = 0, first_token_ns = 0, last_token_ns = 0;

  int64_t num_tokens() const { return static_cast<int64_t>(tokens.size()); }

  int64_t num_output() const { return num_tokens() - num_prompt_tokens; }

  std::span<const int32_t> output() const {
    return std::span(tokens).subspan(static_cast<size_t>(num_prompt_tokens));
  }

  int64_t num_remaining() const { return num_tokens() - num_computed; }

  bool is_replaying() const { return num_computed < replay_end; }

  bool is_swapped_out() const { return !image.empty(); }

  bool is_decoding() const { return sequence && num_computed >= num_prompt_tokens && num_remaining() == 1; }

  bool needs_prompt_scores() const { return sampling.prompt_logprobs >= 0 && !is_prompt_counted; }

  /// Targets above `position`.
  std::span<const int64_t> targets_above(int64_t position) const {
    const auto first = std::upper_bound(window_targets.begin(), window_targets.end(), position);
    return {first, window_targets.end()};
  }
};

}  // namespace rorqual::runtime
