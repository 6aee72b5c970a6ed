// SPDX-License-Identifier: Apache-2.0
#include "base/thread_pool.h"

#include <immintrin.h>

#include <chrono>
#include <utility>

#include "base/affinity.h"
#include "base/check.h"

namespace rorqual {
namespace {

constexpr unsigned kFlushBits = 0x8040;  // FTZ | DAZ in MXCSR
/// Longer than the gap between two stages, about what going to sleep and being woken costs, and short beside
/// the time slice that a spinning thread takes from others.
constexpr std::chrono::microseconds kSpinTime{40};
constexpr int64_t kChunksMax = UINT32_MAX;

uint64_t packed(uint64_t total, uint64_t next) {
  return (total << 32) | next;
}

bool has_chunks(uint64_t claims) {
  return (claims & UINT32_MAX) < (claims >> 32);
}

/// True once ready() is; false if it was not in time.
template <class Ready>
bool spin_until(const Ready& ready) {
  constexpr int kLooksPerClock = 16;
  const auto end = std::chrono::steady_clock::now() + kSpinTime;
  do {
    for (int i = 0; i < kLooksPerClock; ++i) {
      if (ready()) return true;
      _mm_pause();
    }
  } while (std::chrono::steady_clock::now() < end);
  return ready();
}

uint64_t next_pool_id() {
  static std::atomic<uint64_t> last{0};
  return last.fetch_add(1) + 1;
}

}  // namespace

ScopedFlushToZero::ScopedFlushToZero() : saved_(_mm_getcsr()) {
  _mm_setcsr(saved_ | kFlushBits);
}

ScopedFlushToZero::~ScopedFlushToZero() {
  _mm_setcsr(saved_);
}

ThreadPool::ThreadPool(int num_threads, std::vector<int> cpus)
    : num_threads_(num_threads), cpus_(std::move(cpus)), id_(next_pool_id()) {
  RORQUAL_CHECK(num_threads >= 1);
  for (int i = 1; i < num_threads; ++i) workers_.emplace_back([this, i] { worker_main(i); });
}

ThreadPool::~ThreadPool() {
  stop_.store(true);
  job_word_.fetch_add(1);
  job_word_.notify_all();
  for (auto& worker : workers_) worker.join();
}

void ThreadPool::bind_owner() const {
  thread_local uint64_t bound_to = 0;
  if (cpus_.empty() || bound_to == id_) return;
  bound_to = id_;
  set_thread_cpus(cpus_);
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
    // The order of this count and the look at owner_waits_ pairs with wait_until_done: one of the two sees
    // the other.
    if (chunks_done_.fetch_add(1) + 1 == total && owner_waits_.load()) {
      done_word_.fetch_add(1);
      done_word_.notify_one();
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
  job_word_.fetch_add(1);
  if (sleepers_.load() > 0) job_word_.notify_all();  // pairs with worker_main: it sees the word, or we see it
  work(0);
  wait_until_done(num_chunks);
}

void ThreadPool::wait_until_done(int64_t num_chunks) {
  const auto is_done = [&] { return chunks_done_.load() == num_chunks; };
  if (spin_until(is_done)) return;
  owner_waits_.store(true);
  for (;;) {
    const uint32_t word = done_word_.load();
    if (is_done()) break;
    done_word_.wait(word);
  }
  owner_waits_.store(false);
}

void ThreadPool::worker_main(int thread) {
  const ScopedFlushToZero flush;
  if (!cpus_.empty()) set_thread_cpus(cpus_);
  for (;;) {
    work(thread);
    if (spin_until([&] { return has_chunks(claims_.load(std::memory_order_acquire)); })) continue;
    const uint32_t word = job_word_.load();
    sleepers_.fetch_add(1);
    if (!stop_.load() && !has_chunks(claims_.load())) job_word_.wait(word);
    sleepers_.fetch_sub(1);
    if (stop_.load()) return;
  }
}

}  // namespace rorqual
