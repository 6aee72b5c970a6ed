// SPDX-License-Identifier: Apache-2.0
#include "server/metrics.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>
#include <sstream>
#include <string>

namespace rorqual::server {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

constexpr const char* kLabels = R"({engine="0",model_name="m"})";

class MetricsTest : public ::testing::Test {
 protected:
  Metrics metrics_{MetricsLabels{.model_name = "m",
                                 .version = "1.2",
                                 .commit = "abc",
                                 .numerics = "reference",
                                 .kernels = "avx2",
                                 .max_model_len = 1000}};
};

TEST_F(MetricsTest, HasAllOutcomesAtZeroBeforeAnyRequest) {
  const std::string text = metrics_.text({});
  for (const char* reason : {"stop", "length", "abort", "error"}) {
    for (const char* prefix : {"rorqual", "vllm"}) {
      EXPECT_THAT(text,
                  HasSubstr(std::string(prefix) + ":request_success_total{engine=\"0\",model_name=\"m\"," +
                            "finished_reason=\"" + reason + "\"} 0\n"));
    }
  }
}

TEST_F(MetricsTest, ShowsTheEnginesCountersUnderBothPrefixes) {
  runtime::EngineStats stats;
  stats.requests_running = 3;
  stats.prompt_tokens = 12'345'678;
  stats.cached_tokens = 78;
  stats.prefix.hit_tokens = 80;
  stats.prefix.disk_hit_tokens = 30;
  stats.cache_blocks_total = 8;
  stats.cache_blocks_used = 2;
  const std::string text = metrics_.text(stats);
  for (const std::string prefix : {"rorqual:", "vllm:"}) {
    EXPECT_THAT(text, HasSubstr("# TYPE " + prefix + "num_requests_running gauge\n"));
    EXPECT_THAT(text, HasSubstr(prefix + "num_requests_running" + kLabels + " 3\n"));
    EXPECT_THAT(text, HasSubstr("# TYPE " + prefix + "prompt_tokens_total counter\n"));
    EXPECT_THAT(text, HasSubstr(prefix + "prompt_tokens_total" + kLabels + " 12345678\n"));
    EXPECT_THAT(text, HasSubstr(prefix + "prefix_cache_hits_total" + kLabels + " 80\n"));
    EXPECT_THAT(text, HasSubstr(prefix + "kv_cache_usage_perc" + kLabels + " 0.25\n"));
  }
  EXPECT_THAT(text, HasSubstr("rorqual:engine_alive" + std::string(kLabels) + " 1\n"));
  EXPECT_THAT(text, Not(HasSubstr("vllm:engine_alive")));
}

TEST_F(MetricsTest, ObservesARequestOnceInEachHistogram) {
  metrics_.observe_first_token(0.03);
  metrics_.observe_next_token(0.2);
  metrics_.observe_next_token(0.2);
  metrics_.observe_finish({.outcome = Outcome::length,
                           .prompt_tokens = 10,
                           .completion_tokens = 3,
                           .max_tokens = 3,
                           .e2e_s = 0.5,
                           .prefill_s = 0.1,
                           .decode_s = 0.4});
  const std::string text = metrics_.text({});
  const auto has = [&](const std::string& name, const std::string& labels, const std::string& value) {
    EXPECT_THAT(
        text, HasSubstr("rorqual:" + name + "{engine=\"0\",model_name=\"m\"" + labels + "} " + value + "\n"));
  };
  has("time_to_first_token_seconds_count", "", "1");
  has("time_to_first_token_seconds_bucket", ",le=\"0.02\"", "0");
  has("time_to_first_token_seconds_bucket", ",le=\"0.04\"", "1");
  has("inter_token_latency_seconds_count", "", "2");
  has("request_time_per_output_token_seconds_bucket", ",le=\"0.2\"", "1");
  has("e2e_request_latency_seconds_sum", "", "0.5");
  has("request_inference_time_seconds_sum", "", "0.5");
  has("request_generation_tokens_bucket", ",le=\"2\"", "0");
  has("request_generation_tokens_bucket", ",le=\"5\"", "1");
  has("request_generation_tokens_bucket", ",le=\"1000\"", "1");
  has("request_success_total", ",finished_reason=\"length\"", "1");
}

TEST_F(MetricsTest, SplitsThePromptTokensBySourceSoThatTheSumsHold) {
  runtime::EngineStats stats;
  stats.prompt_tokens = 1000;
  stats.cached_tokens = 640;
  stats.prefix.disk_hit_tokens = 64;
  const std::string text = metrics_.text(stats);
  const auto has = [&](const std::string& name, const std::string& source, const std::string& value) {
    EXPECT_THAT(text, HasSubstr("vllm:" + name + R"({engine="0",model_name="m",source=")" + source + "\"} " +
                                value + "\n"));
  };
  has("prompt_tokens_by_source_total", "local_compute", "360");
  has("prompt_tokens_by_source_total", "local_cache_hit", "640");
  has("prompt_tokens_by_source_total", "external_kv_transfer", "0");
  has("prompt_tokens_cached_by_source_total", "device", "576");
  has("prompt_tokens_cached_by_source_total", "disk", "64");
}

