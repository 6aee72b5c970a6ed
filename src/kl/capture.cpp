// SPDX-License-Identifier: Apache-2.0
// Rows of log-probabilities go from the engine straight to their place in the dump's arrays: nothing grows
// with the number of windows in flight but one sorted row each.
#include "kl/capture.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <limits>
#include <memory>
#include <optional>
#include <utility>

#include "kl/capture_parts.h"
#include "kl/full_logits.h"
#include "kl/jobs.h"

namespace rorqual::kl {
namespace {

using runtime::FinishReason;
using runtime::PositionLogprobs;
using runtime::TokenLogprob;

constexpr float kNone = -std::numeric_limits<float>::infinity();

/// What the sinks and the waiting thread share.
struct Arrivals {
  JobEnds ends;
  std::atomic<int64_t> rows{0};
};

/// Where the rows of one window go.
struct Target {
  const Window* window = nullptr;
  size_t index = 0;  // of the window
  size_t job = 0;    // of the windows that are not there yet
  int64_t first_row = 0;
  Dump* dump = nullptr;
  LogitsWriter* logits = nullptr;
};

/// The protocol's order: (log-probability, id) descending.
bool comes_before(const TokenLogprob& a, const TokenLogprob& b) {
  return a.logprob > b.logprob || (a.logprob == b.logprob && a.token > b.token);
}

/// Checks each row and stores it. Written by the engine's thread; read by the waiting one after on_finish.
class WindowSink final : public runtime::TokenSink {
 public:
  WindowSink(const Target& target, Arrivals& arrivals)
      : target_(target), arrivals_(arrivals), next_(target.window->first_scored) {}

  void on_prompt_row(int64_t position, PositionLogprobs row, std::span<const float> logits) override {
    if (fault_) return;
    if (Status status = take(position, row, logits); !status.ok()) {
      fault_ = std::move(status).error().at(fmt::format("window {}", target_.index));
      return;
    }
    ++next_;
    ++arrivals_.rows;
  }

  void on_token(int32_t, std::optional<PositionLogprobs>) override {}  // servers that must generate one

  void on_finish(const runtime::FinishInfo& info) override {
    end_ = info;
    arrivals_.ends.add(target_.job);
  }

  /// After on_finish: did every row arrive?
  Status result() const {
    if (fault_) return *fault_;
    const std::string where = fmt::format("window {}", target_.index);
    if (end_.error) return Error(*end_.error).at(where);
    if (end_.reason == FinishReason::cancelled) return Error(Code::cancelled, "interrupted");
    const auto length = static_cast<int64_t>(target_.window->ids.size());
    if (next_ == length) return Ok();
    return Error(Code::corrupt_data,
                 fmt::format("{}: {} of {} positions came with log-probabilities", where,
                             next_ - target_.window->first_scored, length - target_.window->first_scored),
                 "a server that answers from its prefix cache leaves some out: turn its prefix cache off");
  }

 private:
  Status take(int64_t position, PositionLogprobs& row, std::span<const float> logits) {
    const auto& ids = target_.window->ids;
    if (position != next_ || position >= static_cast<int64_t>(ids.size())) {
      return Error(Code::corrupt_data,
                   fmt::format("got the row of position {}, expected {}", position, next_),
                   "the engine leaves positions out: turn its prefix cache off");
    }
    const int32_t expected = ids[static_cast<size_t>(position)];
    if (row.chosen.token != expected) return shifted(position, row.chosen.token);
    RORQUAL_TRY(store(target_.first_row + position - target_.window->first_scored, row));
    if (target_.logits == nullptr) return Ok();
    if (logits.empty()) {
      return Error(Code::unsupported, "this engine gives no logits, only log-probabilities",
                   "leave --logits out, or load the model in this process");
    }
    return target_.logits->append(logits);
  }

  Error shifted(int64_t position, int32_t got) const {
    const auto& ids = target_.window->ids;
    const auto at = static_cast<size_t>(position);
    const bool is_late = at > 0 && ids[at - 1] == got;
    const bool is_early = at + 1 < ids.size() && ids[at + 1] == got;
    return {Code::corrupt_data,
            fmt::format("the row of position {} is about token {}, the window has {} there{}", position, got,
                        ids[at], is_late || is_early ? ": the rows seem to be shifted by one position" : ""),
            "the server's prompt_logprobs must belong to the prompt that was sent"};
  }

