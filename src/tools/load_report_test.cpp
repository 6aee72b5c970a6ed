// SPDX-License-Identifier: Apache-2.0
// Counters in windows, texts of /metrics, figures and verdicts of a run. tests/golden/eval has more windows.
#include "tools/load_report.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace rorqual::tools {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

TEST(CounterWindows, AreStraightLinesBetweenSamples) {
  const std::vector<CounterSample> samples = {{10, 100}, {12, 200}, {14, 500}};
  const auto window = counter_window(samples, 11, 13);
  ASSERT_TRUE(window.ok());
  EXPECT_DOUBLE_EQ(window->begin, 150);
  EXPECT_DOUBLE_EQ(window->end, 350);
  EXPECT_DOUBLE_EQ(window->rate(), 100);
  EXPECT_FALSE(window->has_restart);
  const auto whole = counter_window(samples, 10, 14);
  ASSERT_TRUE(whole.ok());
  EXPECT_DOUBLE_EQ(whole->delta(), 400);
}

TEST(CounterWindows, AddTheLastValueWhenACounterFalls) {
  const std::vector<CounterSample> samples = {{0, 50}, {1, 80}, {2, 10}, {3, 30}};
  const auto window = counter_window(samples, 0, 3);
  ASSERT_TRUE(window.ok());
  EXPECT_DOUBLE_EQ(window->end, 110);
  EXPECT_TRUE(window->has_restart);
  const auto before = counter_window(samples, 0, 1);
  ASSERT_TRUE(before.ok());
  EXPECT_DOUBLE_EQ(before->delta(), 30);
}

TEST(CounterWindows, AreNeverExtrapolated) {
  const std::vector<CounterSample> samples = {{10, 100}, {12, 200}};
  EXPECT_FALSE(counter_window(samples, 9.9, 11).ok());
  EXPECT_FALSE(counter_window(samples, 11, 12.1).ok());
  EXPECT_FALSE(counter_window(samples, 11, 11).ok());
  EXPECT_FALSE(counter_window(std::span(samples).first(1), 10, 10).ok());
  EXPECT_FALSE(counter_window({}, 0, 1).ok());
}

TEST(Spreads, UseOneLessThanTheNumberOfRuns) {
  const std::vector<double> values = {2, 4, 9};
  EXPECT_DOUBLE_EQ(spread_of(values).mean, 5);
  EXPECT_DOUBLE_EQ(*spread_of(values).sample_sd, std::sqrt(13.0));
  EXPECT_FALSE(spread_of(std::span(values).first(1)).sample_sd.has_value());
}

TEST(Percentiles, LieOnStraightLinesBetweenRanks) {
  EXPECT_DOUBLE_EQ(*quantiles_of({3, 1, 2}).p50, 2);
  EXPECT_DOUBLE_EQ(*quantiles_of({1, 2, 3, 4}).p50, 2.5);
  EXPECT_DOUBLE_EQ(*quantiles_of({0, 10}).p90, 9);
  EXPECT_DOUBLE_EQ(*quantiles_of({7}).p99, 7);
  EXPECT_FALSE(quantiles_of({}).p50.has_value());
}

TEST(MetricsTexts, AreSummedByNameAndLabel) {
  const MetricsText text(
      "# HELP vllm:a_total x\n# TYPE vllm:a_total counter\nvllm:a_total{engine=\"0\",reason=\"x\"} 3\n"
      "vllm:a_total{engine=\"0\",reason=\"y\"} 4.5e1\nvllm:a_total_more{engine=\"0\"} 100\nplain 2\n");
  EXPECT_DOUBLE_EQ(*text.sum("vllm:a_total"), 48);
  EXPECT_DOUBLE_EQ(*text.sum("vllm:a_total", "reason=\"x\""), 3);
  EXPECT_FALSE(text.sum("vllm:a_total", "reason=\"z\"").has_value());
  EXPECT_DOUBLE_EQ(*text.sum("plain"), 2);
  EXPECT_FALSE(text.sum("vllm:a").has_value());
}

TEST(MetricsTexts, AreReadUnderBothPrefixes) {
  const MetricsSample own = read_metrics(MetricsText("rorqual:prompt_tokens_total{m=\"x\"} 7\n"));
  EXPECT_DOUBLE_EQ(*own.at(Series::prompt_tokens), 7);
  EXPECT_FALSE(own.at(Series::generation_tokens).has_value());
  const MetricsSample both =
      read_metrics(MetricsText("rorqual:prompt_tokens_total 7\nvllm:prompt_tokens_total 8\n"
                               "vllm:spec_decode_num_accepted_tokens_per_pos_total{position=\"2\"} 5\n"
                               "process_resident_memory_bytes 1024\n"));
  EXPECT_DOUBLE_EQ(*both.at(Series::prompt_tokens), 8);
  EXPECT_DOUBLE_EQ(both.accepted_by_position[2], 5);
  EXPECT_DOUBLE_EQ(*both.at(Series::resident_bytes), 1024);
}