TEST_F(MetricsTest, ShowsStepsAsAHistogramOfCumulativeBuckets) {
  runtime::EngineStats stats;
  stats.iteration_tokens[0] = 4;   // of one token
  stats.iteration_tokens[1] = 2;   // of two to eight
  stats.iteration_tokens[13] = 1;  // beyond the last bound
  stats.iteration_tokens_sum = 20'016;
  const std::string text = metrics_.text(stats);
  const auto has = [&](const std::string& suffix, const std::string& labels, const std::string& value) {
    EXPECT_THAT(text, HasSubstr("vllm:iteration_tokens_total" + suffix + R"({engine="0",model_name="m")" +
                                labels + "} " + value + "\n"));
  };
  has("_bucket", ",le=\"1\"", "4");
  has("_bucket", ",le=\"8\"", "6");
  has("_bucket", ",le=\"16384\"", "6");
  has("_bucket", ",le=\"+Inf\"", "7");
  has("_count", "", "7");
  has("_sum", "", "20016");
}

TEST_F(MetricsTest, HasEveryLabelValueFromTheStart) {
  const std::string text = metrics_.text({});
  for (const char* sample :
       {R"(vllm:admission_rejections_total{model_name="m",reason="max_num_queued_reqs"} 0)",
        R"(vllm:admission_rejections_total{model_name="m",reason="max_num_queued_tokens"} 0)",
        R"(vllm:num_requests_waiting_by_reason{engine="0",model_name="m",reason="capacity"} 0)",
        R"(vllm:num_requests_waiting_by_reason{engine="0",model_name="m",reason="deferred"} 0)",
        R"(vllm:engine_sleep_state{engine="0",model_name="m",sleep_state="awake"} 1)",
        R"(vllm:spec_decode_num_accepted_tokens_per_pos_total{engine="0",model_name="m",position="0"} 0)",
        R"(vllm:request_success_total{engine="0",model_name="m",finished_reason="repetition"} 0)",
        R"(rorqual:prefix_cache_misses_total{engine="0",model_name="m",reason="tokens_differ"} 0)",
        R"(rorqual:prefix_cache_misses_total{engine="0",model_name="m",reason="disk_error"} 0)",
        R"(rorqual:prefix_disk_lost_pages_total{engine="0",model_name="m",cause="damaged"} 0)"}) {
    EXPECT_THAT(text, HasSubstr(std::string(sample) + "\n"));
  }
}

TEST_F(MetricsTest, CountsRefusalsByTheLimitThatWasMet) {
  metrics_.count_rejection(Limit::queued_tokens);
  metrics_.count_rejection(Limit::none);  // draining
  const std::string text = metrics_.text({});
  EXPECT_THAT(text, HasSubstr(R"(model_name="m",reason="max_num_queued_tokens"} 1)"));
  EXPECT_THAT(text, HasSubstr(R"(model_name="m",reason="max_num_queued_reqs"} 0)"));
}

TEST_F(MetricsTest, NamesEachFamilyOnceAndBeforeItsSamples) {
  const std::string text = metrics_.text({});
  std::set<std::string> seen;
  std::istringstream lines(text);
  std::string line, current;
  while (std::getline(lines, line)) {
    if (line.starts_with("# TYPE ")) {
      current = line.substr(7, line.find(' ', 7) - 7);
      EXPECT_TRUE(seen.insert(current).second) << current;
    } else if (!line.starts_with('#')) {
      EXPECT_TRUE(line.starts_with(current)) << line << " under " << current;
    }
  }
  EXPECT_GT(seen.size(), 80u);
}

TEST_F(MetricsTest, TellsTheProcess) {
  const std::string text = metrics_.text({});
  EXPECT_THAT(text, ::testing::ContainsRegex("process_resident_memory_bytes [1-9]"));
  EXPECT_THAT(text, ::testing::ContainsRegex("process_open_fds [1-9]"));
  EXPECT_THAT(text, ::testing::ContainsRegex("process_start_time_seconds 1[0-9]{9}"));
  EXPECT_THAT(text, HasSubstr("build_info{engine=\"0\",model_name=\"m\",commit=\"abc\",kernels=\"avx2\","
                              "numerics=\"reference\",version=\"1.2\"} 1\n"));
}

}  // namespace
}  // namespace rorqual::server
