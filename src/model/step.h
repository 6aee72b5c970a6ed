// SPDX-License-Identifier: Apache-2.0
// Views and activations of one running step. Private to model/: forward.cpp and draft.cpp.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "kernels/kernels.h"
#include "model/model.h"

namespace rorqual::model {

/// What an index source publishes for the layers above it.
struct Selection {
  int32_t* entries = nullptr;  // [T, index_topk]
  int32_t* count = nullptr;    // [T]
  float* gap = nullptr;        // [T], only with a probe
  kernels::CandidateList candidates;
};

struct Model::Step {
  // plan
  std::vector<int32_t> token_ids, sequence_of_row;
  std::vector<int64_t> positions;
  std::vector<uint8_t> is_image;
  std::vector<kernels::SequenceRows> rows;
  std::vector<SequenceState*> states;
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
  std::vector<int64_t> hash_rows;  // [T, engram layers, columns]
  float* taps = nullptr;           // [T, targets, D]

  // outputs kept for a probe
  float* attn_out = nullptr;
  float* streams_in = nullptr;
  float* pre_in = nullptr;
  float* engram_gate = nullptr;
  int32_t* router_index = nullptr;
  float* router_weight = nullptr;
  float* router_gap = nullptr;

  void allocate(const Config& config, const kernels::CacheFormat& format, kernels::Scratch& scratch,
                bool with_trace);
};

}  // namespace rorqual::model
