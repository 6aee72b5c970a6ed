// SPDX-License-Identifier: Apache-2.0
#include "kl/jobs.h"

#include <utility>

namespace rorqual::kl {
namespace {

constexpr std::chrono::milliseconds kProgressPeriod{200};

}  // namespace

void JobEnds::add(size_t job) {
  const std::lock_guard lock(mutex_);
  ended_.push_back(job);
  changed_.notify_all();
}

std::vector<size_t> JobEnds::wait(std::chrono::milliseconds period) {
  std::unique_lock lock(mutex_);
  changed_.wait_for(lock, period, [&] { return !ended_.empty(); });
  return std::exchange(ended_, {});
}

Status run_jobs(runtime::Engine& engine, JobEnds& ends, const Jobs& jobs) {
  Status fault = Ok();
  size_t next = 0, num_ended = 0;
  std::vector<std::pair<size_t, runtime::RequestId>> running;
  while (!running.empty() || (fault.ok() && next < jobs.count)) {
    while (fault.ok() && next < jobs.count && running.size() < jobs.streams) {
      auto id = jobs.send(next);
      if (id.ok()) {
        running.emplace_back(next++, *id);
      } else {
        fault = std::move(id).error();
      }
    }
    if (!fault.ok()) {
      for (const auto& [job, id] : running) engine.cancel(id);
    }
    if (running.empty()) break;
    for (const size_t ended : ends.wait(kProgressPeriod)) {
      std::erase_if(running, [=](const auto& entry) { return entry.first == ended; });
      ++num_ended;
      Status taken = jobs.take(ended);
      if (!taken.ok() && fault.ok()) fault = std::move(taken);
    }
    if (jobs.progress) jobs.progress(num_ended);
  }
  return fault;
}

}  // namespace rorqual::kl
