// SPDX-License-Identifier: Apache-2.0
// A server's /metrics: the Prometheus text read, and sampled beside a load by a thread of its own.
#pragma once

#include <array>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "base/result.h"
#include "runtime/engine.h"
#include "tools/http_client.h"
#include "tools/load_counters.h"

namespace rorqual::tools {

/// Unix time that never goes back: the wall clock at the program's start plus monotonic seconds since.
double unix_now_s();

/// One text of /metrics.
class MetricsText {
 public:
  explicit MetricsText(std::string text) : text_(std::move(text)) {}

  /// Sum of all samples of `name`; with `label` ("reason=\"x\"") only of those whose labels contain it.
  /// Nothing if there is none.
  std::optional<double> sum(std::string_view name, std::string_view label = {}) const;

 private:
  std::string text_;
};

/// What bench serve keeps of a sample. Names of the metrics are in load_metrics.cpp.
enum class Series : uint8_t {
  prompt_tokens,
  generation_tokens,
  prefix_hits,
  prefix_queries,
  preemptions,
  rejections,
  drafts,
  draft_tokens,
  accepted_tokens,
  cpu_seconds,
  running,
  waiting,
  cache_usage,
  resident_bytes,
  count_
};

inline constexpr size_t kNumSeries = static_cast<size_t>(Series::count_);
inline constexpr size_t kDraftPositions = runtime::kMaxDrafts;

struct MetricsSample {
  double time_s = 0;                                       // midway between request and answer
  std::array<std::optional<double>, kNumSeries> values{};  // nothing: the server has no such metric
  std::array<double, kDraftPositions> accepted_by_position{};

  std::optional<double> at(Series series) const { return values[static_cast<size_t>(series)]; }
};

/// vLLM's names are read first, then rorqual's.
MetricsSample read_metrics(const MetricsText& text);

/// The samples of one series in order, those without it left out.
std::vector<CounterSample> series_of(const std::vector<MetricsSample>& samples, Series series);

/// Takes samples on a thread of its own until stopped. Any thread.
class MetricsSampler {
 public:
  MetricsSampler(HttpClient client, double interval_s);
  ~MetricsSampler();

  /// Takes the first sample and begins. Errors: those of HttpClient::get; corrupt_data when the answer has
  /// none of the names.
  Status start();

  /// Takes a last sample and ends.
  void stop();

  /// After stop().
  const std::vector<MetricsSample>& samples() const { return samples_; }

  /// Samples that the server did not answer.
  int64_t missed() const { return missed_; }

 private:
  Status sample();
  void run();

  HttpClient client_;
  double interval_s_;
  std::vector<MetricsSample> samples_;
  int64_t missed_ = 0;
  std::mutex mutex_;
  std::condition_variable wake_;
  bool is_stopping_ = false;
  std::thread thread_;
};

}  // namespace rorqual::tools
