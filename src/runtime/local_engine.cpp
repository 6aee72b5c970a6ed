// SPDX-License-Identifier: Apache-2.0
// The two threads around EngineCore: one schedules, samples and calls the sinks, the other computes. One
// mutex guards the inbox; it is never held during a step or a sink call.
#include "runtime/local_engine.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <exception>
#include <mutex>
#include <new>
#include <span>
#include <thread>
#include <utility>
#include <vector>

#include "base/check.h"
#include "runtime/engine_core.h"
#include "runtime/request_check.h"

namespace rorqual::runtime {

namespace {

class LocalEngine final : public Engine {
 public:
  /// `executor` is the core's.
  LocalEngine(std::unique_ptr<EngineCore> core, ThreadExecutor& executor) : core_(std::move(core)) {
    executor.set_on_done([this] {
      { const std::lock_guard lock(mutex_); }  // whoever looked before it ended is waiting now
      wake_.notify_all();
    });
    thread_ = std::thread([this] { run(); });
  }

  ~LocalEngine() override;

  const EngineInfo& info() const override { return core_->info(); }

  Result<RequestId> submit(Request request, std::shared_ptr<TokenSink> sink) override;
  void cancel(RequestId id) override;
  EngineStats stats() const override;
  bool drain(std::chrono::milliseconds timeout) override;

 private:
  struct Submission {
    RequestId id = 0;
    Request request;
    std::shared_ptr<TokenSink> sink;
    int64_t queued_ns = 0;
  };

  Status check_load() const;
  bool wait_for_work();
  void take_inbox();
  void refuse(const Submission& submission, FinishReason reason, const std::optional<Error>& error);
  void refuse_inbox(FinishReason reason, const std::optional<Error>& error);
  void work_while_computing();
  Status run_step();
  void die(const Error& error);
  void run();

