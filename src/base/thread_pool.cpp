// SPDX-License-Identifier: Apache-2.0
#include "base/thread_pool.h"

#include <immintrin.h>

#include "base/check.h"

namespace rorqual {
namespace {

constexpr unsigned kFlushBits = 0x8040;  // FTZ | DAZ in MXCSR
constexpr int kSpinRounds =
    4000;  // about 100 us: longer than the gap between two stages, short beside a step
constexpr int64_t kChunksMax = UINT32_MAX;

uint64_t packed(uint64_t total, uint64_t next) {
  return (total << 32) | next;
}

bool has_chunks(uint64_t claims) {
  return (claims & UINT32_MAX) < (claims >> 32);
}

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
    stop_.store(true);
  }
  wake_.notify_all();
  for (auto& worker : workers_) worker.join();
}

bool ThreadPool::claim(int64_t& chunk) {
  uint64_t claims = claims_.load(std::memory_order_acquire);
  while (has_chunks(claims)) {
    if (claims_.compare_exchange_weak(claims, claims + 1, std::memory_order_acq_rel,
                                      std::memory_order_acquire)) {
      chunk = static_cast<int64_t>(claims & UINT32_MAX);
      return true;
    }
  }
  return false;
}

void ThreadPool::work(int thread) {
  int64_t chunk = 0;
  while (claim(chunk)) {
    const auto total = static_cast<int64_t>(claims_.load(std::memory_order_relaxed) >> 32);
    function_(context_, chunk, thread);
    // The order of this store and the look at owner_waits_ pairs with wait_until_done: one of the two sees
    // the other.
    if (chunks_done_.fetch_add(1) + 1 == total && owner_waits_.load()) {
      std::lock_guard lock(mutex_);
      done_.notify_one();
    }
  }
}

void ThreadPool::run(int64_t num_chunks, Function function, const void* context) {
  const ScopedFlushToZero flush;
  if (num_threads_ == 1 || num_chunks <= 1) {
    for (int64_t chunk = 0; chunk < num_chunks; ++chunk) function(context, chunk, 0);
    return;
  }
  RORQUAL_CHECK(num_chunks <= kChunksMax);
  function_ = function;
  context_ = context;
  chunks_done_.store(0, std::memory_order_relaxed);
  claims_.store(packed(static_cast<uint64_t>(num_chunks), 0));
  if (sleepers_.load() > 0) {  // pairs with worker_main: it sees the chunks, or we see it asleep
    { std::lock_guard lock(mutex_); }
    wake_.notify_all();
  }
  work(0);
  wait_until_done(num_chunks);
}

void ThreadPool::wait_until_done(int64_t num_chunks) {
  for (int i = 0; i < kSpinRounds; ++i) {
    if (chunks_done_.load(std::memory_order_acquire) == num_chunks) return;
    _mm_pause();
  }
  std::unique_lock lock(mutex_);
  owner_waits_.store(true);
  done_.wait(lock, [&] { return chunks_done_.load() == num_chunks; });
  owner_waits_.store(false);
}

void ThreadPool::worker_main(int thread) {
  const ScopedFlushToZero flush;
  for (;;) {
    work(thread);
    for (int i = 0; i < kSpinRounds && !has_chunks(claims_.load(std::memory_order_acquire)); ++i) _mm_pause();
    if (has_chunks(claims_.load(std::memory_order_acquire))) continue;
    std::unique_lock lock(mutex_);
    sleepers_.fetch_add(1);
    wake_.wait(lock, [&] { return stop_.load() || has_chunks(claims_.load()); });
    sleepers_.fetch_sub(1);
    if (stop_.load()) return;
  }
}

}  // namespace rorqual
