// SPDX-License-Identifier: Apache-2.0
// SIGINT and SIGTERM as values: blocked in all threads, received by one that calls back.
#pragma once

#include <atomic>
#include <functional>
#include <thread>

namespace rorqual::tools {

/// Create it before any other thread starts: threads inherit the blocked signals. `on_signal(count)` runs on
/// the waiting thread, count = 1 for the first signal.
class SignalWait {
 public:
  explicit SignalWait(std::function<void(int count)> on_signal);
  ~SignalWait();
  SignalWait(const SignalWait&) = delete;
  SignalWait& operator=(const SignalWait&) = delete;

  /// SIGINT or SIGTERM once one has come, else 0.
  int received() const { return received_; }

 private:
  void wait();

  std::function<void(int count)> on_signal_;
  std::atomic<int> received_{0};
  std::atomic<bool> is_over_{false};
  std::thread thread_;
};

}  // namespace rorqual::tools
