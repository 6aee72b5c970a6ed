// SPDX-License-Identifier: Apache-2.0
// Arithmetic on sampled counters: what a server's own counters say of a window of time, and the spread of
// repeated runs. Pure functions. docs/load.md#counters.
#pragma once

#include <optional>
#include <span>

#include "base/result.h"

namespace rorqual::tools {

/// One reading of a counter. Times of one series ascend.
struct CounterSample {
  double time_s = 0;
  double value = 0;
};

/// A counter between two times. A counter that fell was restarted: the last value before it is added to all
/// later ones, what was counted in between is lost.
struct CounterWindow {
  double begin_s = 0, end_s = 0;
  double begin = 0, end = 0;  // interpolated readings
  bool has_restart = false;   // between the samples that enclose the window

  double delta() const { return end - begin; }

  double rate() const { return delta() / (end_s - begin_s); }
};

/// Straight lines between the samples. Errors: invalid_argument when the window is empty or reaches beyond
/// the samples (nothing is extrapolated).
Result<CounterWindow> counter_window(std::span<const CounterSample> samples, double begin_s, double end_s);

struct Spread {
  double mean = 0;
  std::optional<double> sample_sd;  // n - 1; none of fewer than two values
};

/// `values` must not be empty.
Spread spread_of(std::span<const double> values);

}  // namespace rorqual::tools
