// SPDX-License-Identifier: Apache-2.0
// Progress of loading on standard error: a bar on a terminal, else one log line per ten percent.
#pragma once

#include <chrono>
#include <cstdint>

namespace rorqual::tools {

/// One thread. `done` and `total` are bytes.
class ProgressBar {
 public:
  /// `interactive` false: log lines. is_terminal() tells whether standard error is one.
  explicit ProgressBar(bool interactive);

  void update(int64_t done_bytes, int64_t total_bytes);

  /// Ends the bar's line.
  void finish();

  static bool is_terminal();

 private:
  void draw(int64_t done_bytes, int64_t total_bytes, double seconds);

  bool interactive_;
  bool is_drawn_ = false;
  int tenths_logged_ = 0;
  std::chrono::steady_clock::time_point start_;
  std::chrono::steady_clock::time_point last_draw_;
};

}  // namespace rorqual::tools
