// SPDX-License-Identifier: Apache-2.0
// A closed loop of clients: each stream asks again as soon as it has its answer, for a time or a number of
// requests; some may leave early at random. docs/load.md.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "base/result.h"
#include "tools/load_client.h"

namespace rorqual::tools {

struct LoadPlan {
  int64_t streams = 1;
  double duration_s = 0;       // at its end running requests are cut off; 0 = until `requests` have ended
  int64_t requests = 0;        // of all streams together; 0 = no limit
  double warm_up_s = 0;        // before the window that is measured
  double ramp_up_s = 0;        // the streams begin evenly over this time
  double cancel_rate = 0;      // share of requests whose client leaves
  int64_t cancel_tokens = 64;  // … after 0 to so many tokens, evenly
  double refused_wait_s = 1;   // a stream waits so long after 429 and 503, less if Retry-After is less
  uint64_t seed = 0;           // of the leaving clients
};

/// What one run gave. Times as in LoadRecord.
struct LoadRun {
  double start_s = 0;
  double window_begin_s = 0, window_end_s = 0;  // from warm-up to duration, or to the last end
  double client_cpu_s = 0;                      // of this process
  std::vector<LoadRecord> records;              // in the order of their ends
};

/// Blocks until all requests have ended. `make_call` gives request number 0, 1, … of the run;
/// plan.cancel_rate is applied here. Errors: those of make_call; invalid_argument (neither duration nor
/// requests).
Result<LoadRun> run_load(LoadClient& client, const LoadPlan& plan,
                         const std::function<Result<LoadCall>(int64_t index)>& make_call);

}  // namespace rorqual::tools
