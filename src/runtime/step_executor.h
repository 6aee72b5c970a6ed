// SPDX-License-Identifier: Apache-2.0
// Where the computing part of a step runs: in the caller (simulations, tests) or on a thread of its own, so
// that the caller can deliver, receive and look ahead meanwhile.
#pragma once

#include <condition_variable>
#include <functional>
#include <mutex>
#include <thread>
#include <utility>

namespace rorqual::runtime {

/// One job at a time. Jobs do not throw.
class StepExecutor {
 public:
  virtual ~StepExecutor() = default;
  virtual void start(std::function<void()> job) = 0;
  virtual bool is_done() const = 0;

  /// Returns when the job has ended; its effects are visible.
  virtual void wait() = 0;
};

/// Runs a job in start, or, with `is_late`, in wait.
class InlineExecutor final : public StepExecutor {
 public:
  void start(std::function<void()> job) override {
    job_ = std::move(job);
    if (!is_late) wait();
  }

  bool is_done() const override { return job_ == nullptr; }

  void wait() override {
    if (job_) std::exchange(job_, nullptr)();
  }

  bool is_late = false;

 private:
  std::function<void()> job_;
};

/// Owns a thread that waits for jobs.
class ThreadExecutor final : public StepExecutor {
 public:
  ThreadExecutor() : thread_([this] { run(); }) {}

  ~ThreadExecutor() override;

  /// Called on the thread after each job. Before the first start.
  void set_on_done(std::function<void()> on_done) { on_done_ = std::move(on_done); }

  void start(std::function<void()> job) override;
  bool is_done() const override;
  void wait() override;

 private:
  void run();

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::function<void()> job_, on_done_;
  bool is_busy_ = false, is_stopping_ = false;
  std::thread thread_;  // last: it uses all of the above
};

}  // namespace rorqual::runtime
