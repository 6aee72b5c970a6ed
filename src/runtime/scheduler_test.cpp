// SPDX-License-Identifier: Apache-2.0
#include "runtime/scheduler.h"

#include <gtest/gtest.h>

#include <map>
#include <numeric>
#include <string>

#include "runtime/fake_runner.h"

namespace rorqual::runtime {
namespace {

struct BenchOptions {
  int64_t prefix_bytes = 0, swap_bytes = 0;
  int32_t drafts = 0;
};

/// A scheduler over a fake runner; a step marks its slices computed and appends a token to what samples.
struct Bench {
  explicit Bench(SchedulerLimits limits, FakeRunnerOptions options = {}, BenchOptions more = {})
      : runner(options),
        prefix(runner, {.model_identity = "fake", .max_bytes = more.prefix_bytes}),
        swap(more.swap_bytes),
        drafts(more.drafts, false),
        scheduler(limits, {runner, prefix, swap, drafts}) {}

  RequestState* add(RequestId id, int64_t prompt_length, int32_t priority = 0,
                    const std::string& client = {}) {
    auto request = std::make_unique<RequestState>();
    request->id = id;
    request->order.priority = priority;
    request->client_key = client;
    request->tokens.assign(static_cast<size_t>(prompt_length), 1);
    request->num_prompt_tokens = prompt_length;
    request->sampling.max_tokens = 1000000;
    RequestState* raw = request.get();
    scheduler.add(std::move(request));
    return raw;
  }

  /// Tokens of each request in the next step, which is then carried out.
  std::map<RequestId, int64_t> step() {
    plan = scheduler.schedule();
    std::map<RequestId, int64_t> tokens;
    for (const ScheduledSlice& slice : plan.slices) {
      tokens[slice.request->id] = slice.num_tokens;
      EXPECT_EQ(slice.begin, slice.request->num_computed);
      slice.request->num_computed += slice.num_tokens;
      if (slice.does_sample) slice.request->tokens.push_back(1);
    }
    return tokens;
  }

