// SPDX-License-Identifier: Apache-2.0
// One step of the local engine, from the plan to the sinks.
#include "runtime/engine_core.h"

#include <fmt/format.h>

#include <algorithm>
#include <exception>
#include <limits>
#include <new>
#include <random>
#include <utility>
#include <vector>

#include "base/check.h"
#include "runtime/logprobs.h"
#include "runtime/philox.h"
#include "runtime/request_check.h"

namespace rorqual::runtime {

namespace {

constexpr uint64_t kSeedMask = (uint64_t{1} << 53) - 1;  // exact in JSON numbers

Error bad_option(const char* name, int64_t got, const char* expected) {
  return Error(Code::invalid_argument, fmt::format("{} is {}, expected {}", name, got, expected),
               fmt::format("correct {}", name));
}

Status check_options(const EngineOptions& o) {
  if (o.max_num_seqs < 1) return bad_option("max_num_seqs", o.max_num_seqs, "1 or more");
  if (o.max_num_batched_tokens < 1)
    return bad_option("max_num_batched_tokens", o.max_num_batched_tokens, "1 or more");
  if (o.long_prefill_token_threshold < -1) {
    return bad_option("long_prefill_token_threshold", o.long_prefill_token_threshold,
                      "-1 (automatic), 0 (off) or more");
  }
  if (o.max_num_queued_reqs < 0)
    return bad_option("max_num_queued_reqs", o.max_num_queued_reqs, "0 (off) or more");
  if (o.max_num_queued_tokens < 0) {
    return bad_option("max_num_queued_tokens", o.max_num_queued_tokens, "0 (off) or more");
  }
  if (o.max_logprobs < -1) return bad_option("max_logprobs", o.max_logprobs, "-1 (no limit) or more");
  if (o.max_logit_rows < 1) return bad_option("max_logit_rows", o.max_logit_rows, "1 or more");
  if (o.max_prompt_logprob_entries < 0) {
    return bad_option("max_prompt_logprob_entries", o.max_prompt_logprob_entries, "0 (off) or more");
  }
  return Ok{};
}

uint64_t draw_seed(const std::optional<uint64_t>& source, uint64_t count) {
  if (source) {
    const auto x = philox4x32({static_cast<uint32_t>(count), static_cast<uint32_t>(count >> 32), 0, 1},
                              {static_cast<uint32_t>(*source), static_cast<uint32_t>(*source >> 32)});
    return (uint64_t{x[1]} << 32 | x[0]) & kSeedMask;
  }
  std::random_device device;
  return (uint64_t{device()} << 32 | device()) & kSeedMask;
}

double seconds_between(int64_t begin_ns, int64_t end_ns) {
  return begin_ns == 0 || end_ns == 0 ? 0.0 : static_cast<double>(end_ns - begin_ns) * 1e-9;
}

/// Calls a sink; what it throws becomes an error of its request.
template <class Call>
Status guarded(Call&& call) {
  try {
    call();
    return Ok{};
  } catch (const std::exception& e) {
    return Error(Code::internal, fmt::format("the receiver of the tokens threw: {}", e.what()));
  } catch (...) {
    return Error(Code::internal, "the receiver of the tokens threw");
  }
}

FinishInfo finish_info(const RequestState& request, int64_t now) {
  FinishInfo info;
  info.seed = request.seed;
  info.prompt_tokens = request.num_prompt_tokens;
  info.completion_tokens = request.num_output();
  const int64_t scheduled = request.scheduled_ns == 0 ? now : request.scheduled_ns;
  info.queue_s = seconds_between(request.queued_ns, scheduled);
  info.prefill_s = seconds_between(request.scheduled_ns, request.first_token_ns);
  info.decode_s = seconds_between(request.first_token_ns, request.last_token_ns);
  return info;
}

}  // namespace

Result<std::unique_ptr<EngineCore>> EngineCore::create(std::unique_ptr<model::Runner> runner, EngineInfo info,
                                                       EngineOptions options) {
  RORQUAL_CHECK(runner != nullptr);
  RORQUAL_TRY(check_options(options));
  if (!options.clock) options.clock = std::make_shared<SteadyClock>();
  const int64_t rows = std::min(options.max_num_batched_tokens, runner->max_step_rows());
  SchedulerLimits limits;
  limits.max_num_seqs = std::min(options.max_num_seqs, rows);
  limits.max_step_tokens = rows;
  limits.max_logit_rows = std::max(options.max_logit_rows, limits.max_num_seqs);
  limits.long_prefill_token_threshold = options.long_prefill_token_threshold >= 0
                                            ? options.long_prefill_token_threshold
                                            : std::max<int64_t>(rows * 3 / 4, 1);
  const int64_t cache_tokens =
      runner->pages().pages_total(model::PageKind::block) * runner->pages().page_tokens();
  info.vocab_size = runner->vocab_size();
  info.max_model_len = info.max_model_len > 0 ? std::min(info.max_model_len, runner->max_model_len())
                                              : runner->max_model_len();
  info.max_model_len = std::min(info.max_model_len, cache_tokens);
  if (info.max_model_len < 1) {
    return Error(Code::invalid_argument,
                 fmt::format("the cache holds {} tokens, expected 1 or more", cache_tokens),
                 "enlarge the cache");
  }
  const int64_t max_rows = std::numeric_limits<int64_t>::max() / 8 / info.vocab_size;
  if (limits.max_logit_rows > max_rows)
    return bad_option("max_logit_rows", limits.max_logit_rows, "far less");
  try {
    return std::unique_ptr<EngineCore>(
        new EngineCore(std::move(runner), std::move(info), std::move(options), limits));
  } catch (const std::bad_alloc&) {
    return Error(Code::out_of_memory, fmt::format("no memory for {} rows of logits", limits.max_logit_rows),
                 "lower max_num_seqs or max_logit_rows");
  }
}

EngineCore::EngineCore(std::unique_ptr<model::Runner> runner, EngineInfo info, EngineOptions options,
                       SchedulerLimits limits)
    : info_(std::move(info)),
      options_(std::move(options)),
      runner_(std::move(runner)),
      scheduler_(limits, *runner_),
      sampler_(info_.vocab_size),
      logits_(new float[static_cast<size_t>(limits.max_logit_rows * info_.vocab_size)]) {
  figures_.blocks_total = runner_->pages().pages_total(model::PageKind::block);
  publish();
}

void EngineCore::expect(const Request& request) {
  figures_.pending_prompt_tokens += static_cast<int64_t>(request.prompt.size());
  ++figures_.unfinished;
}

void EngineCore::add(RequestId id, Request request, std::shared_ptr<TokenSink> sink, int64_t queued_ns) {
  auto state = std::make_unique<RequestState>();
  state->id = id;
  state->sampling = std::move(request.sampling);
  state->client_key = std::move(request.client_key);
  state->order.priority = request.priority;
  state->sink = std::move(sink);
  state->seed = state->sampling.seed ? *state->sampling.seed : draw_seed(options_.seed, num_seeds_drawn_++);
  state->tokens = std::move(request.prompt);
  state->num_prompt_tokens = state->num_tokens();
  if (has_penalties(state->sampling)) state->counts = TokenCounts(state->tokens);
  if (state->needs_prompt_scores()) {
    state->num_scored = std::max<int64_t>(1, state->sampling.prompt_logprobs_begin);
    if (!state->sampling.stream_prompt_rows) {
      state->prompt_logprobs.resize(
          static_cast<size_t>(std::min(state->num_scored, state->num_prompt_tokens)));
    }
  }
  state->queued_ns = queued_ns;
  scheduler_.add(std::move(state));
}

void EngineCore::refuse(int64_t num_prompt_tokens, TokenSink& sink, FinishReason reason,
                        const std::optional<Error>& error) {
  figures_.pending_prompt_tokens -= num_prompt_tokens;
  --figures_.unfinished;
  FinishInfo info;
  info.reason = reason;
  info.error = error;
  info.prompt_tokens = num_prompt_tokens;
  const Status ignored = guarded([&] { sink.on_finish(info); });
  static_cast<void>(ignored.ok());
}

void EngineCore::cancel(RequestId id) {
  finish(id, FinishReason::cancelled);
}

Status EngineCore::step() {
  figures_.step_began_ns = options_.clock->now_ns();
  StepPlan plan = scheduler_.schedule();
  for (auto& [id, error] : plan.impossible) finish(id, FinishReason::error, {}, std::move(error));
  publish();
  if (!plan.slices.empty()) RORQUAL_TRY(run_forward(plan));
  figures_.step_began_ns = 0;
  return Ok{};
}

Status EngineCore::run_forward(const StepPlan& plan) {
  const int64_t now = options_.clock->now_ns();
  std::vector<model::StepSlice> slices;
  slices.reserve(plan.slices.size());
  for (const ScheduledSlice& slice : plan.slices) {
    RequestState& request = *slice.request;
    if (request.scheduled_ns == 0) request.scheduled_ns = now;
    model::StepSlice& s = slices.emplace_back();
    s.sequence = *request.sequence;
    s.tokens = std::span<const int32_t>(request.tokens)
                   .subspan(static_cast<size_t>(slice.begin), static_cast<size_t>(slice.num_tokens));
    s.logit_offsets = slice.logit_offsets;
  }
  const auto num_values = static_cast<size_t>(plan.num_logit_rows * info_.vocab_size);
  const Status status = runner_->forward(slices, std::span<float>(logits_.get(), num_values));
  ++figures_.steps;
  if (!status.ok()) {
    const Code code = status.error().code();
    if (code == Code::device || code == Code::internal) return status.error();
    fail_slices(plan, status.error());
    return Ok{};
  }
  size_t first = 0;
  for (const ScheduledSlice& slice : plan.slices) {
    const size_t size = slice.logit_offsets.size() * static_cast<size_t>(info_.vocab_size);
    Scheduler::mark_computed(slice);
    deliver(slice, std::span<const float>(logits_.get() + first, size));
    first += size;
  }
  publish();
  return Ok{};
}

void EngineCore::fail_slices(const StepPlan& plan, const Error& error) {
  std::vector<RequestId> ids;
  for (const ScheduledSlice& slice : plan.slices) ids.push_back(slice.request->id);
  for (const RequestId id : ids) finish(id, FinishReason::error, {}, error);
}

void EngineCore::deliver(const ScheduledSlice& slice, std::span<const float> rows) {
  RequestState& request = *slice.request;
  const RequestId id = request.id;
  if (Status status = score_prompt(slice, rows); !status.ok()) {
    return finish(id, FinishReason::error, {}, std::move(status).error());
  }
  if (request.num_computed < request.num_prompt_tokens) return;
  if (!request.is_prompt_counted) {
    Status status = guarded([&] { complete_prompt(request, options_.clock->now_ns()); });
    if (!status.ok()) return finish(id, FinishReason::error, {}, std::move(status).error());
  }
  if (request.sampling.max_tokens == 0) return finish(id, FinishReason::length);
  if (slice.does_sample) take_token(request, rows.last(static_cast<size_t>(info_.vocab_size)));
}

Status EngineCore::score_prompt(const ScheduledSlice& slice, std::span<const float> rows) {
  RequestState& request = *slice.request;
  const auto vocab = static_cast<size_t>(info_.vocab_size);
  const size_t num_rows = slice.logit_offsets.size() - (slice.does_sample ? 1 : 0);
  for (size_t i = 0; i < num_rows; ++i) {
    const auto next = static_cast<size_t>(slice.begin + slice.logit_offsets[i] + 1);
    RORQUAL_CHECK(static_cast<int64_t>(next) == request.num_scored);
    const auto row = rows.subspan(i * vocab, vocab);
    if (!is_finite_row(row)) return not_finite(static_cast<int64_t>(next));
    LogprobRequest wanted;
    wanted.chosen = request.tokens[next];
    wanted.top_k = request.sampling.prompt_logprobs;
    auto scored = position_logprobs(row, wanted);
    if (request.sampling.stream_prompt_rows) {
      RORQUAL_TRY(
          guarded([&] { request.sink->on_prompt_row(static_cast<int64_t>(next), std::move(scored), row); }));
    } else {
      request.prompt_logprobs.emplace_back(std::move(scored));
    }
    ++request.num_scored;
  }
  return Ok{};
}

void EngineCore::complete_prompt(RequestState& request, int64_t now) {
  const bool has_scores = request.needs_prompt_scores();
  request.is_prompt_counted = true;
  request.first_token_ns = now;
  request.last_token_ns = now;
  figures_.prompt_tokens += request.num_prompt_tokens;
  figures_.pending_prompt_tokens -= request.num_prompt_tokens;
  if (has_scores && !request.sampling.stream_prompt_rows)
    request.sink->on_prompt_logprobs(std::exchange(request.prompt_logprobs, {}));
}

Result<int32_t> EngineCore::next_token(const RequestState& request, std::span<const float> row) {
  const auto& forced = request.sampling.forced_tokens;
  if (!forced.empty()) {
    if (!is_finite_row(row)) return not_finite(request.num_tokens());
    return forced[static_cast<size_t>(request.num_output())];
  }
  return sampler_.sample(row, {request.sampling, request.counts, request.tokens, request.num_prompt_tokens,
                               request.seed, info_.eos_token_id});
}

void EngineCore::take_token(RequestState& request, std::span<const float> row) {
  const SamplingParams& params = request.sampling;
  const RequestId id = request.id;
  Result<int32_t> next = next_token(request, row);
  if (!next.ok()) return finish(id, FinishReason::error, {}, std::move(next).error());
  const int32_t token = *next;
  const bool is_end =
      params.forced_tokens.empty() && ends_reply(params, token, info_.eos_token_id, request.num_output());
  request.tokens.push_back(token);
  if (has_penalties(params)) request.counts.add_output(token);
  request.last_token_ns = options_.clock->now_ns();
  ++figures_.generation_tokens;
  if (is_end) return finish(id, FinishReason::stop, token);
  std::optional<PositionLogprobs> logprobs;
  if (params.logprobs >= 0 || !params.logprob_token_ids.empty()) {
    logprobs = position_logprobs(row, {token, std::max(params.logprobs, 0), params.logprob_token_ids});
  }
  Status status = guarded([&] { request.sink->on_token(token, std::move(logprobs)); });
  if (!status.ok()) return finish(id, FinishReason::error, {}, std::move(status).error());
  if (request.num_output() >= params.max_tokens || request.num_tokens() >= info_.max_model_len) {
    finish(id, FinishReason::length);
  }
}

void EngineCore::finish(RequestId id, FinishReason reason, std::optional<int32_t> stop_token,
                        std::optional<Error> error) {
  const std::unique_ptr<RequestState> request = scheduler_.remove(id);
  if (!request) return;
  if (!request->is_prompt_counted) figures_.pending_prompt_tokens -= request->num_prompt_tokens;
  --figures_.unfinished;
  publish();
  FinishInfo info = finish_info(*request, options_.clock->now_ns());
  info.reason = reason;
  info.stop_token = stop_token;
  info.error = std::move(error);
  // A sink that throws here has nothing more to lose: its request is gone already.
  const Status ignored = guarded([&] { request->sink->on_finish(info); });
  static_cast<void>(ignored.ok());
}

void EngineCore::fail_all(const Error& error) {
  for (const RequestId id : scheduler_.ids()) finish(id, FinishReason::error, {}, error);
  figures_.step_began_ns = 0;
}

void EngineCore::cancel_all() {
  for (const RequestId id : scheduler_.ids()) finish(id, FinishReason::cancelled);
}

void EngineCore::publish() {
  figures_.running = scheduler_.num_running();
  figures_.preemptions = scheduler_.num_preemptions();
  figures_.blocks_used = runner_->pages().pages_total(model::PageKind::block) -
                         runner_->pages().pages_free(model::PageKind::block);
}

}  // namespace rorqual::runtime
