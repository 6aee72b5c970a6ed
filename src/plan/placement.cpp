// SPDX-License-Identifier: Apache-2.0
#include "plan/placement.h"

#include <algorithm>
#include <cmath>

#include "base/check.h"

namespace rorqual::plan {
namespace {

constexpr int64_t kMiB = int64_t{1} << 20, kGiB = int64_t{1} << 30;

bool is_expert(const Part& part) {
  return part.kind == PartKind::experts;
}

bool is_table(const Part& part) {
  return part.kind == PartKind::engram_tables;
}

/// Parts that every GPU holds a copy of: all heads share one latent per token, so caches are not cut.
bool is_replicated(const Part& part) {
  return part.kind == PartKind::kv_cache || part.kind == PartKind::windows ||
         part.kind == PartKind::prefix_cache || part.kind == PartKind::work || part.kind == PartKind::logits;
}

Part part_share(const Part& whole, double share, Tier tier) {
  Part piece = whole;
  piece.tier = tier;
  piece.share = whole.share * share;
  piece.bytes = static_cast<int64_t>(std::llround(static_cast<double>(whole.bytes) * share));
  piece.bytes_per_token *= share;
  piece.madds_per_token *= share;
  piece.random_reads = static_cast<int64_t>(std::llround(static_cast<double>(whole.random_reads) * share));
  return piece;
}

/// Adds up parts into the placement's tiers.
void add_up(Placement& placement) {
  for (TierUse& use : placement.use) use.needed_bytes = 0;
  for (const Part& part : placement.parts) placement.of(part.tier).needed_bytes += part.bytes;
}

Placement start(const Machine& machine, const char* name) {
  Placement placement;
  placement.name = name;
  placement.of(Tier::ram).available_bytes =
      std::max<int64_t>(0, machine.ram_available_bytes - ram_reserve_bytes(machine.ram_available_bytes));
  // What lies on disk are files of the checkpoint, which is there already or checked as a download.
  placement.of(Tier::disk).available_bytes = INT64_MAX;
  for (const Gpu& gpu : machine.gpus) {
    placement.of(Tier::vram).available_bytes += gpu.memory_bytes - vram_reserve_bytes(gpu.memory_bytes);
  }
  return placement;
}

/// Splits a part over tiers in order: each takes what it has room for, the last one takes the rest. Experts
/// are cut at whole slabs, at `pieces` equal pieces.
struct Room {
  Tier tier;
  int64_t bytes;
};

void split(Placement& placement, const Part& whole, std::vector<Room>& rooms, int64_t pieces) {
  int64_t left = pieces;
  for (Room& room : rooms) {
    if (left == 0) return;
    const bool is_last = &room == &rooms.back();
    const double piece_bytes = static_cast<double>(whole.bytes) / static_cast<double>(pieces);
    const auto fitting = static_cast<int64_t>(static_cast<double>(std::max<int64_t>(room.bytes, 0)) /
                                              std::max(piece_bytes, 1.0));
    const int64_t taken = is_last ? left : std::min(left, fitting);
    if (taken == 0) continue;
    Part piece = part_share(whole, static_cast<double>(taken) / static_cast<double>(pieces), room.tier);
    room.bytes -= piece.bytes;
    left -= taken;
    placement.parts.push_back(std::move(piece));
  }
}

int64_t num_slabs(const model::Config& config) {
  return std::max<int64_t>(1, config.num_hidden_layers * config.n_routed_experts);
}

void sort_parts(Placement& placement) {
  std::stable_sort(placement.parts.begin(), placement.parts.end(), [](const Part& a, const Part& b) {
    return a.kind != b.kind ? a.kind < b.kind : a.tier < b.tier;
  });
}

}  // namespace

int64_t ram_reserve_bytes(int64_t available_bytes) {
  return std::max(64 * kMiB, available_bytes / 50);
}

int64_t ram_with_reserve_bytes(int64_t bytes) {
  return std::max(bytes + 64 * kMiB, bytes + bytes / 49 + 1);
}

int64_t vram_reserve_bytes(int64_t memory_bytes) {
  return std::min(memory_bytes, std::max(kGiB, memory_bytes * 6 / 100));
}

Tier Placement::tightest() const {
  Tier worst = Tier::ram;
  double fullest = -1;
  for (const Tier tier : {Tier::ram, Tier::vram, Tier::disk}) {
    const TierUse& u = of(tier);
    if (u.needed_bytes == 0) continue;
    const double ratio =
        static_cast<double>(u.needed_bytes) / std::max(1.0, static_cast<double>(u.available_bytes));
    if (ratio > fullest) worst = tier;
    fullest = std::max(fullest, ratio);
  }
  return worst;
}

Placement place_on_cpu(const MemoryPlan& memory, const Machine& machine) {
  const bool tables_on_disk = memory.bytes(Tier::disk) > 0;
  Placement placement = start(machine, tables_on_disk ? "CPU, Engram on disk" : "CPU");
  placement.of(Tier::vram).available_bytes = 0;
  placement.parts = memory.parts;
  add_up(placement);
  return placement;
}

Placement place_experts_on_disk(const MemoryPlan& memory, const Machine& machine) {
  Placement placement = start(machine, "CPU, experts on disk");
  placement.of(Tier::vram).available_bytes = 0;
  placement.runs_now = false;
  placement.missing = "experts read from disk";
  std::vector<Part> experts;
  for (const Part& part : memory.parts) {
    if (is_expert(part)) {
      experts.push_back(part);
    } else {
      placement.parts.push_back(is_table(part) ? part_share(part, 1, Tier::disk) : part);
    }
  }
  add_up(placement);
  const TierUse& ram = placement.of(Tier::ram);
  std::vector<Room> rooms = {{Tier::ram, ram.available_bytes - ram.needed_bytes}, {Tier::disk, INT64_MAX}};
  for (const Part& part : experts) split(placement, part, rooms, num_slabs(memory.config));
  add_up(placement);
  sort_parts(placement);
  return placement;
}

Placement place_on_gpus(const MemoryPlan& memory, const Machine& machine) {
  RORQUAL_CHECK(!machine.gpus.empty());
  Placement placement = start(machine, "GPU");
  placement.runs_now = false;
  const auto gpus = static_cast<int64_t>(machine.gpus.size());
  std::vector<Part> experts, tables;
  for (const Part& part : memory.parts) {
    if (is_expert(part)) {
      experts.push_back(part);
    } else if (is_table(part)) {
      tables.push_back(part);
    } else {
      Part placed = part;
      const bool is_host = part.kind == PartKind::program || part.kind == PartKind::swap_space;
      placed.tier = is_host ? Tier::ram : Tier::vram;
      if (is_replicated(part)) placed.bytes *= gpus;
      placement.parts.push_back(std::move(placed));
    }
  }
  add_up(placement);
  const TierUse vram = placement.of(Tier::vram), ram = placement.of(Tier::ram);
  std::vector<Room> rooms = {{Tier::vram, vram.available_bytes - vram.needed_bytes},
                             {Tier::ram, ram.available_bytes - ram.needed_bytes},
                             {Tier::disk, INT64_MAX}};
  for (const Part& part : experts) split(placement, part, rooms, num_slabs(memory.config));
  for (const Part& part : tables) {
    const bool asked_for_disk = part.tier == Tier::disk;
    Room& target = !asked_for_disk && part.bytes <= rooms[0].bytes   ? rooms[0]
                   : !asked_for_disk && part.bytes <= rooms[1].bytes ? rooms[1]
                                                                     : rooms[2];
    target.bytes -= part.bytes;
    placement.parts.push_back(part_share(part, 1, target.tier));
  }
  add_up(placement);
  sort_parts(placement);
  bool on_cpu = false, on_disk = false;
  for (const Part& part : placement.parts) {
    on_cpu |= is_expert(part) && part.tier == Tier::ram;
    on_disk |= is_expert(part) && part.tier == Tier::disk;
  }
  placement.name = on_disk ? "GPU, experts in RAM and on disk" : on_cpu ? "GPU, experts in RAM" : "GPU";
  placement.missing = on_disk ? "GPU kernels, experts read from disk" : "GPU kernels";
  return placement;
}

}  // namespace rorqual::plan
