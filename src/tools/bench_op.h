// SPDX-License-Identifier: Apache-2.0
// `rorqual bench op`: times one operation of the model beside the machine's ceilings. docs/performance.md.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/result.h"
#include "tools/op_case.h"

namespace rorqual::tools {

struct BenchOpOptions {
  std::string op = "moe";
  std::string shape = "v41";  // or "mini"
  std::vector<int64_t> tokens = {1};
  int threads = 0;   // 0 = those that pay on this machine
  std::string tier;  // empty = the best of this machine
  Activations activations = Activations::reference;
  int64_t experts = 48;
  bool shared_expert = true;
  int64_t context = 16384;
  double seconds = 10;  // for all rounds; three are made in any case
  int compete = 0;      // busy processes for a second figure of each row
  int64_t seed = 1;
  bool as_json = false;
};

/// Prints one report. Errors: invalid_argument (names); unsupported (tier, activations, CPU); out_of_memory
/// before anything is allocated.
Status run_bench_op(const BenchOpOptions& options);

}  // namespace rorqual::tools
