// SPDX-License-Identifier: Apache-2.0
// The core step by step over the fake model: prefix reuse, drafts, swapping, watchdog, limits of the queue.
#include "runtime/engine_core.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <stdexcept>
#include <vector>

#include "prefix/fake_disk.h"
#include "runtime/fake_runner.h"

namespace rorqual::runtime {
namespace {

struct Recorder final : TokenSink {
  void on_token(int32_t token, std::optional<PositionLogprobs> /*row*/) override { tokens.push_back(token); }

  void on_begin(int64_t cached_tokens) override {
    EXPECT_TRUE(tokens.empty() && !end);
    begins.push_back(cached_tokens);
  }

  void on_finish(const FinishInfo& info) override { end = info; }

  std::vector<int32_t> tokens;
  std::vector<int64_t> begins;
  std::optional<FinishInfo> end;
};

class ManualClock final : public Clock {
 public:
  int64_t now_ns() const override { return now; }

  int64_t now = 1;
};

/// Says that a sequence did not grow.
class StuckRunner final : public FakeRunner {
 public:
  using FakeRunner::FakeRunner;

  int64_t sequence_length(model::SequenceId sequence) const override {
    return FakeRunner::sequence_length(sequence) - (sequence == stuck ? 1 : 0);
  }

  model::SequenceId stuck = -1;
};

struct Bench {
  explicit Bench(FakeRunnerOptions fake = {}, EngineOptions options = {},
                 std::unique_ptr<StepExecutor> executor = nullptr) {
    auto runner = std::make_unique<StuckRunner>(fake);
    model = runner.get();
    options.clock = clock;
    options.model_identity = "fake";
    auto made = EngineCore::create(std::move(runner), {}, options, std::move(executor));
    EXPECT_TRUE(made.ok()) << made.error().message();
    core = *std::move(made);
  }

