// SPDX-License-Identifier: Apache-2.0
// Which part lies on which tier of a machine. The rules are docs/plan.md#placement.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "plan/machine.h"
#include "plan/memory.h"

namespace rorqual::plan {

struct TierUse {
  int64_t needed_bytes = 0;
  int64_t available_bytes = 0;  // that a plan may fill: reserves are taken off

  bool fits() const { return needed_bytes <= available_bytes; }
};

/// Parts with their tiers; a kind that is split appears once per tier.
struct Placement {
  std::string name;  // "CPU", "GPU", "GPU + CPU experts", …
  std::vector<Part> parts;
  std::array<TierUse, 3> use;  // by Tier
  bool runs_now = true;        // in this version
  std::string missing;         // what this version lacks for it, "" = nothing

  const TierUse& of(Tier tier) const { return use[static_cast<size_t>(tier)]; }

  TierUse& of(Tier tier) { return use[static_cast<size_t>(tier)]; }

  bool fits() const { return use[0].fits() && use[1].fits() && use[2].fits(); }

  /// The tier that is short, by the most bytes; if all fit, the fullest one.
  Tier tightest() const;
};

/// Memory kept free of what is available now: 2 %, at least 64 MiB, for page tables and what other programs
/// do.
int64_t ram_reserve_bytes(int64_t available_bytes);

/// What must be available for `bytes` to be usable beside the reserve.
int64_t ram_with_reserve_bytes(int64_t bytes);

/// Memory of a GPU that a plan leaves to its driver, graphs and fragments: 6 %, at least 1 GiB.
int64_t vram_reserve_bytes(int64_t memory_bytes);

/// What this version does: all in RAM, Engram tables where `memory` has them.
Placement place_on_cpu(const MemoryPlan& memory, const Machine& machine);

/// CPU with as many experts in RAM as there is room for, the others read from disk. Not in this version.
Placement place_experts_on_disk(const MemoryPlan& memory, const Machine& machine);

/// Dense weights, caches and buffers on the GPUs, then as many experts as fit, Engram tables last; the rest
/// in RAM, then on disk. Not in this version. Requires GPUs. Does not fit when the dense part is too large.
Placement place_on_gpus(const MemoryPlan& memory, const Machine& machine);

}  // namespace rorqual::plan
