// SPDX-License-Identifier: Apache-2.0
// `rorqual check replies MODEL [PROMPTS…]`: the ids and the log-probability bits of a reply depend on its
// prompt and sampling fields only (docs/numerics.md). Asks a running engine for the same replies under many
// conditions and compares them with those of a request that runs alone.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/result.h"
#include "tools/check_report.h"
#include "tools/open_model.h"

namespace rorqual::tools {

struct CheckRepliesOptions {
  OpenOptions open;                // model, numerics, kernels; limits and threads are varied
  std::vector<std::string> files;  // JSON lines with "prompt"; empty = prompts made of random tokens
  int64_t prompts = 100;           // at most
  int64_t cells = 12;              // conditions per prompt, drawn from all; a multiple of 4
  bool is_full = false;            // every combination of conditions instead
  int64_t answer_tokens = 24;
  int64_t max_prompt_tokens = 600;  // longer ones are cut at the front
  int64_t shard = 0, shards = 1;    // runs every shards-th group of requests, from number `shard` on
  uint64_t seed = 1;
};

/// Conditions: alone, with 2 others, with 7 others, arriving at random times x steps of 16, 64, 256, 2048
/// tokens x 1 and 2 threads x 0, 2, 5, 7 drafts x cold, prefix cache in memory, prefix cache on disk after a
/// restart x preempted or not x greedy or seeded. Prints what was covered; fails when two conditions never
/// met, a hit did not hit, or a preemption did not happen. Errors: those of opening the model, and of the
/// files.
Status check_replies(const CheckRepliesOptions& options, CheckReport& report);

}  // namespace rorqual::tools
