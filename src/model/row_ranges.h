// SPDX-License-Identifier: Apache-2.0
// Which rows of a slice a layer has to run so that everything read later is complete: logits rows, and the
// windows before given positions. Row p of layer l reads layer l's window records of p-W+1 … p, and those
// need the rows below; so each layer downwards adds W-1 rows to the cone (docs/numerics.md, "Window KV and
// prefix reuse").
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "model/config.h"

namespace rorqual::model {

/// Positions [begin, end).
struct RowRun {
  int64_t begin = 0, end = 0;
  bool operator==(const RowRun&) const = default;
};

/// What the cone of a sequence looks like.
struct RowRule {
  int64_t num_layers = 0;
  int64_t window = 0;
  /// First layer that may leave rows out: the last KV source (it still writes window, compressed and index
  /// records of every row), or 0 for a replay, whose compressed entries exist.
  int64_t first_layer = 0;
  /// Rows beside the window that must be complete before a target, so that whole pages are (0 when the window
  /// is one page or a multiple of pages).
  int64_t extra = 0;
  /// Lossy replay trim: rows that the layers from first_layer on run before a target; 0 = exact.
  int64_t trim_rows = 0;
};

/// The rule of a model. `is_replay`: first_layer is 0.
RowRule make_row_rule(const Config& config, bool is_replay, int64_t trim_rows);

/// A slice and what is read after it.
struct RowDemand {
  RowRun rows;                              // the slice
  bool is_everything = false;               // every row through every layer
  std::span<const int64_t> window_targets;  // ascending; complete windows before them; also beyond the slice
  std::span<const int32_t> logit_offsets;   // ascending, counted from rows.begin
};

/// Rows before a target that `layer` runs whole, its own attention included.
int64_t cone_rows(const RowRule& rule, int64_t layer);

/// Rows of the slice that `layer` runs whole, ascending, at least a window apart (trimmed: not adjacent).
/// What enters layer l > first_layer is what layer l - 1 ran whole; its first rows only contribute window
/// records.
std::vector<RowRun> whole_rows(const RowRule& rule, int64_t layer, const RowDemand& demand);

/// Rows that an exact replay needs before a target, the first layer's window records included.
int64_t replay_rows(const Config& config);

/// What such a replay costs, in rows through all layers, rounded up.
int64_t replay_cost(const Config& config);

}  // namespace rorqual::model
