// SPDX-License-Identifier: Apache-2.0
#include "tools/load_report.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>

#include "kl/bootstrap.h"
#include "report/table.h"

namespace rorqual::tools {
namespace {

using Json = nlohmann::ordered_json;

constexpr size_t kMaxErrorTexts = 5;
constexpr size_t kMaxResidentSamples = 40;

bool is_inside(double time_s, const LoadRun& run) {
  return time_s >= run.window_begin_s && time_s <= run.window_end_s;
}

/// Times of one answer: first token, pace between tokens, whole.
void add_times(const LoadRecord& record, std::map<std::string, std::vector<double>>& values) {
  values["ttft"].push_back(record.first_token_s - record.start_s);
  values["latency"].push_back(record.latency_s());
  values["tokens"].push_back(static_cast<double>(record.completion_tokens));
  const auto tokens = static_cast<double>(record.completion_tokens);
  values["tpot"].push_back((record.last_token_s - record.start_s) / tokens);
  values["rate"].push_back(tokens / record.latency_s());
  if (record.completion_tokens > 1) {
    values["itl"].push_back((record.last_token_s - record.first_token_s) / (tokens - 1));
  }
}

void add_records(const LoadRun& run, LoadSummary& summary) {
  std::map<std::string, std::vector<double>> values;
  for (const LoadRecord& record : run.records) {
    ++summary.outcomes[record.outcome];
    summary.cached_tokens += record.cached_tokens;
    if (record.outcome == LoadOutcome::refused) values["refusal"].push_back(record.header_s - record.start_s);
    if (record.first_token_s > 0 && is_inside(record.first_token_s, run)) {
      summary.client_prompt_tokens += static_cast<double>(record.prompt_tokens);
    }
    for (const TokenArrival& arrival : record.arrivals) {
      if (is_inside(arrival.time_s, run))
        summary.client_generation_tokens += static_cast<double>(arrival.tokens);
    }
    if (record.outcome != LoadOutcome::success || !is_inside(record.end_s, run)) continue;
    ++summary.window_successes;
    add_times(record, values);
  }
  summary.ttft_s = quantiles_of(values["ttft"]);
  summary.itl_s = quantiles_of(values["itl"]);
  summary.tpot_s = quantiles_of(values["tpot"]);
  summary.latency_s = quantiles_of(values["latency"]);
  summary.refusal_s = quantiles_of(values["refusal"]);
  summary.tokens_per_request = quantiles_of(values["tokens"]);
  summary.request_rate = quantiles_of(values["rate"]);
}

void add_error_texts(const LoadRun& run, LoadSummary& summary) {
  std::map<std::string, int64_t> texts;
  for (const LoadRecord& record : run.records) {
    if (record.outcome == LoadOutcome::error) ++texts[record.error];
  }
  for (const auto& [text, count] : texts) {
    if (summary.error_texts.size() == kMaxErrorTexts) break;
    summary.error_texts.push_back(fmt::format("{} x {}", count, text));
  }
}

/// Growth of a counter from the first to the last sample, restarts added up.
std::optional<double> growth(const std::vector<MetricsSample>& samples, Series series) {
  const auto values = series_of(samples, series);
  if (values.size() < 2) return std::nullopt;
  const auto whole = counter_window(values, values.front().time_s, values.back().time_s);
  return whole.ok() ? std::optional(whole->delta()) : std::nullopt;
}

std::optional<CounterWindow> window_of(const std::vector<MetricsSample>& samples, Series series,
                                       const LoadRun& run, std::string& failure) {
  const auto values = series_of(samples, series);
  auto window = counter_window(values, run.window_begin_s, run.window_end_s);
  if (window.ok()) return *window;
  failure = window.error().message();
  return std::nullopt;
}

void add_samples(const LoadRun& run, const std::vector<MetricsSample>& samples, LoadSummary& summary) {
  summary.prefix_hits = growth(samples, Series::prefix_hits);
  summary.prefix_queries = growth(samples, Series::prefix_queries);
  summary.preemptions = growth(samples, Series::preemptions);
  summary.rejections = growth(samples, Series::rejections);
  summary.drafts = growth(samples, Series::drafts);
  summary.draft_tokens = growth(samples, Series::draft_tokens);
  summary.accepted_tokens = growth(samples, Series::accepted_tokens);
  for (size_t i = 0; i < kDraftPositions && !samples.empty(); ++i) {
    summary.accepted_by_position[i] =
        samples.back().accepted_by_position[i] - samples.front().accepted_by_position[i];
  }
  const auto resident = series_of(samples, Series::resident_bytes);
  const size_t stride = resident.size() / kMaxResidentSamples + 1;
  for (size_t i = 0; i < resident.size(); i += stride) summary.resident_bytes.push_back(resident[i]);
  for (const MetricsSample& sample : samples) {
    const auto bytes = sample.at(Series::resident_bytes);
    if (!bytes || !is_inside(sample.time_s, run)) continue;
    if (!summary.resident_begin_bytes) summary.resident_begin_bytes = bytes;
    summary.resident_end_bytes = bytes;
    summary.resident_max_bytes = std::max(summary.resident_max_bytes.value_or(0), *bytes);
  }
}

class Verdicts {
 public:
  explicit Verdicts(std::vector<GateVerdict>& verdicts) : verdicts_(verdicts) {}

