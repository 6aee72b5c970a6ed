// SPDX-License-Identifier: Apache-2.0
// From the records of a run and the samples of the server's counters to figures, verdicts and texts.
// docs/load.md has the definitions.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "base/result.h"
#include "tools/load_counters.h"
#include "tools/load_metrics.h"
#include "tools/load_run.h"

namespace rorqual::tools {

/// Mean and percentiles of one figure; nothing of no values.
struct Quantiles {
  int64_t count = 0;
  std::optional<double> mean, p50, p90, p99, max;
};

Quantiles quantiles_of(const std::vector<double>& values);

/// What must hold for a run to count. Each can be left out.
struct LoadGates {
  bool errors = true;       // no request failed; refusals are failures unless allowed
  bool lengths = true;      // prompts and answers have exactly the tokens that were asked for
  bool counters = true;     // the server's counters enclose the window and did not restart
  bool prefix_hits = true;  // nothing came from the prefix cache
  bool preemptions = true;  // no request was put back
  bool drain = true;        // afterwards nothing runs, waits or holds pages
  bool allows_refusals = false;
};

/// One verdict. `detail` says what was found when it is not met.
struct GateVerdict {
  std::string name;
  bool is_met = true;
  std::string detail;
};

/// What the run was asked for and had around it.
struct LoadContext {
  int64_t streams = 1;
  int run = 0;                                          // from 0
  std::optional<int64_t> prompt_tokens, output_tokens;  // exact lengths, if asked for
  bool has_counters = true;
  int64_t missed_samples = 0;
  std::optional<MetricsSample> drained;  // after the run; nothing: the server did not come to rest
};

struct LoadSummary {
  LoadContext context;
  double window_begin_s = 0, window_end_s = 0, client_cpu_s = 0;
  std::map<LoadOutcome, int64_t> outcomes;                                     // of the whole run
  int64_t window_successes = 0;                                                // that ended in the window
  double client_generation_tokens = 0, client_prompt_tokens = 0;               // that arrived in the window
  int64_t cached_tokens = 0;                                                   // by usage, whole run
  std::optional<CounterWindow> generation, prompt, cpu;                        // by the server's counters
  std::optional<double> prefix_hits, prefix_queries, preemptions, rejections;  // whole run
  std::optional<double> drafts, draft_tokens, accepted_tokens;                 // whole run
  std::array<double, kDraftPositions> accepted_by_position{};
  std::optional<double> resident_begin_bytes, resident_end_bytes, resident_max_bytes;  // in the window
  std::vector<CounterSample> resident_bytes;  // of all samples, at most 40 of them
  Quantiles ttft_s, itl_s, tpot_s, latency_s, refusal_s, tokens_per_request, request_rate;
  std::vector<std::string> error_texts;  // a few, with their counts
  std::vector<GateVerdict> verdicts;

  double window_s() const { return window_end_s - window_begin_s; }
};

/// `samples` may be empty (no counters).
LoadSummary summarize(const LoadRun& run, const std::vector<MetricsSample>& samples, LoadContext context,
                      const LoadGates& gates);

/// Ok, or gate with all that was not met.
Status gate_status(const std::vector<LoadSummary>& summaries);

nlohmann::ordered_json summary_json(const LoadSummary& summary);

/// Per number of streams: mean and sample standard deviation over the runs.
nlohmann::ordered_json tiers_json(const std::vector<LoadSummary>& summaries);

std::string summaries_text(const std::vector<LoadSummary>& summaries);

/// Header and one line per run: profile, config, concurrency, run, window, tokens, rate, mean and sample
/// standard deviation of the tier, errors, prefix hits, preemptions, medians. The tokens are generated ones,
/// or prompts with profile "prefill".
std::string summaries_csv(const std::vector<LoadSummary>& summaries, const std::string& profile,
                          const std::string& label);

/// One line of JSON per request.
std::string record_json(const LoadRecord& record, const LoadContext& context);

}  // namespace rorqual::tools
