// SPDX-License-Identifier: Apache-2.0
#include "runtime/scripted_engine.h"

#include <gtest/gtest.h>

#include <condition_variable>
#include <mutex>
#include <stdexcept>

namespace rorqual::runtime {
namespace {

using namespace std::chrono_literals;

struct Recorder : TokenSink {
  void on_begin(int64_t cached_tokens) override { begins.push_back(cached_tokens); }

  void on_prompt_logprobs(std::vector<std::optional<PositionLogprobs>> prompt) override {
    prompt_rows = std::move(prompt);
  }

  void on_token(int32_t token, std::optional<PositionLogprobs> row) override {
    tokens.push_back(token);
    rows.push_back(std::move(row));
    if (is_broken) throw std::runtime_error("sink broke");
  }

  void on_finish(const FinishInfo& info) override {
    {
      const std::lock_guard lock(mutex);
      EXPECT_FALSE(end.has_value());
      end = info;
    }
    changed.notify_all();
  }

  FinishInfo wait() {  // the other fields may be read afterwards
    std::unique_lock lock(mutex);
    EXPECT_TRUE(changed.wait_for(lock, 60s, [this] { return end.has_value(); }));
    return end.value_or(FinishInfo{});
  }

  bool is_broken = false;
  std::vector<int64_t> begins;
  std::vector<int32_t> tokens;
  std::vector<std::optional<PositionLogprobs>> rows, prompt_rows;
  std::mutex mutex;
  std::condition_variable changed;
  std::optional<FinishInfo> end;
};

EngineInfo test_info() {
  EngineInfo info;
  info.vocab_size = 100;
  info.max_model_len = 50;
  return info;
}

std::unique_ptr<Engine> make(std::string_view script, ScriptedOptions options = {}) {
  auto engine = make_scripted_engine(script, test_info(), options);
  EXPECT_TRUE(engine.ok()) << engine.error().message();
  return *std::move(engine);
}

Request make_request(int64_t max_tokens = 20) {
  Request request;
  request.prompt = {3, 4, 5};
  request.sampling.max_tokens = max_tokens;
  return request;
}

std::shared_ptr<Recorder> start(Engine& engine, Request request, RequestId* id = nullptr) {
  auto sink = std::make_shared<Recorder>();
  const auto result = engine.submit(std::move(request), sink);
  EXPECT_TRUE(result.ok());
  if (id != nullptr && result.ok()) *id = *result;
  return sink;
}

using Ids = std::vector<int32_t>;

TEST(ScriptedEngine, AnswersRequestsInTheOrderOfItsLinesAndStartsAgain) {
  const auto engine =
      make("{\"tokens\": [10, 11, 12]}\n\n{\"tokens\": [20], \"step_tokens\": 3, \"cached_tokens\": 2}\n");
  const auto a = start(*engine, make_request());
  const auto b = start(*engine, make_request());
  const auto c = start(*engine, make_request());
  const FinishInfo info = a->wait();
  EXPECT_EQ(info.reason, FinishReason::stop);
  EXPECT_EQ(info.stop_token, 1);
  EXPECT_EQ(info.completion_tokens, 4);  // EOS is sampled too
  EXPECT_EQ(info.prompt_tokens, 3);
  EXPECT_EQ(a->tokens, (Ids{10, 11, 12}));
  EXPECT_EQ(b->wait().cached_tokens, 2);
  EXPECT_EQ(b->begins, std::vector<int64_t>{2});
  EXPECT_EQ(b->tokens, Ids{20});
  c->wait();
  EXPECT_EQ(c->tokens, a->tokens);
}

TEST(ScriptedEngine, MaxTokensAndTheContextCutTheAnswer) {
  const auto engine = make("{\"tokens\": [10, 11, 12]}");
  const auto sink = start(*engine, make_request(2));
  EXPECT_EQ(sink->wait().reason, FinishReason::length);
  EXPECT_EQ(sink->tokens, (Ids{10, 11}));
  Request endless = make_request(1000);
  endless.sampling.ignore_eos = true;
  const auto full = start(*engine, endless);
  EXPECT_EQ(full->wait().reason, FinishReason::length);
  EXPECT_EQ(full->tokens.size(), 47u);
}

TEST(ScriptedEngine, IgnoredEosAndMinTokensGiveExactLengths) {
  const auto engine = make("{\"tokens\": [10, 1, 12]}");
  Request request = make_request(8);
  request.sampling.ignore_eos = true;
  request.sampling.min_tokens = 8;
  const auto sink = start(*engine, request);
  EXPECT_EQ(sink->wait().completion_tokens, 8);
  EXPECT_EQ(sink->tokens, (Ids{10, 1, 12, 10, 1, 12, 10, 1}));
  request.sampling.ignore_eos = false;
  request.sampling.min_tokens = 3;
  const auto other = start(*engine, request);
  EXPECT_EQ(other->wait().reason, FinishReason::stop);
  EXPECT_EQ(other->tokens, (Ids{10, 12, 10}));
}

TEST(ScriptedEngine, StopIdsEndTheAnswerAndAreNotDelivered) {
  const auto engine = make("{\"tokens\": [10, 11, 12]}");
  Request request = make_request();
  request.sampling.stop_token_ids = {12};
  const auto sink = start(*engine, request);
  EXPECT_EQ(sink->wait().stop_token, 12);
  EXPECT_EQ(sink->tokens, (Ids{10, 11}));
}

TEST(ScriptedEngine, LogprobsComeFromTheScriptOrAreMadeUp) {
  const auto engine = make(
      "{\"tokens\": [10, 11], \"logprobs\": [-0.5], \"top_logprobs\": [[[9, -0.25], [10, -0.5], [11, -3]]]}");
  Request request = make_request();
  request.sampling.logprobs = 2;
  request.sampling.prompt_logprobs = 1;
  const auto sink = start(*engine, request);
  sink->wait();
  ASSERT_EQ(sink->rows.size(), 2u);
  EXPECT_EQ(sink->rows[0]->chosen.logprob, -0.5f);
  EXPECT_EQ(sink->rows[0]->chosen.rank, 2);
  ASSERT_EQ(sink->rows[0]->top.size(), 2u);
  EXPECT_EQ(sink->rows[0]->top[0].token, 9);
  EXPECT_EQ(sink->rows[1]->chosen.logprob, -1.0f);
  EXPECT_EQ(sink->rows[1]->top.size(), 2u);
  ASSERT_EQ(sink->prompt_rows.size(), 3u);
  EXPECT_FALSE(sink->prompt_rows[0].has_value());
  EXPECT_EQ(sink->prompt_rows[1]->chosen.token, 4);
}

TEST(ScriptedEngine, ScoringOnlyDeliversNoToken) {
  const auto engine = make("{\"tokens\": [10]}");
  const auto sink = start(*engine, make_request(0));
  EXPECT_EQ(sink->wait().reason, FinishReason::length);
  EXPECT_TRUE(sink->tokens.empty());
}

TEST(ScriptedEngine, ForcedTokensReplaceTheScriptWhoseTokensStayTheBest) {
  const auto engine = make(R"({"tokens":[5,6,7]})");
  Request request;
  request.prompt = {1, 2};
  request.sampling.forced_tokens = {5, 9, 1, 4};
  request.sampling.max_tokens = 4;
  request.sampling.logprobs = 2;
  const auto sink = std::make_shared<Recorder>();
  ASSERT_TRUE(engine->submit(request, sink).ok());
  EXPECT_EQ(sink->wait().reason, FinishReason::length);
  EXPECT_EQ(sink->tokens, request.sampling.forced_tokens);
  const std::vector<int32_t> best = {5, 6, 7, 1};  // then EOS
  for (size_t i = 0; i < 4; ++i) {
    EXPECT_EQ(sink->rows[i]->chosen.token, request.sampling.forced_tokens[i]);
    EXPECT_EQ(sink->rows[i]->top[0].token, best[i]);
  }
  EXPECT_EQ(sink->rows[0]->chosen.rank, 1);
  EXPECT_EQ(sink->rows[1]->chosen.rank, 4);
  EXPECT_EQ(sink->rows[1]->chosen.logprob, -4.0f);
}

TEST(ScriptedEngine, ScriptedErrorsComeAfterTheTokens) {
  const auto engine = make("{\"tokens\": [10], \"error\": \"out of order\"}");
  const auto sink = start(*engine, make_request());
  const FinishInfo info = sink->wait();
  EXPECT_EQ(info.reason, FinishReason::error);
  EXPECT_EQ(info.error->message(), "out of order");
  EXPECT_EQ(sink->tokens, Ids{10});
}

TEST(ScriptedEngine, CancelReachesAPausingRequestAndOthersGoOn) {
  const auto engine = make("{\"tokens\": [10, 11], \"first_pause_ms\": 3000000}\n{\"tokens\": [20]}");
  RequestId id = 0;
  const auto slow = start(*engine, make_request(), &id);
  const auto quick = start(*engine, make_request());
  EXPECT_EQ(quick->wait().reason, FinishReason::stop);
  EXPECT_EQ(engine->stats().requests_running, 1);
  EXPECT_FALSE(engine->drain(1ms));
  EXPECT_FALSE(engine->submit(make_request(), std::make_shared<Recorder>()).ok());
  engine->cancel(id);
  EXPECT_EQ(slow->wait().reason, FinishReason::cancelled);
  EXPECT_TRUE(engine->drain(60s));
}

/// Sinks are called without the engine's lock: what is cancelled meanwhile must not wait for the next step.
TEST(ScriptedEngine, CancelsWhileAnotherCancellationIsToldAreNotLost) {
  struct Chain : Recorder {
    void on_finish(const FinishInfo& info) override {
      engine->cancel(next);
      Recorder::on_finish(info);
    }

    Engine* engine = nullptr;
    RequestId next{};
  };

  const auto engine = make(R"({"tokens": [10], "first_pause_ms": 600000})");
  RequestId second{};
  const auto last = start(*engine, make_request(), &second);
  auto chain = std::make_shared<Chain>();
  chain->engine = engine.get();
  chain->next = second;
  const auto first = engine->submit(make_request(), chain);
  ASSERT_TRUE(first.ok());
  engine->cancel(*first);
  EXPECT_TRUE(engine->drain(5s));
  EXPECT_EQ(last->end.value_or(FinishInfo{}).reason, FinishReason::cancelled);
}

TEST(ScriptedEngine, DestructionCancelsAndTheQueueIsBounded) {
  std::shared_ptr<Recorder> sink;
  {
    const auto engine = make("{\"tokens\": [10], \"first_pause_ms\": 3000000}", {.max_num_queued_reqs = 1});
    sink = start(*engine, make_request());
    const auto refused = engine->submit(make_request(), std::make_shared<Recorder>());
    ASSERT_FALSE(refused.ok());
    EXPECT_EQ(refused.error().code(), Code::unavailable);
    EXPECT_EQ(refused.error().limit(), Limit::queued_reqs);
  }
  EXPECT_EQ(sink->wait().reason, FinishReason::cancelled);
}

TEST(ScriptedEngine, AThrowingSinkEndsItsOwnRequest) {
  const auto engine = make("{\"tokens\": [10, 11]}");
  auto sink = std::make_shared<Recorder>();
  sink->is_broken = true;
  ASSERT_TRUE(engine->submit(make_request(), sink).ok());
  EXPECT_EQ(sink->wait().reason, FinishReason::error);
  EXPECT_EQ(start(*engine, make_request())->wait().reason, FinishReason::stop);
}

TEST(ScriptedEngine, AScriptThatCannotGoOnIsAnErrorAndNotALoop) {
  const auto engine = make("{\"tokens\": []}");
  Request request = make_request();
  request.sampling.ignore_eos = true;
  EXPECT_EQ(start(*engine, request)->wait().reason, FinishReason::error);
}

TEST(ScriptedEngine, BadScriptsNameTheLine) {
  for (const char* script :
       {"{\"tokens\": [10]}\n{\"tokens\": [100]}", "{\"tokens\": [1]}\nnot json", "{\"tokens\": [1]}\n{}",
        "{\"tokens\": [1]}\n{\"tokens\": [1], \"pause_ms\": -1}",
        "{\"tokens\": [1]}\n{\"tokens\": [1], \"step_tokens\": 0}"}) {
    const auto engine = make_scripted_engine(script, test_info(), {});
    ASSERT_FALSE(engine.ok()) << script;
    EXPECT_EQ(engine.error().code(), Code::invalid_argument);
    EXPECT_NE(engine.error().message().find("line 2"), std::string::npos) << engine.error().message();
  }
  EXPECT_FALSE(make_scripted_engine("\n  \n", test_info(), {}).ok());
  EXPECT_FALSE(load_scripted_engine("/nonexistent/script.jsonl", test_info(), {}).ok());
}

TEST(ScriptedEngine, ReportsReuseAndDraftsAsTheScriptSays) {
  const auto engine = make(
      R"({"tokens":[5,6,7,8,9],"step_tokens":2,"drafts":3,"cached_tokens":3,"disk_tokens":1,"replayed_tokens":2,)"
      R"("preemptions":4,"miss":{"reason":"tokens_differ","position":3,"common_tokens":3,"token":11,"kept_token":12}})");
  Request request;
  request.prompt = {1, 2, 3, 4};
  request.sampling.max_tokens = 6;
  request.sampling.ignore_eos = true;
  const auto sink = std::make_shared<Recorder>();
  ASSERT_TRUE(engine->submit(std::move(request), sink).ok());
  const FinishInfo info = sink->wait();
  EXPECT_EQ(info.cached_tokens, 3);
  EXPECT_EQ(info.disk_tokens, 1);
  EXPECT_EQ(info.replayed_tokens, 2);
  EXPECT_EQ(info.preemptions, 4);
  EXPECT_EQ(info.prefix.reason, prefix::MissReason::tokens_differ);
  EXPECT_EQ(info.prefix.token, 11);
  EXPECT_EQ(info.prefix.kept_token, 12);
  // Three steps of two tokens; the first is the prompt's own, the others verified three drafts each.
  EXPECT_EQ(info.drafted_tokens, 6);
  EXPECT_EQ(info.accepted_tokens, 2);
  const EngineStats stats = engine->stats();
  EXPECT_EQ(stats.prefix.query_tokens, 4);
  EXPECT_EQ(stats.prefix.hit_tokens, 3);
  EXPECT_EQ(stats.prefix.misses_by_reason[static_cast<size_t>(prefix::MissReason::tokens_differ)], 1);
  EXPECT_EQ(stats.speculation.drafts, 2);
  EXPECT_EQ(stats.speculation.accepted_by_position[0], 2);
  EXPECT_EQ(stats.speculation.accepted_by_position[1], 0);
}

TEST(ScriptedEngine, RefusesAMissReasonThatDoesNotExist) {
  const auto engine = make_scripted_engine(R"({"tokens":[5],"miss":{"reason":"bad luck"}})", test_info(), {});
  ASSERT_FALSE(engine.ok());
  EXPECT_NE(engine.error().message().find("bad luck"), std::string::npos);
}

}  // namespace
}  // namespace rorqual::runtime
