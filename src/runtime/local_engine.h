// SPDX-License-Identifier: Apache-2.0
// The engine that runs a model in this process: a control thread schedules, samples and calls the sinks, and
// a step thread runs the model meanwhile.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "base/clock.h"
#include "base/result.h"
#include "model/runner.h"
#include "prefix/disk_tier.h"
#include "runtime/engine.h"

namespace rorqual::runtime {

/// Limits of the engine, named as vLLM names its options.
struct EngineOptions {
  int64_t max_num_seqs = 256;             // requests that run at the same time
  int64_t max_num_batched_tokens = 2048;  // rows of one step; lowered to Runner::max_step_rows
  /// Most prompt tokens of one request in one step while other requests exist. -1 = three quarters of the
  /// budget, 0 = off.
  int64_t long_prefill_token_threshold = -1;
  int64_t max_num_queued_reqs = 1024;  // unfinished requests (waiting and running), 0 = no limit
  int64_t max_num_queued_tokens = 0;   // refuse while so many prompt tokens wait, 0 = no limit
  int64_t max_logprobs = 20;           // of logprobs and prompt_logprobs, -1 = no limit
  int64_t max_logit_rows = 256;        // rows of logits of one step (bounds memory); raised to max_num_seqs
  int64_t max_prompt_logprob_entries = int64_t{1} << 26;  // of one request, (k + 1) * prompt tokens
  /// Source of the seeds of requests that give none. Absent: the operating system's randomness.
  std::optional<uint64_t> seed;
  double max_queue_wait_s = 0;  // requests that wait longer for their first step fail (unavailable), 0 = off

  int32_t drafts = 0;               // most drafts of a step, 0..7, lowered to what the model has; 0 = off
  bool are_drafts_adaptive = true;  // fewer or none while that is faster; false: always `drafts`

  std::string model_identity;      // weights, numerics, page layout: names the pages (prefix cache)
  int64_t prefix_cache_bytes = 0;  // pages kept of past requests, 0 = no prefix cache
  std::shared_ptr<prefix::DiskTier> prefix_disk;
  int64_t prefix_snapshot_interval =
      4096;  // tokens between kept windows inside prompts, 0 = at the ends only
  int64_t prefix_fetch_bytes = int64_t{8} << 20;  // read from disk between two steps
  int64_t swap_bytes = 0;   // memory for preempted sequences; 0 = they are computed again
  int64_t replay_trim = 0;  // lossy: default of requests that do not say, 0 = exact
  bool skips_unread_rows =
      true;  // exact: prompt rows that nothing reads skip the layers past the last source

  /// For checks: preempts every request so many times, in its prompt and in its reply, though there is room.
  int32_t drill_preemptions = 0;

  double step_timeout_s = 0;           // is_alive turns false while a step takes longer, 0 = off
  std::shared_ptr<const Clock> clock;  // null = SteadyClock
};

/// Starts both threads. `info.max_model_len` is lowered to what the runner and its cache can hold,
/// `info.vocab_size` is taken from the runner. Destruction cancels what is unfinished and joins; not from a
/// sink. Errors: invalid_argument (an option out of range), out_of_memory (logits of one step).
Result<std::unique_ptr<Engine>> make_local_engine(std::unique_ptr<model::Runner> runner, EngineInfo info,
                                                  EngineOptions options);

}  // namespace rorqual::runtime
