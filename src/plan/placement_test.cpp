// SPDX-License-Identifier: Apache-2.0
#include "plan/placement.h"

#include <gtest/gtest.h>

#include <map>

#include "plan/release.h"

namespace rorqual::plan {
namespace {

constexpr int64_t kGiB = int64_t{1} << 30;

MemoryPlan release(bool on_disk = false) {
  MemorySettings settings;
  settings.engram_on_disk = on_disk;
  return plan_memory(model::release_config(), settings);
}

Machine machine(const char* text) {
  auto described = describe_machine(text);
  EXPECT_TRUE(described.ok());
  return *described;
}

double share_of(const Placement& placement, PartKind kind, Tier tier) {
  double share = 0;
  for (const Part& part : placement.parts) {
    if (part.kind == kind && part.tier == tier) share = std::max(share, part.share);
  }
  return share;
}

TEST(Placement, tiers_add_up_to_the_parts_of_the_plan) {
  const MemoryPlan memory = release();
  const Placement cpu = place_on_cpu(memory, machine("cpu-768"));
  EXPECT_EQ(cpu.of(Tier::ram).needed_bytes, memory.bytes(Tier::ram));
  EXPECT_EQ(cpu.of(Tier::vram).needed_bytes, 0);
  EXPECT_TRUE(cpu.fits());
  EXPECT_TRUE(cpu.runs_now);
  // Experts that are split keep their bytes, reads and multiply-adds.
  for (const char* name : {"4090-512", "2xpro6000", "h200-256"}) {
    const Placement gpu = place_on_gpus(memory, machine(name));
    std::map<PartKind, double> bytes, reads;
    for (const Part& part : gpu.parts) {
      bytes[part.kind] += static_cast<double>(part.bytes);
      reads[part.kind] += part.bytes_per_token;
    }
    EXPECT_NEAR(bytes[PartKind::experts], 40.0 * 384 * 18'800'640, 10) << name;
    EXPECT_NEAR(reads[PartKind::experts], 40.0 * 6 * 18'800'640, 10) << name;
    EXPECT_NEAR(bytes[PartKind::engram_tables], static_cast<double>(memory.bytes(PartKind::engram_tables)),
                10);
    EXPECT_FALSE(gpu.runs_now);
    EXPECT_NE(gpu.missing.find("GPU"), std::string::npos);
  }
}

TEST(Placement, gpus_take_dense_weights_and_caches_first_then_experts_then_tables) {
  const MemoryPlan memory = release();
  const Placement small = place_on_gpus(memory, machine("4090-512"));
  EXPECT_EQ(share_of(small, PartKind::attention, Tier::vram), 1);
  EXPECT_EQ(share_of(small, PartKind::kv_cache, Tier::vram), 1);
  EXPECT_EQ(share_of(small, PartKind::program, Tier::ram), 1);
  const double hot = share_of(small, PartKind::experts, Tier::vram);
  EXPECT_GT(hot, 0.03);
  EXPECT_LT(hot, 0.08);
  EXPECT_NEAR(hot + share_of(small, PartKind::experts, Tier::ram), 1, 1e-12);
  EXPECT_EQ(share_of(small, PartKind::engram_tables, Tier::ram), 1);
  EXPECT_TRUE(small.fits());

  const Placement large = place_on_gpus(memory, machine("8xh200"));
  EXPECT_EQ(share_of(large, PartKind::experts, Tier::vram), 1);
  EXPECT_EQ(share_of(large, PartKind::engram_tables, Tier::vram), 1);
  EXPECT_EQ(large.name, "GPU");
  // Caches are not cut: each of the eight cards holds them.
  int64_t cache = 0;
  for (const Part& part : large.parts) cache += part.kind == PartKind::kv_cache ? part.bytes : 0;
  EXPECT_EQ(cache, 8 * memory.bytes(PartKind::kv_cache));
}

TEST(Placement, what_no_memory_holds_stays_on_disk) {
  const Placement gpu = place_on_gpus(release(), machine("ram=64G,gpu=24G"));
  EXPECT_GT(share_of(gpu, PartKind::experts, Tier::disk), 0.5);
  EXPECT_EQ(share_of(gpu, PartKind::engram_tables, Tier::disk), 1);
  EXPECT_TRUE(gpu.fits());
  const Placement cpu = place_experts_on_disk(release(), machine("cpu-128"));
  EXPECT_TRUE(cpu.fits());
  EXPECT_FALSE(cpu.runs_now);
  EXPECT_NEAR(share_of(cpu, PartKind::experts, Tier::disk) + share_of(cpu, PartKind::experts, Tier::ram), 1,
              1e-12);
  const Placement tiny = place_experts_on_disk(release(), machine("ram=4G"));
  EXPECT_FALSE(tiny.fits());  // not even the dense weights
  EXPECT_EQ(tiny.tightest(), Tier::ram);
}

TEST(Placement, a_card_too_small_for_the_dense_weights_does_not_fit) {
  const Placement gpu = place_on_gpus(release(), machine("ram=512G,gpu=8G"));
  EXPECT_FALSE(gpu.fits());
  EXPECT_EQ(gpu.tightest(), Tier::vram);
}

TEST(Placement, reserves_are_kept) {
  EXPECT_EQ(ram_reserve_bytes(kGiB), int64_t{64} << 20);
  EXPECT_EQ(ram_reserve_bytes(100 * kGiB), 2 * kGiB);
  EXPECT_EQ(vram_reserve_bytes(10 * kGiB), kGiB);
  EXPECT_EQ(vram_reserve_bytes(100 * kGiB), 6 * kGiB);
  EXPECT_LE(vram_reserve_bytes(kGiB / 2), kGiB / 2);
}

}  // namespace
}  // namespace rorqual::plan
