// SPDX-License-Identifier: Apache-2.0
// Views and activations of one running step. Private to model/: forward.cpp, step_rows.cpp and draft.cpp.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <vector>

#include "kernels/kernels.h"
#include "model/engram_rows.h"
#include "model/model.h"
#include "model/row_ranges.h"

namespace rorqual::model {

/// What an index source publishes for the layers above it.
struct Selection {
  int32_t* entries = nullptr;  // [T, index_topk]
  int32_t* count = nullptr;    // [T]
  float* gap = nullptr;        // [T], only with a probe
  kernels::CandidateList candidates;
};

struct Model::Step {
  /// One slice: its rows as they came, and what is read of them later.
  struct SliceRows {
    int32_t row_begin = 0;  // of its first row, before any was left out
    RowRule rule;
    RowDemand demand;
    bool is_replay = false;
    bool is_trimmed = false;  // its windows may be cut off
  };

  /// Positions [begin, end) of a run that stay.
  struct Kept {
    size_t run = 0;
    int64_t begin = 0, end = 0;
  };

  // plan. A run is a piece of a slice without gaps: rows, states, slice_of_run, windows and compressed have
  // one entry for each. Those of replay slices come last.
  std::vector<int32_t> token_ids, sequence_of_row;
  std::vector<int64_t> positions;
  std::vector<uint8_t> is_image;
  std::vector<int32_t> origin;  // [T] row number before any was left out
  std::vector<kernels::SequenceRows> rows;
  std::vector<SequenceState*> states;
  std::vector<size_t> slice_of_run;
  std::vector<SliceRows> slices;          // normal ones, then replays
  std::vector<size_t> position_of_slice;  // of the caller's list, in `slices`
  kernels::StepPlan plan;
  int64_t num_rows = 0;
  bool is_draft = false;

  // streams and mixes; index 0 belongs to the attention sublayer, 1 to the FFN
  float* streams = nullptr;
  std::array<float*, 2> pre{}, post{}, comb{};
  float* x = nullptr;
  float* y = nullptr;
  bool post_pending = false;  // y of the last FFN is not in the streams yet

  // attention
  kernels::RopeAngles window_angles, compressed_angles;
  float* qr = nullptr;
  float* q = nullptr;
  float* attended = nullptr;
  std::byte* window_records = nullptr;
  Selection selection;
  std::vector<kernels::WindowCache> windows;
  std::vector<kernels::CompressedCache> compressed;

  // Engram and drafts
  std::vector<int64_t> hash_rows;  // [T, engram layers, columns], by origin
  std::vector<std::vector<int32_t>> engram_tokens;
  std::vector<EngramRows> engram;              // [engram layers]: buffers of rows that come from disk
  std::unique_ptr<EngramReader::Batch> reads;  // of those rows; null without any
  float* taps = nullptr;                       // [T, targets, D]

  // outputs kept for a probe
  float* attn_out = nullptr;
  float* streams_in = nullptr;
  float* pre_in = nullptr;
  float* engram_gate = nullptr;
  int32_t* router_index = nullptr;
  float* router_weight = nullptr;
  float* router_gap = nullptr;

  void allocate(const Config& config, const kernels::CacheFormat& format, kernels::Scratch& scratch,
                bool with_trace, bool with_taps = false);

  /// Adds the rows of one slice as one run.
  void add_slice(const StepSlice& slice, SequenceState& sequence, const SliceRows& plan);

  /// Points `plan` at the lists above.
  void update_plan();

  /// Normal runs and their rows as a plan of their own (they come first).
  kernels::StepPlan normal_plan() const;

  /// What `layer` runs whole of the rows that are left, run by run. False: all of it, and `kept` is empty.
  bool find_kept(int64_t layer, std::vector<Kept>& kept) const;

  /// Row numbers, as they came, of the rows that enter `layer`.
  std::vector<int32_t> rows_entering(int64_t layer) const;

  /// Rows whose windows earlier steps left out would be wrong, and everything after them. `kept` empty: all
  /// rows.
  Status check_windows(int64_t layer, const std::vector<Kept>& kept) const;

  /// Windows of `kept` pieces: records before a piece are copied out of the step's and the sequences'.
  std::vector<kernels::WindowCache> windows_before(const std::vector<Kept>& kept,
                                                   const kernels::CacheFormat& format,
                                                   kernels::Scratch& scratch) const;

  /// Leaves out all other rows: everything that layers above read moves to the front.
  void keep(const Config& config, const std::vector<Kept>& kept);
};

}  // namespace rorqual::model
