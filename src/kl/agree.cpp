// SPDX-License-Identifier: Apache-2.0
#include "kl/agree.h"

#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <utility>

#include "kl/jobs.h"

namespace rorqual::kl {
namespace {

using runtime::FinishReason;

/// Collects one reply. The engine's thread writes it, the waiting thread reads it after the end.
class ReplySink final : public runtime::TokenSink {
 public:
  ReplySink(size_t job, JobEnds& ends) : job_(job), ends_(ends) {}

  void on_token(int32_t token, std::optional<runtime::PositionLogprobs> row) override {
    tokens.push_back(token);
    if (!row || row->top.empty()) return;
    best.push_back(row->top.front().token);
    logprobs.push_back(row->chosen.logprob);
  }

  void on_finish(const runtime::FinishInfo& info) override {
    end = info;
    ends_.add(job_);
  }

  std::vector<int32_t> tokens, best;
  std::vector<float> logprobs;
  runtime::FinishInfo end;

 private:
  size_t job_;
  JobEnds& ends_;
};

/// One request: a case, by itself or forced.
struct Job {
  size_t case_index = 0;
  bool is_forced = false;
};

runtime::Request request_for(const PanelCase& c, const Job& job, int64_t max_tokens) {
  runtime::Request request;
  request.prompt = c.prompt;
  request.sampling.temperature = 0;
  request.sampling.max_tokens = max_tokens;
  if (job.is_forced) {
    request.sampling.forced_tokens = c.continuation;
    request.sampling.max_tokens = static_cast<int64_t>(c.continuation.size());
    request.sampling.logprobs = 1;
  }
  return request;
}

void take_own(const PanelCase& c, const ReplySink& sink, CaseAgreement& result) {
  const auto [mine, theirs] =
      std::mismatch(sink.tokens.begin(), sink.tokens.end(), c.continuation.begin(), c.continuation.end());
  const bool has_same_tokens = mine == sink.tokens.end() && theirs == c.continuation.end();
  const bool has_same_end = (sink.end.reason == FinishReason::length) == (c.finish == "length");
  // Equal tokens but one of them was cut off: they differ in what would have come next.
  result.first_difference =
      has_same_tokens && has_same_end ? -1 : static_cast<int64_t>(theirs - c.continuation.begin());
}

Status take_forced(const PanelCase& c, const ReplySink& sink, CaseAgreement& result) {
  const size_t length = c.continuation.size();
  if (sink.tokens != c.continuation || sink.best.size() != length) {
    return Error(Code::corrupt_data,
                 fmt::format("{}: {} tokens were forced, the engine gave {} with {} log-probabilities", c.id,
                             length, sink.tokens.size(), sink.best.size()),
                 "the engine must follow forced_tokens and give logprobs");
  }
  for (size_t i = 0; i < length; ++i) {
    result.logprob_delta += static_cast<double>(c.logprobs[i]) - static_cast<double>(sink.logprobs[i]);
    if (sink.best[i] == c.continuation[i]) {
      ++result.matches;
      continue;
    }
    result.disagreements.push_back({.position = static_cast<int64_t>(i),
                                    .expected = c.continuation[i],
                                    .best = sink.best[i],
                                    .gap = c.gaps[i],
                                    .logprob_a = c.logprobs[i],
                                    .logprob_b = sink.logprobs[i]});
  }
  return Ok();
}

/// Sends the jobs, a few at a time, and files each reply under its case.
class Replay {
 public:
  Replay(runtime::Engine& engine, const Panel& panel, const AgreeOptions& options)
      : engine_(engine), panel_(panel), options_(options), results_(panel.cases.size()) {
    for (size_t i = 0; i < panel.cases.size(); ++i) {
      results_[i].id = panel.cases[i].id;
      results_[i].tokens = static_cast<int64_t>(panel.cases[i].continuation.size());
      jobs_.push_back({i, false});
      if (options.is_forced && !panel.cases[i].continuation.empty()) jobs_.push_back({i, true});
    }
    sinks_.resize(jobs_.size());
  }

  Result<std::vector<CaseAgreement>> run(const AgreeProgress& progress) {
    Jobs jobs;
    jobs.count = jobs_.size();
    jobs.streams = static_cast<size_t>(options_.streams);
    jobs.send = [&](size_t job) { return send(job); };
    jobs.take = [&](size_t job) { return take(job); };
    jobs.progress = [&](size_t num_ended) {
      if (progress) progress(static_cast<int64_t>(num_ended), static_cast<int64_t>(jobs_.size()));
    };
    RORQUAL_TRY(run_jobs(engine_, ends_, jobs));
    return std::move(results_);
  }

 private:
  Result<runtime::RequestId> send(size_t job) {
    const PanelCase& c = panel_.cases[jobs_[job].case_index];
    sinks_[job] = std::make_shared<ReplySink>(job, ends_);
    auto id = engine_.submit(request_for(c, jobs_[job], panel_.max_tokens), sinks_[job]);
    if (!id.ok()) return std::move(id).error().at(c.id);
    return id;
  }

  Status take(size_t job) {
    const auto sink = std::exchange(sinks_[job], nullptr);
    const size_t index = jobs_[job].case_index;
    const PanelCase& c = panel_.cases[index];
    if (sink->end.error) return Error(*sink->end.error).at(c.id);
    if (sink->end.reason == FinishReason::cancelled) return Error(Code::cancelled, "interrupted");
    if (jobs_[job].is_forced) return take_forced(c, *sink, results_[index]);
    take_own(c, *sink, results_[index]);
    return Ok();
  }

  runtime::Engine& engine_;
  const Panel& panel_;
  const AgreeOptions& options_;
  std::vector<CaseAgreement> results_;
  std::vector<Job> jobs_;
  JobEnds ends_;
  std::vector<std::shared_ptr<ReplySink>> sinks_;
};

}  // namespace

double Agreement::identical_share() const {
  return cases.empty() ? 1 : static_cast<double>(identical) / static_cast<double>(cases.size());
}

double Agreement::forced_share() const {
  return !is_forced || tokens == 0 ? 1 : static_cast<double>(matches) / static_cast<double>(tokens);
}

Result<Agreement> agree(runtime::Engine& engine, const Panel& panel, const AgreeOptions& options,
                        const AgreeProgress& progress) {
  if (options.streams < 1) {
    return Error(Code::invalid_argument, fmt::format("streams is {}, expected 1 or more", options.streams),
                 "correct --streams");
  }
  if (panel.vocab_size != engine.info().vocab_size) {
    return Error(Code::corrupt_data,
                 fmt::format("the panel has a vocabulary of {} tokens, the engine of {}", panel.vocab_size,
                             engine.info().vocab_size),
                 "a panel fits only the model that wrote it and its variants");
  }
  Agreement result;
  result.is_forced = options.is_forced;
  RORQUAL_TRY_ASSIGN(result.cases, Replay(engine, panel, options).run(progress));
  double delta = 0;
  for (const CaseAgreement& c : result.cases) {
    result.tokens += c.tokens;
    result.identical += c.is_identical() ? 1 : 0;
    result.matches += c.matches;
    result.near_ties += std::count_if(c.disagreements.begin(), c.disagreements.end(),
                                      [](const Disagreement& d) { return d.is_near_tie(); });
    delta += c.logprob_delta;
  }
  if (options.is_forced && result.tokens > 0) {
    result.mean_logprob_delta = delta / static_cast<double>(result.tokens);
  }
  return result;
}

}  // namespace rorqual::kl
