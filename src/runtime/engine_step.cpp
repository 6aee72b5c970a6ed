// SPDX-License-Identifier: Apache-2.0
// One step of the local engine, from the plan to the queue of events.
#include <algorithm>
#include <exception>
#include <utility>

#include "base/check.h"
#include "runtime/engine_core.h"

namespace rorqual::runtime {

Status EngineCore::step(const std::function<void()>& while_computing) {
  expire_waiting();
  Job job;
  job.plan = scheduler_.schedule();
  for (auto& [id, error] : job.plan.impossible) {
    end(id, FinishReason::error, {}, std::move(error));
    for (ScheduledSlice& slice : job.plan.slices) {
      RORQUAL_CHECK(slice.request == nullptr || slice.request->id != id);
    }
  }
  publish();
  Status status;
  if (!job.plan.slices.empty()) {
    status = compute(job, while_computing);
    if (status.ok()) status = settle(job);
    publish();
  }
  if (!has_work() || job.plan.slices.empty() || has_streamed_rows_) flush();
  return status;
}

void EngineCore::flush() {
  has_streamed_rows_ = false;
  for (auto& [id, error] : events_.flush()) {
    if (is_computing_) {
      doomed_.push_back({id, FinishReason::error, std::move(error)});
    } else {
      end(id, FinishReason::error, {}, std::move(error));
    }
  }
  if (is_computing_ || events_.is_empty()) return;
  publish();
  flush();  // the ends of those whose sink threw
}

Status EngineCore::compute(Job& job, const std::function<void()>& while_computing) {
  const int64_t now = options_.clock->now_ns();
  job.tokens.resize(job.plan.slices.size());
  job.drafts.resize(job.plan.slices.size());
  job.confidence.resize(job.plan.slices.size());
  for (const ScheduledSlice& slice : job.plan.slices) {
    if (slice.request->scheduled_ns == 0) {
      slice.request->scheduled_ns = now;
      events_.push(slice.request->delivery, DeliveryQueue::Begin{std::min(slice.request->cached_tokens,
                                                                          slice.request->num_prompt_tokens)});
    }
  }
  figures_.step_began_ns = now;

  /// Nothing that the job reads may go before it has ended, whatever happens here.
  struct Computing {
    EngineCore& core;

    explicit Computing(EngineCore& engine) : core(engine) { core.is_computing_ = true; }

    ~Computing() {
      core.executor_->wait();
      core.is_computing_ = false;
      core.figures_.step_began_ns = 0;
    }
  };

  {
    const Computing computing(*this);
    executor_->start([this, &job] { run_job(job); });
    flush();
    sampler_.prepare(job.plan);
    if (while_computing) {
      while_computing();
    } else {
      prepare();
    }
  }
  if (job.thrown) std::rethrow_exception(job.thrown);
  return Ok{};
}

void EngineCore::run_job(Job& job) {
  try {
    job.status = run_drafts(job);
    if (job.status.ok()) job.status = run_forward(job);
  } catch (...) {
    job.thrown = std::current_exception();
  }
}

/// Leaves the first `count` drafts of a slice.
void EngineCore::keep_drafts(Job& job, size_t slice, int32_t count) {
  ScheduledSlice& s = job.plan.slices[slice];
  const int32_t less = s.num_drafts - count;
  s.num_tokens -= less;
  job.plan.num_tokens -= less;
  job.plan.num_logit_rows -= less;
  s.logit_offsets.resize(1 + static_cast<size_t>(count));
  s.num_drafts = count;
  job.drafts[slice].resize(static_cast<size_t>(count));
}

/// Drafts, and completes the slices with what is worth verifying. Where drafting fails they go without.
Status EngineCore::run_drafts(Job& job) {
  std::vector<model::DraftSlice> slices;
  std::vector<size_t> places;
  int32_t count = 0;
  for (size_t i = 0; i < job.plan.slices.size(); ++i) {
    const ScheduledSlice& slice = job.plan.slices[i];
    if (slice.num_drafts == 0) continue;
    slices.push_back({*slice.request->sequence, slice.request->tokens.back()});
    places.push_back(i);
    count = std::max(count, slice.num_drafts);
  }
  if (slices.empty()) return Ok{};
  const auto width = static_cast<size_t>(count);
  std::vector<int32_t> tokens(slices.size() * width);
  std::vector<float> confidence(tokens.size());
  const int64_t began = options_.clock->now_ns();
  const Status status = runner_->draft(slices, count, tokens, confidence);
  job.draft_ns = static_cast<double>(options_.clock->now_ns() - began);
  job.num_drafting = static_cast<int64_t>(slices.size());
  job.draft_count = count;
  if (!status.ok()) {
    const Code code = status.error().code();
    if (code == Code::device || code == Code::internal) return status;
    for (const size_t place : places) keep_drafts(job, place, 0);
    return Ok{};
  }
  const int64_t num_made = job.plan.num_tokens;
  const auto num_requests = static_cast<int64_t>(job.plan.slices.size());
  for (size_t n = 0; n < places.size(); ++n) {
    const size_t place = places[n];
    const ScheduledSlice& slice = job.plan.slices[place];
    const auto first = static_cast<std::ptrdiff_t>(n * width);
    job.drafts[place].assign(tokens.begin() + first, tokens.begin() + first + slice.num_drafts);
    job.confidence[place].assign(confidence.begin() + first, confidence.begin() + first + slice.num_drafts);
    if (job.plan.is_decode_only) {
      keep_drafts(job, place, draft_length_.keep(job.confidence[place], num_requests, num_made));
    }
    job.tokens[place] = {slice.request->tokens.back()};
    job.tokens[place].insert(job.tokens[place].end(), job.drafts[place].begin(), job.drafts[place].end());
  }
  return Ok{};
}

Status EngineCore::run_forward(Job& job) {
  std::vector<model::StepSlice> slices;
  slices.reserve(job.plan.slices.size());
  for (size_t i = 0; i < job.plan.slices.size(); ++i) {
    const ScheduledSlice& slice = job.plan.slices[i];
    const RequestState& request = *slice.request;
    model::StepSlice& s = slices.emplace_back();
    s.sequence = *request.sequence;
    s.tokens = slice.num_drafts > 0
                   ? std::span<const int32_t>(job.tokens[i])
                   : std::span<const int32_t>(request.tokens)
                         .subspan(static_cast<size_t>(slice.begin), static_cast<size_t>(slice.num_tokens));
    s.logit_offsets = slice.logit_offsets;
    s.is_replay = slice.is_replay;
    s.window_targets =
        slice.is_replay ? std::span(&request.replay_end, 1) : request.targets_above(slice.begin);
  }
  const auto num_values = static_cast<size_t>(job.plan.num_logit_rows * info_.vocab_size);
  const int64_t began = options_.clock->now_ns();
  Status status = runner_->forward(slices, std::span<float>(logits_.get(), num_values));
  job.forward_ns = static_cast<double>(options_.clock->now_ns() - began);
  return status;
}

Status EngineCore::settle(Job& job) {
  ++figures_.steps;
  {
    const std::lock_guard lock(stats_mutex_);
    const auto bucket =
        std::lower_bound(kIterationBuckets.begin(), kIterationBuckets.end(), job.plan.num_tokens);
    ++iteration_tokens_[static_cast<size_t>(bucket - kIterationBuckets.begin())];
    iteration_tokens_sum_ += job.plan.num_tokens;
  }
  if (!job.status.ok()) {
    const Code code = job.status.error().code();
    if (code == Code::device || code == Code::internal) return job.status;
    settle_doomed(job);
    fail_slices(job, job.status.error());
    return Ok{};
  }
  settle_doomed(job);
  for (ScheduledSlice& slice : job.plan.slices) {
    if (slice.request == nullptr || has_progress(slice)) continue;
    end(slice.request->id, FinishReason::error, {},
        Error(Code::internal, "a step made no progress with the request", "please report this"));
    slice.request = nullptr;
  }
  const auto num_values = static_cast<size_t>(job.plan.num_logit_rows * info_.vocab_size);
  std::vector<SliceOutcome> outcomes =
      sampler_.run(*runner_, job.plan, job.drafts, std::span<const float>(logits_.get(), num_values));
  observe(job, outcomes);
  int64_t first_row = 0;
  for (size_t i = 0; i < outcomes.size(); ++i) {
    const ScheduledSlice& slice = job.plan.slices[i];
    if (slice.request != nullptr) {
      take_scores(slice, outcomes[i], first_row);
      take_outcome(slice, outcomes[i], job.confidence[i]);
    }
    first_row += static_cast<int64_t>(slice.logit_offsets.size());
  }
  return Ok{};
}

/// Ends what was cancelled while the step computed. What it computed of a prompt stays in the prefix cache.
void EngineCore::settle_doomed(Job& job) {
  for (Doomed& doomed : std::exchange(doomed_, {})) {
    for (ScheduledSlice& slice : job.plan.slices) {
      if (slice.request == nullptr || slice.request->id != doomed.id) continue;
      RequestState& request = *slice.request;
      if (job.status.ok() && has_progress(slice)) {
        const int64_t end = slice.begin + slice.num_tokens - slice.num_drafts;
        if (slice.num_drafts > 0) runner_->truncate(*request.sequence, end);
        request.num_computed = end;
        prefix_.keep_step(request, slice.begin);
      } else {
        request.prefix.keeps = false;  // nobody knows what its pages hold
      }
      slice.request = nullptr;
    }
    end(doomed.id, doomed.reason, {}, std::move(doomed.error));
  }
}

bool EngineCore::has_progress(const ScheduledSlice& slice) const {
  return runner_->sequence_length(*slice.request->sequence) == slice.begin + slice.num_tokens;
}

void EngineCore::fail_slices(Job& job, const Error& error) {
  for (ScheduledSlice& slice : job.plan.slices) {
    if (slice.request != nullptr) end(slice.request->id, FinishReason::error, {}, error);
    slice.request = nullptr;
  }
}

void EngineCore::take_scores(const ScheduledSlice& slice, SliceOutcome& outcome, int64_t first_row) {
  RequestState& request = *slice.request;
  if (outcome.error && outcome.tokens.empty() && !outcome.scores.empty()) outcome.scores.clear();
  for (size_t i = 0; i < outcome.scores.size(); ++i) {
    const int64_t next = slice.begin + slice.logit_offsets[i] + 1;
    RORQUAL_CHECK(next == request.num_scored);
    ++request.num_scored;
    if (!request.sampling.stream_prompt_rows) {
      request.prompt_logprobs.emplace_back(std::move(outcome.scores[i]));
      continue;
    }
    const auto row = (static_cast<size_t>(first_row) + i) * static_cast<size_t>(info_.vocab_size);
    events_.push(request.delivery,
                 DeliveryQueue::PromptRow{next,
                                          std::move(outcome.scores[i]),
                                          {logits_.get() + row, static_cast<size_t>(info_.vocab_size)}});
    has_streamed_rows_ = true;
  }
}

void EngineCore::take_outcome(const ScheduledSlice& slice, SliceOutcome& outcome,
                              std::span<const float> confidence) {
  RequestState& request = *slice.request;
  const RequestId id = request.id;
  const int64_t length = slice.begin + slice.num_tokens - slice.num_drafts + outcome.num_accepted;
  if (length < slice.begin + slice.num_tokens) runner_->truncate(*request.sequence, length);
  request.num_computed = length;
  if (!outcome.error) prefix_.keep_step(request, slice.begin);
  if (!confidence.empty()) count_drafts(slice, outcome, confidence);
  const bool is_prompt_done = request.num_computed >= request.num_prompt_tokens;
  if (is_prompt_done && !request.is_prompt_counted && !(outcome.error && outcome.tokens.empty())) {
    complete_prompt(request, options_.clock->now_ns());
  }
  take_tokens(slice, outcome);
  if (outcome.error) return end(id, FinishReason::error, {}, std::move(outcome.error));
  if (is_prompt_done && request.sampling.max_tokens == 0) return end(id, FinishReason::length);
  if (!outcome.end) return;
  std::optional<int32_t> stop_token;
  if (*outcome.end == FinishReason::stop) stop_token = outcome.tokens.back().token;
  end(id, *outcome.end, stop_token);
}

void EngineCore::complete_prompt(RequestState& request, int64_t now) {
  const bool has_scores = request.needs_prompt_scores();
  request.is_prompt_counted = true;
  request.first_token_ns = now;
  request.last_token_ns = now;
  figures_.prompt_tokens += request.num_prompt_tokens;
  figures_.cached_tokens += std::min(request.cached_tokens, request.num_prompt_tokens);
  figures_.pending_prompt_tokens -= request.num_prompt_tokens;
  if (has_scores && !request.sampling.stream_prompt_rows) {
    events_.push(request.delivery, DeliveryQueue::PromptLogprobs{std::exchange(request.prompt_logprobs, {})});
  }
}

void EngineCore::take_tokens(const ScheduledSlice& slice, SliceOutcome& outcome) {
  RequestState& request = *slice.request;
  if (outcome.tokens.empty()) return;
  request.last_token_ns = options_.clock->now_ns();
  figures_.generation_tokens += static_cast<int64_t>(outcome.tokens.size());
  const bool has_stop = outcome.end == FinishReason::stop;
  for (size_t i = 0; i < outcome.tokens.size() - (has_stop ? 1 : 0); ++i) {
    SampledToken& sampled = outcome.tokens[i];
    events_.push(request.delivery, DeliveryQueue::Token{sampled.token, std::move(sampled.logprobs)});
  }
}

void EngineCore::count_drafts(const ScheduledSlice& slice, const SliceOutcome& outcome,
                              std::span<const float> confidence) {
  RequestState& request = *slice.request;
  request.drafted_tokens += slice.num_drafts;
  request.accepted_tokens += outcome.num_accepted;
  const bool is_cut = outcome.end.has_value() || outcome.error.has_value();
  draft_length_.observe_drafts(request.draft_history,
                               {confidence, slice.num_drafts, outcome.num_accepted, is_cut});
  if (slice.num_drafts == 0) return;
  const std::lock_guard lock(stats_mutex_);
  ++speculation_.drafts;
  speculation_.draft_tokens += slice.num_drafts;
  speculation_.accepted_tokens += outcome.num_accepted;
  for (int64_t i = 0; i < outcome.num_accepted; ++i) {
    ++speculation_.accepted_by_position[static_cast<size_t>(i)];
  }
}

/// What the step cost, for the choice of draft lengths.
void EngineCore::observe(const Job& job, std::span<const SliceOutcome> outcomes) {
  if (info_.max_drafts == 0 || !job.plan.is_decode_only) return;
  StepCost cost;
  cost.rows = job.plan.num_tokens;
  cost.num_requests = static_cast<int64_t>(job.plan.slices.size());
  cost.num_drafting = job.num_drafting;
  cost.draft_count = job.draft_count;
  cost.draft_ns = job.draft_ns;
  cost.forward_ns = job.forward_ns;
  int64_t num_drafts = 0;
  for (size_t i = 0; i < outcomes.size(); ++i) {
    num_drafts += job.plan.slices[i].num_drafts;
    cost.num_tokens += 1 + outcomes[i].num_accepted;
  }
  draft_length_.observe_step(cost);
  constexpr double kWeight = 0.1;
  const double mean = static_cast<double>(num_drafts) / static_cast<double>(cost.num_requests);
  const std::lock_guard lock(stats_mutex_);
  speculation_.drafts_now += kWeight * (mean - speculation_.drafts_now);
}

}  // namespace rorqual::runtime
