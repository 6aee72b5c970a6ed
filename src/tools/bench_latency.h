// SPDX-License-Identifier: Apache-2.0
// `rorqual bench latency`: loads a model in this process, times prefill and decode without server and
// sampler, and sets the plan's prediction beside the measurement. docs/plan.md#accuracy.
#pragma once

#include <cstdint>

#include "base/result.h"
#include "tools/open_model.h"

namespace rorqual::tools {

struct BenchLatencyOptions {
  OpenOptions open;  // max_model_len 0 = prompt and answer; max_num_seqs is the batch
  int64_t prompt_tokens = 512;
  int64_t generate_tokens = 32;  // at least 2
  int64_t batch = 1;
  int repeats = 5;
  bool as_json = false;
};

/// Prints one report. Between the repetitions the machine's rates are sampled, so that both see the same
/// neighbours. Errors: those of opening a model; invalid_argument; out_of_memory when the plan does not fit.
Status run_bench_latency(const BenchLatencyOptions& options);

}  // namespace rorqual::tools
