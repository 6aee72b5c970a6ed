// SPDX-License-Identifier: Apache-2.0
// Histograms and counters of answers are kept by prometheus-cpp; the rest is read when the page is asked for
// (metric_families.h). Buckets are vLLM's, so that dashboards need no change.
#include "server/metrics.h"

#include <prometheus/counter.h>
#include <prometheus/family.h>
#include <prometheus/histogram.h>
#include <prometheus/registry.h>
#include <prometheus/text_serializer.h>

#include <array>
#include <string_view>
#include <utility>
#include <vector>

#include "server/metric_families.h"

namespace rorqual::server {

namespace {

using prometheus::MetricFamily;
using Buckets = prometheus::Histogram::BucketBoundaries;

constexpr std::string_view kPrefix = "rorqual:";
constexpr std::string_view kAliasPrefix = "vllm:";
constexpr const char* kHttpRequests = "http_requests_total";  // ours alone

const Buckets kFirstTokenBuckets = {.001, .005, .01, .02, .04, .06, .08, .1, .25, .5,  .75,
                                    1,    2.5,  5,   7.5, 10,  20,  40,  80, 160, 640, 2560};
const Buckets kTokenGapBuckets = {.01, .025, .05, .075, .1,  .15, .2, .3, .4, .5,
                                  .75, 1,    2.5, 5,    7.5, 10,  20, 40, 80};
const Buckets kRequestBuckets = {.3, .5, .8, 1,  1.5, 2,   2.5, 5,   10,   15,  20,
                                 30, 40, 50, 60, 120, 240, 480, 960, 1920, 7680};
const Buckets kChoiceBuckets = {1, 2, 5, 10, 20};
const Buckets kPreemptionBuckets = {1, 2, 3, 4, 5, 10, 20};
constexpr std::array<const char*, 4> kOutcomes = {"stop", "length", "abort", "error"};
/// vLLM's fifth, which this program never gives.
constexpr const char* kRepetition = "repetition";
constexpr std::array<std::pair<Limit, const char*>, 2> kRejections = {
    {{Limit::queued_reqs, "max_num_queued_reqs"}, {Limit::queued_tokens, "max_num_queued_tokens"}}};

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

  MetricsLabels labels;
  prometheus::Registry registry;
  prometheus::Histogram &first_token, &token_gap, &per_output_token, &e2e, &queue, &prefill, &decode,
      &inference;
  prometheus::Histogram &prompt_tokens, &generation_tokens, &max_generation_tokens, &max_tokens, &choices,
      &computed_tokens, &preemptions;
  prometheus::Family<prometheus::Counter>& success_family;
  std::array<prometheus::Counter*, 4> success{};
  std::array<prometheus::Counter*, kRejections.size()> rejections{};
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
      max_generation_tokens(histogram("request_max_num_generation_tokens",
                                      "Generated tokens of a request's longest choice.",
                                      token_buckets(l.max_model_len))),
      max_tokens(histogram("request_params_max_tokens", "Tokens that a request may generate.",
                           token_buckets(l.max_model_len))),
      choices(histogram("request_params_n", "Choices asked for per request.", kChoiceBuckets)),
      computed_tokens(histogram("request_prefill_kv_computed_tokens",
                                "Prompt tokens per request that were not taken from the prefix cache.",
                                token_buckets(l.max_model_len))),
      preemptions(histogram("request_num_preemptions", "Preemptions per request.", kPreemptionBuckets)),
      success_family(counters("request_success_total", "Finished choices by reason.")),
      http_family(counters(kHttpRequests, "HTTP answers by status; 499 = the client left first.")) {
  for (size_t i = 0; i < kOutcomes.size(); ++i)
    success[i] = &success_family.Add({{"finished_reason", kOutcomes[i]}});
  success_family.Add({{"finished_reason", kRepetition}});
  auto& family = prometheus::BuildCounter()
                     .Name(std::string(kPrefix) + "admission_rejections_total")
                     .Help("Requests refused because the queue was full.")
                     .Labels({{"model_name", labels.model_name}})
                     .Register(registry);
  for (size_t i = 0; i < kRejections.size(); ++i)
    rejections[i] = &family.Add({{"reason", kRejections[i].second}});
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

void Metrics::observe_longest_choice(int64_t completion_tokens) {
  impl_->max_generation_tokens.Observe(static_cast<double>(completion_tokens));
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
  m.computed_tokens.Observe(static_cast<double>(choice.prompt_tokens - choice.cached_tokens));
  m.preemptions.Observe(static_cast<double>(choice.preemptions));
  if (choice.completion_tokens > 1) {
    m.per_output_token.Observe(choice.decode_s / static_cast<double>(choice.completion_tokens - 1));
  }
}

void Metrics::count_rejection(Limit limit) {
  for (size_t i = 0; i < kRejections.size(); ++i) {
    if (kRejections[i].first == limit) impl_->rejections[i]->Increment();
  }
}

void Metrics::count_http(int status) {
  impl_->http_family.Add({{"status", std::to_string(status)}}).Increment();
}

std::string Metrics::text(const runtime::EngineStats& stats, const text::PromptMemoStats& memo) const {
  std::vector<MetricFamily> families = impl_->registry.Collect();
  EngineFamilies engine = engine_families(impl_->labels, stats, memo);
  const auto add = [&families](std::string_view prefix, MetricFamily family) {
    family.name = std::string(prefix) + family.name;
    families.push_back(std::move(family));
  };
  for (const MetricFamily& family : engine.shared) add(kPrefix, family);
  // Everything that vLLM names alike is there a second time.
  const size_t num_shared = families.size();
  for (size_t i = 0; i < num_shared; ++i) {
    MetricFamily family = families[i];
    family.name.erase(0, kPrefix.size());
    if (family.name != kHttpRequests) add(kAliasPrefix, std::move(family));
  }
  for (MetricFamily& family : engine.own) add(kPrefix, std::move(family));
  for (MetricFamily& family : process_families()) families.push_back(std::move(family));
  return prometheus::TextSerializer().Serialize(families);
}

}  // namespace rorqual::server
