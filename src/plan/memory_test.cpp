// SPDX-License-Identifier: Apache-2.0
#include "plan/memory.h"

#include <gtest/gtest.h>

#include <chrono>

#include "format/tensor_source.h"
#include "model/model.h"
#include "model/synthetic.h"
#include "model/weights.h"
#include "plan/memory_step.h"
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

TEST(Memory, engram_on_disk_moves_the_tables_and_needs_room_to_read_ahead) {
  MemorySettings settings;
  const MemoryPlan host = plan_memory(model::release_config(), settings);
  settings.engram_on_disk = true;
  const MemoryPlan disk = plan_memory(model::release_config(), settings);
  EXPECT_EQ(host.bytes(Tier::disk), 0);
  EXPECT_EQ(disk.bytes(Tier::disk), disk.bytes(PartKind::engram_tables));
  EXPECT_EQ(host.bytes(PartKind::engram_tables), disk.bytes(PartKind::engram_tables));
  const int64_t read_ahead = settings.max_num_batched_tokens * 2 * 24 * (256 + 8);  // rows of two layers
  EXPECT_NEAR(static_cast<double>(host.bytes(Tier::ram) - disk.bytes(Tier::ram)),
              static_cast<double>(disk.bytes(Tier::disk) - read_ahead), 4 << 20);  // pages
}

TEST(Memory, scores_of_the_index_need_bounded_space_at_any_context) {  // E-attention-10
  const auto config = model::release_config();
  MemorySettings settings;
  settings.max_num_seqs = 32;
  settings.max_model_len = 48 << 10;
  const int64_t at_48k = step_scratch_bytes(config, settings);
  settings.max_model_len = 1 << 20;
  EXPECT_LE(step_scratch_bytes(config, settings) - at_48k, 16 << 20);
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
  // Windows: 8 sequences more with four pages each; what steps need beside them stays.
  const auto layout = model::make_cache_layout(config, Numerics::reference, false);
  EXPECT_EQ(layout.pages_per_sequence(), 4);
  EXPECT_NEAR(static_cast<double>(sequences.bytes(PartKind::windows) - base.bytes(PartKind::windows)),
              8.0 * static_cast<double>(4 * layout.window_page_bytes() + 12 * 32768), 8.0 * kPage);
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

TEST(Memory, caches_are_planned_as_the_model_allocates_them) {
  for (const char* name : {"tiny-a", "tiny-b", "tiny-c"}) {
    const auto source = format::open_checkpoint(tiny(name));
    const auto config = config_of(tiny(name));
    ASSERT_TRUE(source.ok() && config.ok());
    MemorySettings settings;
    settings.max_model_len = 1000;
    settings.max_num_seqs = 5;
    settings.max_num_batched_tokens = 200;
    settings.with_drafts = config->num_stages() > 0;
    settings.prefix_cache_bytes = int64_t{64} << 20;
    const auto layout = model::make_cache_layout(*config, settings.numerics, settings.with_drafts);
    model::ModelOptions options;
    options.with_drafts = settings.with_drafts;
    options.max_model_len = settings.max_model_len;
    options.max_sequences = settings.max_num_seqs;
    options.max_step_rows = settings.max_num_batched_tokens;
    options.prefix_blocks = model::prefix_pages(layout, settings.prefix_cache_bytes).blocks;
    options.prefix_windows = model::prefix_pages(layout, settings.prefix_cache_bytes).windows;
    std::vector<int32_t> map(static_cast<size_t>(config->vocab_size));
    for (size_t i = 0; i < map.size(); ++i) {
      map[i] = static_cast<int32_t>(static_cast<int64_t>(i) %
                                    std::max<int64_t>(1, config->engram_compressed_vocab_size));
    }
    const auto model = model::Model::load(**source, *config, map, options);
    ASSERT_TRUE(model.ok()) << model.error().message();
    const model::PageStore& store = (*model)->pages();
    const auto bytes = [&](model::PageKind kind) { return store.pages_total(kind) * store.page_bytes(kind); };
    const MemoryPlan plan = plan_memory(*config, settings);
    EXPECT_EQ(plan.kv_tokens, (store.pages_total(model::PageKind::block) - options.prefix_blocks) * 64);
    const int64_t planned =
        plan.bytes(PartKind::kv_cache) + plan.bytes(PartKind::windows) + plan.bytes(PartKind::prefix_cache);
    const int64_t tables = 5 * (12 * 1000 + 4096 * 64);  // of sequences, and what pages are rounded up by
    EXPECT_GE(planned, bytes(model::PageKind::block) + bytes(model::PageKind::window)) << name;
    EXPECT_LE(planned, bytes(model::PageKind::block) + bytes(model::PageKind::window) + tables + (4 << 20))
        << name;
    EXPECT_NEAR(static_cast<double>(plan.bytes(PartKind::prefix_cache)), 64 << 20, 5 << 20) << name;
  }
}

TEST(Memory, planning_the_release_takes_milliseconds) {
  const auto began = std::chrono::steady_clock::now();
  for (int i = 0; i < 10; ++i) plan_memory(model::release_config(), {});
  const std::chrono::duration<double> taken = std::chrono::steady_clock::now() - began;
  EXPECT_LT(taken.count() / 10, 0.1);
}

}  // namespace
}  // namespace rorqual::plan
