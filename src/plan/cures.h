// SPDX-License-Identifier: Apache-2.0
// Changes that make a plan fit, each checked by planning again.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "plan/machine.h"
#include "plan/memory.h"

namespace rorqual::plan {

struct Cure {
  std::string change;       // "--engram-placement disk", "266.1 GiB more RAM"
  int64_t saved_bytes = 0;  // of RAM; 0 for more RAM
  int64_t short_bytes = 0;  // still missing after the change, 0 = fits
};

/// At most three, those that fit first, in the order of what they cost: fewer sequences, a shorter context,
/// smaller steps, Engram on disk, these together, more RAM. Empty when the plan fits as it is.
std::vector<Cure> find_cures(const MemoryPlan& memory, const Machine& machine);

}  // namespace rorqual::plan
