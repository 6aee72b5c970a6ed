// SPDX-License-Identifier: Apache-2.0
// Row ranges against a model of the dependencies themselves: a row's window records at a layer are right when
// the rows below were, and a row is right when all records of its window are.
#include "model/row_ranges.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>

namespace rorqual::model {
namespace {

RowDemand demand_of(RowRun rows, std::span<const int64_t> targets, std::span<const int32_t> logits = {}) {
  return {rows, targets.empty(), targets, logits};
}

TEST(RowRanges, TheReleaseSkipsAsTheContractSays) {
  const RowRule rule = make_row_rule(release_config(), false, 0);
  EXPECT_EQ(rule.first_layer, 20);
  EXPECT_EQ(rule.extra, 0);
  EXPECT_EQ(cone_rows(rule, 20), 2414);
  EXPECT_EQ(cone_rows(rule, 21), 2287);
  EXPECT_EQ(cone_rows(rule, 39), 1);
  EXPECT_EQ(cone_rows(make_row_rule(release_config(), true, 0), 0), 4954);
  EXPECT_EQ(replay_rows(release_config()), 5081);
  EXPECT_EQ(replay_cost(release_config()), 2478);
}

TEST(RowRanges, LayersBelowTheLastSourceRunEveryRow) {
  const RowRule rule{.num_layers = 8, .window = 64, .first_layer = 4};
  const int64_t targets[] = {10'000};
  EXPECT_EQ(whole_rows(rule, 3, demand_of({0, 512}, targets)), (std::vector<RowRun>{{0, 512}}));
  EXPECT_TRUE(whole_rows(rule, 4, demand_of({0, 512}, targets)).empty());
}

TEST(RowRanges, RunsOfSeveralTargetsAreCutAtTheSliceAndMergedWhereTheirWindowsOverlap) {
  const RowRule rule{.num_layers = 8, .window = 64, .first_layer = 4};
  const int64_t targets[] = {50, 120, 128, 900, 1024, 1100};
  const int32_t logits[] = {500};
  // The cone of the last but one layer is 64 rows; the slice ends inside the last target's.
  EXPECT_EQ(whole_rows(rule, 6, demand_of({32, 1050}, targets, logits)),
            (std::vector<RowRun>{{32, 128}, {469, 533}, {836, 1050}}));
  EXPECT_EQ(whole_rows(rule, 7, demand_of({32, 1050}, targets, logits)),
            (std::vector<RowRun>{{49, 50}, {119, 128}, {532, 533}, {899, 900}, {1023, 1024}}));
}

TEST(RowRanges, WithoutTargetsNothingIsLeftOut) {
  const RowRule rule{.num_layers = 4, .window = 8, .first_layer = 1};
  EXPECT_EQ(whole_rows(rule, 3, demand_of({5, 90}, {})), (std::vector<RowRun>{{5, 90}}));
}

TEST(RowRanges, TrimKeepsTheLastRowsBeforeTheTargetWhateverIsRead) {
  const RowRule rule{.num_layers = 8, .window = 64, .first_layer = 4, .trim_rows = 32};
  const int64_t targets[] = {300};
  const int32_t none[] = {0};
  const int32_t two[] = {298, 299};
  for (const int64_t layer : {4, 5, 7}) {
    EXPECT_EQ(whole_rows(rule, layer, demand_of({0, 300}, targets, std::span(none, 0))),
              (std::vector<RowRun>{{268, 300}}));
    EXPECT_EQ(whole_rows(rule, layer, demand_of({0, 300}, targets, two)), (std::vector<RowRun>{{268, 300}}));
    EXPECT_EQ(whole_rows(rule, layer, demand_of({280, 290}, targets)), (std::vector<RowRun>{{280, 290}}));
  }
  const int32_t early[] = {100};
  EXPECT_EQ(whole_rows(rule, 5, demand_of({0, 300}, targets, early)),
            (std::vector<RowRun>{{69, 101}, {268, 300}}));
}

/// Which window records are right, layer by layer, as a sequence grows.
class Dependencies {
 public:
  Dependencies(const RowRule& rule, int64_t length, bool is_replay, int64_t begin)
      : rule_(rule), begin_(is_replay ? begin : 0), records_(static_cast<size_t>(rule.num_layers)) {
    for (auto& layer : records_) layer.assign(static_cast<size_t>(length), false);
    outputs_.assign(static_cast<size_t>(length), false);
  }

  /// Runs one slice by the plan. Counts whole rows per layer.
  void run(const RowDemand& demand) {
    std::vector<RowRun> entering{demand.rows};
    for (int64_t layer = 0; layer < rule_.num_layers; ++layer) {
      const auto whole = whole_rows(rule_, layer, demand);
      for (const RowRun& run : entering) {
        for (int64_t p = run.begin; p < run.end; ++p) records_[at(layer)][at(p)] = true;
      }
      for (const RowRun& run : whole) {
        const bool is_inside = std::any_of(entering.begin(), entering.end(), [&](const RowRun& e) {
          return e.begin <= run.begin && run.end <= e.end;
        });
        ASSERT_TRUE(is_inside) << "layer " << layer << " rows from " << run.begin;
        for (int64_t p = run.begin; p < run.end; ++p) {
          ++whole_rows_;
          ASSERT_TRUE(is_complete(layer, p + 1 - rule_.window, p + 1))
              << "layer " << layer << " row " << p << " of " << demand.rows.begin << "…" << demand.rows.end;
          if (layer + 1 == rule_.num_layers) outputs_[at(p)] = true;
        }
      }
      entering = whole;
    }
  }

  bool is_complete(int64_t layer, int64_t from, int64_t to) const {
    const auto& layer_records = records_[at(layer)];
    return std::all_of(layer_records.begin() + std::max<int64_t>(from, 0), layer_records.begin() + to,
                       [](bool is_right) { return is_right; });
  }

  bool has_output(int64_t row) const { return outputs_[at(row)]; }

  int64_t num_whole_rows() const { return whole_rows_; }

 private:
  static size_t at(int64_t i) { return static_cast<size_t>(i); }

  RowRule rule_;
  int64_t begin_;
  std::vector<std::vector<bool>> records_;
  std::vector<bool> outputs_;
  int64_t whole_rows_ = 0;
};

struct Case {
  RowRule rule;
  int64_t length = 0;
  std::vector<int64_t> targets;
  std::vector<int64_t> logits;  // rows
};

Case make_case(std::mt19937_64& random) {
  const auto below = [&](int64_t n) { return static_cast<int64_t>(random() % static_cast<uint64_t>(n)); };
  constexpr int64_t kWindows[] = {2, 8, 40, 64, 96, 128};
  Case c;
  c.rule.num_layers = 2 + below(7);
  c.rule.first_layer = below(c.rule.num_layers);
  c.rule.window = kWindows[below(6)];
  if (c.rule.window == 96) c.rule.extra = 32;
  c.length = 1 + below(1500);
  for (int64_t i = below(4); i > 0; --i) c.targets.push_back(1 + below(c.length));
  c.targets.push_back(c.length);
  for (int64_t i = below(4); i > 0; --i) c.logits.push_back(below(c.length));
  for (auto* list : {&c.targets, &c.logits}) {
    std::sort(list->begin(), list->end());
    list->erase(std::unique(list->begin(), list->end()), list->end());
  }
  return c;
}

TEST(RowRanges, RandomChunksTargetsAndLogitsAlwaysFindTheirWindows) {
  const uint64_t seed = std::random_device{}();
  SCOPED_TRACE(testing::Message() << "seed " << seed);
  std::mt19937_64 random(seed);
  for (int round = 0; round < 300; ++round) {
    const Case c = make_case(random);
    Dependencies run(c.rule, c.length, false, 0);
    const auto most = static_cast<uint64_t>(round % 3 == 0 ? c.length : 1 + round % 200);
    for (int64_t done = 0; done < c.length;) {
      const int64_t end = std::min(c.length, done + 1 + static_cast<int64_t>(random() % most));
      std::vector<int64_t> targets;
      std::copy_if(c.targets.begin(), c.targets.end(), std::back_inserter(targets),
                   [&](int64_t t) { return t > done; });
      std::vector<int32_t> logits;
      for (const int64_t row : c.logits) {
        // A row of logits whose cone began before this slice was no target then, unless it is one.
        const int64_t cone = cone_rows(c.rule, c.rule.first_layer) + c.rule.window;
        if (row >= done && row < end && (row - cone >= done || done == 0))
          logits.push_back(static_cast<int32_t>(row - done));
      }
      run.run({{done, end}, false, targets, logits});
      if (HasFatalFailure()) return;
      for (const int32_t offset : logits) ASSERT_TRUE(run.has_output(done + offset));
      for (const int64_t target : c.targets) {
        if (target <= done || target > end) continue;
        for (int64_t l = 0; l < c.rule.num_layers; ++l) {
          ASSERT_TRUE(run.is_complete(l, target - c.rule.window - c.rule.extra, target))
              << "window " << c.rule.window << " layer " << l << " target " << target;
        }
      }
      done = end;
    }
    ASSERT_TRUE(run.has_output(c.length - 1));
  }
}

TEST(RowRanges, NoRowIsRunThatTheLastLogitsDoNotNeed) {
  for (const int64_t first : {0, 2, 4}) {
    const RowRule rule{.num_layers = 5, .window = 8, .first_layer = first};
    constexpr int64_t kLength = 200;
    const int64_t targets[] = {kLength};
    Dependencies run(rule, kLength, false, 0);
    run.run(demand_of({0, kLength}, targets));
    // Backwards: the rows that layer l must run whole are the window of those above it.
    int64_t wanted = 0, reach = 1;
    for (int64_t l = rule.num_layers - 1; l >= 0; --l) {
      wanted += l < first ? kLength : reach;
      reach += rule.window - 1;
    }
    EXPECT_EQ(run.num_whole_rows(), wanted);
  }
}

TEST(RowRanges, AReplayThatBeginsReplayRowsBeforeItsTargetIsComplete) {
  Config config = release_config();
  for (const int64_t window : {int64_t{8}, int64_t{64}, int64_t{100}, int64_t{128}}) {
    config.num_hidden_layers = 6;
    config.sliding_window = window;
    const RowRule rule = make_row_rule(config, true, 0);
    const int64_t target = 2048, begin = target - replay_rows(config);
    Dependencies run(rule, target, true, begin);
    const int64_t targets[] = {target};
    for (int64_t done = begin; done < target; done += 100) {
      run.run(demand_of({done, std::min(target, done + 100)}, targets));
      if (HasFatalFailure()) return;
    }
    for (int64_t l = 0; l < rule.num_layers; ++l) {
      EXPECT_TRUE(run.is_complete(l, target - window - rule.extra, target)) << window << " " << l;
    }
  }
}

}  // namespace
}  // namespace rorqual::model
