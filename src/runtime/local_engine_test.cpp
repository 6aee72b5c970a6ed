// SPDX-License-Identifier: Apache-2.0
#include "runtime/local_engine.h"

#include <gtest/gtest.h>

#include <atomic>
#include <cmath>
#include <condition_variable>
#include <functional>
#include <mutex>
#include <new>
#include <random>
#include <stdexcept>
#include <thread>

#include "runtime/fake_runner.h"
#include "runtime/logprobs.h"
#include "runtime/sampler.h"

namespace rorqual::runtime {
namespace {

using namespace std::chrono_literals;

/// Records everything and lets a test wait for the end.
class Recorder : public TokenSink {
 public:
  void on_prompt_logprobs(std::vector<std::optional<PositionLogprobs>> prompt) override {
    const std::lock_guard lock(mutex_);
    EXPECT_TRUE(tokens_.empty() && !end_);
    prompt_rows_ = std::move(prompt);
  }

  void on_token(int32_t token, std::optional<PositionLogprobs> logprobs) override {
    {
      const std::lock_guard lock(mutex_);
      EXPECT_FALSE(end_.has_value()) << "a token after the end";
      tokens_.push_back(token);
      rows_.push_back(std::move(logprobs));
    }
    changed_.notify_all();
    if (on_each_token) on_each_token();
  }

  void on_finish(const FinishInfo& info) override {
    {
      const std::lock_guard lock(mutex_);
      EXPECT_FALSE(end_.has_value()) << "finished twice";
      end_ = info;
    }
    changed_.notify_all();
    if (on_end) on_end();
  }

  FinishInfo wait() {
    std::unique_lock lock(mutex_);
    EXPECT_TRUE(changed_.wait_for(lock, 60s, [this] { return end_.has_value(); })) << "never finished";
    return end_.value_or(FinishInfo{});
  }

  void wait_for_tokens(size_t count) {
    std::unique_lock lock(mutex_);
    EXPECT_TRUE(changed_.wait_for(lock, 60s, [&] { return tokens_.size() >= count || end_; }));
  }

  std::vector<int32_t> tokens() {
    const std::lock_guard lock(mutex_);
    return tokens_;
  }

  std::vector<std::optional<PositionLogprobs>> rows() {
    const std::lock_guard lock(mutex_);
    return rows_;
  }

  std::vector<std::optional<PositionLogprobs>> prompt_rows() {
    const std::lock_guard lock(mutex_);
    return prompt_rows_;
  }

  std::function<void()> on_each_token, on_end;

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<int32_t> tokens_;
  std::vector<std::optional<PositionLogprobs>> rows_, prompt_rows_;
  std::optional<FinishInfo> end_;
};

/// Holds the engine inside forward until it is opened.
class Gate {
 public:
  void open() {
    {
      const std::lock_guard lock(mutex_);
      is_open_ = true;
    }
    changed_.notify_all();
  }

  Status pass(std::span<const model::StepSlice>) {
    std::unique_lock lock(mutex_);
    ++num_entered_;
    changed_.notify_all();
    changed_.wait(lock, [this] { return is_open_; });
    return Ok{};
  }

  void wait_until_entered() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return num_entered_ > 0; });
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  bool is_open_ = false;
  int num_entered_ = 0;
};

struct EngineSetup {
  FakeRunnerOptions runner{};
  EngineOptions options{};
  std::function<Status(std::span<const model::StepSlice>)> before_forward{};

  std::unique_ptr<Engine> make() const {
    auto fake = std::make_unique<FakeRunner>(runner);
    fake->before_forward = before_forward;
    EngineInfo info;
    info.eos_token_id = 1;
    auto engine = make_local_engine(std::move(fake), info, options);
    EXPECT_TRUE(engine.ok()) << engine.error().message();
    return *std::move(engine);
  }
};

Request make_request(std::vector<int32_t> prompt, int64_t max_tokens) {
  Request request;
  request.prompt = std::move(prompt);
  request.sampling.max_tokens = max_tokens;
  request.sampling.temperature = 0;
  request.sampling.ignore_eos = true;
  return request;
}

std::shared_ptr<Recorder> start(Engine& engine, Request request, RequestId* id = nullptr) {
  auto sink = std::make_shared<Recorder>();
  auto result = engine.submit(std::move(request), sink);
  EXPECT_TRUE(result.ok()) << result.error().message();
  if (id != nullptr) *id = *result;
  return sink;
}

