// SPDX-License-Identifier: Apache-2.0
#include "model/row_ranges.h"

#include <algorithm>

#include "model/pages.h"

namespace rorqual::model {
namespace {

/// Adds [begin, end) to ascending runs; begin may not lie before the last run's begin. Runs that are at most
/// `gap` apart become one.
void add_run(std::vector<RowRun>& runs, RowRun run, int64_t gap) {
  if (run.begin >= run.end) return;
  if (!runs.empty() && run.begin <= runs.back().end + gap) {
    runs.back().end = std::max(runs.back().end, run.end);
  } else {
    runs.push_back(run);
  }
}

}  // namespace

RowRule make_row_rule(const Config& config, bool is_replay, int64_t trim_rows) {
  RowRule rule;
  rule.num_layers = config.num_hidden_layers;
  rule.window = config.sliding_window;
  if (!is_replay) {
    for (const int64_t layer : config.kv_source_layer_ids)
      rule.first_layer = std::max(rule.first_layer, layer);
  }
  if (rule.window > kPageTokens) rule.extra = (kPageTokens - rule.window % kPageTokens) % kPageTokens;
  rule.trim_rows = trim_rows;
  return rule;
}

int64_t cone_rows(const RowRule& rule, int64_t layer) {
  if (rule.trim_rows > 0) return rule.trim_rows;
  return 1 + (rule.window - 1) * (rule.num_layers - 1 - layer) + rule.extra;
}

std::vector<RowRun> whole_rows(const RowRule& rule, int64_t layer, const RowDemand& demand) {
  if (demand.is_everything || layer < rule.first_layer) return {demand.rows};
  const int64_t cone = cone_rows(rule, layer);
  // The rows between two runs whose windows overlap are complete as well, and cheaper to run than to avoid.
  const int64_t gap = rule.trim_rows > 0 ? 0 : rule.window - 1;
  std::vector<RowRun> runs;
  size_t window = 0, logits = 0;
  int64_t trimmed_from = 0, trimmed_to = 0;  // rows that the trim of the last window target keeps
  while (window < demand.window_targets.size() || logits < demand.logit_offsets.size()) {
    const bool has_row = logits < demand.logit_offsets.size();
    const int64_t row = has_row ? demand.rows.begin + demand.logit_offsets[logits] : 0;
    // A row of logits asks for what lies before its successor. Under a trim, one that the next window target
    // keeps anyway asks for nothing: what is kept depends on the targets alone, not on how many rows are
    // read.
    bool is_window_next = !has_row;
    if (has_row && window < demand.window_targets.size()) {
      const int64_t target = demand.window_targets[window];
      is_window_next = rule.trim_rows > 0 ? target - cone <= row : target <= row + 1;
    }
    if (is_window_next) {
      const int64_t target = demand.window_targets[window++];
      trimmed_from = target - cone;
      trimmed_to = target;
      add_run(runs, {std::max(demand.rows.begin, target - cone), std::min(demand.rows.end, target)}, gap);
      continue;
    }
    ++logits;
    if (rule.trim_rows > 0 && row >= trimmed_from && row < trimmed_to) continue;
    add_run(runs, {std::max(demand.rows.begin, row + 1 - cone), std::min(demand.rows.end, row + 1)}, gap);
  }
  return runs;
}

int64_t replay_rows(const Config& config) {
  const RowRule rule = make_row_rule(config, true, 0);
  return 1 + (rule.window - 1) * rule.num_layers + rule.extra;
}

int64_t replay_cost(const Config& config) {
  const RowRule rule = make_row_rule(config, true, 0);
  int64_t rows = 0;
  for (int64_t layer = 0; layer < rule.num_layers; ++layer) rows += cone_rows(rule, layer);
  return (rows + rule.num_layers - 1) / rule.num_layers;
}

}  // namespace rorqual::model
