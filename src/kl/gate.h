// SPDX-License-Identifier: Apache-2.0
// The rule for every change that may move results: KL against one reference, before and after.
// docs/fidelity.md#gate.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "kl/compare.h"
#include "kl/run_record.h"

namespace rorqual::kl {

/// In rising severity.
enum class Verdict : uint8_t { passed, undecided, failed };

/// "passed", "undecided", "failed".
std::string_view verdict_name(Verdict verdict);

struct GateLimits {
  double relative = 0.03;    // of the old mean KL
  double absolute = 3e-4;    // nats; the larger of the two allowances counts
  double tail_relative = 0;  // the same for p95 and p99; 0 = only shown
  double max_kl = 0;         // limit of the largest position, nats; 0 = only shown
};

struct Tail {
  double p95 = 0, p99 = 0, max = 0;
};

/// What is known of one corpus.
struct GateNumbers {
  std::string corpus;
  double old_kl = 0, new_kl = 0;         // nats
  std::optional<double> old_again_kl;    // a second run of the old side
  bool old_is_nondeterministic = false;  // known to differ from run to run
  std::optional<Tail> old_tail, new_tail;
  std::optional<Interval> relative_ci;  // of (new - old) / old, paired
};

struct GateCorpus {
  GateNumbers numbers;
  double limit = 0;            // the largest new KL that passes
  double relative_change = 0;  // (new - old) / old; 0 when both are 0
  Verdict verdict = Verdict::passed;
  std::string reason;  // one sentence
};

/// new passes iff new <= max((1 + relative) old, old + absolute); a corpus whose old side repeats less
/// closely than that, or is known not to repeat and has no second run, is undecided.
GateCorpus judge(const GateNumbers& numbers, const GateLimits& limits);

/// The worst of all corpora; undecided when there is none.
Verdict worst(const std::vector<GateCorpus>& corpora);

struct GateDumps {
  const Dump* reference = nullptr;
  const Dump* old_side = nullptr;
  const Dump* new_side = nullptr;
  const Dump* old_again = nullptr;  // may be null
};

/// All sides against the reference with one id set. Errors: those of compare.
Result<GateNumbers> measure(const GateDumps& dumps);

/// Seconds since 1970 of "2026-11-30T13:40:00Z" (fractions are cut); nothing if it is none.
std::optional<int64_t> parse_utc(std::string_view text);

/// Are the two a pair: same program, machine, settings of measuring, at most 24 hours apart? Error
/// (invalid_argument) naming the first difference.
Status check_pair(const RunRecord& old_side, const RunRecord& new_side);

/// What differs on purpose: "lm-head=fp8", "numerics exact -> reference"; empty = nothing known.
std::string changes(const RunRecord& old_side, const RunRecord& new_side);

}  // namespace rorqual::kl
