// SPDX-License-Identifier: Apache-2.0
// Scoring of given text: prompt rows from a position on, streamed rows, and tokens forced through the decode
// path. Over the fake model, step by step.
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <vector>

#include "runtime/engine_core.h"
#include "runtime/fake_runner.h"
#include "runtime/logprobs.h"

namespace rorqual::runtime {
namespace {

bool is_equal(const PositionLogprobs& a, const PositionLogprobs& b) {
  const auto same = [](const TokenLogprob& x, const TokenLogprob& y) {
    return x.token == y.token && x.logprob == y.logprob && x.rank == y.rank;
  };
  return same(a.chosen, b.chosen) && std::equal(a.top.begin(), a.top.end(), b.top.begin(), b.top.end(), same);
}

struct StreamedRow {
  int64_t position = 0;
  PositionLogprobs row;
  std::vector<float> logits;
};

struct Recorder final : TokenSink {
  void on_prompt_logprobs(std::vector<std::optional<PositionLogprobs>> all) override {
    ++num_collections;
    collected = std::move(all);
  }

  void on_prompt_row(int64_t position, PositionLogprobs row, std::span<const float> logits) override {
    EXPECT_TRUE(tokens.empty()) << "a prompt row after the first token";
    streamed.push_back({position, std::move(row), {logits.begin(), logits.end()}});
  }

  void on_token(int32_t token, std::optional<PositionLogprobs> row) override {
    tokens.push_back(token);
    if (row) rows.push_back(*std::move(row));
  }

  void on_finish(const FinishInfo& info) override { end = info; }

  std::vector<std::optional<PositionLogprobs>> collected;
  std::vector<StreamedRow> streamed;
  std::vector<int32_t> tokens;
  std::vector<PositionLogprobs> rows;
  int num_collections = 0;
  std::optional<FinishInfo> end;
};

/// A core over the fake model that runs until all its requests have ended.
struct Bench {
  explicit Bench(FakeRunnerOptions fake = {}, EngineOptions options = {}) {
    auto runner = std::make_unique<FakeRunner>(fake);
    model = runner.get();
    auto made = EngineCore::create(std::move(runner), {}, options);
    EXPECT_TRUE(made.ok());
    core = *std::move(made);
  }

  std::shared_ptr<Recorder> add(Request request) {
    auto sink = std::make_shared<Recorder>();
    core->expect(request);
    core->add(++num_requests, std::move(request), sink, 0);
    return sink;
  }

  void run() {
    for (int i = 0; core->has_work(); ++i) {
      ASSERT_LT(i, 10000);
      ASSERT_TRUE(core->step().ok());
    }
  }

  std::shared_ptr<Recorder> run_alone(Request request) {
    auto sink = add(std::move(request));
    run();
    return sink;
  }

