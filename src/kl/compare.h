// SPDX-License-Identifier: Apache-2.0
// KL(reference || candidate) of two captures, and everything derived per position. docs/fidelity.md#measures.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "kl/dump.h"
#include "kl/full_logits.h"

namespace rorqual::kl {

/// Which ids S the bound keeps apart from the rest bucket.
enum class IdSet : uint8_t {
  both_top_k,       // ids in both dumps' top K (and in those of `also`)
  candidate_top_k,  // the candidate's top K; needs the reference's full logits
  full,             // no bucket: exact KL; needs full logits of both
};

struct CompareOptions {
  IdSet id_set = IdSet::both_top_k;
  std::vector<const Dump*> also;  // further runs whose top-K ids cut S (paired comparisons)
  const LogitRows* reference_logits = nullptr;
  const LogitRows* candidate_logits = nullptr;
  const LogitRows* second_logits = nullptr;  // compare_paired: those of B
};

/// "both", "candidate" or "full".
std::string_view id_set_name(IdSet id_set);

/// KL over some ids and one bucket for all others, each clipped to at least 1e-12; a lower bound of the
/// whole.
struct Bound {
  double kl = 0;    // nats; not clamped at 0
  double mass = 0;  // Σ p over the ids
};

/// `log_p` and `log_q`: natural-log probabilities of the same ids, in the same order.
Bound kl_bound(std::span<const double> log_p, std::span<const double> log_q);

/// Σ p (ln p - ln q) over the whole vocabulary, log-softmax in F64. Rows of raw logits of equal size.
double exact_kl(std::span<const float> reference, std::span<const float> candidate);

/// Per position, F64.
struct Positions {
  std::vector<double> kl;           // nats
  std::vector<uint8_t> top1_equal;  // first ids are equal
  std::vector<double> common_mass;  // Σ p over S
};

struct Interval {
  double low = 0, high = 0;
};

struct Summary {
  int64_t positions = 0, windows = 0;
  double mean_kl = 0;  // mean of the windows' means (windows of equal length: the plain mean)
  Interval mean_kl_ci;
  double median = 0, p90 = 0, p95 = 0, p99 = 0, max = 0;  // sorted[min(N-1, int(N·f))]
  double top1 = 0;                                        // share
  double reference_perplexity = 0, candidate_perplexity = 0;
  double mean_abs_token_delta = 0;  // mean |Δ token log-probability|
  double common_mass_median = 0, common_mass_p1 = 0, common_mass_min = 0;
  int64_t overshoot_reference = 0, overshoot_candidate = 0;  // rows with Σ exp(lp) > 1 + 1e-4
  std::vector<double> window_means;
  double position_mean_kl = 0;  // plain mean of all positions; differs from mean_kl when windows differ
};

struct Comparison {
  DumpInfo reference, candidate;
  IdSet id_set = IdSet::both_top_k;
  Positions positions;
  Summary summary;
};

/// corpus, context, windows, first_scored, scored_positions, top_k, vocabulary and tokens must be equal, also
/// the hashes where both have them. Error: corrupt_data naming the first difference; a shift by one position
/// is recognised and named.
Status check_comparable(const Dump& reference, const Dump& candidate);

Result<Comparison> compare(const Dump& reference, const Dump& candidate, const CompareOptions& options = {});

/// A against B on one reference and one id set: d = A - B per window.
struct Paired {
  Comparison a, b;
  double mean_difference = 0, relative_change = 0;  // (A - B) / B
  Interval difference_ci, relative_ci;
  double probability_a_greater = 0;  // share of bootstrap means above 0
};

Result<Paired> compare_paired(const Dump& reference, const Dump& a, const Dump& b,
                              const CompareOptions& options = {});

}  // namespace rorqual::kl
