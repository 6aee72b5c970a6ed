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

/// What draft passes gave, of one request or of all: decaying counts.
struct DraftHistory {
  double passes = 0, verified = 0, accepted = 0;  // drafts
  std::array<double, kMaxDrafts> judged_at{},
      accepted_at{};  // by position, of those whose predecessors were right

  /// `num_verified` drafts of a pass were run, `num_accepted` were right; `is_cut`: the reply ended before
  /// the next one was judged.
  void observe(int64_t num_verified, int64_t num_accepted, bool is_cut, double decay);
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
  int32_t chosen = 0;  // out: drafts to make
};

/// What became of one request's drafts.
struct DraftResult {
  std::span<const float> confidence;  // of the drafts that were made; raw logits
  int64_t num_verified = 0, num_accepted = 0;
  bool is_cut = false;  // the reply ended before the next one was judged
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

/// One thread at a time. The same measurements give the same choices.
///
/// Adaptive: before a step the requests whose drafts paid most are told to draft, as many as make the
/// expected tokens per time highest. After the draft pass each draft is verified only if the chance that it
/// and those before it are right, by the confidence of the model as it has proved true so far, is worth its
/// row at the present rate of tokens. What steps with drafts took longer than their tokens would have taken
/// without is a loss; gains pay it back, and while it exceeds kLossShare of all decoding time (and kLossSteps
/// steps) nothing is drafted. Where drafting does not pay by expectation it is tried again as soon as that
/// bound allows. Where it pays little, a step without drafts refreshes the comparison every kRefreshSteps
/// steps.
class DraftLength {
 public:
  static constexpr double kLossShare = 0.015;
  static constexpr double kLossSteps = 3;
  static constexpr int64_t kRefreshSteps = 100;

  DraftLength(int32_t max_drafts, bool is_adaptive) : max_drafts_(max_drafts), is_adaptive_(is_adaptive) {}

  int32_t max_drafts() const { return max_drafts_; }

  /// Sets `chosen` of every candidate. `num_requests` decoding requests have a row each already; `rows_left`
  /// is what the budget leaves for drafts.
  void choose(std::span<DraftCandidate> candidates, int64_t num_requests, int64_t rows_left);

  /// After a step of decoding rows only.
  void observe_step(const StepCost& cost);

  /// How many of a request's drafts to verify. `num_requests`, `num_made`: rows of the step without drafts,
  /// and with all of them.
  int32_t keep(std::span<const float> confidence, int64_t num_requests, int64_t num_made) const;

  /// After each draft pass, per request.
  void observe_drafts(DraftHistory& history, const DraftResult& result);

  /// Chance that a draft of this confidence (raw logit) is right if those before it are.
  double chance(float confidence) const;

 private:
  /// Drafts by the model's confidence.
  struct Bin {
    double judged = 0, accepted = 0;
  };

  static constexpr size_t kBins = 10;

  /// What a draft pass of a request is expected to give.
  struct Yield {
    double tokens = 0, rows = 0;
  };

  Yield expected(const DraftHistory& history, int32_t limit) const;
  int32_t worthwhile_count(const DraftHistory& history, int32_t limit) const;
  double pass_cost(int64_t num_drafting, int64_t count) const;
  void choose_fixed(std::span<DraftCandidate> candidates, int64_t rows_left) const;

  int32_t max_drafts_;
  bool is_adaptive_;
  DraftHistory all_;
  CostCurve steps_, passes_;
  std::array<Bin, kBins> bins_{};
  double recent_tokens_ = 0, recent_ns_ = 0;  // decaying
  double decode_ns_ = 0, loss_ns_ = 0, credit_ns_ = 0;
  int64_t steps_since_plain_ = 0;
};

}  // namespace rorqual::runtime