std::vector<int32_t> greedy_reply(std::vector<int32_t> tokens, size_t count) {
  const FakeRunner model({});
  const size_t prompt = tokens.size();
  while (tokens.size() < prompt + count) tokens.push_back(argmax(model.logits_after(tokens)));
  return {tokens.begin() + static_cast<std::ptrdiff_t>(prompt), tokens.end()};
}

TEST(LocalEngine, DeliversTheGreedyTokensOfTheModel) {
  const auto engine = EngineSetup{}.make();
  const auto sink = start(*engine, make_request({5, 6, 7}, 20));
  const FinishInfo info = sink->wait();
  EXPECT_EQ(info.reason, FinishReason::length);
  EXPECT_EQ(info.prompt_tokens, 3);
  EXPECT_EQ(info.completion_tokens, 20);
  EXPECT_EQ(sink->tokens(), greedy_reply({5, 6, 7}, 20));
}

TEST(LocalEngine, StopIdsAndEosEndTheReplyAndAreNotDelivered) {
  const auto engine = EngineSetup{}.make();
  const auto reply = greedy_reply({5, 6, 7}, 20);
  Request request = make_request({5, 6, 7}, 20);
  request.sampling.stop_token_ids = {reply[4]};
  const auto first = static_cast<size_t>(std::find(reply.begin(), reply.end(), reply[4]) - reply.begin());
  const auto sink = start(*engine, request);
  const FinishInfo info = sink->wait();
  EXPECT_EQ(info.reason, FinishReason::stop);
  EXPECT_EQ(info.stop_token, reply[4]);
  EXPECT_EQ(sink->tokens().size(), first);
  EXPECT_EQ(info.completion_tokens, static_cast<int64_t>(first) + 1);

  Request biased = make_request({5}, 5);
  biased.sampling.ignore_eos = false;
  biased.sampling.logit_bias = {{1, 100.0f}};
  biased.sampling.min_tokens = 2;  // EOS is masked twice, then certain
  const auto eos = start(*engine, biased);
  EXPECT_EQ(eos->wait().stop_token, 1);
  EXPECT_EQ(eos->tokens().size(), 2u);
}

TEST(LocalEngine, MinAndMaxTokensGiveExactLengthsBesideIgnoredEos) {
  const auto engine = EngineSetup{}.make();
  Request request = make_request({5}, 64);
  request.sampling.temperature = 1;
  request.sampling.min_tokens = 64;
  request.sampling.seed = 3;
  EXPECT_EQ(start(*engine, request)->wait().completion_tokens, 64);
}

TEST(LocalEngine, EndsAtTheContextLength) {
  const auto engine = EngineSetup{.runner = {.max_model_len = 10}}.make();
  const auto sink = start(*engine, make_request({5, 6, 7}, 100));
  EXPECT_EQ(sink->wait().reason, FinishReason::length);
  EXPECT_EQ(sink->tokens().size(), 7u);
}

TEST(LocalEngine, TheContextIsNoLongerThanTheCache) {
  const auto engine = EngineSetup{.runner = {.page_tokens = 4, .blocks = 3}}.make();
  EXPECT_EQ(engine->info().max_model_len, 12);
  EXPECT_EQ(engine->info().vocab_size, 61);
  EXPECT_EQ(start(*engine, make_request({5, 6}, 100))->wait().completion_tokens, 10);
}

TEST(LocalEngine, LogprobsAreThoseOfTheRawRow) {
  const auto engine = EngineSetup{}.make();
  Request request = make_request({5, 6}, 3);
  request.sampling.temperature = 2;
  request.sampling.logit_bias = {{9, 50.0f}};
  request.sampling.logprobs = 4;
  request.sampling.logprob_token_ids = {13};
  request.sampling.seed = 11;
  const auto sink = start(*engine, request);
  sink->wait();
  std::vector<int32_t> prefix = {5, 6};
  const FakeRunner model({});
  const auto tokens = sink->tokens();
  const auto rows = sink->rows();
  ASSERT_EQ(tokens.size(), 3u);
  for (size_t i = 0; i < 3; ++i) {
    ASSERT_TRUE(rows[i].has_value());
    const std::vector<int32_t> ids = {13};
    const auto expected = position_logprobs(model.logits_after(prefix), {tokens[i], 4, ids});
    EXPECT_EQ(rows[i]->chosen.token, tokens[i]);
    EXPECT_EQ(rows[i]->chosen.logprob, expected.chosen.logprob);
    EXPECT_EQ(rows[i]->chosen.rank, expected.chosen.rank);
    ASSERT_EQ(rows[i]->top.size(), expected.top.size());
    for (size_t j = 0; j < expected.top.size(); ++j) {
      EXPECT_EQ(rows[i]->top[j].token, expected.top[j].token);
      EXPECT_EQ(rows[i]->top[j].logprob, expected.top[j].logprob);
    }
    prefix.push_back(tokens[i]);
  }
}

