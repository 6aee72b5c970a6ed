// SPDX-License-Identifier: Apache-2.0
// Prometheus metrics under `rorqual:`, the ones that vLLM also has repeated under `vllm:`. docs/metrics.md.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "base/result.h"
#include "runtime/engine.h"
#include "text/prompt_memo.h"

namespace rorqual::server {

struct MetricsLabels {
  std::string model_name, version, commit, numerics, kernels;
  int64_t max_model_len = 0;
  int64_t max_drafts = 0;
  int64_t block_tokens = 64;
};

/// How a choice ended, as vLLM names it.
enum class Outcome : uint8_t { stop, length, abort, error };

struct FinishedChoice {
  Outcome outcome = Outcome::stop;
  int64_t prompt_tokens = 0, cached_tokens = 0, completion_tokens = 0;
  int64_t max_tokens = 0;
  int64_t preemptions = 0;
  double e2e_s = 0, queue_s = 0, prefill_s = 0, decode_s = 0;
};

/// Any thread.
class Metrics {
 public:
  explicit Metrics(const MetricsLabels& labels);
  ~Metrics();

  void observe_first_token(double seconds_since_arrival);
  void observe_next_token(double seconds_since_last);
  void observe_request(int64_t num_choices);  // accepted
  void observe_longest_choice(int64_t completion_tokens);
  void observe_finish(const FinishedChoice& choice);
  void count_rejection(Limit limit);  // of a refused request; only limits of the queue count
  void count_http(int status);

  /// Text exposition format 0.0.4.
  std::string text(const runtime::EngineStats& stats, const text::PromptMemoStats& memo = {}) const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace rorqual::server
