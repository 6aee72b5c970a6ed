// SPDX-License-Identifier: Apache-2.0
// Greedy continuations of the panel's prompts, several at a time.
#include "kl/panel.h"

#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <utility>

#include "kl/jobs.h"
#include "text/chat_encoder.h"

namespace rorqual::kl {
namespace {

/// Fills one case. The engine's thread writes it, the waiting thread reads it after the end.
class CaseSink final : public runtime::TokenSink {
 public:
  CaseSink(size_t index, JobEnds& ends) : index_(index), ends_(ends) {}

  void on_token(int32_t token, std::optional<runtime::PositionLogprobs> row) override {
    tokens.push_back(token);
    if (!row || row->top.size() < 2) return;
    logprobs.push_back(row->chosen.logprob);
    gaps.push_back(row->top[0].logprob - row->top[1].logprob);
  }

  void on_finish(const runtime::FinishInfo& info) override {
    end = info;
    ends_.add(index_);
  }

  std::vector<int32_t> tokens;
  std::vector<float> logprobs, gaps;
  runtime::FinishInfo end;

 private:
  size_t index_;
  JobEnds& ends_;
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
                                              std::span<const std::string_view> prompts,
                                              const text::PromptCompat& compat) {
  std::vector<PanelCase> cases(prompts.size());
  for (size_t i = 0; i < prompts.size(); ++i) {
    cases[i].id = fmt::format("case_{:03}", i);
    cases[i].message = prompts[i];
    text::Conversation conversation;
    conversation.thinking = false;
    text::apply_prompt_compat(compat, conversation);
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
  RORQUAL_TRY_ASSIGN(auto cases, rendered_cases(tokenizer, prompts, options.prompt_compat));
  JobEnds ends;
  std::vector<std::shared_ptr<CaseSink>> sinks(cases.size());
  Jobs jobs;
  jobs.count = cases.size();
  jobs.streams = static_cast<size_t>(options.streams);
  jobs.send = [&](size_t index) -> Result<runtime::RequestId> {
    sinks[index] = std::make_shared<CaseSink>(index, ends);
    auto id = engine.submit(request_for(cases[index], options.max_tokens), sinks[index]);
    if (!id.ok()) return std::move(id).error().at(cases[index].id);
    return id;
  };
  jobs.take = [&](size_t index) { return take_reply(*sinks[index], tokenizer, cases[index]); };
  jobs.progress = [&](size_t num_ended) {
    if (progress) progress(static_cast<int64_t>(num_ended), static_cast<int64_t>(cases.size()));
  };
  RORQUAL_TRY(run_jobs(engine, ends, jobs));
  const runtime::EngineInfo& info = engine.info();
  Panel panel{info.model_name,
              info.numerics,
              info.switches,
              text::prompt_compat_names(options.prompt_compat),
              info.vocab_size,
              options.max_tokens,
              {},
              std::move(cases)};
  panel.sha256 = panel_sha256(panel);
  return panel;
}

}  // namespace rorqual::kl
