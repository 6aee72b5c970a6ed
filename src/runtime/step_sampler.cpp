// SPDX-License-Identifier: Apache-2.0
// Scoring, sampling and verification.
#include "runtime/step_sampler.h"

#include <fmt/format.h>

#include <algorithm>
#include <exception>
#include <new>
#include <utility>

#include "base/check.h"
#include "base/thread_pool.h"
#include "runtime/logprobs.h"
#include "runtime/request_check.h"

namespace rorqual::runtime {

namespace {

/// Runs `f`; what it throws becomes an error of the request.
template <class F>
Status guarded(F&& f) {
  try {
    return f();
  } catch (const std::bad_alloc&) {
    return Error(Code::out_of_memory, "no memory to sample a token", "lower --max-num-seqs or logprobs");
  } catch (const std::exception& e) {
    return Error(Code::internal, fmt::format("the token constraint threw: {}", e.what()));
  } catch (...) {
    return Error(Code::internal, "the token constraint threw");
  }
}

/// Forced tokens are never masked.
bool is_constrained(const SamplingParams& params) {
  return params.constraint != nullptr && params.forced_tokens.empty();
}

}  // namespace

StepSampler::StepSampler(const EngineInfo& info, int num_threads)
    : vocab_size_(info.vocab_size), max_model_len_(info.max_model_len), eos_token_id_(info.eos_token_id) {
  for (int i = 0; i < num_threads; ++i) spaces_.push_back({Sampler(vocab_size_), {}});
}

void StepSampler::compute_mask(const RequestState& request, std::vector<uint32_t>& mask) const {
  mask.assign(static_cast<size_t>((vocab_size_ + 31) / 32), ~uint32_t{0});
  request.sampling.constraint->mask(request.output(), mask);
}

void StepSampler::prepare(const StepPlan& plan) {
  prepared_.resize(std::max(prepared_.size(), plan.slices.size()));
  for (size_t i = 0; i < plan.slices.size(); ++i) {
    const ScheduledSlice& slice = plan.slices[i];
    std::vector<uint32_t>& mask = prepared_[i];
    mask.clear();
    if (slice.request == nullptr || !slice.does_sample || !is_constrained(slice.request->sampling)) continue;
    const Status status = guarded([&]() -> Status {
      compute_mask(*slice.request, mask);
      return Ok{};
    });
    if (!status.ok()) mask.clear();  // the position asks again, and the request hears of the error
  }
}

std::vector<SliceOutcome> StepSampler::run(model::Runner& runner, const StepPlan& plan,
                                           std::span<const std::vector<int32_t>> drafts,
                                           std::span<const float> logits) {
  std::vector<SliceOutcome> outcomes(plan.slices.size());
  const std::vector<Item> items = list_items(plan, logits, outcomes);
  std::vector<Status> results(items.size());
  runner.parallel_for(static_cast<int64_t>(items.size()), [&](int64_t index, int thread) {
    const ScopedFlushToZero flush_to_zero;  // the same treatment of subnormals on every thread
    const Item& item = items[static_cast<size_t>(index)];
    const ScheduledSlice& slice = plan.slices[item.slice];
    SliceOutcome& outcome = outcomes[item.slice];
    results[static_cast<size_t>(index)] = guarded([&]() -> Status {
      if (item.scored >= 0) return score(item, slice, outcome);
      return sample(item, *slice.request, drafts[item.slice], spaces_[static_cast<size_t>(thread)], outcome);
    });
  });
  for (std::vector<uint32_t>& mask : prepared_) mask.clear();
  for (size_t i = items.size(); i-- > 0;) {  // of several errors of a slice the first one stays
    if (!results[i].ok()) outcomes[items[i].slice].error = results[i].error();
  }
  return outcomes;
}

std::vector<StepSampler::Item> StepSampler::list_items(const StepPlan& plan, std::span<const float> logits,
                                                       std::vector<SliceOutcome>& outcomes) const {
  std::vector<Item> items;
  const auto vocab = static_cast<size_t>(vocab_size_);
  size_t first = 0;
  for (size_t i = 0; i < plan.slices.size(); ++i) {
    const ScheduledSlice& slice = plan.slices[i];
    const size_t num_sampled = slice.does_sample ? 1 + static_cast<size_t>(slice.num_drafts) : 0;
    const size_t num_scored = slice.logit_offsets.size() - num_sampled;
    if (slice.request != nullptr) {
      outcomes[i].scores.resize(num_scored);
      for (size_t j = 0; j < num_scored; ++j) {
        items.push_back({i, static_cast<int64_t>(j), logits.subspan((first + j) * vocab, vocab)});
      }
      if (num_sampled > 0) {
        items.push_back({i, -1, logits.subspan((first + num_scored) * vocab, num_sampled * vocab)});
      }
    }
    first += slice.logit_offsets.size();
  }
  return items;
}

Status StepSampler::score(const Item& item, const ScheduledSlice& slice, SliceOutcome& outcome) const {
  const auto at = static_cast<size_t>(item.scored);
  const auto next = static_cast<size_t>(slice.begin + slice.logit_offsets[at] + 1);
  if (!is_finite_row(item.rows)) return not_finite(static_cast<int64_t>(next));
  LogprobRequest wanted;
  wanted.chosen = slice.request->tokens[next];
  wanted.top_k = slice.request->sampling.prompt_logprobs;
  outcome.scores[at] = position_logprobs(item.rows, wanted);
  return Ok{};
}

Result<int32_t> StepSampler::next_token(const RequestState& request, std::span<const float> row,
                                        std::span<const uint32_t> prepared, Space& space) const {
  const SamplingParams& params = request.sampling;
  if (!params.forced_tokens.empty()) {
    if (!is_finite_row(row)) return not_finite(request.num_tokens());
    return params.forced_tokens[static_cast<size_t>(request.num_output())];
  }
  SampleInput input{
      params, request.counts, request.tokens, request.num_prompt_tokens, request.seed, eos_token_id_, {}};
  if (is_constrained(params)) {
    if (prepared.empty()) compute_mask(request, space.mask);
    input.allowed = prepared.empty() ? space.mask : prepared;
  }
  return space.sampler.sample(row, input);
}

Status StepSampler::sample(const Item& item, RequestState& request, std::span<const int32_t> drafts,
                           Space& space, SliceOutcome& outcome) const {
  const SamplingParams& params = request.sampling;
  const auto vocab = static_cast<size_t>(vocab_size_);
  for (size_t i = 0; i <= drafts.size(); ++i) {
    const auto row = item.rows.subspan(i * vocab, vocab);
    const bool is_prepared = i == 0 && item.slice < prepared_.size();
    RORQUAL_TRY_ASSIGN(
        const int32_t token,
        next_token(request, row, is_prepared ? prepared_[item.slice] : std::span<const uint32_t>{}, space));
    const bool is_end =
        params.forced_tokens.empty() && ends_reply(params, token, eos_token_id_, request.num_output());
    request.tokens.push_back(token);
    if (has_penalties(params)) request.counts.add_output(token);
    SampledToken& sampled = outcome.tokens.emplace_back();
    sampled.token = token;
    const bool is_accepted = i < drafts.size() && drafts[i] == token;
    if (is_accepted) ++outcome.num_accepted;
    if (is_end) {
      outcome.end = FinishReason::stop;
      return Ok{};
    }
    if (params.logprobs >= 0 || !params.logprob_token_ids.empty()) {
      sampled.logprobs =
          position_logprobs(row, {token, std::max(params.logprobs, 0), params.logprob_token_ids});
    }
    if (request.num_output() >= params.max_tokens || request.num_tokens() >= max_model_len_) {
      outcome.end = FinishReason::length;
      return Ok{};
    }
    if (!is_accepted) return Ok{};
  }
  return Ok{};
}

}  // namespace rorqual::runtime
