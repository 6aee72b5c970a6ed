// SPDX-License-Identifier: Apache-2.0
// `rorqual bench agent`: a recorded tool conversation, asked turn by turn as an agent does, with what each
// turn found in the prefix cache and how long its first token took. docs/load.md#agent.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/result.h"

namespace rorqual::tools {

struct BenchAgentOptions {
  std::vector<std::string> urls;  // one server, or two that are asked in turn
  std::string api_key, model;     // model: empty = the first that each server lists
  std::string conversation;       // JSON file
  int repeats = 5;                // each under its own name, so that none finds another's pages
  int64_t turns = 0;              // 0 = all
  int64_t output_tokens = 8;      // of each turn, exactly
  int64_t block_tokens = 64;      // pages of the server's prefix cache
  uint64_t session = 1;           // names the repeats
  std::string retained_file;  // prompts that the server may hold already; read if there, written at the end
  double min_hit_ratio = 0;   // gate: cached / (longest common prefix, whole pages), from turn 2 on; 0 = off
  double max_ttft_ratio = 0;  // gate: last turn / turn 2, medians; 0 = off
  double timeout_s = 600;
  bool as_json = false;
};

/// Prints the report. Errors: gate (after the report), those of files, unavailable, internal (a turn failed).
Status run_bench_agent(const BenchAgentOptions& options);

}  // namespace rorqual::tools
