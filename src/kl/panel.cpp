// SPDX-License-Identifier: Apache-2.0
// Greedy continuations of the panel's prompts, several at a time.
#include "kl/panel.h"

#include <fmt/format.h>

#include <algorithm>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <optional>
#include <utility>

#include "text/chat_encoder.h"

namespace rorqual::kl {
namespace {

/// What the sinks tell the waiting thread.
struct Arrivals {
  std::mutex mutex;
  std::condition_variable changed;
  std::vector<size_t> finished;  // cases, in order of arrival
};

/// Fills one case. The engine's thread writes it, the waiting thread reads it after the end.
class CaseSink final : public runtime::TokenSink {
 public:
  CaseSink(size_t index, Arrivals& arrivals) : index_(index), arrivals_(arrivals) {}

  void on_token(int32_t token, std::optional<runtime::PositionLogprobs> row) override {
    tokens.push_back(token);
    if (!row || row->top.size() < 2) return;
    logprobs.push_back(row->chosen.logprob);
    gaps.push_back(row->top[0].logprob - row->top[1].logprob);
  }

  void on_finish(const runtime::FinishInfo& info) override {
    end = info;
    const std::lock_guard lock(arrivals_.mutex);
    arrivals_.finished.push_back(index_);
    arrivals_.changed.notify_all();
  }

  std::vector<int32_t> tokens;
  std::vector<float> logprobs, gaps;
  runtime::FinishInfo end;

 private:
  size_t index_;
  Arrivals& arrivals_;
};

Status take_reply(const CaseSink& sink, const text::Tokenizer& tokenizer, PanelCase& c) {
  using runtime::FinishReason;
  if (sink.end.error) return Error(*sink.end.error).at(c.id);
  if (sink.end.reason == FinishReason::cancelled) return Error(Code::cancelled, "interrupted");
  if (sink.logprobs.size() != sink.tokens.size()) {
    return Error(Code::corrupt_data,
                 fmt::format("{}: {} tokens came with {} log-probabilities", c.id, sink.tokens.size(),
                             sink.logprobs.size()),
                 "the engine must give logprobs with two alternatives");
  }
  c.continuation = sink.tokens;
  c.logprobs = sink.logprobs;
  c.gaps = sink.gaps;
  c.finish = sink.end.reason == FinishReason::length ? "length" : "stop";
  c.reply = tokenizer.decode(c.continuation, false);
  return Ok();
}

Result<std::vector<PanelCase>> rendered_cases(const text::Tokenizer& tokenizer,
                                              std::span<const std::string_view> prompts) {
  std::vector<PanelCase> cases(prompts.size());
  for (size_t i = 0; i < prompts.size(); ++i) {
    cases[i].id = fmt::format("case_{:03}", i);
    cases[i].message = prompts[i];
    text::Conversation conversation;
    conversation.thinking = false;
    conversation.messages.emplace_back();
    text::ContentPart part;
    part.text = prompts[i];
    conversation.messages.back().content.push_back(std::move(part));
    RORQUAL_TRY_ASSIGN(auto prompt, text::encode_chat(conversation, tokenizer));
    cases[i].prompt = std::move(prompt.token_ids);
  }
  return cases;
}

runtime::Request request_for(const PanelCase& c, int64_t max_tokens) {
  runtime::Request request;
  request.prompt = c.prompt;
  request.sampling.temperature = 0;
  request.sampling.max_tokens = max_tokens;
  request.sampling.logprobs = 2;
  return request;
}

}  // namespace

Result<Panel> make_panel(runtime::Engine& engine, const text::Tokenizer& tokenizer,
                         std::span<const std::string_view> prompts, const PanelOptions& options,
                         const PanelProgress& progress) {
  if (options.max_tokens < 1 || options.streams < 1) {
    return Error(Code::invalid_argument,
                 fmt::format("max_tokens is {}, streams is {}: expected 1 or more", options.max_tokens,
                             options.streams),
                 "correct --max-tokens or --streams");
  }
  RORQUAL_TRY_ASSIGN(auto cases, rendered_cases(tokenizer, prompts));
  Arrivals arrivals;
  std::vector<std::shared_ptr<CaseSink>> sinks(cases.size());
  std::vector<runtime::RequestId> running;
  size_t num_sent = 0;
  size_t num_done = 0;
  Status fault = Ok();
  while (num_done < num_sent || (num_sent < cases.size() && fault.ok())) {
    while (fault.ok() && num_sent < cases.size() &&
           num_sent - num_done < static_cast<size_t>(options.streams)) {
      sinks[num_sent] = std::make_shared<CaseSink>(num_sent, arrivals);
      auto id = engine.submit(request_for(cases[num_sent], options.max_tokens), sinks[num_sent]);
      if (!id.ok()) {
        fault = std::move(id).error().at(cases[num_sent].id);
        break;
      }
      running.push_back(*id);
      ++num_sent;
    }
    if (!fault.ok()) {
      for (const auto id : running) engine.cancel(id);
    }
    if (num_done == num_sent) continue;
    std::unique_lock lock(arrivals.mutex);
    arrivals.changed.wait(lock, [&] { return !arrivals.finished.empty(); });
    const auto finished = std::exchange(arrivals.finished, {});
    lock.unlock();
    for (const size_t index : finished) {
      ++num_done;
      Status taken = take_reply(*sinks[index], tokenizer, cases[index]);
      if (!taken.ok() && fault.ok()) fault = std::move(taken);
    }
    if (progress) progress(static_cast<int64_t>(num_done), static_cast<int64_t>(cases.size()));
  }
  if (!fault.ok()) return std::move(fault).error();
  const runtime::EngineInfo& info = engine.info();
  Panel panel{info.model_name, info.numerics, info.switches, info.vocab_size, options.max_tokens, {},
              std::move(cases)};
  panel.sha256 = panel_sha256(panel);
  return panel;
}

}  // namespace rorqual::kl
