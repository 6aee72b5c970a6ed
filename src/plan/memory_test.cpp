// SPDX-License-Identifier: Apache-2.0
#include "plan/memory.h"

#include <gtest/gtest.h>

#include <chrono>

#include "format/tensor_source.h"
#include "model/synthetic.h"
#include "model/weights.h"
#include "plan/release.h"

namespace rorqual::plan {
namespace {

using kernels::Numerics;

std::string tiny(const char* name) {
  return std::string(RORQUAL_SOURCE_DIR) + "/tests/models/" + name;
}

int64_t weight_bytes(const MemoryPlan& plan) {
  int64_t total = 0;
  for (const Part& part : plan.parts) {
    if (part.kind <= PartKind::vision && part.tier == Tier::ram) total += part.bytes;
  }
  return total;
}

/// What load_weights allocates, without the rounding of pages.
int64_t loaded_bytes(const format::TensorSource& source, const model::Config& config, bool on_disk,
                     bool drafts) {
  ThreadPool pool(2);
  model::WeightOptions options;
  options.engram_on_disk = on_disk;
  options.with_drafts = drafts;
  auto weights = model::load_weights(source, config, options, pool, {});
  EXPECT_TRUE(weights.ok()) << weights.error().message();
  return weights->host_bytes();
}

TEST(Memory, weights_are_planned_to_the_byte_as_they_are_allocated) {
  for (const char* name : {"tiny-a", "tiny-b", "tiny-c"}) {
    const auto config = config_of(tiny(name));
    ASSERT_TRUE(config.ok());
    const auto source = format::open_checkpoint(tiny(name));
    ASSERT_TRUE(source.ok());
    for (const bool on_disk : {false, true}) {
      for (const bool drafts : {false, true}) {
        MemorySettings settings;
        settings.engram_on_disk = on_disk;
        settings.with_drafts = drafts;
        EXPECT_EQ(weight_bytes(plan_memory(*config, settings)),
                  loaded_bytes(**source, *config, on_disk, drafts))
            << name << " on_disk " << on_disk << " drafts " << drafts;
      }
    }
  }
}

TEST(Memory, weights_of_odd_widths_are_planned_to_the_byte_too) {
  const char* name =
      "synthetic:v41?layers=0,1,2,3,20,24&hidden=96&heads=8&experts=7&draft-experts=7&drafts=1&vocab=999&"
      "compressed-vocab=700&engram-rows=50&candidate-blocks=80";
  const auto config = config_of(name);
  ASSERT_TRUE(config.ok()) << config.error().message();
  const auto source = model::open_synthetic(name);
  ASSERT_TRUE(source.ok());
  MemorySettings settings;
  settings.with_drafts = true;
  EXPECT_EQ(weight_bytes(plan_memory(*config, settings)), loaded_bytes(**source, *config, false, true));
}

TEST(Memory, release_reads_the_bytes_per_token_that_its_architecture_gives) {
  const MemoryPlan plan = plan_memory(model::release_config(), {});
  EXPECT_EQ(plan.kv_bytes_per_token, 890);
  double experts = 0, madds = 0, engram = 0;
  for (const Part& part : plan.parts) {
    if (part.kind == PartKind::experts) {
      experts += part.bytes_per_token;
      madds += part.madds_per_token;
      EXPECT_EQ(part.format, "mxfp4");
      EXPECT_EQ(part.bytes, int64_t{40} * 384 * 18'800'640);
    }
    if (part.kind == PartKind::engram_tables) {
      engram += part.bytes_per_token;
      EXPECT_EQ(part.random_reads, 2 * 24 * 2);
    }
  }
  EXPECT_EQ(experts, 40.0 * 6 * 18'800'640);
  EXPECT_EQ(madds, 40.0 * 6 * 3 * 5120 * 2304);
  EXPECT_EQ(engram, 2.0 * 24 * (256 + 8));
}

TEST(Memory, engram_on_disk_moves_the_tables_and_nothing_else) {
  MemorySettings settings;
  const MemoryPlan host = plan_memory(model::release_config(), settings);
  settings.engram_on_disk = true;
  const MemoryPlan disk = plan_memory(model::release_config(), settings);
  EXPECT_EQ(host.bytes(Tier::disk), 0);
  EXPECT_EQ(disk.bytes(Tier::disk), disk.bytes(PartKind::engram_tables));
  EXPECT_EQ(host.bytes(PartKind::engram_tables), disk.bytes(PartKind::engram_tables));
  EXPECT_NEAR(static_cast<double>(host.bytes(Tier::ram) - disk.bytes(Tier::ram)),
              static_cast<double>(disk.bytes(Tier::disk)), 4 << 20);  // pages
}

TEST(Memory, caches_and_buffers_grow_with_what_is_asked_for) {
  const auto config = model::release_config();
  MemorySettings settings;
  const MemoryPlan base = plan_memory(config, settings);
  EXPECT_EQ(base.kv_tokens, 8 * 32768);
  EXPECT_GE(base.bytes(PartKind::kv_cache), 890 * base.kv_tokens);
  MemorySettings more = settings;
  more.max_model_len *= 2;
  constexpr double kPage = 2 << 20;
  EXPECT_NEAR(static_cast<double>(plan_memory(config, more).bytes(PartKind::kv_cache)),
              2.0 * static_cast<double>(base.bytes(PartKind::kv_cache)), kPage);
  more = settings;
  more.max_num_seqs *= 2;
  const MemoryPlan sequences = plan_memory(config, more);
  EXPECT_NEAR(static_cast<double>(sequences.bytes(PartKind::kv_cache)),
              2.0 * static_cast<double>(base.bytes(PartKind::kv_cache)), kPage);
  EXPECT_EQ(sequences.bytes(PartKind::windows), 2 * base.bytes(PartKind::windows));
  more = settings;
  more.max_num_batched_tokens *= 4;
  EXPECT_GT(plan_memory(config, more).bytes(PartKind::work), 2 * base.bytes(PartKind::work));
  more = settings;
  more.numerics = Numerics::exact;
  EXPECT_GT(plan_memory(config, more).kv_bytes_per_token, 4 * 890);
  more = settings;
  more.head_fp8 = true;
  EXPECT_NEAR(static_cast<double>(plan_memory(config, more).bytes(PartKind::head)),
              static_cast<double>(base.bytes(PartKind::head)) / 2, kPage);
}

TEST(Memory, planning_the_release_takes_milliseconds) {
  const auto began = std::chrono::steady_clock::now();
  for (int i = 0; i < 10; ++i) plan_memory(model::release_config(), {});
  const std::chrono::duration<double> taken = std::chrono::steady_clock::now() - began;
  EXPECT_LT(taken.count() / 10, 0.1);
}

}  // namespace
}  // namespace rorqual::plan
