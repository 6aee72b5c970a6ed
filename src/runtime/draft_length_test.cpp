// SPDX-License-Identifier: Apache-2.0
#include "runtime/draft_length.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>
#include <vector>

namespace rorqual::runtime {
namespace {

/// Decoding with given costs and a given acceptance: counts what a run of the chooser takes.
struct Machine {
  explicit Machine(uint64_t seed) : random(seed) {}

  double row_share = 0.1;   // of a step with one row, per row more
  double pass_share = 0.2;  // of a step with one row
  double acceptance = 0.8;  // of every draft
  double noise = 0.05;
  bool is_informed = false;  // the model's confidence tells which drafts are right
  int32_t max_drafts = 5;
  size_t num_requests = 1;
  std::mt19937_64 random;
  std::vector<DraftHistory> histories = std::vector<DraftHistory>(64);
  double total_ns = 0, plain_ns = 0;
  int64_t num_tokens = 0, num_steps = 0, num_drafts = 0;

  double uniform() { return static_cast<double>(random() >> 11) * 0x1p-53; }

  double step_ns(size_t rows) const { return 1e6 * (1 + row_share * static_cast<double>(rows - 1)); }

  double jitter() { return 1 + noise * (2 * uniform() - 1); }

  void step(DraftLength& chooser) {
    std::vector<DraftCandidate> candidates;
    for (size_t i = 0; i < num_requests; ++i) candidates.push_back({&histories[i], max_drafts, 0});
    chooser.choose(candidates, static_cast<int64_t>(num_requests), 1000);
    StepCost cost;
    cost.num_requests = static_cast<int64_t>(num_requests);
    cost.rows = cost.num_requests;
    int64_t num_made = cost.num_requests;
    for (const DraftCandidate& candidate : candidates) num_made += candidate.chosen;
    for (size_t i = 0; i < num_requests; ++i) {
      const int32_t count = candidates[i].chosen;
      cost.num_tokens += 1;
      if (count == 0) continue;
      std::vector<double> chances;
      std::vector<float> confidence;
      for (int32_t j = 0; j < count; ++j) {
        chances.push_back(is_informed ? (uniform() < acceptance ? 0.98 : 0.02) : acceptance);
        const double said = std::clamp(chances.back() + 0.1 * (uniform() - 0.5), 0.01, 0.99);
        confidence.push_back(static_cast<float>(std::log(said / (1 - said))));
      }
      const int32_t kept = chooser.keep(confidence, cost.num_requests, num_made);
      int64_t accepted = 0;
      while (accepted < kept && uniform() < chances[static_cast<size_t>(accepted)]) ++accepted;
      chooser.observe_drafts(histories[i], {confidence, kept, accepted, false});
      ++cost.num_drafting;
      cost.draft_count = std::max<int64_t>(cost.draft_count, count);
      cost.rows += kept;
      cost.num_tokens += accepted;
      num_drafts += count;
    }
    cost.forward_ns = step_ns(static_cast<size_t>(cost.rows)) * jitter();
    if (cost.num_drafting > 0) cost.draft_ns = pass_share * 1e6 * jitter();
    chooser.observe_step(cost);
    total_ns += cost.forward_ns + cost.draft_ns;
    num_tokens += cost.num_tokens;
    plain_ns +=
        static_cast<double>(cost.num_tokens) * step_ns(num_requests) / static_cast<double>(num_requests);
    ++num_steps;
  }

  /// Speed against decoding without drafts.
  double speed() const { return plain_ns / total_ns; }

