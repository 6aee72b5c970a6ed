// SPDX-License-Identifier: Apache-2.0
// EngineStats as metric families. docs/metrics.md has the table.
#include <algorithm>
#include <limits>
#include <string>
#include <utility>

#include "server/metric_families.h"

namespace rorqual::server {

namespace {

using prometheus::ClientMetric;
using prometheus::MetricFamily;
using prometheus::MetricType;
using Label = ClientMetric::Label;

/// Adds families of one engine to one list.
class Builder {
 public:
  Builder(const MetricsLabels& labels, std::vector<MetricFamily>& out) : labels_(labels), out_(out) {}

  void gauge(const char* name, const char* help, double value) {
    family(name, help, MetricType::Gauge);
    sample(value, {});
  }

  void gauge(const char* name, const char* help, int64_t value) {
    gauge(name, help, static_cast<double>(value));
  }

  void counter(const char* name, const char* help, int64_t value) {
    family(name, help, MetricType::Counter);
    sample(static_cast<double>(value), {});
  }

  void family(const char* name, const char* help, MetricType type) { out_.push_back({name, help, type, {}}); }

  /// One more sample of the newest family.
  void sample(double value, std::vector<Label> more) {
    ClientMetric metric;
    metric.label = std::move(more);
    metric.label.insert(metric.label.begin(), {{"engine", "0"}, {"model_name", labels_.model_name}});
    MetricFamily& newest = out_.back();
    (newest.type == MetricType::Counter ? metric.counter.value : metric.gauge.value) = value;
    newest.metric.push_back(std::move(metric));
  }

  void count(int64_t value, const char* label, std::string text) {
    sample(static_cast<double>(value), {{label, std::move(text)}});
  }

