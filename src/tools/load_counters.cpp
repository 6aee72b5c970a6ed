// SPDX-License-Identifier: Apache-2.0
#include "tools/load_counters.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "base/check.h"

namespace rorqual::tools {
namespace {

/// Values with restarts added up.
std::vector<double> rising(std::span<const CounterSample> samples) {
  std::vector<double> values;
  values.reserve(samples.size());
  double base = 0;
  for (size_t i = 0; i < samples.size(); ++i) {
    if (i > 0 && samples[i].value < samples[i - 1].value) base += samples[i - 1].value;
    values.push_back(base + samples[i].value);
  }
  return values;
}

/// The last sample that is not after `time_s`, but never the last of all.
size_t segment_of(std::span<const CounterSample> samples, double time_s) {
  const auto after = std::upper_bound(samples.begin(), samples.end(), time_s,
                                      [](double t, const CounterSample& s) { return t < s.time_s; });
  const auto index = static_cast<size_t>(after - samples.begin());
  return std::min(index - 1, samples.size() - 2);
}

}  // namespace

Result<CounterWindow> counter_window(std::span<const CounterSample> samples, double begin_s, double end_s) {
  if (!(end_s > begin_s)) {
    return Error(Code::invalid_argument, fmt::format("the window [{:.3f}, {:.3f}] is empty", begin_s, end_s));
  }
  if (samples.size() < 2 || begin_s < samples.front().time_s || end_s > samples.back().time_s) {
    const auto range = samples.empty() ? std::string("there are no samples")
                                       : fmt::format("the samples reach from {:.3f} to {:.3f}",
                                                     samples.front().time_s, samples.back().time_s);
    return Error(
        Code::invalid_argument,
        fmt::format("the window [{:.3f}, {:.3f}] lies outside the samples: {}", begin_s, end_s, range),
        "sample from before the window until after it");
  }
  const std::vector<double> values = rising(samples);
  const auto reading = [&](size_t i, double time_s) {
    const double width = samples[i + 1].time_s - samples[i].time_s;
    if (width <= 0) return values[i + 1];
    return values[i] + (values[i + 1] - values[i]) * ((time_s - samples[i].time_s) / width);
  };
  const size_t first = segment_of(samples, begin_s), last = segment_of(samples, end_s);
  CounterWindow window{.begin_s = begin_s, .end_s = end_s};
  window.begin = reading(first, begin_s);
  window.end = reading(last, end_s);
  for (size_t i = first; i <= last; ++i) {
    window.has_restart = window.has_restart || samples[i + 1].value < samples[i].value;
  }
  return window;
}

Spread spread_of(std::span<const double> values) {
  RORQUAL_CHECK(!values.empty());
  const auto count = static_cast<double>(values.size());
  Spread spread;
  for (const double value : values) spread.mean += value;
  spread.mean /= count;
  if (values.size() < 2) return spread;
  double squares = 0;
  for (const double value : values) squares += (value - spread.mean) * (value - spread.mean);
  spread.sample_sd = std::sqrt(squares / (count - 1));
  return spread;
}

}  // namespace rorqual::tools