/// A request of 10 + 4 tokens that starts at `start_s`: first token after one second, one more each second.
LoadRecord answer(double start_s) {
  LoadRecord record;
  record.outcome = LoadOutcome::success;
  record.status = 200;
  record.start_s = start_s;
  record.header_s = start_s + 0.5;
  record.first_token_s = start_s + 1;
  record.last_token_s = record.end_s = start_s + 4;
  record.prompt_tokens = 10;
  record.completion_tokens = 4;
  for (int i = 1; i <= 4; ++i) record.arrivals.push_back({.time_s = start_s + i, .tokens = 1});
  return record;
}

LoadRun run_of(std::vector<LoadRecord> records) {
  LoadRun run;
  run.start_s = 100;
  run.window_begin_s = 102;
  run.window_end_s = 110;
  run.records = std::move(records);
  return run;
}

/// Counters that grow by 1 generated and 2 prompt tokens per second.
std::vector<MetricsSample> samples() {
  std::vector<MetricsSample> out;
  for (int i = 0; i <= 12; i += 2) {
    MetricsSample sample;
    sample.time_s = 99 + i;
    const auto set = [&](Series series, double value) { sample.values[static_cast<size_t>(series)] = value; };
    set(Series::generation_tokens, 1000 + i);
    set(Series::prompt_tokens, 50 + 2 * i);
    set(Series::prefix_hits, 64);
    set(Series::preemptions, 3);
    set(Series::resident_bytes, 1e6 + i);
    out.push_back(sample);
  }
  return out;
}

LoadContext context() {
  LoadContext context;
  context.streams = 2;
  context.prompt_tokens = 10;
  context.output_tokens = 4;
  context.drained = MetricsSample{};
  return context;
}

/// Names of the gates that are not met.
std::string unmet(const LoadSummary& summary) {
  std::string names;
  for (const GateVerdict& verdict : summary.verdicts) {
    if (!verdict.is_met) names += verdict.name + " ";
  }
  return names;
}

TEST(Summaries, CountWhatFallsIntoTheWindow) {
  const auto summary = summarize(run_of({answer(100), answer(104)}), samples(), context(), {});
  EXPECT_EQ(unmet(summary), "");
  EXPECT_EQ(summary.verdicts.size(), 6U);
  EXPECT_EQ(summary.window_successes, 2);
  EXPECT_DOUBLE_EQ(summary.client_generation_tokens, 7);  // the first token came before the window
  EXPECT_DOUBLE_EQ(summary.client_prompt_tokens, 10);
  EXPECT_DOUBLE_EQ(summary.generation->delta(), 8);
  EXPECT_DOUBLE_EQ(summary.prompt->rate(), 2);
  EXPECT_DOUBLE_EQ(*summary.ttft_s.p50, 1);
  EXPECT_DOUBLE_EQ(*summary.itl_s.p99, 1);
  EXPECT_DOUBLE_EQ(*summary.tpot_s.mean, 1);
  EXPECT_DOUBLE_EQ(*summary.request_rate.p50, 1);
  EXPECT_DOUBLE_EQ(*summary.resident_begin_bytes, 1e6 + 4);
  EXPECT_TRUE(gate_status({summary}).ok());
}

TEST(Summaries, KeepRefusalsApart) {
  LoadRecord refused;
  refused.outcome = LoadOutcome::refused;
  refused.status = 503;
  refused.start_s = 105;
  refused.header_s = refused.end_s = 105.25;
  const auto run = run_of({answer(102), refused});
  const auto strict = summarize(run, samples(), context(), {});
  EXPECT_EQ(unmet(strict), "errors ");
  EXPECT_DOUBLE_EQ(*strict.refusal_s.p99, 0.25);
  EXPECT_EQ(strict.latency_s.count, 1);
  LoadGates gates;
  gates.allows_refusals = true;
  EXPECT_EQ(unmet(summarize(run, samples(), context(), gates)), "");
}

TEST(Gates, FailOnErrorsAndNameThem) {
  LoadRecord broken;
  broken.outcome = LoadOutcome::error;
  broken.error = "connection: reset";
  const auto summary = summarize(run_of({answer(102), broken, broken}), samples(), context(), {});
  EXPECT_EQ(unmet(summary), "errors ");
  const auto status = gate_status({summary});
  ASSERT_FALSE(status.ok());
  EXPECT_EQ(status.error().code(), Code::gate);
  EXPECT_THAT(status.error().message(), HasSubstr("2 x connection: reset"));
}

