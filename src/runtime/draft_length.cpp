// SPDX-License-Identifier: Apache-2.0
// The choice of draft lengths by expected tokens per time.
#include "runtime/draft_length.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <iterator>

namespace rorqual::runtime {

namespace {

constexpr double kRequestDecay = 0.85, kAllDecay = 0.98, kBinDecay = 0.995, kRecentDecay = 0.95;
constexpr double kPriorWeight = 1.5;      // of all requests' drafts against one request's
constexpr double kFirstGuess = 0.75;      // acceptance before anything was measured
constexpr double kBinPrior = 6.0;         // weight of the confidence itself against what became of it
constexpr double kLeastChance = 0.1;      // of a draft that a pass is asked for
constexpr double kCostWeight = 0.15;      // of a new measurement
constexpr double kOutlier = 3.0;          // a measurement counts as at most so many means
constexpr double kUnknownRowShare = 0.1;  // of one row's step, per row more, before two sizes were measured
constexpr double kClearGain = 1.5;        // above it no refresh is due
constexpr int64_t kKnownCount = 2;
constexpr double kCloseSizes = 1.25;  // ratio of sizes between which interpolation is trusted

}  // namespace

void DraftHistory::observe(int64_t num_verified, int64_t num_accepted, bool is_cut, double decay) {
  const int64_t num_judged = std::min(num_accepted + (is_cut ? 0 : 1), num_verified);
  for (int64_t i = 0; i < kMaxDrafts; ++i) {  // what is not tried any more fades
    const auto at = static_cast<size_t>(i);
    judged_at[at] = judged_at[at] * decay + (i < num_judged ? 1 : 0);
    accepted_at[at] = accepted_at[at] * decay + (i < std::min(num_judged, num_accepted) ? 1 : 0);
  }
  if (is_cut) return;
  passes = passes * decay + 1;
  verified = verified * decay + static_cast<double>(num_verified);
  accepted = accepted * decay + static_cast<double>(num_accepted);
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

double DraftLength::chance(float confidence) const {
  const double raw = 1 / (1 + std::exp(-static_cast<double>(confidence)));
  const Bin& bin = bins_[std::min(static_cast<size_t>(raw * kBins), kBins - 1)];
  return (bin.accepted + kBinPrior * raw) / (bin.judged + kBinPrior);
}

/// Drafts to ask for: as long as one is right now and then.
int32_t DraftLength::worthwhile_count(const DraftHistory& history, int32_t limit) const {
  double chain = 1;
  for (int32_t i = 0; i < limit; ++i) {
    const auto at = static_cast<size_t>(i);
    const double all =
        (all_.accepted_at[at] + kPriorWeight * kFirstGuess) / (all_.judged_at[at] + kPriorWeight);
    chain *= (history.accepted_at[at] + kPriorWeight * all) / (history.judged_at[at] + kPriorWeight);
    if (chain < kLeastChance) return std::max(i, 1);
  }
  return limit;
}

DraftLength::Yield DraftLength::expected(const DraftHistory& history, int32_t limit) const {
  double first_tokens = 0;
  double chain = 1;
  for (int32_t i = 0; i < limit; ++i) first_tokens += chain *= kFirstGuess;
  const double all_tokens = (all_.accepted + kPriorWeight * first_tokens) / (all_.passes + kPriorWeight);
  const double all_rows = (all_.verified + kPriorWeight * limit) / (all_.passes + kPriorWeight);
  Yield yield;
  yield.tokens = (history.accepted + kPriorWeight * all_tokens) / (history.passes + kPriorWeight);
  yield.rows = (history.verified + kPriorWeight * all_rows) / (history.passes + kPriorWeight);
  yield.tokens = std::min<double>(yield.tokens, limit);
  yield.rows = std::min<double>(yield.rows, limit);
  return yield;
}

double DraftLength::pass_cost(int64_t num_drafting, int64_t count) const {
  return num_drafting == 0 ? 0 : passes_.estimate(num_drafting * (kMaxDrafts + 1) + count);
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

  struct Entry {
    size_t candidate = 0;
    int32_t count = 0;
    Yield yield;
  };

  std::vector<Entry> entries;
  for (size_t i = 0; i < candidates.size(); ++i) {
    const int32_t limit = std::min(candidates[i].limit, max_drafts_);
    if (limit <= 0) continue;
    const int32_t count = worthwhile_count(*candidates[i].history, limit);
    entries.push_back({i, count, expected(*candidates[i].history, count)});
  }
  std::stable_sort(entries.begin(), entries.end(),
                   [](const Entry& a, const Entry& b) { return a.yield.tokens > b.yield.tokens; });
  const auto base = static_cast<double>(num_requests);
  const double plain_rate = base / steps_.estimate(num_requests);
  double tokens = base, rows = base;
  double best_rate = 0, best_loss_ns = 0;
  int64_t made = 0;
  int32_t count = 0;
  size_t best = 0;
  for (size_t n = 0; n < entries.size(); ++n) {
    entries[n].count = static_cast<int32_t>(std::min<int64_t>(entries[n].count, rows_left - made));
    if (entries[n].count <= 0) break;
    made += entries[n].count;
    count = std::max(count, entries[n].count);
    tokens += entries[n].yield.tokens;
    rows += entries[n].yield.rows;
    const double ns = steps_.estimate(std::llround(rows)) + pass_cost(static_cast<int64_t>(n) + 1, count);
    if (tokens / ns <= best_rate) continue;
    best_rate = tokens / ns;
    best_loss_ns = ns - tokens / plain_rate;
    best = n + 1;
  }
  if (best == 0) return;
  if (loss_ns_ + std::max(best_loss_ns, 0.0) > kLossShare * decode_ns_ + credit_ns_) return;
  if (best_rate < kClearGain * plain_rate && steps_since_plain_ >= kRefreshSteps) return;
  for (size_t n = 0; n < best; ++n) candidates[entries[n].candidate].chosen = entries[n].count;
}

int32_t DraftLength::keep(std::span<const float> confidence, int64_t num_requests, int64_t num_made) const {
  const auto all = static_cast<int32_t>(confidence.size());
  if (!is_adaptive_ || num_made <= num_requests) return all;
  const double plain_ns = steps_.estimate(num_requests);
  const double row_ns = (steps_.estimate(num_made) - plain_ns) / static_cast<double>(num_made - num_requests);
  double rate = static_cast<double>(num_requests) / plain_ns;
  if (recent_ns_ > 0) rate = std::max(rate, recent_tokens_ / recent_ns_);
  double chain = 1;
  for (int32_t i = 0; i < all; ++i) {
    chain *= chance(confidence[static_cast<size_t>(i)]);
    if (chain < rate * row_ns) return i;
  }
  return all;
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
  recent_ns_ = recent_ns_ * kRecentDecay + ns;
  recent_tokens_ = recent_tokens_ * kRecentDecay + static_cast<double>(cost.num_tokens);
  if (credit_ns_ == 0) credit_ns_ = kLossSteps * cost.forward_ns;
  if (cost.num_drafting == 0) return;
  const double plain_ns = steps_.estimate(cost.num_requests) / static_cast<double>(cost.num_requests);
  loss_ns_ = std::max(loss_ns_ + ns - static_cast<double>(cost.num_tokens) * plain_ns, 0.0);
}

void DraftLength::observe_drafts(DraftHistory& history, const DraftResult& result) {
  history.observe(result.num_verified, result.num_accepted, result.is_cut, kRequestDecay);
  all_.observe(result.num_verified, result.num_accepted, result.is_cut, kAllDecay);
  const int64_t num_judged = std::min(result.num_accepted + (result.is_cut ? 0 : 1), result.num_verified);
  for (Bin& bin : bins_) {  // also of those that were not worth a try: opinions fade
    bin.judged *= kBinDecay;
    bin.accepted *= kBinDecay;
  }
  for (int64_t i = 0; i < num_judged; ++i) {
    const double raw = 1 / (1 + std::exp(-static_cast<double>(result.confidence[static_cast<size_t>(i)])));
    Bin& bin = bins_[std::min(static_cast<size_t>(raw * kBins), kBins - 1)];
    bin.judged += 1;
    bin.accepted += i < result.num_accepted ? 1 : 0;
  }
}

}  // namespace rorqual::runtime