  mutable std::mutex mutex_;
  std::condition_variable wake_, idle_;
  std::vector<Submission> inbox_;
  std::vector<RequestId> cancels_;
  RequestId next_id_ = 1;
  bool is_stopping_ = false, is_draining_ = false;
  bool is_idle_ = true;  // the core has no request
  std::atomic<bool> is_dead_{false};
  std::unique_ptr<EngineCore> core_;  // its executor notifies wake_
  std::thread thread_;                // last: it uses all of the above
};

LocalEngine::~LocalEngine() {
  RORQUAL_CHECK_NOTE(std::this_thread::get_id() != thread_.get_id(),
                     "an engine must not be destroyed by its sink");
  {
    const std::lock_guard lock(mutex_);
    is_stopping_ = true;
  }
  wake_.notify_all();
  thread_.join();
}

Status LocalEngine::check_load() const {
  const EngineOptions& options = core_->options();
  const EngineFigures& figures = core_->figures();
  if (is_dead_) {
    return Error(Code::unavailable, "the engine has stopped after an error",
                 "see the log and restart the program");
  }
  if (is_draining_ || is_stopping_) {
    return Error(Code::unavailable, "the engine is draining and takes no new requests",
                 "send it to another server");
  }
  const int64_t unfinished = figures.unfinished;
  if (options.max_num_queued_reqs > 0 && unfinished >= options.max_num_queued_reqs) {
    return Error(Code::unavailable,
                 fmt::format("the queue is full: {} unfinished requests, limit {}", unfinished,
                             options.max_num_queued_reqs),
                 "try again later, or start the server with a larger --max-queued-requests")
        .by(Limit::queued_reqs);
  }
  const int64_t pending = figures.pending_prompt_tokens;
  if (options.max_num_queued_tokens > 0 && pending >= options.max_num_queued_tokens) {
    return Error(Code::unavailable,
                 fmt::format("the queue is full: {} prompt tokens are waiting, limit {}", pending,
                             options.max_num_queued_tokens),
                 "try again later")
        .by(Limit::queued_tokens);
  }
  return Ok{};
}

Result<RequestId> LocalEngine::submit(Request request, std::shared_ptr<TokenSink> sink) {
  RORQUAL_CHECK(sink != nullptr);
  const EngineOptions& options = core_->options();
  RORQUAL_TRY(check_request(request, {info().vocab_size, info().max_model_len, options.max_logprobs,
                                      options.max_prompt_logprob_entries}));
  RequestId id = 0;
  {
    const std::lock_guard lock(mutex_);
    RORQUAL_TRY(check_load());
    id = next_id_++;
    core_->expect(request);
    inbox_.push_back({id, std::move(request), std::move(sink), options.clock->now_ns()});
  }
  wake_.notify_one();
  return id;
}

void LocalEngine::cancel(RequestId id) {
  {
    const std::lock_guard lock(mutex_);
    cancels_.push_back(id);
  }
  wake_.notify_one();
}

EngineStats LocalEngine::stats() const {
  EngineStats stats = core_->stats();
  stats.is_alive = !is_dead_;
  const double limit_s = core_->options().step_timeout_s;
  const int64_t began = core_->figures().step_began_ns;
  if (limit_s > 0 && began != 0) {
    const double elapsed_s = static_cast<double>(core_->options().clock->now_ns() - began) * 1e-9;
    if (elapsed_s > limit_s) stats.is_alive = false;
  }
  return stats;
}

bool LocalEngine::drain(std::chrono::milliseconds timeout) {
  std::unique_lock lock(mutex_);
  is_draining_ = true;
  return idle_.wait_for(lock, timeout, [this] { return is_idle_ && inbox_.empty(); });
}

/// Waits until there is something to do; false when the engine stops.
bool LocalEngine::wait_for_work() {
  std::unique_lock lock(mutex_);
  if (!core_->has_work() && inbox_.empty()) {
    is_idle_ = true;
    idle_.notify_all();
    wake_.wait(lock, [this] { return is_stopping_ || !inbox_.empty() || !cancels_.empty(); });
  }
  is_idle_ = false;
  return !is_stopping_;
}

void LocalEngine::take_inbox() {
  std::vector<Submission> submissions;
  std::vector<RequestId> cancels;
  {
    const std::lock_guard lock(mutex_);
    submissions.swap(inbox_);
    cancels.swap(cancels_);
  }
  for (size_t i = 0; i < submissions.size(); ++i) {
    Submission& s = submissions[i];
    const auto num_prompt_tokens = static_cast<int64_t>(s.request.prompt.size());
    try {
      core_->add(s.id, std::move(s.request), s.sink, s.queued_ns);
    } catch (...) {
      const Error error(Code::out_of_memory, "no memory to queue the request", "lower --max-queued-requests");
      core_->refuse(num_prompt_tokens, *s.sink, FinishReason::error, error);
      for (Submission& later : std::span(submissions).subspan(i + 1))
        refuse(later, FinishReason::error, error);
      throw;
    }
  }
  for (const RequestId id : cancels) core_->cancel(id);
}

void LocalEngine::refuse(const Submission& submission, FinishReason reason,
                         const std::optional<Error>& error) {
  core_->refuse(static_cast<int64_t>(submission.request.prompt.size()), *submission.sink, reason, error);
}

/// Ends what was submitted but never reached the core.
void LocalEngine::refuse_inbox(FinishReason reason, const std::optional<Error>& error) {
  std::vector<Submission> submissions;
  {
    const std::lock_guard lock(mutex_);
    submissions.swap(inbox_);
    cancels_.clear();
  }
  for (const Submission& submission : submissions) refuse(submission, reason, error);
}

/// Takes what comes in, and looks ahead for it, until the computing part of the step is over.
void LocalEngine::work_while_computing() {
  while (true) {
    // Asked before the inbox is taken: a cancellation that came while the step computed is never left for the
    // next one, and no token of this step follows it.
    const bool is_computing = core_->is_computing();
    take_inbox();
    if (!is_computing) return;
    if (core_->prepare()) continue;
    std::unique_lock lock(mutex_);
    wake_.wait(lock, [this] { return !core_->is_computing() || !inbox_.empty() || !cancels_.empty(); });
  }
}

Status LocalEngine::run_step() {
  try {
    take_inbox();
    if (core_->has_work()) RORQUAL_TRY(core_->step([this] { work_while_computing(); }));
    return Ok{};
  } catch (const std::bad_alloc&) {
    return Error(Code::out_of_memory, "the engine ran out of memory in a step",
                 "lower --max-num-seqs or the cache");
  } catch (const std::exception& e) {
    return Error(Code::internal, fmt::format("the engine threw in a step: {}", e.what()),
                 "please report this");
  } catch (...) {
    return Error(Code::internal, "the engine threw in a step", "please report this");
  }
}

void LocalEngine::die(const Error& error) {
  {
    const std::lock_guard lock(mutex_);  // submit checks it under the mutex, so the inbox is final afterwards
    is_dead_ = true;
  }
  core_->fail_all(error);
  refuse_inbox(FinishReason::error, error);
}

void LocalEngine::run() {
  while (wait_for_work()) {
    const Status status = run_step();
    if (status.ok()) continue;
    die(status.error());
  }
  core_->cancel_all();
  refuse_inbox(FinishReason::cancelled, {});
  const std::lock_guard lock(mutex_);
  is_idle_ = true;
  idle_.notify_all();
}

}  // namespace

Result<std::unique_ptr<Engine>> make_local_engine(std::unique_ptr<model::Runner> runner, EngineInfo info,
                                                  EngineOptions options) {
  auto executor = std::make_unique<ThreadExecutor>();
  ThreadExecutor& thread = *executor;
  RORQUAL_TRY_ASSIGN(
      std::unique_ptr<EngineCore> core,
      EngineCore::create(std::move(runner), std::move(info), std::move(options), std::move(executor)));
  return std::unique_ptr<Engine>(std::make_unique<LocalEngine>(std::move(core), thread));
}

}  // namespace rorqual::runtime