  std::shared_ptr<Recorder> add(Request request) {
    auto sink = std::make_shared<Recorder>();
    core->expect(request);
    core->add(++num_requests, std::move(request), sink, clock->now);
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

  std::vector<int32_t> greedy_reply(std::vector<int32_t> tokens, size_t count) const {
    std::vector<int32_t> reply;
    FakeNetwork::State state = model->network().after(tokens);
    while (reply.size() < count) {
      reply.push_back(model->network().best(state.output));
      model->network().push(state, reply.back());
    }
    return reply;
  }

  std::shared_ptr<ManualClock> clock = std::make_shared<ManualClock>();
  StuckRunner* model = nullptr;
  std::unique_ptr<EngineCore> core;
  RequestId num_requests = 0;
};

Request make_request(size_t length, int64_t max_tokens, int32_t first = 3) {
  Request request;
  for (size_t i = 0; i < length; ++i) {
    request.prompt.push_back(static_cast<int32_t>((i * 7 + static_cast<size_t>(first)) % 61));
  }
  request.sampling.max_tokens = max_tokens;
  request.sampling.temperature = 0;
  request.sampling.ignore_eos = true;
  return request;
}

EngineOptions with_prefix_cache(int64_t bytes = 100000) {
  EngineOptions options;
  options.prefix_cache_bytes = bytes;
  return options;
}

TEST(EngineCore, ASecondPromptContinuesWhereTheFirstEnded) {
  Bench bench({}, with_prefix_cache());
  const Request request = make_request(30, 5);
  const auto first = bench.run_alone(request);
  EXPECT_EQ(first->end->cached_tokens, 0);
  EXPECT_EQ(first->end->prefix.reason, prefix::MissReason::first_seen);
  const auto second = bench.run_alone(request);
  EXPECT_EQ(second->end->cached_tokens, 28);  // whole pages of 4 before the last token
  EXPECT_EQ(first->begins, std::vector<int64_t>{0});
  EXPECT_EQ(second->begins, std::vector<int64_t>{28}) << "told once, before the first token";
  EXPECT_EQ(second->end->replayed_tokens, 0);
  EXPECT_EQ(second->tokens, first->tokens);
  const EngineStats stats = bench.core->stats();
  EXPECT_EQ(stats.prompt_tokens, 60);
  EXPECT_EQ(stats.cached_tokens, 28);
  EXPECT_EQ(stats.prefix.queries, 2);
  EXPECT_EQ(stats.prefix.hit_tokens, 28);
  EXPECT_EQ(stats.cache_blocks_used, 0) << "pages of the prefix cache are free for requests";
  EXPECT_EQ(stats.prefix.misses_by_reason[static_cast<size_t>(prefix::MissReason::first_seen)], 1);
}

TEST(EngineCore, AConversationReusesItsReplies) {
  Bench bench({}, with_prefix_cache());
  Request request = make_request(21, 12);
  for (int turn = 0; turn < 6; ++turn) {
    const auto sink = bench.run_alone(request);
    EXPECT_EQ(sink->tokens, bench.greedy_reply(request.prompt, 12));
    // All whole pages but the reply's last token, which was never in a cache.
    if (turn > 0) {
      EXPECT_GE(sink->end->cached_tokens, (static_cast<int64_t>(request.prompt.size()) - 5 - 1) / 4 * 4 - 4)
          << turn;
    }
    request.prompt.insert(request.prompt.end(), sink->tokens.begin(), sink->tokens.end());
    for (int i = 0; i < 5; ++i) request.prompt.push_back(turn + i);
  }
}

TEST(EngineCore, SaltsBypassesAndScoringDoNotShare) {
  Bench bench({}, with_prefix_cache());
  const Request request = make_request(30, 2);
  bench.run_alone(request);
  Request salted = request;
  salted.cache_salt = "other";
  EXPECT_EQ(bench.run_alone(salted)->end->cached_tokens, 0);
  Request bypassing = request;
  bypassing.reads_prefix_cache = false;
  const auto bypassed = bench.run_alone(bypassing);
  EXPECT_EQ(bypassed->end->cached_tokens, 0);
  EXPECT_EQ(bypassed->end->prefix.reason, prefix::MissReason::bypassed);
  Request scoring = request;
  scoring.sampling.prompt_logprobs = 0;
  EXPECT_EQ(bench.run_alone(scoring)->end->prefix.reason, prefix::MissReason::bypassed);
  Bench plain;
  EXPECT_EQ(plain.run_alone(request)->end->prefix.reason, prefix::MissReason::off);
}

TEST(EngineCore, ACancelledPrefillLeavesItsFinishedPages) {  // E-scheduler-06
  for (const bool is_in_step : {false, true}) {
    EngineOptions options = with_prefix_cache();
    options.max_num_batched_tokens = 10;
    options.max_num_seqs = 4;
    Bench bench({}, options);
    const Request request = make_request(50, 3);
    const auto sink = bench.add(request);
    ASSERT_TRUE(bench.core->step().ok());
    ASSERT_TRUE(bench.core->step().ok());
    if (is_in_step) {
      ASSERT_TRUE(bench.core->step([&] { bench.core->cancel(1); }).ok());
    } else {
      bench.core->cancel(1);
    }
    ASSERT_TRUE(sink->end.has_value());
    EXPECT_EQ(sink->end->reason, FinishReason::cancelled);
    EXPECT_EQ(bench.model->num_steps, is_in_step ? 3 : 2) << "the prefill stops at the chunk's end";
    const auto retry = bench.run_alone(request);
    EXPECT_EQ(retry->end->cached_tokens, is_in_step ? 28 : 20);
    EXPECT_EQ(retry->tokens, bench.greedy_reply(request.prompt, 3));
  }
}

TEST(EngineCore, WindowsThatAreGoneAreReplayed) {
  EngineOptions options = with_prefix_cache();
  options.max_num_batched_tokens = 16;
  options.max_num_seqs = 4;
  Bench bench({}, options);
  Request request = make_request(100, 2);
  bench.run_alone(request);
  request.prompt.resize(62);  // in the middle: entries without windows
  request.prompt.push_back(9);
  const auto sink = bench.run_alone(request);
  EXPECT_EQ(sink->end->cached_tokens, 60);
  EXPECT_EQ(sink->end->replayed_tokens, bench.model->replay_rows());
  EXPECT_EQ(bench.model->num_replay_rows, bench.model->replay_rows());
  EXPECT_EQ(sink->tokens, bench.greedy_reply(request.prompt, 2));
}

TEST(EngineCore, SnapshotsAndBreakpointsMakeReplaysUnnecessary) {
  EngineOptions options = with_prefix_cache();
  options.prefix_snapshot_interval = 20;
  Bench bench({}, options);
  Request request = make_request(100, 2);
  request.breakpoints = {51};
  bench.run_alone(request);
  for (const size_t length : {size_t{41}, size_t{49}}) {
    Request shorter = request;
    shorter.prompt.resize(length);
    const auto sink = bench.run_alone(shorter);
    EXPECT_EQ(sink->end->replayed_tokens, 0) << length;
    EXPECT_EQ(sink->end->cached_tokens, length / 4 * 4) << length;
  }
}

TEST(EngineCore, PagesComeBackFromDiskInParts) {
  auto disk = std::make_shared<prefix::FakeDisk>();
  EngineOptions options = with_prefix_cache();
  options.prefix_disk = disk;
  const Request request = make_request(60, 4);
  std::vector<int32_t> expected;
  {
    Bench first({}, options);
    expected = first.run_alone(request)->tokens;
  }
  options.prefix_fetch_bytes = 64;  // two blocks
  Bench second({}, options);
  const auto other = second.add(make_request(5, 40, 11));
  ASSERT_TRUE(second.core->step().ok());
  const auto sink = second.add(request);
  const auto late = second.add(make_request(6, 1, 17));
  int64_t num_steps = 0;
  while (!late->end) {
    ASSERT_TRUE(second.core->step().ok());
    ++num_steps;
  }
  EXPECT_LE(num_steps, 4) << "who needs no disk is not held up";
  EXPECT_FALSE(sink->end.has_value());
  second.run();
  EXPECT_EQ(sink->tokens, expected);
  EXPECT_EQ(sink->end->cached_tokens, 56);
  EXPECT_EQ(sink->end->disk_tokens, 56);
  EXPECT_EQ(second.core->stats().prefix.disk_hit_tokens, 56);
  EXPECT_TRUE(other->end.has_value());
}

TEST(EngineCore, EveryFirstAdmissionIsCountedUnderItsReason) {
  Bench bench({}, with_prefix_cache());
  const Request request = make_request(30, 1);
  Request longer = request, changed = request, shorter = request;
  longer.prompt.insert(longer.prompt.end(), 20, 5);
  changed.prompt[22] = 60;
  shorter.prompt.resize(3);
  int64_t num_prompt_tokens = 0, num_cached = 0;
  for (const Request& next : {request, request, longer, changed, shorter}) {
    num_prompt_tokens += static_cast<int64_t>(next.prompt.size());
    num_cached += bench.run_alone(next)->end->cached_tokens;
  }
  EXPECT_EQ(num_cached, 28 + 28 + 20);
  const PrefixStats stats = bench.core->stats().prefix;
  EXPECT_EQ(stats.queries, 5);
  EXPECT_EQ(stats.query_tokens, num_prompt_tokens);
  EXPECT_EQ(stats.hit_tokens, num_cached);
  using prefix::MissReason;
  for (const MissReason reason : {MissReason::first_seen, MissReason::none, MissReason::extends,
                                  MissReason::tokens_differ, MissReason::too_short}) {
    EXPECT_EQ(stats.misses_by_reason[static_cast<size_t>(reason)], 1) << prefix::miss_reason_name(reason);
  }
}

TEST(EngineCore, AHitIsExplainedOnceHoweverOftenItIsLookedUp) {
  auto disk = std::make_shared<prefix::FakeDisk>();
  EngineOptions options = with_prefix_cache();
  options.prefix_disk = disk;
  options.max_num_seqs = 1;
  options.max_num_batched_tokens = 8;
  Bench bench({}, options);
  const Request request = make_request(30, 12);
  Request changed = request;
  changed.prompt[22] = 60;
  const auto first = bench.add(request), second = bench.add(changed);
  bench.run();
  EXPECT_EQ(first->end->prefix.reason, prefix::MissReason::first_seen);
  // Looked up when the cache was empty, and again when its turn came.
  EXPECT_EQ(second->end->cached_tokens, 20);
  EXPECT_EQ(second->end->prefix.reason, prefix::MissReason::tokens_differ);
  EXPECT_EQ(second->end->prefix.position, 22);
  EXPECT_EQ(second->end->prefix.kept_token, request.prompt[22]);
  EXPECT_EQ(disk->num_lists, 2) << "one for each request";
}

TEST(EngineCore, DraftsMakeFewerStepsAndTheSameTokens) {
  const Request request = make_request(9, 60);
  Bench plain;
  const auto expected = plain.run_alone(request)->tokens;
  EngineOptions options;
  options.drafts = 4;
  options.are_drafts_adaptive = false;
  Bench bench({.draft_percent = 90}, options);
  const auto sink = bench.run_alone(request);
  EXPECT_EQ(sink->tokens, expected);
  EXPECT_LT(bench.model->num_steps, plain.model->num_steps / 2);
  const SpeculationStats stats = bench.core->stats().speculation;
  EXPECT_EQ(stats.draft_tokens, sink->end->drafted_tokens);
  EXPECT_EQ(stats.accepted_tokens, sink->end->accepted_tokens);
  EXPECT_GT(stats.accepted_tokens, stats.draft_tokens / 2);
  EXPECT_EQ(stats.accepted_by_position[0] + stats.accepted_by_position[1] + stats.accepted_by_position[2] +
                stats.accepted_by_position[3],
            stats.accepted_tokens);
  EXPECT_GE(stats.accepted_by_position[0], stats.accepted_by_position[1]);
  EXPECT_EQ(stats.accepted_by_position[4], 0);
}

TEST(EngineCore, RequestsChooseFewerDraftsAndForcedTokensHaveNone) {
  EngineOptions options;
  options.drafts = 4;
  options.are_drafts_adaptive = false;
  Bench bench({}, options);
  Request request = make_request(9, 20);
  request.drafts = 0;
  EXPECT_EQ(bench.run_alone(request)->end->drafted_tokens, 0);
  request.drafts = 1;
  EXPECT_GT(bench.run_alone(request)->end->drafted_tokens, 0);
  EXPECT_EQ(bench.core->stats().speculation.accepted_by_position[1], 0);
  Request forced = make_request(9, 3);
  forced.sampling.forced_tokens = {1, 2, 3};
  EXPECT_EQ(bench.run_alone(forced)->end->drafted_tokens, 0);
  EXPECT_EQ(bench.core->info().max_drafts, 4);
}

TEST(EngineCore, AFailedDraftPassCostsNothingButItsDrafts) {
  EngineOptions options;
  options.drafts = 3;
  options.are_drafts_adaptive = false;
  Bench bench({}, options);
  bench.model->before_draft = [](auto, int64_t) -> Status {
    return Error(Code::out_of_memory, "no scratch");
  };
  const Request request = make_request(9, 10);
  const auto sink = bench.run_alone(request);
  EXPECT_EQ(sink->tokens, bench.greedy_reply(request.prompt, 10));
  EXPECT_EQ(sink->end->drafted_tokens, 0);
}

TEST(EngineCore, ARequestWithoutProgressFailsAndTheOthersGoOn) {  // E-scheduler-13
  Bench bench;
  const auto good = bench.add(make_request(5, 10));
  ASSERT_TRUE(bench.core->step().ok());
  const auto bad = bench.add(make_request(6, 10));
  bench.model->stuck = 2;
  bench.run();
  EXPECT_EQ(bad->end->reason, FinishReason::error);
  EXPECT_EQ(bad->end->error->code(), Code::internal);
  EXPECT_EQ(good->end->reason, FinishReason::length);
  EXPECT_EQ(bench.model->num_open(), 0);
}

TEST(EngineCore, WhoWaitsTooLongForItsFirstStepIsTurnedAway) {
  EngineOptions options;
  options.max_num_seqs = 1;
  options.max_queue_wait_s = 5;
  Bench bench({}, options);
  const auto running = bench.add(make_request(5, 100));
  const auto waiting = bench.add(make_request(5, 1));
  ASSERT_TRUE(bench.core->step().ok());
  bench.clock->now += int64_t{4} * 1000000000;
  ASSERT_TRUE(bench.core->step().ok());
  bench.core->flush();
  EXPECT_FALSE(waiting->end.has_value());
  bench.clock->now += int64_t{2} * 1000000000;
  ASSERT_TRUE(bench.core->step().ok());
  bench.core->flush();
  ASSERT_TRUE(waiting->end.has_value());
  EXPECT_EQ(waiting->end->error->code(), Code::unavailable);
  EXPECT_EQ(bench.core->figures().unfinished, 1);
  bench.run();
  EXPECT_EQ(running->end->reason, FinishReason::length);
}

TEST(EngineCore, SwappedOutRequestsComeBackWithoutComputingAgain) {
  for (const int64_t swap_bytes : {0, 100000}) {
    EngineOptions options;
    options.swap_bytes = swap_bytes;
    Bench bench({.blocks = 8}, options);
    const Request a = make_request(10, 14), b = make_request(11, 14, 5);
    const auto first = bench.add(a), second = bench.add(b);
    bench.run();
    EXPECT_EQ(first->tokens, bench.greedy_reply(a.prompt, 14));
    EXPECT_EQ(second->tokens, bench.greedy_reply(b.prompt, 14));
    EXPECT_EQ(second->end->preemptions, 1);
    const EngineStats stats = bench.core->stats();
    EXPECT_EQ(stats.preemptions, 1);
    EXPECT_EQ(stats.swapped_in, swap_bytes > 0 ? 1 : 0);
    // 21 prompt tokens, and a row for every token but the last of each: nothing twice, if swapped.
    EXPECT_EQ(stats.iteration_tokens_sum == 21 + 26, swap_bytes > 0);
  }
}

TEST(EngineCore, PagesOfThePrefixCacheGiveWayBeforeARequestDoes) {
  Bench bench({.blocks = 12}, with_prefix_cache());
  for (int32_t i = 0; i < 4; ++i) bench.run_alone(make_request(9, 1, 7 * i));
  EXPECT_GT(bench.core->stats().prefix.blocks, 6);
  const auto sink = bench.run_alone(make_request(20, 25, 40));
  EXPECT_EQ(sink->end->reason, FinishReason::length);
  EXPECT_EQ(bench.core->stats().preemptions, 0);
  EXPECT_GT(bench.core->stats().prefix.evicted_blocks, 0);
}

TEST(EngineCore, ATrimmedRequestLeavesNoApproximationsBehind) {
  Bench bench({.layers = 4}, with_prefix_cache());
  Request request = make_request(60, 6);
  Request trimmed = request;
  trimmed.replay_trim = 5;
  const auto first = bench.run_alone(trimmed);
  EXPECT_EQ(first->end->trim_rows, 5);
  const auto again = bench.run_alone(trimmed);
  EXPECT_EQ(again->end->replayed_tokens, 5);
  EXPECT_EQ(again->end->cached_tokens, 56);
  const auto exact = bench.run_alone(request);
  EXPECT_EQ(exact->tokens, bench.greedy_reply(request.prompt, 6));
  EXPECT_EQ(exact->end->cached_tokens, 56) << "entries are exact, windows are replayed";
  EXPECT_GT(exact->end->replayed_tokens, 0);
}

TEST(EngineCore, StepsAreCountedBySize) {
  Bench bench;
  bench.run_alone(make_request(5, 3));
  const EngineStats stats = bench.core->stats();
  EXPECT_EQ(stats.iteration_tokens[0], 2);  // one row
  EXPECT_EQ(stats.iteration_tokens[1], 1);  // up to 8
  EXPECT_EQ(stats.iteration_tokens_sum, 7);
}

/// Allows one token per position, the reply's length, or everything; tells when it is asked. Throws at
/// `throws_at`.
class CountingConstraint final : public TokenConstraint {
 public:
  explicit CountingConstraint(const StepExecutor& executor) : executor_(executor) {}

