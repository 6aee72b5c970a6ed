// SPDX-License-Identifier: Apache-2.0
// Many requests of one engine, a few at a time: how captures, panels and agreement send their work.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <mutex>
#include <vector>

#include "base/result.h"
#include "runtime/engine.h"

namespace rorqual::kl {

/// Which jobs have ended. Sinks add from the engine's thread, one thread waits.
class JobEnds {
 public:
  void add(size_t job);

  /// Jobs that ended since the last call, in order of arrival; empty when none did within `period`.
  std::vector<size_t> wait(std::chrono::milliseconds period);

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<size_t> ended_;
};

struct Jobs {
  size_t count = 0;
  size_t streams = 1;  // in flight at once
  /// Submits job `job` with a sink that adds it to the ends on_finish.
  std::function<Result<runtime::RequestId>(size_t job)> send;
  std::function<Status(size_t job)> take;          // its result, after its end
  std::function<void(size_t num_ended)> progress;  // a few times per second
};

/// Sends the jobs in order and takes each when it ends. The first fault is returned: nothing is sent after
/// it, what runs is cancelled and awaited.
Status run_jobs(runtime::Engine& engine, JobEnds& ends, const Jobs& jobs);

}  // namespace rorqual::kl