  FakeRunner* model = nullptr;
  std::unique_ptr<EngineCore> core;
  RequestId num_requests = 0;
};

EngineOptions small_steps(int64_t tokens, int64_t logit_rows) {
  EngineOptions options;
  options.max_num_batched_tokens = tokens;
  options.max_logit_rows = logit_rows;
  return options;
}

Request scoring(size_t length, int32_t top) {
  Request request;
  for (size_t i = 0; i < length; ++i) request.prompt.push_back(static_cast<int32_t>((i * 7 + 3) % 61));
  request.sampling.max_tokens = 0;
  request.sampling.prompt_logprobs = top;
  request.sampling.temperature = 0;
  return request;
}

TEST(Scoring, StreamedRowsAreTheCollectedOnesAndCarryTheirLogits) {
  Bench bench({}, small_steps(5, 3));
  Request request = scoring(23, 4);
  const auto whole = bench.run_alone(request);
  request.sampling.stream_prompt_rows = true;
  const auto stream = bench.run_alone(request);
  EXPECT_EQ(whole->num_collections, 1);
  ASSERT_EQ(whole->collected.size(), 23u);
  EXPECT_FALSE(whole->collected[0].has_value());
  EXPECT_EQ(stream->num_collections, 0);
  ASSERT_EQ(stream->streamed.size(), 22u);
  for (size_t i = 0; i < 22; ++i) {
    const StreamedRow& row = stream->streamed[i];
    EXPECT_EQ(row.position, static_cast<int64_t>(i) + 1);
    EXPECT_TRUE(is_equal(row.row, *whole->collected[i + 1])) << i;
    EXPECT_EQ(row.row.chosen.token, request.prompt[i + 1]);
    EXPECT_EQ(row.logits, bench.model->logits_after(std::span(request.prompt).first(i + 1))) << i;
  }
  EXPECT_EQ(stream->end->reason, FinishReason::length);
}

TEST(Scoring, BeginsAtTheAskedPositionAndKeepsTheRowsOfFullScoring) {
  for (const int64_t begin : {1, 2, 9, 22, 23, 100}) {
    Bench bench({}, small_steps(6, 4));
    Request request = scoring(23, 2);
    const auto all = bench.run_alone(request);
    request.sampling.prompt_logprobs_begin = begin;
    const auto part = bench.run_alone(request);
    ASSERT_EQ(part->collected.size(), 23u) << begin;
    for (int64_t i = 0; i < 23; ++i) {
      const auto at = static_cast<size_t>(i);
      ASSERT_EQ(part->collected[at].has_value(), i >= begin) << begin << " " << i;
      if (i < begin) continue;
      EXPECT_TRUE(is_equal(*part->collected[at], *all->collected[at])) << begin << " " << i;
    }
    request.sampling.stream_prompt_rows = true;
    const auto stream = bench.run_alone(request);
    EXPECT_EQ(static_cast<int64_t>(stream->streamed.size()), std::max<int64_t>(23 - begin, 0)) << begin;
    if (!stream->streamed.empty()) {
      EXPECT_EQ(stream->streamed.front().position, begin);
    }
  }
}

TEST(Scoring, StreamedRowsComeOnceAlthoughTheRequestIsPreempted) {
  // Four requests that decode share a cache for about two: the later ones are preempted, some in their
  // prompt.
  Bench bench({.page_tokens = 2, .blocks = 24}, small_steps(7, 4));
  std::vector<Request> requests;
  std::vector<std::shared_ptr<Recorder>> alone, together;
  for (size_t i = 0; i < 4; ++i) {
    Request request = scoring(9 + i, 3);
    request.sampling.prompt_logprobs_begin = static_cast<int64_t>(i) + 1;
    request.sampling.stream_prompt_rows = true;
    request.sampling.max_tokens = 20;
    request.sampling.ignore_eos = true;
    request.sampling.logprobs = 1;
    requests.push_back(request);
    Bench single;
    alone.push_back(single.run_alone(request));
  }
  for (const Request& request : requests) together.push_back(bench.add(request));
  bench.run();
  EXPECT_GT(bench.core->figures().preemptions, 0);
  for (size_t i = 0; i < 4; ++i) {
    EXPECT_EQ(together[i]->tokens, alone[i]->tokens) << i;
    ASSERT_EQ(together[i]->streamed.size(), alone[i]->streamed.size()) << i;
    EXPECT_EQ(together[i]->streamed.size(), 9 + i - (i + 1)) << i;
    for (size_t j = 0; j < alone[i]->streamed.size(); ++j) {
      EXPECT_EQ(together[i]->streamed[j].position, static_cast<int64_t>(i + 1 + j));
      EXPECT_TRUE(is_equal(together[i]->streamed[j].row, alone[i]->streamed[j].row)) << i << " " << j;
    }
  }
}

TEST(Scoring, ForcedTokensHaveTheLogprobsOfThePromptPath) {
  Bench bench({}, small_steps(5, 256));
  const Request whole = scoring(20, 3);
  const auto expected = bench.run_alone(whole);
  Request forced;
  forced.prompt.assign(whole.prompt.begin(), whole.prompt.begin() + 8);
  forced.sampling.forced_tokens.assign(whole.prompt.begin() + 8, whole.prompt.end());
  forced.sampling.max_tokens = 12;
  forced.sampling.logprobs = 3;
  forced.sampling.seed = 5;
  const auto got = bench.run_alone(forced);
  EXPECT_EQ(got->tokens, forced.sampling.forced_tokens);
  ASSERT_EQ(got->rows.size(), 12u);
  for (size_t i = 0; i < 12; ++i) EXPECT_TRUE(is_equal(got->rows[i], *expected->collected[8 + i])) << i;
  EXPECT_EQ(got->end->reason, FinishReason::length);
  EXPECT_EQ(got->end->completion_tokens, 12);
}

TEST(Scoring, NothingEndsForcedTokensEarly) {
  Bench bench;
  Request request = scoring(4, -1);
  request.sampling.forced_tokens = {1, 5, 1, 9};  // 1 is EOS, 5 a stop token
  request.sampling.stop_token_ids = {5, 9};
  request.sampling.max_tokens = 4;
  const auto got = bench.run_alone(request);
  EXPECT_EQ(got->tokens, (std::vector<int32_t>{1, 5, 1, 9}));
  EXPECT_EQ(got->end->reason, FinishReason::length);
  EXPECT_FALSE(got->end->stop_token.has_value());
}

}  // namespace
}  // namespace rorqual::runtime
