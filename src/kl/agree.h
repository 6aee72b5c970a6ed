// SPDX-License-Identifier: Apache-2.0
// Does configuration B answer as configuration A did? A's answers are a panel (kl/panel.h); B continues the
// same prompts by itself, and then token by token along A's answers, on the path that decoding takes.
// docs/fidelity.md#agreement.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "base/result.h"
#include "kl/panel.h"
#include "runtime/engine.h"

namespace rorqual::kl {

/// Nats between A's two best tokens below which a disagreement counts as a near tie.
inline constexpr double kNearTieGap = 0.05;

struct AgreeOptions {
  int64_t streams = 8;    // requests in flight; no effect on the result
  bool is_forced = true;  // also force A's tokens; engines behind a URL cannot
};

/// B prefers another token than A wrote.
struct Disagreement {
  int64_t position = 0;                // in the continuation, from 0
  int32_t expected = 0, best = 0;      // A's token, B's best
  float gap = 0;                       // A's best minus A's second best log-probability
  float logprob_a = 0, logprob_b = 0;  // of A's token

  bool is_near_tie() const { return static_cast<double>(gap) < kNearTieGap; }
};

struct CaseAgreement {
  std::string id;
  int64_t tokens = 0;             // of A's continuation
  int64_t first_difference = -1;  // of B's own output; -1 = identical, also in where it ends
  int64_t matches = 0;            // forced positions where B's best token is A's
  double logprob_delta = 0;       // Σ (A's log-probability - B's) over the forced tokens
  std::vector<Disagreement> disagreements;

  bool is_identical() const { return first_difference < 0; }
};

struct Agreement {
  bool is_forced = false;
  std::vector<CaseAgreement> cases;  // in the panel's order
  int64_t tokens = 0;                // of all continuations
  int64_t identical = 0;             // cases
  int64_t matches = 0, near_ties = 0;
  double mean_logprob_delta = 0;  // per forced token, nats

  int64_t disagreements() const { return is_forced ? tokens - matches : 0; }

  double identical_share() const;  // 1 for an empty panel
  double forced_share() const;     // 1 if nothing was forced
};

/// Requests done, requests in all.
using AgreeProgress = std::function<void(int64_t done, int64_t total)>;

/// Errors: those of the engine, with the case; corrupt_data when the vocabularies differ or the engine gives
/// fewer tokens or log-probabilities than asked for.
Result<Agreement> agree(runtime::Engine& engine, const Panel& panel, const AgreeOptions& options,
                        const AgreeProgress& progress = {});

}  // namespace rorqual::kl