TEST(LocalEngine, ScoresAPromptInBoundedPiecesWithoutGenerating) {
  std::vector<int32_t> prompt(50);
  for (size_t i = 0; i < prompt.size(); ++i) prompt[i] = static_cast<int32_t>(i * 7 % 61);
  const FakeRunner model({});
  for (const int64_t rows : {int64_t{1}, int64_t{7}, int64_t{256}}) {
    EngineSetup setup;
    setup.options.max_num_seqs = 1;
    setup.options.max_logit_rows = rows;
    const auto engine = setup.make();
    Request request = make_request(prompt, 0);
    request.sampling.prompt_logprobs = 2;
    const auto sink = start(*engine, request);
    const FinishInfo info = sink->wait();
    EXPECT_EQ(info.reason, FinishReason::length);
    EXPECT_EQ(info.completion_tokens, 0);
    const auto scored = sink->prompt_rows();
    ASSERT_EQ(scored.size(), prompt.size());
    EXPECT_FALSE(scored[0].has_value());
    for (size_t i = 1; i < prompt.size(); ++i) {
      const auto prefix = std::span<const int32_t>(prompt).first(i);
      const auto expected = position_logprobs(model.logits_after(prefix), {prompt[i], 2, {}});
      ASSERT_TRUE(scored[i].has_value());
      EXPECT_EQ(scored[i]->chosen.token, prompt[i]);
      EXPECT_EQ(scored[i]->chosen.logprob, expected.chosen.logprob);
      EXPECT_EQ(scored[i]->top[1].token, expected.top[1].token);
    }
  }
}

TEST(LocalEngine, ADrawnSeedIsReportedAndRepeatsTheReply) {
  const auto engine = EngineSetup{}.make();
  Request request = make_request({5, 6}, 30);
  request.sampling.temperature = 1;
  const auto first = start(*engine, request);
  const FinishInfo info = first->wait();
  const auto other = start(*engine, request);
  EXPECT_NE(other->wait().seed, info.seed);
  request.sampling.seed = info.seed;
  const auto again = start(*engine, request);
  EXPECT_EQ(again->wait().seed, info.seed);
  EXPECT_EQ(again->tokens(), first->tokens());
  EXPECT_NE(other->tokens(), first->tokens());
}

TEST(LocalEngine, ChoicesOfOneSeedDiffer) {
  const auto engine = EngineSetup{}.make();
  Request request = make_request({5, 6}, 30);
  request.sampling.temperature = 1;
  request.sampling.seed = 9;
  const auto a = start(*engine, request);
  request.sampling.choice_index = 1;
  const auto b = start(*engine, request);
  a->wait();
  b->wait();
  EXPECT_NE(a->tokens(), b->tokens());
}

TEST(LocalEngine, CancelEndsARequestWithinAStepAndFreesItsBlocks) {
  const auto engine = EngineSetup{}.make();
  RequestId id = 0;
  const auto sink = start(*engine, make_request({5}, 4000), &id);
  sink->wait_for_tokens(3);
  engine->cancel(id);
  engine->cancel(id);
  engine->cancel(999);
  const FinishInfo info = sink->wait();
  EXPECT_TRUE(info.reason == FinishReason::cancelled || info.reason == FinishReason::length);
  const EngineStats stats = engine->stats();
  EXPECT_EQ(stats.requests_running + stats.requests_waiting, 0);
  EXPECT_EQ(stats.cache_blocks_used, 0);
  EXPECT_TRUE(engine->drain(60s));
}

TEST(LocalEngine, ACancelledPrefillStopsAtTheNextChunk) {
  Gate gate;
  std::atomic<int> steps{0};
  EngineSetup setup;
  setup.options.max_num_batched_tokens = 8;
  setup.options.max_num_seqs = 8;
  setup.before_forward = [&](auto slices) {
    ++steps;
    return gate.pass(slices);
  };
  const auto engine = setup.make();
  RequestId id = 0;
  const auto sink = start(*engine, make_request(std::vector<int32_t>(1000, 3), 10), &id);
  gate.wait_until_entered();
  engine->cancel(id);
  gate.open();
  EXPECT_EQ(sink->wait().reason, FinishReason::cancelled);
  EXPECT_EQ(steps, 1);
}

