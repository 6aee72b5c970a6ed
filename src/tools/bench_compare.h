// SPDX-License-Identifier: Apache-2.0
// `rorqual bench compare`: our `bench op` reports beside the timings of other engines. docs/performance.md.
#pragma once

#include <string>
#include <vector>

#include "base/result.h"

namespace rorqual::tools {

struct BenchCompareOptions {
  std::vector<std::string> files;  // *.json: reports of `bench op`; others: peers' CSV
  bool as_json = false;
};

/// Prints how many times longer each peer takes, from medians over the files. Errors: not_found,
/// corrupt_data; invalid_argument when a kind of file is missing, reports differ in what they time, or no row
/// matches.
Status run_bench_compare(const BenchCompareOptions& options);

}  // namespace rorqual::tools