  FakeRunner runner;
  PrefixUse prefix;
  SwapSpace swap;
  DraftLength drafts;
  Scheduler scheduler;
  StepPlan plan;
};

using Tokens = std::map<RequestId, int64_t>;

SchedulerLimits limits(int64_t seqs, int64_t tokens, int64_t threshold = 0) {
  return {.max_num_seqs = seqs,
          .max_step_tokens = tokens,
          .max_logit_rows = seqs,
          .long_prefill_token_threshold = threshold};
}

TEST(Scheduler, ComputesAPromptInChunksOfTheBudgetAndThenDecodes) {
  Bench bench(limits(4, 8));
  bench.add(1, 20);
  EXPECT_EQ(bench.step(), (Tokens{{1, 8}}));
  EXPECT_TRUE(bench.plan.slices[0].logit_offsets.empty());
  EXPECT_EQ(bench.step(), (Tokens{{1, 8}}));
  EXPECT_EQ(bench.step(), (Tokens{{1, 4}}));
  EXPECT_EQ(bench.plan.slices[0].logit_offsets, std::vector<int32_t>{3});
  EXPECT_TRUE(bench.plan.slices[0].does_sample);
  EXPECT_EQ(bench.step(), (Tokens{{1, 1}}));
}

TEST(Scheduler, DecodingRequestsGetTheirRowBeforeAnyPrompt) {
  Bench bench(limits(4, 8));
  bench.add(1, 3);
  bench.step();
  bench.add(2, 100, -5);  // served first by priority, and still the decode goes on
  for (int i = 0; i < 10; ++i) EXPECT_EQ(bench.step(), (Tokens{{1, 1}, {2, 7}}));
}

TEST(Scheduler, AdmitsInArrivalOrderUpToMaxNumSeqs) {
  Bench bench(limits(2, 100));
  for (RequestId id = 1; id <= 3; ++id) bench.add(id, 5);
  EXPECT_EQ(bench.step(), (Tokens{{1, 5}, {2, 5}}));
  EXPECT_EQ(bench.scheduler.num_waiting(), 1);
  bench.scheduler.remove(1);
  EXPECT_EQ(bench.step(), (Tokens{{2, 1}, {3, 5}}));
}

TEST(Scheduler, PriorityComesBeforeArrival) {
  Bench bench(limits(1, 100));
  bench.add(1, 5, 1);
  bench.add(2, 5, 0);
  bench.add(3, 5, -1);
  EXPECT_EQ(bench.scheduler.ids(), (std::vector<RequestId>{3, 2, 1}));
  EXPECT_EQ(bench.step(), (Tokens{{3, 5}}));
}

TEST(Scheduler, OneClientCannotFillTheQueue) {
  Bench bench(limits(1, 100));
  for (RequestId id = 1; id <= 4; ++id) bench.add(id, 5, 0, "greedy");
  bench.add(5, 5, 0, "modest");
  bench.add(6, 5, 0, "modest");
  EXPECT_EQ(bench.scheduler.ids(), (std::vector<RequestId>{1, 5, 2, 6, 3, 4}));
  bench.step();
  for (const RequestId id : {1u, 5u, 2u}) {
    bench.scheduler.remove(id);
    bench.step();
  }
  bench.add(7, 5, 0, "late");  // joins at the present round, not before
  EXPECT_EQ(bench.scheduler.ids(), (std::vector<RequestId>{6, 7, 3, 4}));
}

TEST(Scheduler, ALongPromptLeavesRoomForOthersUnlessItIsAlone) {
  Bench bench(limits(4, 16, 10));
  bench.add(1, 200);
  EXPECT_EQ(bench.step(), (Tokens{{1, 16}}));
  bench.add(2, 4);
  EXPECT_EQ(bench.step(), (Tokens{{1, 10}, {2, 4}}));
  bench.scheduler.remove(2);
  EXPECT_EQ(bench.step(), (Tokens{{1, 16}}));
}

TEST(Scheduler, ShortRequestsStartWithinFiveStepsBesideALongPrompt) {
  Bench bench(limits(64, 64, 48), {.max_model_len = 100000, .blocks = 100000});
  bench.add(1, 50000);
  bench.step();
  std::vector<RequestState*> shorts;
  for (RequestId id = 2; id <= 11; ++id) shorts.push_back(bench.add(id, 3));
  for (int i = 0; i < 5; ++i) EXPECT_EQ(bench.step()[1], 48);
  for (const RequestState* request : shorts) EXPECT_GT(request->num_output(), 0) << request->id;
}

TEST(Scheduler, AdmissionReservesTheWholePromptAndNoneIsOvertaken) {
  // 10 blocks of 4 tokens.
  Bench bench(limits(8, 100), {.page_tokens = 4, .blocks = 10});
  bench.add(1, 20);  // 5 blocks
  bench.add(2, 24);  // 6 blocks: has to wait
  bench.add(3, 4);   // would fit, but must not overtake
  EXPECT_EQ(bench.step(), (Tokens{{1, 20}}));
  EXPECT_EQ(bench.runner.pages().pages_free(model::PageKind::block), 5);
  EXPECT_EQ(bench.step(), (Tokens{{1, 1}}));
  bench.scheduler.remove(1);
  EXPECT_EQ(bench.step(), (Tokens{{2, 24}, {3, 4}}));
}

TEST(Scheduler, PreemptsTheYoungestAndComputesItAgain) {
  Bench bench(limits(8, 100), {.page_tokens = 4, .blocks = 5});
  bench.add(1, 8);  // 2 blocks
  RequestState* second = bench.add(2, 8);
  EXPECT_EQ(bench.step(), (Tokens{{1, 8}, {2, 8}}));
  // 1 takes the last free block; 2 finds none and is the youngest itself.
  EXPECT_EQ(bench.step(), (Tokens{{1, 1}}));
  EXPECT_EQ(bench.scheduler.num_preemptions(), 1);
  EXPECT_EQ(second->num_computed, 0);
  EXPECT_EQ(second->num_tokens(), 9);  // the reply so far is kept
  EXPECT_FALSE(second->sequence.has_value());
  EXPECT_EQ(bench.runner.pages().pages_free(model::PageKind::block), 2);
  bench.scheduler.remove(1);
  EXPECT_EQ(bench.step(), (Tokens{{2, 9}}));
  EXPECT_EQ(bench.step(), (Tokens{{2, 1}}));
}

TEST(Scheduler, PriorityDecidesWhoIsPreempted) {
  Bench bench(limits(8, 100), {.page_tokens = 4, .blocks = 8});
  bench.add(1, 8, 1);
  bench.add(2, 7);
  bench.add(3, 7);
  EXPECT_EQ(bench.step(), (Tokens{{1, 8}, {2, 7}, {3, 7}}));
  EXPECT_EQ(bench.step(), (Tokens{{1, 1}, {2, 1}, {3, 1}}));
  EXPECT_EQ(bench.runner.pages().pages_free(model::PageKind::block), 1);
  // 2 takes the last block, 3 needs one too: the oldest request has the worst priority and loses its three.
  EXPECT_EQ(bench.step(), (Tokens{{2, 1}, {3, 1}}));
  EXPECT_EQ(bench.scheduler.num_preemptions(), 1);
  EXPECT_EQ(bench.scheduler.ids(), (std::vector<RequestId>{2, 3, 1}));
}

TEST(Scheduler, ARequestThatCanNeverFitIsNamed) {
  Bench bench(limits(8, 100), {.page_tokens = 4, .blocks = 4});
  bench.add(1, 17);
  bench.step();
  ASSERT_EQ(bench.plan.impossible.size(), 1u);
  EXPECT_EQ(bench.plan.impossible[0].first, 1u);
  EXPECT_EQ(bench.plan.impossible[0].second.code(), Code::out_of_memory);
  bench.scheduler.remove(1);
  bench.add(2, 16);
  EXPECT_EQ(bench.step(), (Tokens{{2, 16}}));
  bench.step();  // the 17th token has no room and nobody can be preempted
  ASSERT_EQ(bench.plan.impossible.size(), 1u);
  EXPECT_EQ(bench.plan.impossible[0].first, 2u);
}

TEST(Scheduler, WaitsWhenTheRunnerHasNoSequenceLeft) {
  Bench bench(limits(8, 100), {.max_sequences = 1});
  bench.add(1, 4);
  bench.add(2, 4);
  EXPECT_EQ(bench.step(), (Tokens{{1, 4}}));
  bench.scheduler.remove(1);
  EXPECT_EQ(bench.step(), (Tokens{{2, 4}}));
}

TEST(Scheduler, PromptScoringIsCutByTheRowsOfLogits) {
  Bench bench({.max_num_seqs = 2, .max_step_tokens = 100, .max_logit_rows = 5});
  RequestState* request = bench.add(1, 12);
  request->sampling.prompt_logprobs = 0;
  request->num_scored = 1;
  std::vector<int64_t> sizes;
  std::vector<int32_t> offsets;
  while (request->num_output() == 0) {
    sizes.push_back(bench.step()[1]);
    EXPECT_LE(bench.plan.num_logit_rows, 5);
    const ScheduledSlice& slice = bench.plan.slices[0];
    for (const int32_t offset : slice.logit_offsets)
      offsets.push_back(static_cast<int32_t>(slice.begin) + offset);
    request->num_scored = static_cast<int64_t>(offsets.size()) + 1;
  }
  EXPECT_EQ(sizes, (std::vector<int64_t>{5, 5, 2}));
  std::vector<int32_t> expected(12);  // rows 0 … 10 score tokens 1 … 11, row 11 draws
  std::iota(expected.begin(), expected.end(), 0);
  EXPECT_EQ(offsets, expected);
}

TEST(Scheduler, RecomputationDoesNotScoreAgainWhatIsKnown) {
  Bench bench({.max_num_seqs = 2, .max_step_tokens = 100, .max_logit_rows = 50});
  RequestState* request = bench.add(1, 12);
  request->sampling.prompt_logprobs = 0;
  request->num_scored = 8;  // tokens 0 … 7 are known
  bench.step();
  EXPECT_EQ(bench.plan.slices[0].logit_offsets, (std::vector<int32_t>{7, 8, 9, 10, 11}));
}

TEST(Scheduler, ScoringOnlyNeedsNoRowForTheLastToken) {
  Bench bench({.max_num_seqs = 2, .max_step_tokens = 100, .max_logit_rows = 50});
  RequestState* request = bench.add(1, 4);
  request->sampling.max_tokens = 0;
  request->sampling.prompt_logprobs = 0;
  request->num_scored = 1;
  bench.step();
  EXPECT_EQ(bench.plan.slices[0].logit_offsets, (std::vector<int32_t>{0, 1, 2}));
  EXPECT_FALSE(bench.plan.slices[0].does_sample);
}

TEST(Scheduler, RemovingUnknownRequestsIsHarmlessAndEverythingIsGivenBack) {
  Bench bench(limits(4, 16));
  EXPECT_EQ(bench.scheduler.remove(9), nullptr);
  bench.add(1, 40);
  bench.add(2, 5);
  bench.step();
  EXPECT_NE(bench.scheduler.remove(1), nullptr);
  EXPECT_NE(bench.scheduler.remove(2), nullptr);
  EXPECT_EQ(bench.scheduler.remove(2), nullptr);
  EXPECT_FALSE(bench.scheduler.has_requests());
  EXPECT_EQ(bench.runner.pages().pages_free(model::PageKind::block),
            bench.runner.pages().pages_total(model::PageKind::block));
  EXPECT_EQ(bench.runner.num_open(), 0);
  EXPECT_TRUE(bench.step().empty());
}

}  // namespace
}  // namespace rorqual::runtime
