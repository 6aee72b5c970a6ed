// SPDX-License-Identifier: Apache-2.0
// A few threads that run posted tasks in order of arrival: text work that must not hold up the IO thread.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

namespace rorqual::server {

/// Any thread may post. Tasks must not throw; one that does anyway is reported to `on_exception` and dropped.
class WorkerPool {
 public:
  WorkerPool(size_t num_threads, std::function<void(const char* what)> on_exception);
  ~WorkerPool();  // stop
  WorkerPool(const WorkerPool&) = delete;
  WorkerPool& operator=(const WorkerPool&) = delete;

  /// Ignored after stop().
  void post(std::function<void()> task);

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

}  // namespace rorqual::server
