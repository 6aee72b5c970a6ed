// SPDX-License-Identifier: Apache-2.0
// `rorqual check invariance MODEL`: the bits of a token's logits depend on its prefix only
// (docs/numerics.md). Runs the same token sequences cut, batched and threaded in many ways, in both numerics
// and on every tier of this machine.
#pragma once

#include <cstdint>

#include "base/result.h"
#include "tools/check_report.h"
#include "tools/open_model.h"

namespace rorqual::tools {

struct CheckInvarianceOptions {
  OpenOptions open;      // model; numerics and threads are varied, and kernels unless one tier is named
  int64_t tokens = 300;  // longest sequence
  int64_t sequences = 8;
  uint64_t seed = 1;
};

/// Compares logits bit for bit: prompts in chunks of 1, 7, 32, 33, 64 and 129 tokens, random mixes of up to
/// eight sequences that prefill and decode side by side, 1 and 2 threads, Engram tables in memory and on
/// disk, repeated rows after truncation, and all tiers against the first. Errors as open_model; differences
/// go to `report`.
Status check_invariance(const CheckInvarianceOptions& options, CheckReport& report);

}  // namespace rorqual::tools
