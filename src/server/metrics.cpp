// SPDX-License-Identifier: Apache-2.0
// Histograms and counters are kept by prometheus-cpp; the engine's own counters and the process figures are
// read when the page is asked for. Buckets are vLLM's, so that dashboards need no change.
#include "server/metrics.h"

#include <dirent.h>
#include <prometheus/counter.h>
#include <prometheus/family.h>
#include <prometheus/histogram.h>
#include <prometheus/registry.h>
#include <prometheus/text_serializer.h>
#include <sys/resource.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <fstream>
#include <map>
#include <mutex>
#include <string_view>
#include <utility>
#include <vector>

namespace rorqual::server {

namespace {

using prometheus::ClientMetric;
using prometheus::MetricFamily;
using prometheus::MetricType;
using Buckets = prometheus::Histogram::BucketBoundaries;

constexpr std::string_view kPrefix = "rorqual:";
constexpr std::string_view kAliasPrefix = "vllm:";

const Buckets kFirstTokenBuckets = {.001, .005, .01, .02, .04, .06, .08, .1, .25, .5,  .75,
                                    1,    2.5,  5,   7.5, 10,  20,  40,  80, 160, 640, 2560};
const Buckets kTokenGapBuckets = {.01, .025, .05, .075, .1,  .15, .2, .3, .4, .5,
                                  .75, 1,    2.5, 5,    7.5, 10,  20, 40, 80};
const Buckets kRequestBuckets = {.3, .5, .8, 1,  1.5, 2,   2.5, 5,   10,   15,  20,
                                 30, 40, 50, 60, 120, 240, 480, 960, 1920, 7680};
const Buckets kChoiceBuckets = {1, 2, 5, 10, 20};
constexpr std::array<const char*, 4> kOutcomes = {"stop", "length", "abort", "error"};

/// 1, 2, 5, 10, 20, 50, … up to `limit`.
Buckets token_buckets(int64_t limit) {
  Buckets buckets;
  for (int64_t decade = 1; decade <= limit; decade *= 10) {
    for (const int64_t step : {int64_t{1}, int64_t{2}, int64_t{5}}) {
      if (step * decade <= limit) buckets.push_back(static_cast<double>(step * decade));
    }
  }
  if (buckets.empty()) buckets.push_back(1);
  return buckets;
}

struct ProcessFigures {
  double cpu_s = 0, resident_bytes = 0, virtual_bytes = 0, open_files = 0, max_files = 0, start_time_s = 0;
};

double start_time() {
  std::ifstream stat("/proc/self/stat");
  std::string line;
  std::getline(stat, line);
  const size_t close = line.rfind(')');  // the name before it may hold spaces
  double ticks = 0;
  if (close != std::string::npos) {
    size_t at = close + 1;
    for (int field = 2; field < 21 && at != std::string::npos; ++field) at = line.find(' ', at + 1);
    if (at != std::string::npos) ticks = std::strtod(line.c_str() + at, nullptr);
  }
  double boot_s = 0;
  std::ifstream boot("/proc/stat");
  while (std::getline(boot, line)) {
    if (line.rfind("btime ", 0) == 0) boot_s = std::strtod(line.c_str() + 6, nullptr);
  }
  return boot_s + ticks / static_cast<double>(sysconf(_SC_CLK_TCK));
}

ProcessFigures process_figures() {
  ProcessFigures figures;
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  const auto seconds = [](const timeval& t) {
    return static_cast<double>(t.tv_sec) + static_cast<double>(t.tv_usec) * 1e-6;
  };
  figures.cpu_s = seconds(usage.ru_utime) + seconds(usage.ru_stime);
  std::ifstream statm("/proc/self/statm");
  double pages = 0, resident = 0;
  if (statm >> pages >> resident) {
    const auto page_bytes = static_cast<double>(sysconf(_SC_PAGESIZE));
    figures.virtual_bytes = pages * page_bytes;
    figures.resident_bytes = resident * page_bytes;
  }
  if (DIR* directory = opendir("/proc/self/fd")) {
    while (readdir(directory) != nullptr) figures.open_files += 1;
    closedir(directory);
    figures.open_files -= 3;  // ".", ".." and the directory itself
  }
  rlimit limit{};
  getrlimit(RLIMIT_NOFILE, &limit);
  figures.max_files = static_cast<double>(limit.rlim_cur);
  static const double kStart_s = start_time();
  figures.start_time_s = kStart_s;
  return figures;
}

MetricFamily single(std::string name, std::string help, MetricType type, double value,
                    std::vector<ClientMetric::Label> labels) {
  MetricFamily family{std::move(name), std::move(help), type, {}};
  ClientMetric metric;
  metric.label = std::move(labels);
  (type == MetricType::Counter ? metric.counter.value : metric.gauge.value) = value;
  family.metric.push_back(std::move(metric));
  return family;
}

}  // namespace

struct Metrics::Impl {
  explicit Impl(const MetricsLabels& l);

