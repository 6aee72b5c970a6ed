// SPDX-License-Identifier: Apache-2.0
// The local engine over a real model (the miniature without Engram): replies under load, in chunks and after
// preemption are those of a request that runs alone, bit for bit.
#include <gtest/gtest.h>

#include <algorithm>
#include <condition_variable>
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
  void on_prompt_logprobs(std::vector<std::optional<PositionLogprobs>> prompt) override {
    for (const auto& row : prompt) values_.push_back(row ? row->chosen.logprob : 0.0f);
  }

  void on_token(int32_t token, std::optional<PositionLogprobs> row) override {
    tokens_.push_back(token);
    if (row) values_.push_back(row->chosen.logprob);
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

  const std::vector<int32_t>& tokens() const { return tokens_; }

  const std::vector<float>& values() const { return values_; }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<int32_t> tokens_;
  std::vector<float> values_;  // log-probabilities of prompt and reply
  std::optional<FinishInfo> end_;
};

struct Load {
  kernels::Numerics numerics = kernels::Numerics::reference;
  int num_threads = 1;
  int64_t max_num_seqs = 1, max_num_batched_tokens = 256, num_blocks = 0, max_logit_rows = 256;
};

std::unique_ptr<Engine> open_engine(const Load& load) {
  auto source = format::open_checkpoint(std::string(RORQUAL_SOURCE_DIR) + "/tests/models/tiny-c");
  EXPECT_TRUE(source.ok()) << source.error().message();
  auto text = (*source)->read_text("config.json");
  EXPECT_TRUE(text.ok());
  auto config = model::parse_config(*text);
  EXPECT_TRUE(config.ok());
  model::ModelOptions options;
  options.numerics = load.numerics;
  options.num_threads = load.num_threads;
  options.max_model_len = 512;
  options.max_step_rows = 256;
  options.max_sequences = 8;
  options.num_blocks = load.num_blocks;
  auto model = model::Model::load(**source, *config, {}, options);
  EXPECT_TRUE(model.ok()) << model.error().message();
  EngineOptions engine_options;
  engine_options.max_num_seqs = load.max_num_seqs;
  engine_options.max_num_batched_tokens = load.max_num_batched_tokens;
  engine_options.max_logit_rows = load.max_logit_rows;
  auto engine = make_local_engine(*std::move(model), {}, engine_options);
  EXPECT_TRUE(engine.ok()) << engine.error().message();
  return *std::move(engine);
}

std::vector<Request> make_requests(int64_t vocab_size) {
  std::mt19937 random(20260104);
  std::vector<Request> requests(4);
  for (size_t i = 0; i < requests.size(); ++i) {
    Request& request = requests[i];
    request.prompt.resize(random() % 60 + 1);
    for (int32_t& token : request.prompt)
      token = static_cast<int32_t>(random() % static_cast<unsigned>(vocab_size));
    request.sampling.temperature = i % 2 == 0 ? 0.0f : 1.0f;
    request.sampling.seed = i;
    request.sampling.ignore_eos = true;
    request.sampling.max_tokens = 72;
    request.sampling.logprobs = 0;
    if (i % 3 == 0) request.sampling.prompt_logprobs = 0;
  }
  return requests;
}

void expect_invariance(kernels::Numerics numerics) {
  std::vector<std::shared_ptr<Reply>> alone;
  std::vector<Request> requests;
  {
    const auto engine = open_engine({.numerics = numerics});
    requests = make_requests(engine->info().vocab_size);
    for (const Request& request : requests) {
      alone.push_back(std::make_shared<Reply>());
      ASSERT_TRUE(engine->submit(request, alone.back()).ok());
      EXPECT_EQ(alone.back()->wait().completion_tokens, 72);
    }
  }
  const auto engine = open_engine({.numerics = numerics,
                                   .num_threads = 2,
                                   .max_num_seqs = 6,
                                   .max_num_batched_tokens = 11,
                                   .num_blocks = 5,
                                   .max_logit_rows = 9});
  std::vector<std::shared_ptr<Reply>> together;
  for (const Request& request : requests) {
    together.push_back(std::make_shared<Reply>());
    ASSERT_TRUE(engine->submit(request, together.back()).ok());
  }
  for (size_t i = 0; i < requests.size(); ++i) {
    EXPECT_EQ(together[i]->wait().completion_tokens, 72) << i;
    EXPECT_EQ(together[i]->tokens(), alone[i]->tokens()) << i;
    EXPECT_EQ(together[i]->values(), alone[i]->values()) << i;
  }
  const EngineStats stats = engine->stats();
  EXPECT_EQ(stats.cache_blocks_used, 0);
  EXPECT_GT(stats.preemptions, 0) << "the cache is meant to be too small, of " << stats.cache_blocks_total;
}

/// Log-probabilities of the second half of a text, as a prompt and forced through the decode path beside
/// other requests.
void expect_forced_equals_prompt(kernels::Numerics numerics) {
  const auto engine = open_engine({.numerics = numerics, .num_threads = 2, .max_num_seqs = 4});
  constexpr size_t kBegin = 30;
  std::vector<std::shared_ptr<Reply>> scored, forced;
  for (Request whole : make_requests(engine->info().vocab_size)) {
    whole.prompt.resize(2 * kBegin, 7);
    whole.sampling = {};
    whole.sampling.max_tokens = 0;
    Request part = whole;
    whole.sampling.prompt_logprobs = 0;
    whole.sampling.prompt_logprobs_begin = kBegin;
    part.prompt.resize(kBegin);
    part.sampling.forced_tokens.assign(whole.prompt.begin() + kBegin, whole.prompt.end());
    part.sampling.max_tokens = kBegin;
    part.sampling.logprobs = 0;
    scored.push_back(std::make_shared<Reply>());
    forced.push_back(std::make_shared<Reply>());
    ASSERT_TRUE(engine->submit(whole, scored.back()).ok());
    ASSERT_TRUE(engine->submit(part, forced.back()).ok());
  }
  for (size_t i = 0; i < scored.size(); ++i) {
    EXPECT_EQ(scored[i]->wait().reason, FinishReason::length);
    EXPECT_EQ(forced[i]->wait().reason, FinishReason::length);
    ASSERT_EQ(scored[i]->values().size(), 2 * kBegin);
    const std::vector<float> expected(scored[i]->values().begin() + kBegin, scored[i]->values().end());
    EXPECT_EQ(forced[i]->values(), expected) << i;
    EXPECT_TRUE(std::all_of(expected.begin(), expected.end(), [](float x) { return x < 0; }));
  }
}

TEST(EngineOverAModel, ForcedTokensHaveTheBitsOfThePromptPathInReferenceNumerics) {
  expect_forced_equals_prompt(kernels::Numerics::reference);
}

TEST(EngineOverAModel, ForcedTokensHaveTheBitsOfThePromptPathInExactNumerics) {
  expect_forced_equals_prompt(kernels::Numerics::exact);
}

TEST(EngineOverAModel, RepliesUnderLoadEqualThoseAloneInReferenceNumerics) {
  expect_invariance(kernels::Numerics::reference);
}

TEST(EngineOverAModel, RepliesUnderLoadEqualThoseAloneInExactNumerics) {
  expect_invariance(kernels::Numerics::exact);
}

}  // namespace
}  // namespace rorqual::runtime
