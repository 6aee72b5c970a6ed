// SPDX-License-Identifier: Apache-2.0
// The local engine without its thread: takes requests, runs one step at a time, calls the sinks. Simulation
// tests drive it directly with virtual time.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/result.h"
#include "model/runner.h"
#include "runtime/delivery.h"
#include "runtime/draft_length.h"
#include "runtime/engine.h"
#include "runtime/local_engine.h"
#include "runtime/prefix_use.h"
#include "runtime/scheduler.h"
#include "runtime/step_executor.h"
#include "runtime/step_sampler.h"
#include "runtime/swap_space.h"

namespace rorqual::runtime {

/// Figures that other threads read while the control thread writes. A request leaves them before its
/// on_finish, so that a client that hears of the end finds the room free.
struct EngineFigures {
  std::atomic<int64_t> unfinished{0}, running{0};
  std::atomic<int64_t> pending_prompt_tokens{0};  // of prompts that are not computed to the end yet
  std::atomic<int64_t> blocks_total{0}, blocks_used{0};
  std::atomic<int64_t> prompt_tokens{0}, generation_tokens{0}, cached_tokens{0};
  std::atomic<int64_t> preemptions{0}, steps{0}, swapped_out{0}, swapped_in{0};
  std::atomic<int64_t> step_began_ns{0};  // 0 = no step is running
};

/// The engine's thread only, except figures() and stats().
class EngineCore {
 public:
  /// Checks the options and completes `info` (see make_local_engine). `executor`: null = InlineExecutor.
  static Result<std::unique_ptr<EngineCore>> create(std::unique_ptr<model::Runner> runner, EngineInfo info,
                                                    EngineOptions options,
                                                    std::unique_ptr<StepExecutor> executor = nullptr);
  ~EngineCore();

  const EngineInfo& info() const { return info_; }

  const EngineOptions& options() const { return options_; }

  EngineFigures& figures() { return figures_; }

  const EngineFigures& figures() const { return figures_; }

  /// All figures; any thread.
  EngineStats stats() const;

  const Scheduler& scheduler() const { return scheduler_; }

  const PrefixUse& prefix() const { return prefix_; }

  const model::Runner& runner() const { return *runner_; }

  /// Counts an accepted request in figures(). Before add; any thread.
  void expect(const Request& request);

  /// Takes a checked request that `expect` has counted. `queued_ns` is the time of its submission.
  void add(RequestId id, Request request, std::shared_ptr<TokenSink> sink, int64_t queued_ns);

  /// Ends a request that `expect` has counted and `add` has not taken.
  void refuse(int64_t num_prompt_tokens, TokenSink& sink, FinishReason reason,
              const std::optional<Error>& error);

  /// Ends the request with on_finish(cancelled): at once, or with the step that runs. No token follows.
  /// Unknown ids are ignored.
  void cancel(RequestId id);

  bool has_work() const { return scheduler_.has_requests(); }

  /// One step: schedule, forward, sample. The events of a step are delivered while the next one computes, or
  /// at its end if no request is left. `while_computing` is called then too: add, cancel, prepare and
  /// is_computing may be used. Requests that fail end with an error. An error return means that the engine
  /// cannot go on; call fail_all then.
  Status step(const std::function<void()>& while_computing = {});

  /// Whether the computing part of the step still runs.
  bool is_computing() const { return !executor_->is_done(); }

  /// Looks waiting requests up in the prefix cache; true when more can be read from disk for them.
  bool prepare() { return scheduler_.prepare_waiting(); }

  /// Delivers what is queued.
  void flush();

  /// Ends every request.
  void fail_all(const Error& error);
  void cancel_all();

 private:
  /// Computing part of a step, and what it says.
  struct Job {
    StepPlan plan;
    std::vector<std::vector<int32_t>> tokens;    // of slices that decode, drafts included
    std::vector<std::vector<int32_t>> drafts;    // [slice], those that are verified
    std::vector<std::vector<float>> confidence;  // [slice], of all that were made
    Status status;
    std::exception_ptr thrown;
    double draft_ns = 0, forward_ns = 0;
    int64_t num_drafting = 0, draft_count = 0;
  };

  /// An end that was asked for while a step computed.
  struct Doomed {
    RequestId id = 0;
    FinishReason reason = FinishReason::cancelled;
    std::optional<Error> error;
  };

  EngineCore(std::unique_ptr<model::Runner> runner, EngineInfo info, EngineOptions options,
             SchedulerLimits limits, std::unique_ptr<StepExecutor> executor);

  void expire_waiting();
  Status compute(Job& job, const std::function<void()>& while_computing);
  void run_job(Job& job);
  Status run_drafts(Job& job);
  static void keep_drafts(Job& job, size_t slice, int32_t count);
  Status run_forward(Job& job);
  Status settle(Job& job);
  void settle_doomed(Job& job);
  bool has_progress(const ScheduledSlice& slice) const;
  void fail_slices(Job& job, const Error& error);
  void take_outcome(const ScheduledSlice& slice, SliceOutcome& outcome, std::span<const float> confidence);
  void take_scores(const ScheduledSlice& slice, SliceOutcome& outcome, int64_t first_row);
  void complete_prompt(RequestState& request, int64_t now);
  void take_tokens(const ScheduledSlice& slice, SliceOutcome& outcome);
  void count_drafts(const ScheduledSlice& slice, const SliceOutcome& outcome,
                    std::span<const float> confidence);
  void observe(const Job& job, std::span<const SliceOutcome> outcomes);
  void end(RequestId id, FinishReason reason, std::optional<int32_t> stop_token = {},
           std::optional<Error> error = {});
  FinishInfo finish_info(const RequestState& request) const;
  /// After ends and before they are delivered. Not while a step computes.
  void publish();

  EngineInfo info_;
  EngineOptions options_;
  std::unique_ptr<model::Runner> runner_;
  std::unique_ptr<StepExecutor> executor_;
  PrefixUse prefix_;  // these hold pages of the runner, so they go before it
  SwapSpace swap_;
  DraftLength draft_length_;
  Scheduler scheduler_;
  StepSampler sampler_;
  std::unique_ptr<float[]> logits_;  // [max_logit_rows, V], untouched pages cost nothing
  DeliveryQueue events_;
  std::vector<Doomed> doomed_;
  bool is_computing_ = false;
  bool has_streamed_rows_ = false;
  EngineFigures figures_;
  uint64_t num_seeds_drawn_ = 0;

  mutable std::mutex stats_mutex_;  // of the following
  PrefixStats prefix_stats_;
  SpeculationStats speculation_;
  std::array<int64_t, kIterationBuckets.size() + 1> iteration_tokens_{};
  int64_t iteration_tokens_sum_ = 0;
};

}  // namespace rorqual::runtime