TEST(Gates, FailOnRunsWithoutAnyAnswer) {
  EXPECT_EQ(unmet(summarize(run_of({}), samples(), context(), {})), "errors ");
}

TEST(Gates, FailOnOtherLengths) {
  LoadRecord shorter = answer(102);
  shorter.completion_tokens = 3;
  const auto summary = summarize(run_of({answer(102), shorter}), samples(), context(), {});
  EXPECT_EQ(unmet(summary), "lengths ");
  auto other = context();
  other.output_tokens.reset();
  EXPECT_EQ(unmet(summarize(run_of({answer(102), shorter}), samples(), other, {})), "");
  other.prompt_tokens = 11;
  EXPECT_EQ(unmet(summarize(run_of({answer(102)}), samples(), other, {})), "lengths ");
}

TEST(Gates, FailOnCountersThatRestartGrowOrAreMissing) {
  auto some = samples();
  for (size_t i = 3; i < some.size(); ++i) {
    some[i].values[static_cast<size_t>(Series::generation_tokens)] = static_cast<double>(i);
    some[i].values[static_cast<size_t>(Series::prefix_hits)] = 128;
    some[i].values[static_cast<size_t>(Series::preemptions)] = 4;
  }
  const auto run = run_of({answer(102)});
  EXPECT_EQ(unmet(summarize(run, some, context(), {})), "counters prefix-hits preemptions ");
  some.resize(3);  // they end before the window
  EXPECT_EQ(unmet(summarize(run, some, context(), {})), "counters ");
  EXPECT_EQ(unmet(summarize(run, {}, context(), {})), "counters prefix-hits preemptions ");
  auto without = context();
  without.has_counters = false;
  EXPECT_EQ(unmet(summarize(run, {}, without, {})), "");
}

TEST(Gates, FailWhenTheServerDoesNotComeToRest) {
  auto busy = context();
  busy.drained.reset();
  EXPECT_EQ(unmet(summarize(run_of({answer(102)}), samples(), busy, {})), "drain ");
  busy.drained = MetricsSample{};
  busy.drained->values[static_cast<size_t>(Series::cache_usage)] = 0.01;
  EXPECT_EQ(unmet(summarize(run_of({answer(102)}), samples(), busy, {})), "drain ");
}

TEST(Gates, CanBeLeftOut) {
  LoadGates none;
  none.errors = none.lengths = none.counters = none.prefix_hits = none.preemptions = none.drain = false;
  const auto summary = summarize(run_of({}), {}, context(), none);
  EXPECT_TRUE(summary.verdicts.empty());
  EXPECT_TRUE(gate_status({summary}).ok());
}

TEST(Reports, HaveMeanAndSpreadOfEachTier) {
  auto first = summarize(run_of({answer(102)}), samples(), context(), {});
  auto second = first;
  second.context.run = 1;
  second.generation->end += 8;  // twice as fast
  const auto tiers = tiers_json({first, second});
  ASSERT_EQ(tiers.size(), 1U);
  EXPECT_EQ(tiers[0]["streams"], 2);
  EXPECT_DOUBLE_EQ(tiers[0]["generation_tokens_per_second"]["mean"], 1.5);
  EXPECT_NEAR(tiers[0]["generation_tokens_per_second"]["sample_sd"].get<double>(), 0.70710678, 1e-7);
  const auto csv = summaries_csv({first, second}, "decode", "small, model");
  EXPECT_THAT(
      csv, HasSubstr("profile,config,concurrency,run,window_start,window_end,window_s,tokens,tok_per_s,mean,"
                     "sample_std,errors,prefix_hits,preemptions,ttft_p50_ms,itl_p50_ms"));
  EXPECT_THAT(csv,
              HasSubstr("decode,\"small, model\",2,1,102.000000,110.000000,8.000000,8.000,1.000000,1.500000,"
                        "0.707107,0,0,0,1000.000,1000.000"));
  EXPECT_THAT(summaries_csv({first}, "prefill", "m"), HasSubstr(",16.000,2.000000,2.000000,,0,0,0,"));
  EXPECT_THAT(summaries_text({first, second}), HasSubstr("1.5 generated tokens/s, sample sd 0.7, 2 runs"));
  EXPECT_THAT(summary_json(first).dump(), Not(HasSubstr("nan")));
  const auto resident = summary_json(first)["server"]["resident_bytes"];
  ASSERT_EQ(resident.size(), samples().size());
  EXPECT_EQ(resident[1], nlohmann::ordered_json({101.0, 1e6 + 2}));
}

}  // namespace
}  // namespace rorqual::tools
