// SPDX-License-Identifier: Apache-2.0
#include "base/thread_pool.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <thread>
#include <vector>

namespace rorqual {
namespace {

TEST(ThreadPool, runs_every_chunk_once_whatever_the_number_of_threads) {
  for (const int threads : {1, 2, 3, 8}) {
    ThreadPool pool(threads);
    for (const int64_t chunks : {0, 1, 2, 3, 7, 100, 10000}) {
      std::vector<std::atomic<int>> calls(static_cast<size_t>(chunks));
      pool.parallel_for(chunks, [&](int64_t chunk, int thread) {
        EXPECT_GE(thread, 0);
        EXPECT_LT(thread, threads);
        calls[static_cast<size_t>(chunk)].fetch_add(1);
      });
      for (const auto& count : calls)
        ASSERT_EQ(count.load(), 1) << threads << " threads, " << chunks << " chunks";
    }
  }
}

TEST(ThreadPool, keeps_short_jobs_apart) {
  ThreadPool pool(4);
  // A chunk handed out for one job must never run with the next job's body: each job writes its own number.
  for (int64_t job = 0; job < 20000; ++job) {
    int64_t seen[3] = {-1, -1, -1};
    pool.parallel_for(3, [&seen, job](int64_t chunk, int) { seen[chunk] = job; });
    ASSERT_TRUE(seen[0] == job && seen[1] == job && seen[2] == job) << "job " << job;
  }
}

TEST(ThreadPool, does_not_wait_for_threads_without_a_chunk) {
  ThreadPool pool(3);
  std::atomic<bool> release{false};
  // The owner takes one chunk, one worker blocks in the other; the third thread has none and must not matter.
  std::atomic<int> entered{0};
  pool.parallel_for(2, [&](int64_t, int) {
    if (entered.fetch_add(1) == 1) release.store(true);
    while (!release.load()) std::this_thread::yield();
  });
  EXPECT_EQ(entered.load(), 2);
}

TEST(ThreadPool, wakes_workers_that_fell_asleep) {
  ThreadPool pool(2);
  for (int round = 0; round < 50; ++round) {
    // Both chunks can only end when two threads are inside at the same time.
    std::atomic<int> inside{0};
    pool.parallel_for(2, [&](int64_t, int) {
      inside.fetch_add(1);
      while (inside.load() < 2) std::this_thread::yield();
    });
    ASSERT_EQ(inside.load(), 2);
    // Longer than the workers spin, so that they sleep before the next round.
    const auto until = std::chrono::steady_clock::now() + std::chrono::microseconds(500);
    while (std::chrono::steady_clock::now() < until) std::this_thread::yield();
  }
}

TEST(ThreadPool, flushes_subnormals_in_every_thread) {
  ThreadPool pool(2);
  std::atomic<int> inside{0};
  float products[2] = {1, 1};
  pool.parallel_for(2, [&](int64_t chunk, int) {
    inside.fetch_add(1);
    while (inside.load() < 2) std::this_thread::yield();
    volatile float tiny = 1e-30f;
    products[chunk] = tiny * 1e-10f;
  });
  EXPECT_EQ(products[0], 0.0f);
  EXPECT_EQ(products[1], 0.0f);
}

}  // namespace
}  // namespace rorqual
