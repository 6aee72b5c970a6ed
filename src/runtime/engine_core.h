// SPDX-License-Identifier: Apache-2.0
// The local engine without its thread: takes requests, runs one step at a time, calls the sinks. Simulation
// tests drive it directly with virtual time.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>

#include "base/clock.h"
#include "base/result.h"
#include "model/runner.h"
#include "runtime/engine.h"
#include "runtime/local_engine.h"
#include "runtime/scheduler.h"

namespace rorqual::runtime {

/// Figures that other threads read while the step thread writes. A request leaves them before its on_finish,
/// so that a client that hears of the end finds the room free.
struct EngineFigures {
  std::atomic<int64_t> unfinished{0}, running{0};
  std::atomic<int64_t> pending_prompt_tokens{0};  // of prompts that are not computed to the end yet
  std::atomic<int64_t> blocks_total{0}, blocks_used{0};
  std::atomic<int64_t> prompt_tokens{0}, generation_tokens{0}, cached_tokens{0};
  std::atomic<int64_t> preemptions{0}, steps{0};
  std::atomic<int64_t> step_began_ns{0};  // 0 = no step is running
};

/// The step thread only, except figures().
class EngineCore {
 public:
  /// Checks the options and completes `info` (see make_local_engine).
  static Result<std::unique_ptr<EngineCore>> create(std::unique_ptr<model::Runner> runner, EngineInfo info,
                                                    EngineOptions options);

  const EngineInfo& info() const { return info_; }

  const EngineOptions& options() const { return options_; }

  EngineFigures& figures() { return figures_; }

  const EngineFigures& figures() const { return figures_; }

  const Scheduler& scheduler() const { return scheduler_; }

  const model::Runner& runner() const { return *runner_; }

  /// Counts an accepted request in figures(). Before add; any thread.
  void expect(const Request& request);

  /// Takes a checked request that `expect` has counted. `queued_ns` is the time of its submission.
  void add(RequestId id, Request request, std::shared_ptr<TokenSink> sink, int64_t queued_ns);

  /// Ends a request that `expect` has counted and `add` has not taken.
  void refuse(int64_t num_prompt_tokens, TokenSink& sink, FinishReason reason,
              const std::optional<Error>& error);

  /// Ends the request with on_finish(cancelled). Unknown ids are ignored.
  void cancel(RequestId id);

  bool has_work() const { return scheduler_.has_requests(); }

  /// One step: schedule, forward, sample, deliver. Requests that fail end with an error. An error return
  /// means that the engine cannot go on; call fail_all then.
  Status step();

  /// Ends every request.
  void fail_all(const Error& error);
  void cancel_all();

 private:
  EngineCore(std::unique_ptr<model::Runner> runner, EngineInfo info, EngineOptions options,
             SchedulerLimits limits);

  Status run_forward(const StepPlan& plan);
  void fail_slices(const StepPlan& plan, const Error& error);
  void deliver(const ScheduledSlice& slice, std::span<const float> rows);
  Status score_prompt(const ScheduledSlice& slice, std::span<const float> rows);
  void complete_prompt(RequestState& request, int64_t now);
  Result<int32_t> next_token(const RequestState& request, std::span<const float> row);
  void take_token(RequestState& request, std::span<const float> row);
  void finish(RequestId id, FinishReason reason, std::optional<int32_t> stop_token = {},
              std::optional<Error> error = {});
  void publish();

  EngineInfo info_;
  EngineOptions options_;
  std::unique_ptr<model::Runner> runner_;
  Scheduler scheduler_;  // closes its sequences, so it goes before the runner
  Sampler sampler_;
  std::unique_ptr<float[]> logits_;  // [max_logit_rows, V], untouched pages cost nothing
  EngineFigures figures_;
  uint64_t num_seeds_drawn_ = 0;
};

}  // namespace rorqual::runtime
