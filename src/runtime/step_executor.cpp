// SPDX-License-Identifier: Apache-2.0
// The thread that computes steps.
#include "runtime/step_executor.h"

#include "base/check.h"

namespace rorqual::runtime {

ThreadExecutor::~ThreadExecutor() {
  {
    const std::lock_guard lock(mutex_);
    is_stopping_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

void ThreadExecutor::start(std::function<void()> job) {
  {
    const std::lock_guard lock(mutex_);
    RORQUAL_CHECK_NOTE(!is_busy_, "one job at a time");
    job_ = std::move(job);
    is_busy_ = true;
  }
  changed_.notify_all();
}

bool ThreadExecutor::is_done() const {
  const std::lock_guard lock(mutex_);
  return !is_busy_;
}

void ThreadExecutor::wait() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [this] { return !is_busy_; });
}

void ThreadExecutor::run() {
  std::unique_lock lock(mutex_);
  while (true) {
    changed_.wait(lock, [this] { return job_ != nullptr || is_stopping_; });
    if (!job_) return;
    const auto job = std::exchange(job_, nullptr);
    lock.unlock();
    job();
    lock.lock();
    is_busy_ = false;
    changed_.notify_all();
    if (!on_done_) continue;
    lock.unlock();
    on_done_();
    lock.lock();
  }
}

}  // namespace rorqual::runtime