  double drafts_per_step() const { return static_cast<double>(num_drafts) / static_cast<double>(num_steps); }
};

TEST(DraftLength, DraftsWhereTheyPayAndComesCloseToTheBestFixedLength) {
  for (const double acceptance : {0.6, 0.75, 0.9}) {
    Machine adaptive(3);
    adaptive.acceptance = acceptance;
    DraftLength chooser(5, true);
    for (int i = 0; i < 3000; ++i) adaptive.step(chooser);
    double best = 0;
    for (int32_t length = 1; length <= 5; ++length) {
      Machine fixed(4);
      fixed.acceptance = acceptance;
      DraftLength always(length, false);
      for (int i = 0; i < 3000; ++i) fixed.step(always);
      best = std::max(best, fixed.speed());
    }
    EXPECT_GT(adaptive.speed(), 0.95 * best) << acceptance;
    EXPECT_GT(adaptive.speed(), 1.0) << acceptance;
  }
}

TEST(DraftLength, IsNeverMuchSlowerThanNoDrafts) {
  for (const double acceptance : {0.0, 0.1, 0.3, 0.5}) {
    for (const double row_share : {0.1, 0.4, 0.9}) {
      for (const size_t num_requests : {size_t{1}, size_t{7}}) {
        Machine machine(5);
        machine.acceptance = acceptance;
        machine.row_share = row_share;
        machine.num_requests = num_requests;
        machine.pass_share = 0.3;
        DraftLength chooser(7, true);
        for (int i = 0; i < 4000; ++i) machine.step(chooser);
        EXPECT_GT(machine.speed(), 0.97) << acceptance << " " << row_share << " " << num_requests;
      }
    }
  }
}

TEST(DraftLength, ShortRunsAreNotMuchSlowerEither) {
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    Machine machine(seed);
    machine.acceptance = 0.05;
    machine.row_share = 0.3;
    DraftLength chooser(5, true);
    for (int i = 0; i < 150; ++i) machine.step(chooser);
    EXPECT_GT(machine.speed(), 0.96) << seed;
  }
}

TEST(DraftLength, StopsWhenTextTurnsHardAndComesBackWhenItTurnsEasy) {
  Machine machine(7);
  DraftLength chooser(5, true);
  machine.acceptance = 0.9;
  for (int i = 0; i < 1000; ++i) machine.step(chooser);
  EXPECT_GT(machine.drafts_per_step(), 2.0);
  machine.acceptance = 0.0;
  for (int i = 0; i < 300; ++i) machine.step(chooser);
  machine.num_drafts = machine.num_steps = 0;
  for (int i = 0; i < 2000; ++i) machine.step(chooser);
  EXPECT_LT(machine.drafts_per_step(), 0.5);
  EXPECT_GT(machine.num_drafts, 0) << "it is tried again now and then";
  machine.acceptance = 0.95;
  for (int i = 0; i < 3000; ++i) machine.step(chooser);
  machine.num_drafts = machine.num_steps = 0;
  for (int i = 0; i < 500; ++i) machine.step(chooser);
  EXPECT_GT(machine.drafts_per_step(), 2.0);
}

TEST(DraftLength, ConfidenceSavesTheRowsOfWrongDrafts) {
  for (const double acceptance : {0.5, 0.7}) {
    Machine told(8), untold(8);
    told.acceptance = untold.acceptance = acceptance;
    told.row_share = untold.row_share = 0.4;
    told.is_informed = true;
    DraftLength with(5, true), without(5, true);
    for (int i = 0; i < 3000; ++i) {
      told.step(with);
      untold.step(without);
    }
    EXPECT_GT(told.speed(), 1.02 * untold.speed()) << acceptance;
    EXPECT_GT(told.speed(), 1.0) << acceptance;
  }
}

TEST(DraftLength, ConfidenceThatIsWrongIsFoundOut) {
  DraftLength chooser(4, true);
  DraftHistory history;
  const std::vector<float> sure = {3, 3, 3, 3};
  EXPECT_GT(chooser.chance(3), 0.9);
  for (int i = 0; i < 50; ++i) chooser.observe_drafts(history, {sure, 4, 0, false});
  EXPECT_LT(chooser.chance(3), 0.3);
  EXPECT_GT(chooser.chance(1.5f), 0.7) << "others are judged by themselves";
  const std::vector<float> unsure = {-2, -2};
  for (int i = 0; i < 50; ++i) chooser.observe_drafts(history, {unsure, 2, 2, false});
  EXPECT_GT(chooser.chance(-2), 0.7);
}

TEST(DraftLength, GivesTheRowsToThoseWhoseDraftsAreAccepted) {
  DraftLength chooser(4, true);
  std::vector<DraftHistory> histories(2);
  const std::vector<float> confidence(4, 0.0f);
  for (int i = 0; i < 30; ++i) {
    chooser.observe_drafts(histories[0], {confidence, 4, 4, false});
    chooser.observe_drafts(histories[1], {confidence, 4, 0, false});
    StepCost cost;
    cost.rows = cost.num_requests = cost.num_tokens = 2;
    cost.forward_ns = 1e6;
    chooser.observe_step(cost);
  }
  StepCost drafted;
  drafted.rows = 10;
  drafted.num_requests = 2;
  drafted.num_tokens = 6;
  drafted.num_drafting = 2;
  drafted.draft_count = 4;
  drafted.forward_ns = 1.8e6;
  drafted.draft_ns = 1e5;
  chooser.observe_step(drafted);
  std::vector<DraftCandidate> candidates = {{&histories[0], 4, 0}, {&histories[1], 4, 0}};
  chooser.choose(candidates, 2, 100);
  EXPECT_EQ(candidates[0].chosen, 4);
  EXPECT_EQ(candidates[1].chosen, 0);
  chooser.choose(candidates, 2, 3);  // no more than there is room for
  EXPECT_EQ(candidates[0].chosen, 3);
}

TEST(DraftLength, AFixedLengthIsWhatWasAskedFor) {
  DraftLength chooser(6, false);
  std::vector<DraftHistory> histories(3);
  std::vector<DraftCandidate> candidates = {
      {&histories[0], 6, 0}, {&histories[1], 2, 0}, {&histories[2], 7, 0}};
  chooser.choose(candidates, 3, 100);
  EXPECT_EQ(candidates[0].chosen, 6);
  EXPECT_EQ(candidates[1].chosen, 2);
  EXPECT_EQ(candidates[2].chosen, 6);
  chooser.choose(candidates, 3, 7);
  EXPECT_EQ(candidates[0].chosen + candidates[1].chosen + candidates[2].chosen, 7);
}

TEST(DraftLength, TheEndOfAReplySaysNothingAboutTheDraftsBehindIt) {
  DraftHistory history;
  history.observe(5, 2, true, 0.9);
  EXPECT_EQ(history.judged_at[1], 1.0);
  EXPECT_EQ(history.judged_at[2], 0.0);
  EXPECT_EQ(history.passes, 0.0);
  history.observe(5, 2, false, 0.9);
  EXPECT_EQ(history.judged_at[2], 1.0);
  EXPECT_EQ(history.accepted_at[2], 0.0);
  EXPECT_EQ(history.accepted, 2.0);
}

TEST(CostCurve, InterpolatesAndCarriesOn) {
  CostCurve curve;
  EXPECT_EQ(curve.estimate(4), 0.0);
  curve.observe(2, 100);
  EXPECT_FALSE(curve.is_known(2));
  curve.observe(2, 100);
  EXPECT_TRUE(curve.is_known(2));
  EXPECT_GT(curve.estimate(4), 100.0);
  curve.observe(6, 140);
  EXPECT_DOUBLE_EQ(curve.estimate(4), 120.0);
  EXPECT_DOUBLE_EQ(curve.estimate(8), 160.0);
  EXPECT_FALSE(curve.is_known(4)) << "the sizes around it are far apart";
  curve.observe(6, 140000);
  EXPECT_LT(curve.estimate(6), 300.0) << "an outlier counts little";
}

}  // namespace
}  // namespace rorqual::runtime
