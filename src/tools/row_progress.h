// SPDX-License-Identifier: Apache-2.0
// Progress of a long count on standard error: a bar on a terminal, else a line about every tenth.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>

namespace rorqual::tools {

/// One thread.
class RowProgress {
 public:
  /// "capture neutral" and "rows", for example.
  RowProgress(std::string label, std::string unit);

  void update(int64_t done, int64_t total);

  /// Ends the bar's line.
  void finish();

 private:
  std::string line(int64_t done, int64_t total, double seconds) const;

  const std::string label_, unit_;
  const bool is_interactive_;
  bool is_drawn_ = false;
  int64_t first_done_ = -1;  // what was there before this run does not count for the speed
  int64_t tenths_shown_ = 0;
  std::chrono::steady_clock::time_point start_, last_draw_;
};

}  // namespace rorqual::tools
