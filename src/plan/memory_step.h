// SPDX-License-Identifier: Apache-2.0
// Work memory of one step: replays the allocations of the CPU stages on a stack without memory.
#pragma once

#include <cstdint>

#include "model/config.h"
#include "plan/memory.h"

namespace rorqual::plan {

/// Most bytes of the stack of work memory that are written in steps of `max_num_batched_tokens` rows at the
/// longest context, and steps of a few rows (which split work otherwise). Without logits.
int64_t step_scratch_bytes(const model::Config& config, const MemorySettings& settings);

}  // namespace rorqual::plan
