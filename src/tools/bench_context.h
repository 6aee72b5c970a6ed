// SPDX-License-Identifier: Apache-2.0
// `rorqual bench context`: one long prompt through a model in this process, with a table of times by
// position, memory beside the plan, and a digest of the logits that two runs can be compared by.
#pragma once

#include <cstdint>

#include "base/result.h"
#include "tools/open_model.h"

namespace rorqual::tools {

struct BenchContextOptions {
  OpenOptions open;  // max_model_len 0 = prompt and answer
  int64_t prompt_tokens = 131'072;
  int64_t generate_tokens = 8;
  int64_t part_tokens = 65'536;  // of one line of the table
  bool skips_unread_rows = true;
  bool as_json = false;
};

/// Prints one report. Errors: those of opening a model; out_of_memory when the plan does not fit.
Status run_bench_context(const BenchContextOptions& options);

}  // namespace rorqual::tools
