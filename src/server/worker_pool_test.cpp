// SPDX-License-Identifier: Apache-2.0
#include "server/worker_pool.h"

#include <gtest/gtest.h>

#include <atomic>
#include <future>
#include <stdexcept>
#include <string>

namespace rorqual::server {
namespace {

using namespace std::chrono_literals;

TEST(BatchThread, RunsWhatWasPostedInOrderAndAllOfItBeforeTheEnd) {
  std::vector<int> seen;
  {
    BatchThread thread({.on_exception = [](const char* what) { ADD_FAILURE() << what; }});
    for (int i = 0; i < 1000; ++i) thread.post([&seen, i] { seen.push_back(i); });
  }
  ASSERT_EQ(seen.size(), 1000u);
  for (int i = 0; i < 1000; ++i) EXPECT_EQ(seen[static_cast<size_t>(i)], i);
}

TEST(BatchThread, GathersTasksThatComeSoonAfterABatch) {
  std::atomic<int> num_batches{0};
  std::promise<void> first;
  int num_run = 0;
  BatchThread thread({.interval = 10min,
                      .before = [&] { ++num_batches; },
                      .on_exception = [](const char* what) { ADD_FAILURE() << what; }});
  thread.post([&] { first.set_value(); });  // after a silence: at once
  ASSERT_EQ(first.get_future().wait_for(60s), std::future_status::ready);
  for (int i = 0; i < 100; ++i) thread.post([&] { ++num_run; });
  thread.finish();  // ends the wait for the second batch
  EXPECT_EQ(num_run, 100);
  EXPECT_EQ(num_batches, 2);
}

TEST(BatchThread, ReportsAnExceptionAndRunsTheRest) {
  std::string reported;
  int num_run = 0, num_after = 0;
  BatchThread thread(
      {.after = [&] { ++num_after; }, .on_exception = [&](const char* what) { reported = what; }});
  thread.post([] { throw std::runtime_error("broken"); });
  thread.post([&] { ++num_run; });
  thread.finish();
  EXPECT_EQ(reported, "broken");
  EXPECT_EQ(num_run, 1);
  EXPECT_GE(num_after, 1);
}

TEST(BatchThread, IgnoresTasksAfterItsEnd) {
  BatchThread thread({.on_exception = [](const char* what) { ADD_FAILURE() << what; }});
  thread.finish();
  bool has_run = false;
  thread.post([&] { has_run = true; });
  thread.finish();
  EXPECT_FALSE(has_run);
}

}  // namespace
}  // namespace rorqual::server