TEST(LocalEngine, TokensAreDeliveredWhileTheNextStepComputes) {
  Gate gate;
  std::atomic<int> steps{0};
  EngineSetup setup;
  setup.before_forward = [&](auto slices) -> Status {
    if (++steps == 3) return gate.pass(slices);
    return Ok{};
  };
  const auto engine = setup.make();
  RequestId id = 0;
  const auto sink = start(*engine, make_request({5, 6}, 10), &id);
  sink->wait_for_tokens(2);  // while the third step is held
  gate.wait_until_entered();
  EXPECT_EQ(sink->tokens(), greedy_reply({5, 6}, 2));
  const auto other = start(*engine, make_request({7}, 1));
  engine->cancel(id);
  EXPECT_EQ(steps, 3);
  gate.open();
  EXPECT_EQ(sink->wait().reason, FinishReason::cancelled);
  EXPECT_EQ(sink->tokens().size(), 2u) << "no token follows a cancellation";
  EXPECT_EQ(other->wait().completion_tokens, 1);
}

TEST(LocalEngine, ASinkThatThrowsWhileAStepComputesEndsWithThatStep) {
  EngineSetup setup;
  setup.options.drafts = 3;
  const auto engine = setup.make();
  auto bad = std::make_shared<Recorder>();
  bad->on_each_token = [&] {
    if (bad->tokens().size() == 5) throw std::runtime_error("sink broke");
  };
  ASSERT_TRUE(engine->submit(make_request({5}, 1000), bad).ok());
  EXPECT_EQ(bad->wait().reason, FinishReason::error);
  EXPECT_EQ(bad->tokens().size(), 5u);
  EXPECT_TRUE(engine->drain(60s));
  EXPECT_EQ(engine->stats().cache_blocks_used, 0);
}

TEST(LocalEngine, ManyThreadsWithReuseDraftsAndSwappingGetTheRepliesTheyWouldGetAlone) {
  EngineSetup setup;
  setup.runner = {.page_tokens = 4, .blocks = 60};
  setup.options.max_num_seqs = 8;
  setup.options.max_num_batched_tokens = 32;
  setup.options.drafts = 5;
  setup.options.prefix_cache_bytes = 6000;
  setup.options.swap_bytes = 20000;
  const auto engine = setup.make();
  std::atomic<int> num_wrong{0};
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      std::mt19937 random(static_cast<unsigned>(t));
      for (int i = 0; i < 60; ++i) {
        std::vector<int32_t> prompt(random() % 40 + 1);
        for (size_t j = 0; j < prompt.size(); ++j) prompt[j] = static_cast<int32_t>(j * 3 % 61);
        prompt.back() = static_cast<int32_t>(random() % 61);
        const size_t length = random() % 20 + 1;
        RequestId id = 0;
        const auto sink = start(*engine, make_request(prompt, static_cast<int64_t>(length)), &id);
        if (i % 5 == 0) engine->cancel(id);
        sink->wait();
        const auto tokens = sink->tokens();
        const auto expected = greedy_reply(prompt, length);
        if (!std::equal(tokens.begin(), tokens.end(), expected.begin())) ++num_wrong;
        if (i % 5 != 0 && tokens.size() != length) ++num_wrong;
      }
    });
  }
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(num_wrong, 0);
  const EngineStats stats = engine->stats();
  EXPECT_EQ(stats.cache_blocks_used, 0);
  EXPECT_GT(stats.prefix.hit_tokens, 0);
  EXPECT_GT(stats.speculation.accepted_tokens, 0);
}

TEST(LocalEngine, ASinkMayCancelAndSubmit) {
  const auto engine = EngineSetup{}.make();
  auto sink = std::make_shared<Recorder>();
  auto next = std::make_shared<Recorder>();
  std::atomic<RequestId> id{0};
  sink->on_each_token = [&] {
    if (sink->tokens().size() == 2) engine->cancel(id);
  };
  sink->on_end = [&] { EXPECT_TRUE(engine->submit(make_request({4}, 3), next).ok()); };
  {
    auto result = engine->submit(make_request({5}, 4000), sink);
    ASSERT_TRUE(result.ok());
    id = *result;
  }
  sink->wait();
  EXPECT_EQ(next->wait().completion_tokens, 3);
}

