// SPDX-License-Identifier: Apache-2.0
// Threads for text work that must not hold up the IO thread: a pool that runs posted tasks in order of
// arrival, and one thread that runs them in batches, so that many small tasks cost few wake-ups.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

namespace rorqual::server {

/// Where tasks go. Any thread may post; ignored after the executor's end.
class Executor {
 public:
  virtual ~Executor() = default;
  virtual void post(std::function<void()> task) = 0;
};

/// Tasks must not throw; one that does anyway is reported to `on_exception` and dropped.
class WorkerPool final : public Executor {
 public:
  WorkerPool(size_t num_threads, std::function<void(const char* what)> on_exception);
  ~WorkerPool() override;  // stop
  WorkerPool(const WorkerPool&) = delete;
  WorkerPool& operator=(const WorkerPool&) = delete;

  void post(std::function<void()> task) override;

  /// Runs what was posted before, takes no more, joins. Not from a task.
  void finish();

  /// Finishes the tasks that run, drops those that wait, joins. Not from a task.
  void stop();

 private:
  void main();

  std::mutex mutex_;
  std::condition_variable wake_;
  std::deque<std::function<void()>> tasks_;
  bool is_stopped_ = false;
  std::function<void(const char*)> on_exception_;
  std::vector<std::thread> threads_;
};

struct BatchOptions {
  /// Between the beginnings of two batches. A task that comes after a longer silence runs at once.
  std::chrono::microseconds interval{0};
  std::function<void()> before = {}, after = {};  // around each batch, on the thread
  std::function<void(const char*)> on_exception;  // of a task
};

/// One thread; tasks as in WorkerPool.
class BatchThread final : public Executor {
 public:
  explicit BatchThread(BatchOptions options);
  ~BatchThread() override;  // finish
  BatchThread(const BatchThread&) = delete;
  BatchThread& operator=(const BatchThread&) = delete;

  void post(std::function<void()> task) override;

  /// Runs what was posted before, takes no more, joins. Not from a task.
  void finish();

 private:
  void main();
  void run(std::vector<std::function<void()>>& batch) const;

  const BatchOptions options_;
  std::mutex mutex_;
  std::condition_variable wake_;
  std::vector<std::function<void()>> tasks_;
  bool is_stopped_ = false, is_waiting_ = false;
  std::thread thread_;
};

}  // namespace rorqual::server
