// SPDX-License-Identifier: Apache-2.0
// How many drafts each decoding request verifies in a step: as many as make tokens come fastest, by the
// acceptance and the cost of steps that were measured. Decides speed only, never a token.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <span>
#include <vector>

#include "runtime/engine.h"

namespace rorqual::runtime {

/// Acceptance by position, of one request or of all: decaying counts of the drafts whose predecessors were
/// accepted.
struct DraftHistory {
  std::array<double, kMaxDrafts> tried{}, accepted{};

  /// `num_accepted` of `num_drafted` were right; `is_cut`: the reply ended before the next one was judged.
  void observe(int64_t num_drafted, int64_t num_accepted, bool is_cut, double decay);
};

/// Mean nanoseconds by a size (rows of a step), newer measurements weigh more.
class CostCurve {
 public:
  void observe(int64_t size, double cost);

  /// Interpolated between measured sizes, carried on beyond them; 0 when nothing was measured.
  double estimate(int64_t size) const;

  /// Whether the size itself, or sizes close below and above, were measured often enough.
  bool is_known(int64_t size) const;

 private:
  struct Point {
    double mean = 0;
    int64_t count = 0;
  };

  std::map<int64_t, Point> points_;
};

/// One decoding request in the choice.
struct DraftCandidate {
  const DraftHistory* history = nullptr;
  int32_t limit = 0;   // most drafts that are of use
  int32_t chosen = 0;  // out
};

/// What a step of decoding rows only took.
struct StepCost {
  int64_t rows = 0;          // of the forward pass
  int64_t num_requests = 0;  // rows without the drafts
  int64_t num_tokens = 0;    // delivered or not, that it produced
  int64_t num_drafting = 0;  // requests in the draft pass, 0 = no pass
  int64_t draft_count = 0;   // drafts asked of it
  double forward_ns = 0, draft_ns = 0;
};

/// One thread. The same measurements give the same choices.
///
/// Adaptive: drafts are added one by one, most probable first, and the number with the highest expected
/// tokens per time wins. What steps with drafts took longer than their tokens would have taken without is a
/// loss; gains pay it back, and while it exceeds kLossShare of all decoding time nothing is drafted. Where no
/// number of drafts pays by expectation, one is tried again as soon as that bound allows it. Where drafts pay
/// little, a step without them refreshes the comparison every kRefreshSteps steps.
class DraftLength {
 public:
  static constexpr double kLossShare = 0.015;
  static constexpr int64_t kRefreshSteps = 100;

  DraftLength(int32_t max_drafts, bool is_adaptive) : max_drafts_(max_drafts), is_adaptive_(is_adaptive) {}

  int32_t max_drafts() const { return max_drafts_; }

  /// Sets `chosen` of every candidate. `num_requests` decoding requests have a row each already; `rows_left`
  /// is what the budget leaves for drafts.
  void choose(std::span<DraftCandidate> candidates, int64_t num_requests, int64_t rows_left);

  /// After a step of decoding rows only.
  void observe_step(const StepCost& cost);

  /// After each verification.
  void observe_acceptance(DraftHistory& history, int64_t num_drafted, int64_t num_accepted, bool is_cut);

  /// Chance that draft `position` (from 0) is right if those before it are.
  double acceptance(const DraftHistory& history, int64_t position) const;

 private:
  struct Gain {
    double tokens = 0;
    size_t candidate = 0;
    int32_t length = 0;
  };

  double pass_cost(int64_t num_drafting, int64_t count) const;
  std::vector<Gain> sorted_gains(std::span<const DraftCandidate> candidates) const;
  void choose_fixed(std::span<DraftCandidate> candidates, int64_t rows_left) const;

  int32_t max_drafts_;
  bool is_adaptive_;
  DraftHistory all_;
  CostCurve steps_, passes_;
  double decode_ns_ = 0, loss_ns_ = 0;
  int64_t steps_since_plain_ = 0;
};

}  // namespace rorqual::runtime