  void add(const std::string& name, bool is_met, const std::string& detail) {
    verdicts_.push_back({.name = name, .is_met = is_met, .detail = is_met ? std::string() : detail});
  }

  /// A counter that must not have grown.
  void add_still(const std::string& name, const std::optional<double>& growth) {
    add(name, growth && *growth == 0,
        growth ? fmt::format("{:.0f}", *growth) : std::string("the server has no such counter"));
  }

 private:
  std::vector<GateVerdict>& verdicts_;
};

std::string wrong_lengths(const LoadRun& run, const LoadContext& context) {
  int64_t wrong = 0;
  std::string example;
  for (const LoadRecord& record : run.records) {
    if (record.outcome != LoadOutcome::success) continue;
    const bool is_prompt_right = !context.prompt_tokens || record.prompt_tokens == *context.prompt_tokens;
    const bool is_output_right = !context.output_tokens || record.completion_tokens == *context.output_tokens;
    if (is_prompt_right && is_output_right) continue;
    if (wrong++ == 0) example = fmt::format("{} + {} tokens", record.prompt_tokens, record.completion_tokens);
  }
  return wrong == 0 ? std::string()
                    : fmt::format("{} requests with other lengths, the first has {}", wrong, example);
}

std::string not_at_rest(const std::optional<MetricsSample>& sample) {
  if (!sample) return "requests were still running long after the run";
  const double usage = sample->at(Series::cache_usage).value_or(0);
  return usage == 0 ? std::string() : fmt::format("nothing runs, but {:.4f} of the cache is in use", usage);
}

void judge(const LoadRun& run, const LoadGates& gates, const std::string& counter_failure,
           LoadSummary& summary) {
  Verdicts verdicts(summary.verdicts);
  const LoadContext& context = summary.context;
  if (gates.errors) {
    const int64_t refused = gates.allows_refusals ? 0 : summary.outcomes[LoadOutcome::refused];
    const int64_t errors = summary.outcomes[LoadOutcome::error];
    const std::string first =
        summary.error_texts.empty() ? std::string() : ": " + summary.error_texts.front();
    verdicts.add("errors", refused + errors == 0 && summary.outcomes[LoadOutcome::success] > 0,
                 fmt::format("{} errors, {} refused, {} successes{}", errors, refused,
                             summary.outcomes[LoadOutcome::success], first));
  }
  if (gates.lengths && (context.prompt_tokens || context.output_tokens)) {
    const auto wrong = wrong_lengths(run, context);
    verdicts.add("lengths", wrong.empty(), wrong);
  }
  if (!context.has_counters) return;
  if (gates.counters) {
    const bool is_whole = summary.generation && summary.prompt;
    const bool has_restart = is_whole && (summary.generation->has_restart || summary.prompt->has_restart);
    verdicts.add("counters", is_whole && !has_restart,
                 is_whole ? std::string("the server was restarted") : counter_failure);
  }
  if (gates.prefix_hits && summary.cached_tokens > 0) {
    verdicts.add("prefix-hits", false, fmt::format("{} cached tokens by usage", summary.cached_tokens));
  } else if (gates.prefix_hits) {
    verdicts.add_still("prefix-hits", summary.prefix_hits);
  }
  if (gates.preemptions) verdicts.add_still("preemptions", summary.preemptions);
  if (gates.drain) {
    const auto why = not_at_rest(context.drained);
    verdicts.add("drain", why.empty(), why);
  }
}

Json or_null(const std::optional<double>& value) {
  return value ? Json(*value) : Json(nullptr);
}

Json quantiles_json(const Quantiles& q, double factor) {
  const auto scaled = [&](const std::optional<double>& value) {
    return value ? Json(*value * factor) : Json(nullptr);
  };
  return {{"count", q.count},     {"mean", scaled(q.mean)}, {"p50", scaled(q.p50)},
          {"p90", scaled(q.p90)}, {"p99", scaled(q.p99)},   {"max", scaled(q.max)}};
}

Json counter_json(const std::optional<CounterWindow>& window) {
  if (!window) return nullptr;
  return {{"begin", window->begin},
          {"end", window->end},
          {"delta", window->delta()},
          {"per_second", window->rate()},
          {"restarted", window->has_restart}};
}

Json drafts_json(const LoadSummary& summary) {
  if (!summary.drafts) return nullptr;
  Json positions = Json::array();
  for (const double accepted : summary.accepted_by_position) positions.push_back(accepted);
  const double drafts = *summary.drafts;
  const double accepted = summary.accepted_tokens.value_or(0);
  return {{"drafts", drafts},
          {"draft_tokens", or_null(summary.draft_tokens)},
          {"accepted_tokens", or_null(summary.accepted_tokens)},
          {"accepted_by_position", std::move(positions)},
          {"accepted_per_draft", drafts > 0 ? Json(accepted / drafts) : Json(nullptr)}};
}

/// Values of one figure over the runs of a tier, in the order of the tiers.
template <class Figure>
std::vector<std::pair<int64_t, std::vector<double>>> by_tier(const std::vector<LoadSummary>& summaries,
                                                             const Figure& figure) {
  std::vector<std::pair<int64_t, std::vector<double>>> tiers;
  for (const LoadSummary& summary : summaries) {
    const int64_t streams = summary.context.streams;
    auto tier = std::find_if(tiers.begin(), tiers.end(), [&](const auto& t) { return t.first == streams; });
    if (tier == tiers.end()) tier = tiers.insert(tiers.end(), {streams, {}});
    if (const std::optional<double> value = figure(summary)) tier->second.push_back(*value);
  }
  return tiers;
}

std::optional<double> generation_rate(const LoadSummary& summary) {
  if (summary.generation) return summary.generation->rate();
  if (summary.context.has_counters || summary.window_s() <= 0) return std::nullopt;
  return summary.client_generation_tokens / summary.window_s();
}

std::optional<double> prompt_rate(const LoadSummary& summary) {
  if (summary.prompt) return summary.prompt->rate();
  if (summary.context.has_counters || summary.window_s() <= 0) return std::nullopt;
  return summary.client_prompt_tokens / summary.window_s();
}

std::string number(const std::optional<double>& value, double factor = 1, int digits = 1) {
  return value ? fmt::format("{:.{}f}", *value * factor, digits) : std::string("–");
}

std::string three(const Quantiles& q) {
  return fmt::format("{} / {} / {}", number(q.p50, 1000), number(q.p90, 1000), number(q.p99, 1000));
}

}  // namespace

Quantiles quantiles_of(const std::vector<double>& values) {
  Quantiles q;
  q.count = static_cast<int64_t>(values.size());
  if (values.empty()) return q;
  q.mean = spread_of(values).mean;
  q.p50 = kl::percentile(values, 50);
  q.p90 = kl::percentile(values, 90);
  q.p99 = kl::percentile(values, 99);
  q.max = kl::percentile(values, 100);
  return q;
}

LoadSummary summarize(const LoadRun& run, const std::vector<MetricsSample>& samples, LoadContext context,
                      const LoadGates& gates) {
  LoadSummary summary;
  summary.context = std::move(context);
  summary.window_begin_s = run.window_begin_s;
  summary.window_end_s = run.window_end_s;
  summary.client_cpu_s = run.client_cpu_s;
  add_records(run, summary);
  add_error_texts(run, summary);
  std::string failure;
  if (summary.context.has_counters) {
    add_samples(run, samples, summary);
    std::string ignored;
    summary.cpu = window_of(samples, Series::cpu_seconds, run, ignored);
    summary.prompt = window_of(samples, Series::prompt_tokens, run, failure);
    summary.generation = window_of(samples, Series::generation_tokens, run, failure);
  }
  judge(run, gates, failure, summary);
  return summary;
}

Status gate_status(const std::vector<LoadSummary>& summaries) {
  std::string text;
  for (const LoadSummary& summary : summaries) {
    for (const GateVerdict& verdict : summary.verdicts) {
      if (verdict.is_met) continue;
      text += fmt::format("{}{} streams, run {}: {}: {}", text.empty() ? "" : "; ", summary.context.streams,
                          summary.context.run + 1, verdict.name, verdict.detail);
    }
  }
  if (text.empty()) return Ok();
  return Error(Code::gate, "the run does not count: " + text,
               "find the cause, or name in --gates only what must hold");
}

Json summary_json(const LoadSummary& summary) {
  const LoadContext& context = summary.context;
  Json outcomes = Json::object();
  for (const auto outcome : {LoadOutcome::success, LoadOutcome::refused, LoadOutcome::error,
                             LoadOutcome::left, LoadOutcome::incomplete}) {
    const auto found = summary.outcomes.find(outcome);
    outcomes[std::string(outcome_name(outcome))] = found == summary.outcomes.end() ? 0 : found->second;
  }
  Json verdicts = Json::array();
  for (const GateVerdict& verdict : summary.verdicts) {
    verdicts.push_back({{"gate", verdict.name}, {"met", verdict.is_met}, {"detail", verdict.detail}});
  }
  Json resident = Json::array();
  for (const CounterSample& sample : summary.resident_bytes)
    resident.push_back({sample.time_s, sample.value});
  const double window_s = summary.window_s();
  const auto rate = [&](double tokens) { return window_s > 0 ? Json(tokens / window_s) : Json(nullptr); };
  return {
      {"streams", context.streams},
      {"run", context.run + 1},
      {"window", {{"begin", summary.window_begin_s}, {"end", summary.window_end_s}, {"seconds", window_s}}},
      {"requests", std::move(outcomes)},
      {"requests_in_window", summary.window_successes},
      {"server",
       {{"generation_tokens", counter_json(summary.generation)},
        {"prompt_tokens", counter_json(summary.prompt)},
        {"cpu_seconds", counter_json(summary.cpu)},
        {"prefix_hits", or_null(summary.prefix_hits)},
        {"prefix_queries", or_null(summary.prefix_queries)},
        {"preemptions", or_null(summary.preemptions)},
        {"rejections", or_null(summary.rejections)},
        {"resident_begin_bytes", or_null(summary.resident_begin_bytes)},
        {"resident_end_bytes", or_null(summary.resident_end_bytes)},
        {"resident_max_bytes", or_null(summary.resident_max_bytes)},
        {"resident_bytes", std::move(resident)},
        {"drafts", drafts_json(summary)},
        {"missed_samples", context.missed_samples}}},
      {"client",
       {{"generation_tokens", summary.client_generation_tokens},
        {"generation_tokens_per_second", rate(summary.client_generation_tokens)},
        {"prompt_tokens", summary.client_prompt_tokens},
        {"prompt_tokens_per_second", rate(summary.client_prompt_tokens)},
        {"cached_tokens", summary.cached_tokens},
        {"cpu_seconds", summary.client_cpu_s}}},
      {"ttft_ms", quantiles_json(summary.ttft_s, 1000)},
      {"itl_ms", quantiles_json(summary.itl_s, 1000)},
      {"tpot_ms", quantiles_json(summary.tpot_s, 1000)},
      {"latency_ms", quantiles_json(summary.latency_s, 1000)},
      {"refusal_ms", quantiles_json(summary.refusal_s, 1000)},
      {"output_tokens", quantiles_json(summary.tokens_per_request, 1)},
      {"output_tokens_per_second", quantiles_json(summary.request_rate, 1)},
      {"errors", summary.error_texts},
      {"gates", std::move(verdicts)}};
}

Json tiers_json(const std::vector<LoadSummary>& summaries) {
  Json out = Json::array();
  const auto generation = by_tier(summaries, generation_rate);
  const auto prompt = by_tier(summaries, prompt_rate);
  const auto json_of = [](const std::vector<double>& values) -> Json {
    if (values.empty()) return nullptr;
    const Spread spread = spread_of(values);
    return {{"mean", spread.mean}, {"sample_sd", or_null(spread.sample_sd)}, {"runs", values.size()}};
  };
  for (size_t i = 0; i < generation.size(); ++i) {
    out.push_back({{"streams", generation[i].first},
                   {"generation_tokens_per_second", json_of(generation[i].second)},
                   {"prompt_tokens_per_second", json_of(prompt[i].second)}});
  }
  return out;
}

std::string summaries_text(const std::vector<LoadSummary>& summaries) {
  using report::Align;
  report::Table table{.header = {"streams", "run", "ok", "err", "refused", "left", "gen tok/s",
                                 "prompt tok/s", "TTFT p50/p90/p99 ms", "ITL p50/p90/p99 ms", "gates"},
                      .align = {},
                      .rows = {}};
  table.align.assign(table.header.size(), Align::right);
  for (const LoadSummary& summary : summaries) {
    const auto count = [&](LoadOutcome outcome) {
      const auto found = summary.outcomes.find(outcome);
      return fmt::format("{}", found == summary.outcomes.end() ? 0 : found->second);
    };
    std::string failed;
    for (const GateVerdict& verdict : summary.verdicts) {
      if (!verdict.is_met) failed += (failed.empty() ? "" : ",") + verdict.name;
    }
    table.rows.push_back(
        {fmt::format("{}", summary.context.streams), fmt::format("{}", summary.context.run + 1),
         count(LoadOutcome::success), count(LoadOutcome::error), count(LoadOutcome::refused),
         count(LoadOutcome::left), number(generation_rate(summary)), number(prompt_rate(summary)),
         three(summary.ttft_s), three(summary.itl_s), failed.empty() ? "met" : "not met: " + failed});
  }
  std::string text = report::to_text(table);
  for (const auto& [streams, rates] : by_tier(summaries, generation_rate)) {
    if (rates.size() < 2) continue;
    const Spread spread = spread_of(rates);
    text += fmt::format("{} streams: {:.1f} generated tokens/s, sample sd {:.1f}, {} runs\n", streams,
                        spread.mean, *spread.sample_sd, rates.size());
  }
  return text;
}

std::string summaries_csv(const std::vector<LoadSummary>& summaries, const std::string& profile,
                          const std::string& label) {
  const bool is_prefill = profile == "prefill";
  const auto rate_of = [&](const LoadSummary& s) { return is_prefill ? prompt_rate(s) : generation_rate(s); };
  const auto tiers = by_tier(summaries, rate_of);
  const auto exact = [](const std::optional<double>& value) {
    return value ? fmt::format("{:.6f}", *value) : std::string();
  };
  report::Table table{.header = {"profile", "config", "concurrency", "run", "window_start", "window_end",
                                 "window_s", "tokens", "tok_per_s", "mean", "sample_std", "errors",
                                 "prefix_hits", "preemptions", "ttft_p50_ms", "itl_p50_ms"},
                      .align = {},
                      .rows = {}};
  for (const LoadSummary& summary : summaries) {
    const auto tier = std::find_if(tiers.begin(), tiers.end(),
                                   [&](const auto& t) { return t.first == summary.context.streams; });
    const auto spread = tier->second.empty() ? Spread{} : spread_of(tier->second);
    const auto errors = summary.outcomes.find(LoadOutcome::error);
    const auto rate = rate_of(summary);
    const auto milliseconds = [&](const Quantiles& q) {
      return q.p50 ? fmt::format("{:.3f}", *q.p50 * 1000) : std::string();
    };
    const auto whole = [](const std::optional<double>& v) {
      return v ? fmt::format("{:.0f}", *v) : std::string();
    };
    table.rows.push_back(
        {profile, label, fmt::format("{}", summary.context.streams),
         fmt::format("{}", summary.context.run + 1), exact(summary.window_begin_s),
         exact(summary.window_end_s), exact(summary.window_s()),
         rate ? fmt::format("{:.3f}", *rate * summary.window_s()) : std::string(), exact(rate),
         tier->second.empty() ? std::string() : exact(spread.mean), exact(spread.sample_sd),
         fmt::format("{}", errors == summary.outcomes.end() ? 0 : errors->second), whole(summary.prefix_hits),
         whole(summary.preemptions), milliseconds(summary.ttft_s), milliseconds(summary.itl_s)});
  }
  return report::to_csv(table);
}

std::string record_json(const LoadRecord& record, const LoadContext& context) {
  const auto time = [](double seconds) { return seconds > 0 ? Json(seconds) : Json(nullptr); };
  const Json usage = record.usage.empty() ? Json(nullptr) : Json::parse(record.usage, nullptr, false);
  Json row = {{"streams", context.streams},
              {"run", context.run + 1},
              {"outcome", outcome_name(record.outcome)},
              {"status", record.status},
              {"start", record.start_s},
              {"header", time(record.header_s)},
              {"first_token", time(record.first_token_s)},
              {"last_token", time(record.last_token_s)},
              {"end", record.end_s},
              {"prompt_tokens", record.prompt_tokens},
              {"completion_tokens", record.completion_tokens},
              {"cached_tokens", record.cached_tokens},
              {"finish_reason", record.finish_reason.empty() ? Json(nullptr) : Json(record.finish_reason)},
              {"usage", usage.is_discarded() ? Json(nullptr) : usage},
              {"error", record.error.empty() ? Json(nullptr) : Json(record.error)}};
  if (!record.output_ids.empty()) row["output_ids"] = record.output_ids;
  return row.dump(-1, ' ', false, Json::error_handler_t::replace) + "\n";
}

}  // namespace rorqual::tools