TEST(LocalEngine, RefusesBeyondTheQueueLimitsAndCountsRunningOnes) {
  Gate gate;
  EngineSetup setup;
  setup.options.max_num_queued_reqs = 3;
  setup.before_forward = [&](auto slices) { return gate.pass(slices); };
  const auto engine = setup.make();
  std::vector<std::shared_ptr<Recorder>> sinks;
  for (int i = 0; i < 3; ++i) sinks.push_back(start(*engine, make_request({5}, 2)));
  const auto refused = engine->submit(make_request({5}, 2), std::make_shared<Recorder>());
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.error().code(), Code::unavailable);
  EXPECT_EQ(refused.error().limit(), Limit::queued_reqs);
  EXPECT_FALSE(refused.error().hint().empty());
  gate.open();
  for (const auto& sink : sinks) EXPECT_EQ(sink->wait().completion_tokens, 2);
}

TEST(LocalEngine, RoomIsFreeWhenAClientHearsOfTheEnd) {
  EngineSetup setup;
  setup.options.max_num_queued_reqs = 1;
  const auto engine = setup.make();
  for (int i = 0; i < 200; ++i) EXPECT_EQ(start(*engine, make_request({5}, 1))->wait().completion_tokens, 1);
}

TEST(LocalEngine, RefusesWhileTooManyPromptTokensWait) {
  Gate gate;
  EngineSetup setup;
  setup.options.max_num_queued_tokens = 100;
  setup.before_forward = [&](auto slices) { return gate.pass(slices); };
  const auto engine = setup.make();
  const std::vector<int32_t> prompt(50, 2);
  const auto a = start(*engine, make_request(prompt, 1));
  const auto b = start(*engine, make_request(prompt, 1));
  const auto refused = engine->submit(make_request(prompt, 1), std::make_shared<Recorder>());
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.error().limit(), Limit::queued_tokens);
  gate.open();
  a->wait();
  b->wait();
  EXPECT_EQ(start(*engine, make_request(prompt, 1))->wait().completion_tokens, 1);
}

TEST(LocalEngine, InvalidRequestsAreRefusedAtOnce) {
  const auto engine = EngineSetup{}.make();
  const auto refused = engine->submit(make_request({61}, 1), std::make_shared<Recorder>());
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.error().code(), Code::invalid_argument);
}

TEST(LocalEngine, DrainRefusesNewRequestsAndWaitsForTheRunningOnes) {
  Gate gate;
  EngineSetup setup;
  setup.before_forward = [&](auto slices) { return gate.pass(slices); };
  const auto engine = setup.make();
  const auto sink = start(*engine, make_request({5}, 4));
  gate.wait_until_entered();
  EXPECT_FALSE(engine->drain(1ms));
  const auto refused = engine->submit(make_request({5}, 1), std::make_shared<Recorder>());
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.error().code(), Code::unavailable);
  gate.open();
  EXPECT_TRUE(engine->drain(60s));
  EXPECT_EQ(sink->wait().completion_tokens, 4);
}

TEST(LocalEngine, DestructionCancelsWhatIsUnfinished) {
  std::vector<std::shared_ptr<Recorder>> sinks;
  {
    EngineSetup setup;
    setup.options.max_num_seqs = 2;
    const auto engine = setup.make();
    for (int i = 0; i < 6; ++i) sinks.push_back(start(*engine, make_request({5}, 4000)));
    sinks[0]->wait_for_tokens(2);
  }
  for (const auto& sink : sinks) {
    const FinishReason reason = sink->wait().reason;
    EXPECT_TRUE(reason == FinishReason::cancelled || reason == FinishReason::length);
  }
  EXPECT_EQ(sinks[5]->wait().reason, FinishReason::cancelled);
}

TEST(LocalEngine, AThrowingSinkEndsItsOwnRequestOnly) {
  const auto engine = EngineSetup{}.make();
  auto bad = std::make_shared<Recorder>();
  bad->on_each_token = [] { throw std::runtime_error("sink broke"); };
  ASSERT_TRUE(engine->submit(make_request({5}, 10), bad).ok());
  const auto good = start(*engine, make_request({5}, 10));
  const FinishInfo info = bad->wait();
  EXPECT_EQ(info.reason, FinishReason::error);
  ASSERT_TRUE(info.error.has_value());
  EXPECT_NE(info.error->message().find("sink broke"), std::string::npos);
  EXPECT_EQ(good->wait().completion_tokens, 10);
  EXPECT_TRUE(engine->stats().is_alive);
}

