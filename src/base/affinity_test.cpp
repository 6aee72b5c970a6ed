// SPDX-License-Identifier: Apache-2.0
#include "base/affinity.h"

#include <gtest/gtest.h>

#include <atomic>
#include <cstdint>

#include <thread>
#include <vector>

#include "base/thread_pool.h"

namespace rorqual {
namespace {

using Cpus = std::vector<int>;

TEST(DivideCpus, gives_each_compute_thread_a_core_and_the_rest_the_others) {
  const CpuDivision four = divide_cpus({{0, 0}, {1, 1}, {2, 2}, {3, 3}}, 3);
  EXPECT_EQ(four.compute, (Cpus{1, 2, 3}));
  EXPECT_EQ(four.rest, (Cpus{0}));
}

TEST(DivideCpus, leaves_the_siblings_of_compute_cores_idle) {
  // Two CPUs a core, numbered as most systems do: 0 and 4 share a core.
  const std::vector<CpuPlace> places = {{0, 0}, {1, 1}, {2, 2}, {3, 3}, {4, 0}, {5, 1}, {6, 2}, {7, 3}};
  const CpuDivision division = divide_cpus(places, 2);
  EXPECT_EQ(division.compute, (Cpus{2, 3}));
  EXPECT_EQ(division.rest, (Cpus{0, 1, 4, 5}));
}

TEST(DivideCpus, does_nothing_without_a_core_to_spare) {
  const std::vector<CpuPlace> places = {{0, 0}, {1, 0}, {2, 1}, {3, 1}};
  for (const int threads : {0, 2, 3, 100}) {
    const CpuDivision division = divide_cpus(places, threads);
    EXPECT_TRUE(division.compute.empty() && division.rest.empty()) << threads;
  }
  EXPECT_TRUE(divide_cpus({}, 1).compute.empty());
  EXPECT_EQ(divide_cpus(places, 1).compute, (Cpus{2}));
}

TEST(ThreadCpus, can_be_narrowed_and_are_inherited) {
  std::thread([] {
    const Cpus all = thread_cpus();
    ASSERT_FALSE(all.empty());
    EXPECT_EQ(thread_cpu_places().size(), all.size());
    ASSERT_TRUE(set_thread_cpus({all.back()}));
    EXPECT_EQ(thread_cpus(), Cpus{all.back()});
    Cpus inherited;
    std::thread([&] { inherited = thread_cpus(); }).join();
    EXPECT_EQ(inherited, Cpus{all.back()});
  }).join();
}

TEST(ThreadCpus, refuse_what_does_not_exist) {
  const Cpus before = thread_cpus();
  EXPECT_FALSE(set_thread_cpus({}));
  EXPECT_FALSE(set_thread_cpus({-1}));
  EXPECT_EQ(thread_cpus(), before);
}

TEST(ThreadPoolCpus, hold_for_workers_and_owners_that_ask) {
  const Cpus all = thread_cpus();
  const Cpus one = {all.back()};
  ThreadPool pool(2, one);
  for (int owner = 0; owner < 2; ++owner) {
    std::thread([&] {
      if (owner == 1) pool.bind_owner();
      Cpus seen[2];
      std::atomic<int> inside{0};
      pool.parallel_for(2, [&](int64_t, int thread) {
        inside.fetch_add(1);
        while (inside.load() < 2) std::this_thread::yield();
        seen[thread] = thread_cpus();
      });
      EXPECT_EQ(seen[0], owner == 1 ? one : all);
      EXPECT_EQ(seen[1], one);
    }).join();
  }
  EXPECT_EQ(thread_cpus(), all);  // who only made the pool is left alone
}

}  // namespace
}  // namespace rorqual
