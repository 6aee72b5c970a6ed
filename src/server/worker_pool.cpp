// SPDX-License-Identifier: Apache-2.0
// Queue and threads of the worker pool.
#include "server/worker_pool.h"

#include <exception>
#include <utility>

namespace rorqual::server {

WorkerPool::WorkerPool(size_t num_threads, std::function<void(const char*)> on_exception)
    : on_exception_(std::move(on_exception)) {
  for (size_t i = 0; i < num_threads; ++i) threads_.emplace_back([this] { main(); });
}

WorkerPool::~WorkerPool() {
  stop();
}

void WorkerPool::post(std::function<void()> task) {
  {
    const std::lock_guard lock(mutex_);
    if (is_stopped_) return;
    tasks_.push_back(std::move(task));
  }
  wake_.notify_one();
}

void WorkerPool::finish() {
  {
    const std::lock_guard lock(mutex_);
    is_stopped_ = true;
  }
  wake_.notify_all();
  for (auto& thread : threads_) {
    if (thread.joinable()) thread.join();
  }
}

void WorkerPool::stop() {
  std::deque<std::function<void()>> dropped;  // destroyed outside the lock: a task may own a great deal
  {
    const std::lock_guard lock(mutex_);
    is_stopped_ = true;
    dropped.swap(tasks_);
  }
  finish();
}

void WorkerPool::main() {
  while (true) {
    std::function<void()> task;
    {
      std::unique_lock lock(mutex_);
      wake_.wait(lock, [this] { return is_stopped_ || !tasks_.empty(); });
      if (tasks_.empty()) return;
      task = std::move(tasks_.front());
      tasks_.pop_front();
    }
    try {
      task();
    } catch (const std::exception& e) {
      on_exception_(e.what());
    }
  }
}

}  // namespace rorqual::server
