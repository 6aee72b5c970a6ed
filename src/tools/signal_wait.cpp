// SPDX-License-Identifier: Apache-2.0
#include "tools/signal_wait.h"

#include <pthread.h>
#include <signal.h>

#include <utility>

namespace rorqual::tools {
namespace {

sigset_t watched_signals() {
  sigset_t set;
  sigemptyset(&set);
  sigaddset(&set, SIGINT);
  sigaddset(&set, SIGTERM);
  return set;
}

}  // namespace

SignalWait::SignalWait(std::function<void(int count)> on_signal) : on_signal_(std::move(on_signal)) {
  const auto set = watched_signals();
  pthread_sigmask(SIG_BLOCK, &set, nullptr);
  thread_ = std::thread([this] { wait(); });
}

SignalWait::~SignalWait() {
  is_over_ = true;
  pthread_kill(thread_.native_handle(), SIGTERM);  // wakes sigwait; the flag tells that nobody meant it
  thread_.join();
  const auto set = watched_signals();
  pthread_sigmask(SIG_UNBLOCK, &set, nullptr);
}

void SignalWait::wait() {
  const auto set = watched_signals();
  for (int count = 1;; ++count) {
    int signal = 0;
    sigwait(&set, &signal);
    if (is_over_) return;
    received_ = signal;
    on_signal_(count);
  }
}

}  // namespace rorqual::tools
