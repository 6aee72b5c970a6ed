// SPDX-License-Identifier: Apache-2.0
#include "base/thread_pool.h"

#include <immintrin.h>

#include "base/check.h"

namespace rorqual {
namespace {

constexpr unsigned kFlushBits = 0x8040;  // FTZ | DAZ in MXCSR
constexpr int kSpinRounds = 2000;  // about 50 us: longer than the gap between two stages, short beside a step

}  // namespace

ScopedFlushToZero::ScopedFlushToZero() : saved_(_mm_getcsr()) {
  _mm_setcsr(saved_ | kFlushBits);
}

ScopedFlushToZero::~ScopedFlushToZero() {
  _mm_setcsr(saved_);
}

ThreadPool::ThreadPool(int num_threads) : num_threads_(num_threads) {
  RORQUAL_CHECK(num_threads >= 1);
  for (int i = 1; i < num_threads; ++i) workers_.emplace_back([this, i] { worker_main(i); });
}

ThreadPool::~ThreadPool() {
  {
    std::lock_guard lock(mutex_);
    stop_ = true;
    generation_.fetch_add(1, std::memory_order_release);
  }
  wake_.notify_all();
  for (auto& worker : workers_) worker.join();
}

void ThreadPool::work(int thread) {
  for (;;) {
    const int64_t chunk = next_chunk_.fetch_add(1, std::memory_order_relaxed);
    if (chunk >= num_chunks_) return;
    function_(context_, chunk, thread);
  }
}

void ThreadPool::run(int64_t num_chunks, Function function, const void* context) {
  const ScopedFlushToZero flush;
  if (num_threads_ == 1 || num_chunks <= 1) {
    for (int64_t chunk = 0; chunk < num_chunks; ++chunk) function(context, chunk, 0);
    return;
  }
  {
    std::lock_guard lock(mutex_);
    num_chunks_ = num_chunks;
    function_ = function;
    context_ = context;
    next_chunk_.store(0, std::memory_order_relaxed);
    workers_busy_.store(num_threads_ - 1, std::memory_order_relaxed);
    generation_.fetch_add(1, std::memory_order_release);
  }
  wake_.notify_all();
  work(0);
  for (int i = 0; i < kSpinRounds && workers_busy_.load(std::memory_order_acquire) != 0; ++i) _mm_pause();
  if (workers_busy_.load(std::memory_order_acquire) != 0) {
    std::unique_lock lock(mutex_);
    done_.wait(lock, [this] { return workers_busy_.load(std::memory_order_acquire) == 0; });
  }
}

void ThreadPool::worker_main(int thread) {
  const ScopedFlushToZero flush;
  uint64_t seen = 0;
  for (;;) {
    for (int i = 0; i < kSpinRounds && generation_.load(std::memory_order_acquire) == seen; ++i) _mm_pause();
    {
      std::unique_lock lock(mutex_);
      wake_.wait(lock, [&] { return generation_.load(std::memory_order_acquire) != seen; });
      seen = generation_.load(std::memory_order_acquire);
      if (stop_) return;
    }
    work(thread);
    if (workers_busy_.fetch_sub(1, std::memory_order_acq_rel) == 1) {
      std::lock_guard lock(mutex_);
      done_.notify_one();
    }
  }
}

}  // namespace rorqual