  prometheus::Histogram& histogram(const char* name, const char* help, const Buckets& buckets) {
    return prometheus::BuildHistogram()
        .Name(std::string(kPrefix) + name)
        .Help(help)
        .Labels({{"engine", "0"}, {"model_name", labels.model_name}})
        .Register(registry)
        .Add({}, buckets);
  }

  prometheus::Family<prometheus::Counter>& counters(const char* name, const char* help) {
    return prometheus::BuildCounter()
        .Name(std::string(kPrefix) + name)
        .Help(help)
        .Labels({{"engine", "0"}, {"model_name", labels.model_name}})
        .Register(registry);
  }

  void add_engine(std::vector<MetricFamily>& out, const runtime::EngineStats& stats) const;
  void add_process(std::vector<MetricFamily>& out) const;

  MetricsLabels labels;
  prometheus::Registry registry;
  prometheus::Histogram &first_token, &token_gap, &per_output_token, &e2e, &queue, &prefill, &decode,
      &inference;
  prometheus::Histogram &prompt_tokens, &generation_tokens, &max_tokens, &choices;
  prometheus::Family<prometheus::Counter>& success_family;
  std::array<prometheus::Counter*, 4> success{};
  prometheus::Counter& rejections;
  prometheus::Family<prometheus::Counter>& http_family;
};

Metrics::Impl::Impl(const MetricsLabels& l)
    : labels(l),
      first_token(histogram("time_to_first_token_seconds", "Arrival of a request to its first token.",
                            kFirstTokenBuckets)),
      token_gap(histogram("inter_token_latency_seconds", "Time between two tokens of one request.",
                          kTokenGapBuckets)),
      per_output_token(histogram("request_time_per_output_token_seconds",
                                 "Decode time of a request divided by its tokens after the first.",
                                 kTokenGapBuckets)),
      e2e(histogram("e2e_request_latency_seconds", "Arrival to the end of the answer.", kRequestBuckets)),
      queue(histogram("request_queue_time_seconds", "Waiting for the first step.", kRequestBuckets)),
      prefill(histogram("request_prefill_time_seconds", "First step to the first token.", kRequestBuckets)),
      decode(histogram("request_decode_time_seconds", "First token to the last.", kRequestBuckets)),
      inference(
          histogram("request_inference_time_seconds", "First step to the last token.", kRequestBuckets)),
      prompt_tokens(
          histogram("request_prompt_tokens", "Prompt tokens per request.", token_buckets(l.max_model_len))),
      generation_tokens(histogram("request_generation_tokens", "Generated tokens per request.",
                                  token_buckets(l.max_model_len))),
      max_tokens(histogram("request_params_max_tokens", "Tokens that a request may generate.",
                           token_buckets(l.max_model_len))),
      choices(histogram("request_params_n", "Choices asked for per request.", kChoiceBuckets)),
      success_family(counters("request_success_total", "Finished choices by reason.")),
      rejections(counters("admission_rejections_total", "Requests refused because the queue was full.")
                     .Add({{"reason", "max_num_queued_reqs"}})),
      http_family(counters("http_requests_total", "HTTP answers by status; 499 = the client left first.")) {
  for (size_t i = 0; i < kOutcomes.size(); ++i)
    success[i] = &success_family.Add({{"finished_reason", kOutcomes[i]}});
}

void Metrics::Impl::add_engine(std::vector<MetricFamily>& out, const runtime::EngineStats& stats) const {
  const auto add = [&](const char* name, const char* help, MetricType type, double value) {
    out.push_back(single(std::string(kPrefix) + name, help, type, value,
                         {{"engine", "0"}, {"model_name", labels.model_name}}));
  };
  const auto gauge = [&](const char* name, const char* help, double value) {
    add(name, help, MetricType::Gauge, value);
  };
  const auto counter = [&](const char* name, const char* help, int64_t value) {
    add(name, help, MetricType::Counter, static_cast<double>(value));
  };
  gauge("num_requests_running", "Requests in the running batch.",
        static_cast<double>(stats.requests_running));
  gauge("num_requests_waiting", "Requests waiting to run.", static_cast<double>(stats.requests_waiting));
  const double total = static_cast<double>(stats.cache_blocks_total);
  gauge("kv_cache_usage_perc", "Used part of the cache, 0 to 1.",
        total > 0 ? static_cast<double>(stats.cache_blocks_used) / total : 0.0);
  counter("prompt_tokens_total",
          "Prompt tokens of requests that reached their first token, cached ones included.",
          stats.prompt_tokens);
  counter("generation_tokens_total", "Generated tokens.", stats.generation_tokens);
  counter("prompt_tokens_cached_total", "Prompt tokens taken from the prefix cache.", stats.cached_tokens);
  counter("prefix_cache_queries_total", "Prompt tokens looked up in the prefix cache.", stats.prompt_tokens);
  counter("prefix_cache_hits_total", "Prompt tokens found in the prefix cache.", stats.cached_tokens);
  counter("num_preemptions_total", "Requests put back to waiting for lack of cache.", stats.preemptions);
  counter("engine_steps_total", "Steps of the engine.", stats.steps);
  gauge("engine_alive", "1 while the engine can work.", stats.is_alive ? 1 : 0);
  out.push_back(single(std::string(kPrefix) + "build_info", "What runs; the value is always 1.",
                       MetricType::Gauge, 1,
                       {{"commit", labels.commit},
                        {"kernels", labels.kernels},
                        {"model_name", labels.model_name},
                        {"numerics", labels.numerics},
                        {"version", labels.version}}));
}

void Metrics::Impl::add_process(std::vector<MetricFamily>& out) const {
  const ProcessFigures f = process_figures();
  const auto gauge = [&out](const char* name, const char* help, double value) {
    out.push_back(single(name, help, MetricType::Gauge, value, {}));
  };
  out.push_back(
      single("process_cpu_seconds_total", "User and system time.", MetricType::Counter, f.cpu_s, {}));
  gauge("process_resident_memory_bytes", "Resident memory.", f.resident_bytes);
  gauge("process_virtual_memory_bytes", "Virtual memory.", f.virtual_bytes);
  gauge("process_open_fds", "Open file descriptors.", f.open_files);
  gauge("process_max_fds", "Limit of open file descriptors.", f.max_files);
  gauge("process_start_time_seconds", "Start of the process, seconds since 1970.", f.start_time_s);
}

Metrics::Metrics(const MetricsLabels& labels) : impl_(std::make_unique<Impl>(labels)) {}

Metrics::~Metrics() = default;

void Metrics::observe_first_token(double seconds_since_arrival) {
  impl_->first_token.Observe(seconds_since_arrival);
}

void Metrics::observe_next_token(double seconds_since_last) {
  impl_->token_gap.Observe(seconds_since_last);
}

void Metrics::observe_request(int64_t num_choices) {
  impl_->choices.Observe(static_cast<double>(num_choices));
}

void Metrics::observe_finish(const FinishedChoice& choice) {
  Impl& m = *impl_;
  m.success[static_cast<size_t>(choice.outcome)]->Increment();
  m.e2e.Observe(choice.e2e_s);
  m.queue.Observe(choice.queue_s);
  m.prefill.Observe(choice.prefill_s);
  m.decode.Observe(choice.decode_s);
  m.inference.Observe(choice.prefill_s + choice.decode_s);
  m.prompt_tokens.Observe(static_cast<double>(choice.prompt_tokens));
  m.generation_tokens.Observe(static_cast<double>(choice.completion_tokens));
  m.max_tokens.Observe(static_cast<double>(choice.max_tokens));
  if (choice.completion_tokens > 1) {
    m.per_output_token.Observe(choice.decode_s / static_cast<double>(choice.completion_tokens - 1));
  }
}

void Metrics::count_rejection() {
  impl_->rejections.Increment();
}

void Metrics::count_http(int status) {
  impl_->http_family.Add({{"status", std::to_string(status)}}).Increment();
}

std::string Metrics::text(const runtime::EngineStats& stats) const {
  std::vector<MetricFamily> families = impl_->registry.Collect();
  impl_->add_engine(families, stats);
  // Aliases for everything that vLLM names alike; ours alone: steps, life, build and HTTP counts.
  std::vector<MetricFamily> aliases;
  for (const MetricFamily& family : families) {
    const std::string name = family.name.substr(kPrefix.size());
    if (name == "engine_steps_total" || name == "engine_alive" || name == "build_info" ||
        name == "http_requests_total") {
      continue;
    }
    aliases.push_back(family);
    aliases.back().name = std::string(kAliasPrefix) + name;
  }
  families.insert(families.end(), aliases.begin(), aliases.end());
  impl_->add_process(families);
  return prometheus::TextSerializer().Serialize(families);
}

}  // namespace rorqual::server