  /// Top K and the token itself (it may be outside the top K), sorted, cut to K.
  Status store(int64_t row_index, PositionLogprobs& row) {
    Dump& dump = *target_.dump;
    auto& top = row.top;
    const auto is_chosen = [&](const TokenLogprob& t) { return t.token == row.chosen.token; };
    if (std::none_of(top.begin(), top.end(), is_chosen)) top.push_back(row.chosen);
    for (const TokenLogprob& t : top) {
      if (t.logprob <= 0 && t.token >= 0 && t.token < dump.info.vocab_size) continue;
      return Error(Code::corrupt_data,
                   fmt::format("got token {} with log-probability {}, expected an id below {} and at most 0",
                               t.token, t.logprob, dump.info.vocab_size),
                   "check the engine with `rorqual doctor`");
    }
    std::sort(top.begin(), top.end(), comes_before);
    const auto width = static_cast<size_t>(dump.info.top_k);
    const size_t begin = static_cast<size_t>(row_index) * width;
    for (size_t i = 0; i < std::min(width, top.size()); ++i) {
      dump.top_ids[begin + i] = top[i].token;
      dump.top_logprobs[begin + i] = top[i].logprob;
    }
    dump.token_logprob[static_cast<size_t>(row_index)] = row.chosen.logprob;
    return Ok();
  }

  const Target target_;
  Arrivals& arrivals_;
  int64_t next_;
  std::optional<Error> fault_;
  runtime::FinishInfo end_;
};

/// 0 = it differs between windows; panels of other programs are described the same way.
int64_t common_first_scored(const Corpus& corpus) {
  const int64_t first = corpus.windows.front().first_scored;
  const bool is_common = std::all_of(corpus.windows.begin(), corpus.windows.end(),
                                     [=](const Window& window) { return window.first_scored == first; });
  return is_common ? first : 0;
}

Dump empty_dump(const runtime::EngineInfo& engine, const Corpus& corpus, int64_t top_k) {
  Dump dump;
  DumpInfo& info = dump.info;
  info.model = engine.model_name;
  info.corpus = corpus.name;
  info.corpus_sha256 = corpus.sha256;
  info.windows_sha256 = windows_sha256(corpus);
  info.context = corpus.context;
  info.num_windows = static_cast<int64_t>(corpus.windows.size());
  info.vocab_size = engine.vocab_size;
  info.top_k = std::min(top_k, engine.vocab_size);
  info.first_scored = common_first_scored(corpus);
  info.scored_positions = corpus.scored_positions();
  dump.window_rows = {0};
  dump.window_begin = {0};
  for (const Window& window : corpus.windows) {
    const auto first = window.ids.begin() + window.first_scored;
    dump.token.insert(dump.token.end(), first, window.ids.end());
    dump.window_rows.push_back(dump.num_rows());
    dump.window_ids.insert(dump.window_ids.end(), window.ids.begin(), window.ids.end());
    dump.window_begin.push_back(static_cast<int64_t>(dump.window_ids.size()));
    dump.window_first_scored.push_back(window.first_scored);
  }
  const size_t entries = dump.token.size() * static_cast<size_t>(info.top_k);
  dump.top_ids.assign(entries, 0);
  dump.top_logprobs.assign(entries, kNone);
  dump.token_logprob.assign(dump.token.size(), kNone);
  return dump;
}

runtime::Request request_for(const Window& window, int64_t top_k) {
  runtime::Request request;
  request.prompt = window.ids;
  request.sampling.temperature = 0;
  request.sampling.max_tokens = 0;
  request.sampling.prompt_logprobs = static_cast<int32_t>(top_k);
  request.sampling.prompt_logprobs_begin = window.first_scored;
  request.sampling.stream_prompt_rows = true;
  return request;
}

Status check(const runtime::EngineInfo& engine, const Corpus& corpus, const CaptureOptions& options) {
  if (corpus.windows.empty() || options.top_k < 1 || options.streams < 1) {
    return Error(Code::invalid_argument,
                 fmt::format("{} windows, top-k {}, {} streams: expected 1 or more of each",
                             corpus.windows.size(), options.top_k, options.streams),
                 "correct --windows, --top-k or --streams");
  }
  for (size_t i = 0; i < corpus.windows.size(); ++i) {
    const Window& window = corpus.windows[i];
    const auto length = static_cast<int64_t>(window.ids.size());
    if (window.first_scored < 1 || window.first_scored >= length) {
      return Error(Code::invalid_argument,
                   fmt::format("window {} is scored from position {} of {}", i, window.first_scored, length));
    }
    if (length > engine.max_model_len) {
      return Error(Code::invalid_argument,
                   fmt::format("window {} has {} tokens, the engine's context holds {}", i, length,
                               engine.max_model_len),
                   "raise --max-model-len or lower --context");
    }
  }
  return Ok();
}

std::string identity_of(const Dump& dump, const CaptureOptions& options) {
  const DumpInfo& i = dump.info;
  return fmt::format("rorqual.kl.parts/1\nmodel {}\nvocabulary {}\ncorpus {} {}\nwindows {}\ntop-k {}\n{}\n",
                     i.model, i.vocab_size, i.corpus, i.corpus_sha256, i.windows_sha256, i.top_k,
                     options.parts_identity);
}

/// One run over the windows that have no part yet.
class Run {
 public:
  Run(runtime::Engine& engine, const Corpus& corpus, const CaptureOptions& options)
      : engine_(engine), corpus_(corpus), options_(options) {}

