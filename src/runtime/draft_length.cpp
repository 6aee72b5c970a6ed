// SPDX-License-Identifier: Apache-2.0
// The choice of draft lengths by expected tokens per time.
#include "runtime/draft_length.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <iterator>

namespace rorqual::runtime {

namespace {

constexpr double kRequestDecay = 0.85, kAllDecay = 0.98;
constexpr double kPriorWeight = 1.5;      // of all requests' acceptance against one request's
constexpr double kFirstGuess = 0.75;      // acceptance before anything was measured
constexpr double kCostWeight = 0.15;      // of a new measurement
constexpr double kOutlier = 3.0;          // a measurement counts as at most so many means
constexpr double kUnknownRowShare = 0.1;  // of one row's step, per row more, before two sizes were measured
constexpr double kClearGain = 1.5;        // above it no refresh is due
constexpr int64_t kKnownCount = 2;
constexpr double kCloseSizes = 1.25;  // ratio of sizes between which interpolation is trusted

}  // namespace

void DraftHistory::observe(int64_t num_drafted, int64_t num_accepted, bool is_cut, double decay) {
  const int64_t num_judged = std::min(num_accepted + (is_cut ? 0 : 1), num_drafted);
  for (int64_t i = 0; i < std::min<int64_t>(num_judged, kMaxDrafts); ++i) {
    const auto at = static_cast<size_t>(i);
    tried[at] = tried[at] * decay + 1;
    accepted[at] = accepted[at] * decay + (i < num_accepted ? 1 : 0);
  }
}

void CostCurve::observe(int64_t size, double cost) {
  Point& point = points_[size];
  ++point.count;
  if (point.count == 1) {
    point.mean = cost;
    return;
  }
  const double bounded = std::min(cost, kOutlier * point.mean);
  const double weight = std::max(kCostWeight, 1.0 / static_cast<double>(point.count));
  point.mean += weight * (bounded - point.mean);
}

double CostCurve::estimate(int64_t size) const {
  if (points_.empty()) return 0;
  const auto above = points_.lower_bound(size);
  if (above != points_.end() && above->first == size) return above->second.mean;
  const auto line = [size](const auto& a, const auto& b) {
    const double slope =
        std::max((b.second.mean - a.second.mean) / static_cast<double>(b.first - a.first), 0.0);
    return a.second.mean + slope * static_cast<double>(size - a.first);
  };
  if (points_.size() == 1) {
    const auto& [known, point] = *points_.begin();
    const double rows = static_cast<double>(size - known) / static_cast<double>(std::max<int64_t>(known, 1));
    return std::max(point.mean * (1 + kUnknownRowShare * rows), 0.1 * point.mean);
  }
  if (above == points_.begin()) {
    const auto& first = *above;
    return std::max(line(first, *std::next(above)),
                    first.second.mean * static_cast<double>(size) / static_cast<double>(first.first));
  }
  if (above == points_.end()) return line(*std::prev(above, 2), *std::prev(above));
  const auto below = std::prev(above);
  const double share =
      static_cast<double>(size - below->first) / static_cast<double>(above->first - below->first);
  return below->second.mean + share * (above->second.mean - below->second.mean);
}

bool CostCurve::is_known(int64_t size) const {
  const auto above = points_.lower_bound(size);
  if (above == points_.end()) return false;
  if (above->first == size) return above->second.count >= kKnownCount;
  if (above == points_.begin()) return false;
  return static_cast<double>(above->first) <= kCloseSizes * static_cast<double>(std::prev(above)->first);
}

double DraftLength::acceptance(const DraftHistory& history, int64_t position) const {
  const auto at = static_cast<size_t>(position);
  const double before = position == 0 ? kFirstGuess : acceptance(all_, position - 1);
  const double all = (all_.accepted[at] + kPriorWeight * before) / (all_.tried[at] + kPriorWeight);
  if (&history == &all_) return all;
  return (history.accepted[at] + kPriorWeight * all) / (history.tried[at] + kPriorWeight);
}

double DraftLength::pass_cost(int64_t num_drafting, int64_t count) const {
  return num_drafting == 0 ? 0 : passes_.estimate(num_drafting * (kMaxDrafts + 1) + count);
}

std::vector<DraftLength::Gain> DraftLength::sorted_gains(std::span<const DraftCandidate> candidates) const {
  std::vector<Gain> gains;
  for (size_t i = 0; i < candidates.size(); ++i) {
    double chance = 1;
    for (int32_t length = 1; length <= std::min(candidates[i].limit, max_drafts_); ++length) {
      chance *= acceptance(*candidates[i].history, length - 1);
      gains.push_back({chance, i, length});
    }
  }
  std::stable_sort(gains.begin(), gains.end(), [](const Gain& a, const Gain& b) {
    return a.tokens > b.tokens || (a.tokens == b.tokens && a.length < b.length);
  });
  return gains;
}

void DraftLength::choose_fixed(std::span<DraftCandidate> candidates, int64_t rows_left) const {
  for (DraftCandidate& candidate : candidates) {
    const int64_t most = std::min<int64_t>(std::min(candidate.limit, max_drafts_), rows_left);
    candidate.chosen = static_cast<int32_t>(std::max<int64_t>(most, 0));
    rows_left -= candidate.chosen;
  }
}

void DraftLength::choose(std::span<DraftCandidate> candidates, int64_t num_requests, int64_t rows_left) {
  for (DraftCandidate& candidate : candidates) candidate.chosen = 0;
  if (max_drafts_ == 0 || candidates.empty() || rows_left <= 0) return;
  if (!is_adaptive_) return choose_fixed(candidates, rows_left);
  if (!steps_.is_known(num_requests)) return;  // measure what drafts have to beat
  const std::vector<Gain> gains = sorted_gains(candidates);
  const double plain_rate = static_cast<double>(num_requests) / steps_.estimate(num_requests);
  std::vector<int32_t> lengths(candidates.size(), 0);
  double tokens = static_cast<double>(num_requests);
  double best_rate = 0;
  double best_loss_ns = 0;
  size_t best = 0;
  int64_t num_drafting = 0;
  int32_t count = 0;
  for (size_t n = 1; n <= gains.size() && static_cast<int64_t>(n) <= rows_left; ++n) {
    const Gain& gain = gains[n - 1];
    num_drafting += lengths[gain.candidate] == 0 ? 1 : 0;
    lengths[gain.candidate] = gain.length;
    count = std::max(count, gain.length);
    tokens += gain.tokens;
    const double ns =
        steps_.estimate(num_requests + static_cast<int64_t>(n)) + pass_cost(num_drafting, count);
    if (tokens / ns <= best_rate) continue;
    best_rate = tokens / ns;
    best_loss_ns = ns - tokens / plain_rate;
    best = n;
  }
  if (loss_ns_ + std::max(best_loss_ns, 0.0) > kLossShare * decode_ns_) return;
  const double ratio = best_rate / plain_rate;
  if (ratio < kClearGain && steps_since_plain_ >= kRefreshSteps) return;
  for (size_t n = 0; n < best; ++n) candidates[gains[n].candidate].chosen = gains[n].length;
}

void DraftLength::observe_step(const StepCost& cost) {
  if (!is_adaptive_ || max_drafts_ == 0 || cost.num_requests == 0) return;
  steps_.observe(cost.rows, cost.forward_ns);
  if (cost.num_drafting > 0) {
    passes_.observe(cost.num_drafting * (kMaxDrafts + 1) + cost.draft_count, cost.draft_ns);
    ++steps_since_plain_;
  } else {
    steps_since_plain_ = 0;
  }
  const double ns = cost.forward_ns + cost.draft_ns;
  decode_ns_ += ns;
  if (cost.num_drafting == 0) return;
  const double plain_ns = steps_.estimate(cost.num_requests) / static_cast<double>(cost.num_requests);
  loss_ns_ = std::max(loss_ns_ + ns - static_cast<double>(cost.num_tokens) * plain_ns, 0.0);
}

void DraftLength::observe_acceptance(DraftHistory& history, int64_t num_drafted, int64_t num_accepted,
                                     bool is_cut) {
  history.observe(num_drafted, num_accepted, is_cut, kRequestDecay);
  all_.observe(num_drafted, num_accepted, is_cut, kAllDecay);
}

}  // namespace rorqual::runtime
