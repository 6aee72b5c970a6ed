// SPDX-License-Identifier: Apache-2.0
// Monotonic time as an injected value, so that schedulers and time-outs can be tested with virtual time.
#pragma once

#include <chrono>
#include <cstdint>

namespace rorqual {

/// Any thread. Never goes back; the zero point has no meaning.
class Clock {
 public:
  virtual ~Clock() = default;
  virtual int64_t now_ns() const = 0;
};

/// std::chrono::steady_clock.
class SteadyClock final : public Clock {
 public:
  int64_t now_ns() const override {
    return std::chrono::duration_cast<std::chrono::nanoseconds>(
               std::chrono::steady_clock::now().time_since_epoch())
        .count();
  }
};

}  // namespace rorqual