  Result<Dump> run(const CaptureProgress& progress) {
    RORQUAL_TRY(check(engine_.info(), corpus_, options_));
    dump_ = empty_dump(engine_.info(), corpus_, options_.top_k);
    RORQUAL_TRY(prepare());
    Status status = score(progress);
    if (!status.ok()) return std::move(status).error();
    if (writer_) {
      dump_.logits_path = options_.logits_path;
      RORQUAL_TRY(writer_->finish(dump_));
    }
    return std::move(dump_);
  }

 private:
  Status prepare() {
    const size_t count = corpus_.windows.size();
    if (!options_.logits_path.empty()) {
      RORQUAL_TRY_ASSIGN(writer_,
                         LogitsWriter::create(options_.logits_path, dump_.num_rows(), dump_.info.vocab_size));
      streams_ = 1;
    } else {
      streams_ = static_cast<size_t>(options_.streams);
      if (!options_.parts_path.empty()) {
        RORQUAL_TRY_ASSIGN(auto parts, CaptureParts::open(options_.parts_path, identity_of(dump_, options_),
                                                          options_.discards_parts));
        parts_.emplace(std::move(parts));
      }
    }
    for (size_t i = 0; i < count; ++i) {
      if (parts_ && parts_->load(static_cast<int64_t>(i), dump_)) {
        arrivals_.rows += dump_.window_rows[i + 1] - dump_.window_rows[i];
      } else {
        pending_.push_back(i);
      }
    }
    return Ok();
  }

  Result<runtime::RequestId> send(size_t job) {
    const size_t index = pending_[job];
    const Target target{&corpus_.windows[index], index, job, dump_.window_rows[index], &dump_, writer_.get()};
    sinks_[job] = std::make_shared<WindowSink>(target, arrivals_);
    auto id = engine_.submit(request_for(corpus_.windows[index], dump_.info.top_k), sinks_[job]);
    if (!id.ok()) return std::move(id).error().at(fmt::format("window {}", index));
    return id;
  }

  Status take(size_t job) {
    const auto sink = std::exchange(sinks_[job], nullptr);
    RORQUAL_TRY(sink->result());
    return parts_ ? parts_->store(static_cast<int64_t>(pending_[job]), dump_) : Status(Ok());
  }

  Status score(const CaptureProgress& progress) {
    sinks_.resize(pending_.size());
    Jobs jobs;
    jobs.count = pending_.size();
    jobs.streams = streams_;
    jobs.send = [&](size_t job) { return send(job); };
    jobs.take = [&](size_t job) { return take(job); };
    jobs.progress = [&](size_t) {
      if (progress) progress(arrivals_.rows, dump_.num_rows());
    };
    return run_jobs(engine_, arrivals_.ends, jobs);
  }

  runtime::Engine& engine_;
  const Corpus& corpus_;
  const CaptureOptions& options_;
  Dump dump_;
  Arrivals arrivals_;
  std::unique_ptr<LogitsWriter> writer_;
  std::optional<CaptureParts> parts_;
  size_t streams_ = 1;
  std::vector<size_t> pending_;
  std::vector<std::shared_ptr<WindowSink>> sinks_;
};

}  // namespace

Result<Dump> capture(runtime::Engine& engine, const Corpus& corpus, const CaptureOptions& options,
                     const CaptureProgress& progress) {
  return Run(engine, corpus, options).run(progress);
}

}  // namespace rorqual::kl
