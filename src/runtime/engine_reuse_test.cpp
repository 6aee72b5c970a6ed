// SPDX-License-Identifier: Apache-2.0
// The engine over a real (tiny) model with everything on: prefix cache in memory and on disk, drafts,
// swapping, recomputation, skipped rows. Replies have the bits of those that run alone on a cold engine.
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <condition_variable>
#include <filesystem>
#include <memory>
#include <mutex>
#include <random>
#include <string>
#include <vector>

#include "format/tensor_source.h"
#include "model/config.h"
#include "model/model.h"
#include "runtime/local_engine.h"

namespace rorqual::runtime {
namespace {

using namespace std::chrono_literals;

class Reply final : public TokenSink {
 public:
  void on_token(int32_t token, std::optional<PositionLogprobs> row) override {
    tokens.push_back(token);
    if (row) values.push_back(row->chosen.logprob);
  }

  void on_finish(const FinishInfo& info) override {
    {
      const std::lock_guard lock(mutex_);
      end_ = info;
    }
    changed_.notify_all();
  }

  FinishInfo wait() {
    std::unique_lock lock(mutex_);
    EXPECT_TRUE(changed_.wait_for(lock, 200s, [this] { return end_.has_value(); }));
    return end_.value_or(FinishInfo{});
  }

  std::vector<int32_t> tokens;
  std::vector<float> values;

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::optional<FinishInfo> end_;
};

struct Cell {
  std::string model = "tests/models/tiny-c";
  kernels::Numerics numerics = kernels::Numerics::reference;
  int num_threads = 1;
  int64_t num_blocks = 0, chunk = 256, swap_bytes = 0;
  int32_t drafts = 0;
  int32_t drill_preemptions = 0;
  bool has_prefix_cache = false, skips_unread_rows = true;
  std::shared_ptr<prefix::DiskTier> disk{};
};

constexpr int64_t kPrefixBlocks = 64, kPrefixWindows = 24;

std::unique_ptr<Engine> open_engine(const Cell& cell) {
  auto source = format::open_checkpoint(std::string(RORQUAL_SOURCE_DIR) + "/" + cell.model);
  EXPECT_TRUE(source.ok()) << source.error().message();
  auto text = (*source)->read_text("config.json");
  auto config = model::parse_config(*text);
  EXPECT_TRUE(config.ok());
  model::ModelOptions options;
  options.numerics = cell.numerics;
  options.num_threads = cell.num_threads;
  options.max_model_len = 1024;
  options.max_step_rows = 256;
  options.max_sequences = 8;
  options.num_blocks = cell.num_blocks;
  if (cell.has_prefix_cache) {
    options.prefix_blocks = kPrefixBlocks;
    options.prefix_windows = kPrefixWindows;
  }
  std::vector<int32_t> token_map;  // any classes will do
  if (!config->engram_layer_ids.empty()) {
    for (int32_t i = 0; i < config->vocab_size; ++i)
      token_map.push_back(static_cast<int32_t>(i % config->engram_compressed_vocab_size));
  }
  auto model = model::Model::load(**source, *config, token_map, options);
  EXPECT_TRUE(model.ok()) << model.error().message();
  EngineOptions engine;
  engine.max_num_seqs = 6;
  engine.max_num_batched_tokens = cell.chunk;
  engine.drafts = cell.drafts;
  engine.are_drafts_adaptive = false;
  engine.model_identity = "test";
  engine.swap_bytes = cell.swap_bytes;
  engine.drill_preemptions = cell.drill_preemptions;
  engine.skips_unread_rows = cell.skips_unread_rows;
  if (cell.has_prefix_cache) {
    const model::PageStore& pages = (*model)->pages();
    engine.prefix_cache_bytes = 2 * std::max(kPrefixBlocks * pages.page_bytes(model::PageKind::block),
                                             kPrefixWindows * pages.page_bytes(model::PageKind::window));
    engine.prefix_disk = cell.disk;
    engine.prefix_snapshot_interval = 128;
  }
  auto made = make_local_engine(*std::move(model), {}, engine);
  EXPECT_TRUE(made.ok()) << made.error().message();
  return *std::move(made);
}

/// Prompts that begin alike for a while, greedy and seeded.
std::vector<Request> make_requests(int64_t vocab_size, unsigned seed) {
  std::mt19937 random(seed);
  std::vector<int32_t> trunk(420);
  for (int32_t& token : trunk) token = static_cast<int32_t>(random() % static_cast<unsigned>(vocab_size));
  std::vector<Request> requests(5);
  for (size_t i = 0; i < requests.size(); ++i) {
    Request& request = requests[i];
    const auto shared = static_cast<std::ptrdiff_t>(i == 0 ? 0 : 64 + random() % 320);
    request.prompt.assign(trunk.begin(), trunk.begin() + shared);
    for (auto more = static_cast<int>(random() % 70 + 1); more > 0; --more) {
      request.prompt.push_back(static_cast<int32_t>(random() % static_cast<unsigned>(vocab_size)));
    }
    request.sampling.temperature = i % 2 == 0 ? 0.0f : 0.3f;
    request.sampling.seed = i;
    request.sampling.ignore_eos = true;
    request.sampling.max_tokens = 30;
    request.sampling.logprobs = 0;
    if (i == 3) request.sampling.frequency_penalty = 0.5f;
  }
  return requests;
}

std::vector<std::shared_ptr<Reply>> run(Engine& engine, const std::vector<Request>& requests, bool is_batch) {
  std::vector<std::shared_ptr<Reply>> replies;
  for (const Request& request : requests) {
    replies.push_back(std::make_shared<Reply>());
    EXPECT_TRUE(engine.submit(request, replies.back()).ok());
    if (!is_batch) replies.back()->wait();
  }
  for (const auto& reply : replies) EXPECT_EQ(reply->wait().completion_tokens, 30);
  return replies;
}

void expect_equal(const std::vector<std::shared_ptr<Reply>>& got,
                  const std::vector<std::shared_ptr<Reply>>& expected, const std::string& where) {
  for (size_t i = 0; i < got.size(); ++i) {
    EXPECT_EQ(got[i]->tokens, expected[i]->tokens) << where << ", request " << i;
    EXPECT_EQ(got[i]->values, expected[i]->values) << where << ", request " << i;
  }
}

void expect_invariance(const std::string& model, kernels::Numerics numerics, bool has_draft_stages) {
  Cell cold{.model = model, .numerics = numerics, .skips_unread_rows = false};
  const auto alone = open_engine(cold);
  const std::vector<Request> requests = make_requests(alone->info().vocab_size, 20260105);
  const auto expected = run(*alone, requests, false);
  const auto skipping = open_engine({.model = model, .numerics = numerics, .chunk = 64});
  expect_equal(run(*skipping, requests, false), expected, "skipped rows");
  const auto drafting = open_engine({.model = model, .numerics = numerics, .chunk = 100, .drafts = 7});
  expect_equal(run(*drafting, requests, true), expected, "drafts");
  ASSERT_EQ(drafting->info().max_drafts > 0, has_draft_stages);
  EXPECT_TRUE(!has_draft_stages || drafting->stats().speculation.draft_tokens > 100);
  const auto reusing = open_engine({.model = model,
                                    .numerics = numerics,
                                    .num_threads = 2,
                                    .chunk = 90,
                                    .drafts = 3,
                                    .has_prefix_cache = true});
  expect_equal(run(*reusing, requests, false), expected, "first pass of the prefix cache");
  expect_equal(run(*reusing, requests, true), expected, "second pass of the prefix cache");
  EXPECT_GT(reusing->stats().prefix.hit_tokens, 64 * 10);
  for (const int64_t swap_bytes : {int64_t{0}, int64_t{1} << 30}) {
    const auto crowded = open_engine({.model = model,
                                      .numerics = numerics,
                                      .num_threads = 2,
                                      .num_blocks = 12,
                                      .chunk = 50,
                                      .swap_bytes = swap_bytes,
                                      .drafts = 5,
                                      .drill_preemptions = 2});
    expect_equal(run(*crowded, requests, true), expected, "a small cache");
    const EngineStats stats = crowded->stats();
    EXPECT_EQ(stats.cache_blocks_used, 0);
    EXPECT_GE(stats.preemptions, 2 * static_cast<int64_t>(requests.size()));
    EXPECT_EQ(stats.swapped_in, swap_bytes > 0 ? stats.preemptions : 0);
  }
}

TEST(EngineReuse, RepliesHaveTheBitsOfColdOnesInReferenceNumerics) {
  expect_invariance("tests/models/tiny-c", kernels::Numerics::reference, false);
}

TEST(EngineReuse, RepliesHaveTheBitsOfColdOnesInExactNumerics) {
  expect_invariance("tests/models/tiny-a", kernels::Numerics::exact, true);
}

TEST(EngineReuse, RepliesHaveTheBitsOfColdOnesWithAnotherShape) {
  expect_invariance("tests/models/tiny-b", kernels::Numerics::reference, true);
}

/// Requests that decode for long share a cache for about two of them.
void expect_preemptions(int64_t swap_bytes) {
  const auto alone = open_engine({});
  std::vector<Request> requests(4);
  for (size_t i = 0; i < requests.size(); ++i) {
    requests[i].prompt.assign(60 + 3 * i, static_cast<int32_t>(17 + i));
    requests[i].sampling.temperature = 0;
    requests[i].sampling.ignore_eos = true;
    requests[i].sampling.max_tokens = 100;
    requests[i].sampling.logprobs = 0;
  }
  const auto run_all = [&](Engine& engine, bool is_batch) {
    std::vector<std::shared_ptr<Reply>> replies;
    for (const Request& request : requests) {
      replies.push_back(std::make_shared<Reply>());
      EXPECT_TRUE(engine.submit(request, replies.back()).ok());
      if (!is_batch) replies.back()->wait();
    }
    for (const auto& reply : replies) EXPECT_EQ(reply->wait().completion_tokens, 100);
    return replies;
  };
  const auto expected = run_all(*alone, false);
  const auto crowded = open_engine({.num_blocks = 7, .chunk = 40, .swap_bytes = swap_bytes, .drafts = 4});
  expect_equal(run_all(*crowded, true), expected, "preempted");
  const EngineStats stats = crowded->stats();
  EXPECT_GT(stats.preemptions, 0);
  EXPECT_EQ(stats.swapped_out, swap_bytes > 0 ? stats.preemptions : 0);
  EXPECT_EQ(stats.swapped_in, stats.swapped_out);
}

TEST(EngineReuse, SwappedOutRequestsGoOnWithTheSameBits) {
  expect_preemptions(int64_t{1} << 30);
}

TEST(EngineReuse, RecomputedRequestsGoOnWithTheSameBits) {
  expect_preemptions(0);
}

TEST(EngineReuse, AHitFromDiskAfterARestartHasTheBitsOfAColdRun) {
  const std::filesystem::path folder =
      std::filesystem::temp_directory_path() / ("rorqual_engine_reuse_" + std::to_string(getpid()));
  std::filesystem::remove_all(folder);
  const auto open_disk = [&] {
    auto disk = prefix::DiskTier::open({.directory = folder.string(), .model_identity = "test"});
    EXPECT_TRUE(disk.ok()) << disk.error().message();
    return std::shared_ptr<prefix::DiskTier>(*std::move(disk));
  };
  const auto alone = open_engine({});
  const std::vector<Request> requests = make_requests(alone->info().vocab_size, 20260106);
  const auto expected = run(*alone, requests, false);
  {
    const auto first = open_engine({.drafts = 2, .has_prefix_cache = true, .disk = open_disk()});
    expect_equal(run(*first, requests, true), expected, "before the restart");
  }
  const auto second = open_engine({.chunk = 70, .drafts = 2, .has_prefix_cache = true, .disk = open_disk()});
  expect_equal(run(*second, requests, true), expected, "after the restart");
  const PrefixStats stats = second->stats().prefix;
  EXPECT_GT(stats.disk_hit_tokens, 64 * 3);
  EXPECT_TRUE(stats.has_disk);
  std::filesystem::remove_all(folder);
}

}  // namespace
}  // namespace rorqual::runtime