  void mask(std::span<const int32_t> reply, std::span<uint32_t> mask) override {
    if (reply.size() == throws_at) throw std::runtime_error("no rule");
    asked_while_computing.push_back(!executor_.is_done());
    if (allows_all) return;
    std::fill(mask.begin(), mask.end(), uint32_t{0});
    mask[reply.size() / 32] |= uint32_t{1} << (reply.size() % 32);
  }

  std::vector<bool> asked_while_computing;
  size_t throws_at = 1000;
  bool allows_all = false;

 private:
  const StepExecutor& executor_;
};

/// A core whose model computes after everything else that a step does at the same time.
struct LateBench {
  explicit LateBench(FakeRunnerOptions fake = {}, EngineOptions options = {}) {
    auto inline_executor = std::make_unique<InlineExecutor>();
    inline_executor->is_late = true;
    executor = inline_executor.get();
    bench.emplace(fake, options, std::move(inline_executor));
    constraint = std::make_shared<CountingConstraint>(*executor);
  }

  Request constrained(int64_t max_tokens) const {
    Request request = make_request(10, max_tokens);
    request.sampling.constraint = constraint;
    return request;
  }

  const StepExecutor* executor = nullptr;
  std::optional<Bench> bench;
  std::shared_ptr<CountingConstraint> constraint;
};

TEST(EngineCoreConstraint, MasksAreComputedWhileTheModelComputes) {
  LateBench late;
  const auto sink = late.bench->run_alone(late.constrained(6));
  EXPECT_EQ(sink->tokens, (std::vector<int32_t>{0, 1, 2, 3, 4, 5}));
  EXPECT_EQ(late.constraint->asked_while_computing, std::vector<bool>(6, true));
}

TEST(EngineCoreConstraint, PositionsBehindDraftsAskWhenTheyAreReached) {
  EngineOptions options;
  options.drafts = 4;
  options.are_drafts_adaptive = false;
  LateBench late({.draft_percent = 90}, options);
  late.constraint->allows_all = true;
  const auto sink = late.bench->run_alone(late.constrained(20));
  EXPECT_EQ(sink->tokens, late.bench->greedy_reply(make_request(10, 1).prompt, 20));
  const std::vector<bool>& asked = late.constraint->asked_while_computing;
  ASSERT_EQ(asked.size(), 20u);  // each position once
  EXPECT_EQ(std::count(asked.begin(), asked.end(), true), late.bench->model->num_steps);
  EXPECT_EQ(std::count(asked.begin(), asked.end(), false), sink->end->accepted_tokens);
}

TEST(EngineCoreConstraint, AConstraintThatThrowsEndsItsRequestOnly) {
  LateBench late;
  late.constraint->throws_at = 2;
  const auto failing = late.bench->add(late.constrained(6));
  const auto other = late.bench->add(make_request(10, 6));
  late.bench->run();
  EXPECT_EQ(failing->tokens, (std::vector<int32_t>{0, 1}));
  ASSERT_TRUE(failing->end && failing->end->error);
  EXPECT_NE(failing->end->error->message().find("no rule"), std::string::npos);
  EXPECT_EQ(other->tokens.size(), 6u);
}

}  // namespace
}  // namespace rorqual::runtime