TEST(LocalEngine, AThrowInOnFinishHarmsNobody) {
  const auto engine = EngineSetup{}.make();
  auto bad = std::make_shared<Recorder>();
  bad->on_end = [] { throw 1; };
  ASSERT_TRUE(engine->submit(make_request({5}, 2), bad).ok());
  bad->wait();
  EXPECT_EQ(start(*engine, make_request({5}, 2))->wait().completion_tokens, 2);
}

TEST(LocalEngine, AFailedStepEndsItsRequestsAndTheEngineGoesOn) {
  std::atomic<int> calls{0};
  EngineSetup setup;
  setup.before_forward = [&](auto) -> Status {
    if (++calls == 3) return Error(Code::out_of_memory, "no scratch");
    return Ok{};
  };
  const auto engine = setup.make();
  const auto sink = start(*engine, make_request({5}, 10));
  const FinishInfo info = sink->wait();
  EXPECT_EQ(info.reason, FinishReason::error);
  EXPECT_EQ(info.error->code(), Code::out_of_memory);
  EXPECT_TRUE(engine->stats().is_alive);
  EXPECT_EQ(engine->stats().cache_blocks_used, 0);
  EXPECT_EQ(start(*engine, make_request({5}, 10))->wait().completion_tokens, 10);
}

/// Whatever kills a step: all requests end with an error, the engine says that it is dead, and nobody hangs.
void expect_death(const std::function<Status()>& fault, Code code) {
  Gate gate;
  EngineSetup setup;
  setup.options.max_num_seqs = 1;
  setup.before_forward = [&](auto slices) -> Status {
    RORQUAL_TRY(gate.pass(slices));
    return fault();
  };
  const auto engine = setup.make();
  std::vector<std::shared_ptr<Recorder>> sinks;
  for (int i = 0; i < 3; ++i) sinks.push_back(start(*engine, make_request({5}, 10)));
  gate.open();
  for (const auto& sink : sinks) {
    const FinishInfo info = sink->wait();
    EXPECT_EQ(info.reason, FinishReason::error);
    ASSERT_TRUE(info.error.has_value());
    EXPECT_EQ(info.error->code(), code);
  }
  const EngineStats stats = engine->stats();
  EXPECT_FALSE(stats.is_alive);
  EXPECT_EQ(stats.requests_running + stats.requests_waiting, 0) << "serve ends when nothing is left to end";
  const auto refused = engine->submit(make_request({5}, 1), std::make_shared<Recorder>());
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.error().code(), Code::unavailable);
  EXPECT_TRUE(engine->drain(60s));
}

TEST(LocalEngine, ADeviceErrorStopsIt) {
  expect_death([]() -> Status { return Error(Code::device, "gone"); }, Code::device);
}

TEST(LocalEngine, BadAllocStopsIt) {
  expect_death([]() -> Status { throw std::bad_alloc(); }, Code::out_of_memory);
}

TEST(LocalEngine, AnExceptionStopsIt) {
  expect_death([]() -> Status { throw std::runtime_error("boom"); }, Code::internal);
}

class ManualClock final : public Clock {
 public:
  int64_t now_ns() const override { return now; }

  std::atomic<int64_t> now{1};
};

TEST(LocalEngine, AStuckStepIsNotAlive) {
  Gate gate;
  const auto clock = std::make_shared<ManualClock>();
  EngineSetup setup;
  setup.options.step_timeout_s = 60;
  setup.options.clock = clock;
  setup.before_forward = [&](auto slices) { return gate.pass(slices); };
  const auto engine = setup.make();
  const auto sink = start(*engine, make_request({5}, 1));
  gate.wait_until_entered();
  clock->now = int64_t{59} * 1000000000;
  EXPECT_TRUE(engine->stats().is_alive);
  clock->now = int64_t{61} * 1000000000;
  EXPECT_FALSE(engine->stats().is_alive);
  gate.open();
  const FinishInfo info = sink->wait();
  EXPECT_TRUE(engine->drain(60s));
  EXPECT_TRUE(engine->stats().is_alive);
  EXPECT_NEAR(info.queue_s + info.prefill_s, 61.0, 1e-6);
}

