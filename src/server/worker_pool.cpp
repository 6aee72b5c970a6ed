// SPDX-License-Identifier: Apache-2.0
// Queues and threads.
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

BatchThread::BatchThread(BatchOptions options) : options_(std::move(options)), thread_([this] { main(); }) {}

BatchThread::~BatchThread() {
  finish();
}

void BatchThread::post(std::function<void()> task) {
  bool must_wake = false;
  {
    const std::lock_guard lock(mutex_);
    if (is_stopped_) return;
    tasks_.push_back(std::move(task));
    must_wake = std::exchange(is_waiting_, false);
  }
  if (must_wake) wake_.notify_one();
}

void BatchThread::finish() {
  {
    const std::lock_guard lock(mutex_);
    is_stopped_ = true;
  }
  wake_.notify_one();
  if (thread_.joinable()) thread_.join();
}

void BatchThread::main() {
  std::vector<std::function<void()>> batch;
  std::chrono::steady_clock::time_point last{};
  while (true) {
    {
      std::unique_lock lock(mutex_);
      is_waiting_ = tasks_.empty();
      wake_.wait(lock, [this] { return is_stopped_ || !tasks_.empty(); });
      is_waiting_ = false;
      if (tasks_.empty()) return;
      wake_.wait_until(lock, last + options_.interval, [this] { return is_stopped_; });
      batch.swap(tasks_);
    }
    last = std::chrono::steady_clock::now();
    run(batch);
    batch.clear();
  }
}

void BatchThread::run(std::vector<std::function<void()>>& batch) const {
  if (options_.before) options_.before();
  for (auto& task : batch) {
    try {
      task();
      task = nullptr;  // what it owns goes before the next one runs
    } catch (const std::exception& e) {
      options_.on_exception(e.what());
    }
  }
  if (options_.after) options_.after();
}

}  // namespace rorqual::server
