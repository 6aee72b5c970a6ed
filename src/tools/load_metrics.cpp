// SPDX-License-Identifier: Apache-2.0
#include "tools/load_metrics.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <utility>

namespace rorqual::tools {
namespace {

using Steady = std::chrono::steady_clock;

constexpr double kTimeout_s = 30;

struct SeriesSource {
  Series series;
  std::string_view name;  // after "vllm:" or "rorqual:"; process figures have no prefix
  std::string_view label = {};
};

constexpr SeriesSource kSources[] = {
    {Series::prompt_tokens, "prompt_tokens_total"},
    {Series::generation_tokens, "generation_tokens_total"},
    {Series::prefix_hits, "prefix_cache_hits_total"},
    {Series::prefix_queries, "prefix_cache_queries_total"},
    {Series::preemptions, "num_preemptions_total"},
    {Series::rejections, "admission_rejections_total"},
    {Series::drafts, "spec_decode_num_drafts_total"},
    {Series::draft_tokens, "spec_decode_num_draft_tokens_total"},
    {Series::accepted_tokens, "spec_decode_num_accepted_tokens_total"},
    {Series::cpu_seconds, "process_cpu_seconds_total"},
    {Series::running, "num_requests_running"},
    {Series::waiting, "num_requests_waiting"},
    {Series::cache_usage, "kv_cache_usage_perc"},
    {Series::resident_bytes, "process_resident_memory_bytes"},
};
static_assert(std::size(kSources) == kNumSeries);

/// The metric under vLLM's prefix, rorqual's, or none.
std::optional<double> prefixed_sum(const MetricsText& text, std::string_view name, std::string_view label) {
  for (const std::string_view prefix : {"vllm:", "rorqual:", ""}) {
    if (const auto value = text.sum(fmt::format("{}{}", prefix, name), label)) return value;
  }
  return std::nullopt;
}

}  // namespace

double unix_now_s() {
  static const double kWallStart_s =
      std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
  static const Steady::time_point kStart = Steady::now();
  return kWallStart_s + std::chrono::duration<double>(Steady::now() - kStart).count();
}

std::optional<double> MetricsText::sum(std::string_view name, std::string_view label) const {
  std::optional<double> total;
  const std::string_view text = text_;
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = std::min(text.find('\n', begin), text.size());
    const std::string_view line = text.substr(begin, end - begin);
    begin = end + 1;
    if (line.size() <= name.size() || line.substr(0, name.size()) != name) continue;
    std::string_view rest = line.substr(name.size());
    if (rest.front() == '{') {
      const size_t close = rest.rfind('}');
      if (close == std::string_view::npos) continue;
      if (!label.empty() && rest.substr(0, close).find(label) == std::string_view::npos) continue;
      rest = rest.substr(close + 1);
    } else if (!label.empty()) {
      continue;
    }
    if (rest.empty() || rest.front() != ' ') continue;  // a longer name
    const std::string number(rest);
    char* stop = nullptr;
    const double value = std::strtod(number.c_str(), &stop);
    if (stop != number.c_str()) total = total.value_or(0) + value;
  }
  return total;
}

MetricsSample read_metrics(const MetricsText& text) {
  MetricsSample sample;
  for (const SeriesSource& source : kSources) {
    sample.values[static_cast<size_t>(source.series)] = prefixed_sum(text, source.name, source.label);
  }
  for (size_t i = 0; i < kDraftPositions; ++i) {
    const auto value = prefixed_sum(text, "spec_decode_num_accepted_tokens_per_pos_total",
                                    fmt::format("position=\"{}\"", i));
    sample.accepted_by_position[i] = value.value_or(0);
  }
  return sample;
}

std::vector<CounterSample> series_of(const std::vector<MetricsSample>& samples, Series series) {
  std::vector<CounterSample> out;
  for (const MetricsSample& sample : samples) {
    if (const auto value = sample.at(series)) out.push_back({.time_s = sample.time_s, .value = *value});
  }
  return out;
}

MetricsSampler::MetricsSampler(HttpClient client, double interval_s)
    : client_(std::move(client)), interval_s_(interval_s) {
  client_.set_timeout(kTimeout_s);
}

MetricsSampler::~MetricsSampler() {
  if (thread_.joinable()) stop();
}

Status MetricsSampler::sample() {
  const double sent_s = unix_now_s();
  RORQUAL_TRY_ASSIGN(std::string body, client_.get("/metrics"));
  const double answered_s = unix_now_s();
  MetricsSample sample = read_metrics(MetricsText(std::move(body)));
  sample.time_s = (sent_s + answered_s) / 2;
  samples_.push_back(sample);
  return Ok();
}

Status MetricsSampler::start() {
  RORQUAL_TRY(sample());
  const MetricsSample& first = samples_.front();
  if (!first.at(Series::prompt_tokens) || !first.at(Series::generation_tokens)) {
    return Error(
        Code::corrupt_data,
        fmt::format("{}/metrics has no prompt_tokens_total and generation_tokens_total", client_.url()),
        "--no-counters runs without the server's counters");
  }
  thread_ = std::thread([this] { run(); });
  return Ok();
}

void MetricsSampler::run() {
  auto next = Steady::now();
  const auto interval =
      std::chrono::duration_cast<Steady::duration>(std::chrono::duration<double>(interval_s_));
  while (true) {
    next = std::max(next + interval, Steady::now());
    {
      std::unique_lock lock(mutex_);
      if (wake_.wait_until(lock, next, [&] { return is_stopping_; })) break;
    }
    if (!sample().ok()) ++missed_;
  }
  if (!sample().ok()) ++missed_;
}

void MetricsSampler::stop() {
  {
    const std::lock_guard lock(mutex_);
    is_stopping_ = true;
  }
  wake_.notify_all();
  if (thread_.joinable()) thread_.join();
}

}  // namespace rorqual::tools