TEST(LocalEngine, NotFiniteLogitsFailTheirRequestOnly) {
  class Poisoned final : public FakeRunner {
   public:
    Poisoned() : FakeRunner({}) {}

    Status forward(std::span<const model::StepSlice> slices, std::span<float> logits) override {
      RORQUAL_TRY(FakeRunner::forward(slices, logits));
      for (size_t i = 0; i < slices.size(); ++i) {
        if (slices[i].tokens[0] == 13) logits[i * 61 + 5] = NAN;
      }
      return Ok{};
    }
  };

  auto engine = make_local_engine(std::make_unique<Poisoned>(), {}, {});
  ASSERT_TRUE(engine.ok());
  const auto bad = start(**engine, make_request({13, 2}, 1));
  const auto good = start(**engine, make_request({12, 2}, 1));
  EXPECT_EQ(bad->wait().reason, FinishReason::error);
  EXPECT_EQ(good->wait().reason, FinishReason::length);
}

TEST(LocalEngine, OptionsOutOfRangeAreNamed) {
  const auto expect_refusal = [](EngineOptions options, const char* name) {
    const auto engine = make_local_engine(std::make_unique<FakeRunner>(FakeRunnerOptions{}), {}, options);
    ASSERT_FALSE(engine.ok());
    EXPECT_NE(engine.error().message().find(name), std::string::npos);
  };
  EngineOptions options;
  options.max_num_seqs = 0;
  expect_refusal(options, "max_num_seqs");
  options = {};
  options.max_num_batched_tokens = 0;
  expect_refusal(options, "max_num_batched_tokens");
  options = {};
  options.max_logprobs = -2;
  expect_refusal(options, "max_logprobs");
  options = {};
  options.max_logit_rows = int64_t{1} << 60;
  expect_refusal(options, "max_logit_rows");
}

TEST(LocalEngine, EightVeryLongPromptsAllEnd) {  // E-scheduler-01
  EngineSetup setup;
  setup.runner = {.max_model_len = 71000, .page_tokens = 64, .blocks = 8 * 1110, .layers = 2};
  setup.options.max_num_seqs = 8;
  setup.options.max_num_batched_tokens = 4096;
  const auto engine = setup.make();
  std::vector<std::shared_ptr<Recorder>> sinks;
  for (int32_t i = 0; i < 8; ++i) {
    std::vector<int32_t> prompt(70000, 5);
    prompt[static_cast<size_t>(i)] = 6;
    sinks.push_back(start(*engine, make_request(std::move(prompt), 3)));
  }
  for (const auto& sink : sinks) EXPECT_EQ(sink->wait().completion_tokens, 3);
  EXPECT_EQ(engine->stats().cache_blocks_used, 0);
}

TEST(LocalEngine, ManyThreadsGetTheRepliesTheyWouldGetAlone) {
  EngineSetup setup;
  setup.runner = {.page_tokens = 4, .blocks = 40};
  setup.options.max_num_seqs = 8;
  setup.options.max_num_batched_tokens = 16;
  const auto engine = setup.make();
  constexpr int kThreads = 4;
  constexpr int kRequests = 60;
  std::atomic<int> num_wrong{0};
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      std::mt19937 random(static_cast<unsigned>(t));
      for (int i = 0; i < kRequests; ++i) {
        std::vector<int32_t> prompt(random() % 30 + 1);
        for (int32_t& token : prompt) token = static_cast<int32_t>(random() % 61);
        const size_t length = random() % 20 + 1;
        RequestId id = 0;
        const auto sink = start(*engine, make_request(prompt, static_cast<int64_t>(length)), &id);
        const bool is_cancelled = i % 5 == 0;
        if (is_cancelled) engine->cancel(id);
        sink->wait();
        const auto tokens = sink->tokens();
        const auto expected = greedy_reply(prompt, length);
        const bool is_right = std::equal(tokens.begin(), tokens.end(), expected.begin()) &&
                              (is_cancelled || tokens.size() == length);
        if (!is_right) ++num_wrong;
      }
    });
  }
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(num_wrong, 0);
  const EngineStats stats = engine->stats();
  EXPECT_EQ(stats.requests_running + stats.requests_waiting, 0);
  EXPECT_EQ(stats.cache_blocks_used, 0);
  EXPECT_GT(stats.steps, 0);
}

}  // namespace
}  // namespace rorqual::runtime