 private:
  const MetricsLabels& labels_;
  std::vector<MetricFamily>& out_;
};

void add_requests(Builder& b, const MetricsLabels& labels, const runtime::EngineStats& stats) {
  b.gauge("num_requests_running", "Requests in the running batch.", stats.requests_running);
  b.gauge("num_requests_waiting", "Requests waiting to run.", stats.requests_waiting);
  b.family("num_requests_waiting_by_reason", "Requests waiting to run, by what they wait for.",
           MetricType::Gauge);
  b.count(stats.requests_waiting, "reason", "capacity");
  b.count(0, "reason", "deferred");
  const auto total = static_cast<double>(stats.cache_blocks_total);
  b.gauge("kv_cache_usage_perc", "Part of the cache that running requests hold, 0 to 1.",
          total > 0 ? static_cast<double>(stats.cache_blocks_used) / total : 0.0);
  b.family("cache_config_info", "The cache of running requests; the value is always 1.", MetricType::Gauge);
  b.sample(1, {{"block_size", std::to_string(labels.block_tokens)},
               {"enable_prefix_caching", stats.prefix.is_on ? "True" : "False"},
               {"num_gpu_blocks", std::to_string(stats.cache_blocks_total)}});
  b.family("engine_sleep_state", "1 for the state that holds; this engine never sleeps.", MetricType::Gauge);
  b.count(1, "sleep_state", "awake");
  b.count(0, "sleep_state", "weights_offloaded");
  b.count(0, "sleep_state", "discard_all");
  b.counter("num_preemptions_total", "Requests put back to waiting for lack of cache.", stats.preemptions);
}

void add_tokens(Builder& b, const runtime::EngineStats& stats) {
  b.counter("prompt_tokens_total",
            "Prompt tokens of requests that reached their first token, cached ones included.",
            stats.prompt_tokens);
  b.counter("generation_tokens_total", "Generated tokens.", stats.generation_tokens);
  b.family("prompt_tokens_by_source_total", "prompt_tokens_total, by where they came from.",
           MetricType::Counter);
  b.count(stats.prompt_tokens - stats.cached_tokens, "source", "local_compute");
  b.count(stats.cached_tokens, "source", "local_cache_hit");
  b.count(0, "source", "external_kv_transfer");
  b.counter("prompt_tokens_cached_total", "Prompt tokens taken from the prefix cache.", stats.cached_tokens);
  // The tiers are known at the lookup, cached_tokens at the first token: never more than the whole.
  const int64_t disk = std::min(stats.prefix.disk_hit_tokens, stats.cached_tokens);
  b.family("prompt_tokens_cached_by_source_total", "prompt_tokens_cached_total, by tier.",
           MetricType::Counter);
  b.count(stats.cached_tokens - disk, "source", "device");
  b.count(0, "source", "host");
  b.count(disk, "source", "disk");
  b.count(0, "source", "p2p");
  b.count(0, "source", "external_unspecified");
  b.counter("prefix_cache_queries_total", "Prompt tokens looked up in the prefix cache.",
            stats.prefix.query_tokens);
  b.counter("prefix_cache_hits_total", "Prompt tokens found in the prefix cache.", stats.prefix.hit_tokens);
}

void add_iterations(std::vector<MetricFamily>& out, const MetricsLabels& labels,
                    const runtime::EngineStats& stats) {
  ClientMetric metric;
  metric.label = {{"engine", "0"}, {"model_name", labels.model_name}};
  uint64_t cumulative = 0;
  for (size_t i = 0; i < stats.iteration_tokens.size(); ++i) {
    cumulative += static_cast<uint64_t>(stats.iteration_tokens[i]);
    const double bound = i < runtime::kIterationBuckets.size()
                             ? static_cast<double>(runtime::kIterationBuckets[i])
                             : std::numeric_limits<double>::infinity();
    metric.histogram.bucket.push_back({cumulative, bound});
  }
  metric.histogram.sample_count = cumulative;
  metric.histogram.sample_sum = static_cast<double>(stats.iteration_tokens_sum);
  out.push_back(
      {"iteration_tokens_total", "Tokens of one step of the engine.", MetricType::Histogram, {metric}});
}

void add_speculation(Builder& b, const MetricsLabels& labels, const runtime::SpeculationStats& stats) {
  b.counter("spec_decode_num_drafts_total", "Verifications of drafted tokens.", stats.drafts);
  b.counter("spec_decode_num_draft_tokens_total", "Drafted tokens that were verified.", stats.draft_tokens);
  b.counter("spec_decode_num_accepted_tokens_total", "Drafted tokens that were accepted.",
            stats.accepted_tokens);
  b.family("spec_decode_num_accepted_tokens_per_pos_total",
           "Drafted tokens that were accepted, by place in the draft.", MetricType::Counter);
  const auto positions = static_cast<size_t>(std::clamp<int64_t>(labels.max_drafts, 1, runtime::kMaxDrafts));
  for (size_t i = 0; i < positions; ++i)
    b.count(stats.accepted_by_position[i], "position", std::to_string(i));
}

void add_prefix(Builder& b, const runtime::PrefixStats& stats) {
  b.counter("prefix_cache_lookups_total", "Requests that read the prefix cache.", stats.queries);
  b.family("prefix_cache_misses_total", "Lookups by the reason that ended the reuse.", MetricType::Counter);
  for (int i = 0; i < prefix::kMissReasons; ++i) {
    const auto at = static_cast<size_t>(i);
    b.count(at < stats.misses_by_reason.size() ? stats.misses_by_reason[at] : 0, "reason",
            std::string(prefix::miss_reason_name(static_cast<prefix::MissReason>(i))));
  }
  b.counter("prefix_cache_replayed_tokens_total", "Tokens run again to rebuild windows.",
            stats.replayed_tokens);
  b.counter("prefix_cache_mismatches_total", "Pages of equal key and other tokens; never served.",
            stats.mismatches);
  b.family("prefix_cache_pages", "Pages that the prefix cache holds in memory.", MetricType::Gauge);
  b.count(stats.blocks, "kind", "block");
  b.count(stats.windows, "kind", "window");
  b.family("prefix_cache_evicted_pages_total", "Pages let go to make room.", MetricType::Counter);
  b.count(stats.evicted_blocks, "kind", "block");
  b.count(stats.evicted_windows, "kind", "window");
  b.gauge("prefix_cache_bytes", "Memory of the pages held.", stats.bytes);
  b.gauge("prefix_cache_max_bytes", "Memory that they may take.", stats.max_bytes);
  b.gauge("prefix_disk_pages", "Pages on disk that can be read.", stats.disk_pages);
  b.gauge("prefix_disk_bytes", "Size of the files.", stats.disk_bytes);
  b.gauge("prefix_disk_failing", "1 while pages cannot be written to disk.",
          stats.is_disk_failing ? 1.0 : 0.0);
  b.counter("prefix_disk_written_bytes_total", "Bytes of pages written.", stats.disk_written_bytes);
  b.counter("prefix_disk_read_bytes_total", "Bytes of pages read.", stats.disk_read_bytes);
  b.counter("prefix_disk_hit_tokens_total", "Prompt tokens found on disk.", stats.disk_hit_tokens);
  b.family("prefix_disk_lost_pages_total", "Pages that are not on disk any more, or never came there.",
           MetricType::Counter);
  b.count(stats.disk_dropped_pages, "cause", "dropped");
  b.count(stats.disk_damaged_pages, "cause", "damaged");
  b.count(stats.disk_evicted_pages, "cause", "evicted");
}

void add_memo(Builder& b, const text::PromptMemoStats& memo) {
  b.family("prompt_memo_blocks_total", "Blocks of chat prompts looked up in the memo.", MetricType::Counter);
  b.count(memo.hits, "result", "hit");
  b.count(memo.misses, "result", "miss");
  b.family("prompt_memo_tokens_total", "Their tokens: taken from the memo, or rendered and tokenised.",
           MetricType::Counter);
  b.count(memo.hit_tokens, "result", "hit");
  b.count(memo.miss_tokens, "result", "miss");
  b.gauge("prompt_memo_bytes", "Memory of the blocks held.", memo.bytes);
}

}  // namespace

EngineFamilies engine_families(const MetricsLabels& labels, const runtime::EngineStats& stats,
                               const text::PromptMemoStats& memo) {
  EngineFamilies families;
  Builder shared(labels, families.shared), own(labels, families.own);
  add_requests(shared, labels, stats);
  add_tokens(shared, stats);
  add_iterations(families.shared, labels, stats);
  add_speculation(shared, labels, stats.speculation);

  own.counter("engine_steps_total", "Steps of the engine.", stats.steps);
  own.gauge("engine_alive", "1 while the engine can work.", stats.is_alive ? 1.0 : 0.0);
  own.family("swaps_total", "Preempted requests whose caches were kept in memory.", MetricType::Counter);
  own.count(stats.swapped_out, "direction", "out");
  own.count(stats.swapped_in, "direction", "in");
  own.gauge("spec_decode_draft_length", "Drafted tokens per request that the newest steps chose.",
            stats.speculation.drafts_now);
  add_prefix(own, stats.prefix);
  add_memo(own, memo);
  own.family("build_info", "What runs; the value is always 1.", MetricType::Gauge);
  own.sample(1, {{"commit", labels.commit},
                 {"kernels", labels.kernels},
                 {"numerics", labels.numerics},
                 {"version", labels.version}});
  return families;
}

}  // namespace rorqual::server
