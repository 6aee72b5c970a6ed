// SPDX-License-Identifier: Apache-2.0
// Tokens to parser events, kept until a form writes them.
#include "server/parsed_answer.h"

#include <algorithm>
#include <utility>

#include "server/ids.h"

namespace rorqual::server {

namespace {

using text::ParserEvent;
using Kind = ParserEvent::Kind;

bool can_merge(const ParserEvent& a, const ParserEvent& b) {
  return a.kind == b.kind && a.tool_index == b.tool_index && a.kind != Kind::tool_begin &&
         a.kind != Kind::tool_end;
}

/// The text of the message that the answer continues.
std::string continued_text(const text::Conversation& conversation) {
  std::string joined;
  if (conversation.messages.empty() || !conversation.messages.back().is_prefix) return joined;
  const auto& parts = conversation.messages.back().content;
  for (size_t i = 0; i < parts.size(); ++i) joined += (i == 0 ? "" : "\n\n") + parts[i].text;
  return joined;
}

}  // namespace

ParsedAnswer::ParsedAnswer(Service& service, std::shared_ptr<Exchange> exchange, Plan plan)
    : Answer(service, std::move(exchange), plan.head, static_cast<size_t>(plan.request.sampling.n)),
      plan_(std::move(plan)) {
  usage_.prompt_tokens = static_cast<int64_t>(plan_.prompt.size());
  for (size_t i = 0; i < choices_.size(); ++i) {
    parts_.emplace_back(text::OutputParser(backend().tokenizer, plan_.request.parsing));
    if (!plan_.request.echo) continue;
    const std::string echoed = continued_text(plan_.request.conversation);
    if (!echoed.empty()) take_events(parts_.back(), {ParserEvent{.kind = Kind::content, .text = echoed}});
  }
}

Usage ParsedAnswer::usage_so_far() const {
  Usage usage = usage_;
  for (size_t i = 0; i < parts_.size(); ++i) {
    usage.completion_tokens += completion_tokens(i);
    usage.reasoning_tokens += parts_[i].reasoning_tokens;
  }
  return usage;
}

void ParsedAnswer::on_prompt_rows(size_t choice, std::vector<std::optional<runtime::PositionLogprobs>> rows) {
  if (choice != 0) return;  // the same for all choices
  JsonWriter json;
  write_prompt_logprobs(json, rows, plan_.request.sampling.prompt_logprobs.value_or(0), backend().tokenizer);
  prompt_logprobs_ = json.take();
}

void ParsedAnswer::add_logprobs(Choice& choice, const GenerationEvent& event) {
  const text::TokenPlace place = choice.parser.last_place();
  if (!event.logprobs || place == text::TokenPlace::none) return;
  JsonWriter json;
  write_token_logprobs(json, *event.logprobs, backend().tokenizer,
                       plan_.request.sampling.return_tokens_as_token_ids);
  std::string& entries =
      place == text::TokenPlace::content ? choice.content_logprobs : choice.reasoning_logprobs;
  if (!entries.empty()) entries += ',';
  entries += json.take();
}

void ParsedAnswer::take_events(Choice& choice, std::vector<ParserEvent> events) {
  for (ParserEvent& event : events) {
    const bool is_text = event.kind == Kind::content || event.kind == Kind::reasoning;
    if (event.kind == Kind::reasoning && !plan_.request.include_reasoning) continue;
    if (!is_text && !plan_.request.parallel_tool_calls && event.tool_index > 0) continue;
    if (!head_.stream.stream) {
      text::accumulate({event}, choice.output);
    } else if (!choice.pending.empty() && can_merge(choice.pending.back(), event)) {
      choice.pending.back().text += event.text;
    } else {
      choice.pending.push_back(std::move(event));
    }
  }
}

bool ParsedAnswer::on_token(size_t index, GenerationEvent& event) {
  Choice& choice = parts_[index];
  std::vector<ParserEvent> events = choice.parser.push(event.token);
  if (choice.parser.last_place() == text::TokenPlace::reasoning) ++choice.reasoning_tokens;
  add_logprobs(choice, event);
  if (plan_.request.sampling.return_token_ids) choice.token_ids.push_back(event.token);
  const bool only_call_ended = !plan_.request.parallel_tool_calls && choice.parser.num_calls_completed() > 0;
  take_events(choice, std::move(events));
  return choice.parser.is_done() || only_call_ended;
}

void ParsedAnswer::on_choice_end(size_t index) {
  Choice& choice = parts_[index];
  take_events(choice, choice.parser.finish());
  const auto matched = choice.parser.matched_stop();
  if (matched && plan_.request.sampling.include_stop_str_in_output) {
    take_events(choice, {ParserEvent{.kind = Kind::content, .text = *matched}});
  }
  choice.has_ended = true;
  if (index == 0) usage_.cached_tokens = choices_[0].info.cached_tokens;
}

EndCause ParsedAnswer::cause(size_t index) const {
  const EndCause from_engine = end_cause(index);
  if (from_engine == EndCause::repetition) return from_engine;
  const auto backend = from_engine == EndCause::length ? text::StopCause::length : text::StopCause::stop;
  const std::string reason = parts_[index].parser.finish_reason(backend);
  if (reason == "tool_calls") return EndCause::tool_calls;
  return reason == "length" ? EndCause::length : EndCause::stop;
}

const std::string& ParsedAnswer::call_id(Choice& choice, int32_t call_index) const {
  while (choice.call_ids.size() <= static_cast<size_t>(call_index)) {
    choice.call_ids.push_back(tool_call_id(static_cast<int32_t>(choice.call_ids.size())));
  }
  return choice.call_ids[static_cast<size_t>(call_index)];
}

void ParsedAnswer::send_pieces() {
  for (size_t i = 0; i < parts_.size(); ++i) {
    Choice& choice = parts_[i];
    if (!choice.has_ended && (choice.pending.empty() || !is_piece_due(i))) continue;
    for (const ParserEvent& event : std::exchange(choice.pending, {})) {
      const bool is_mark = event.kind == Kind::tool_begin || event.kind == Kind::tool_end;
      if (!is_mark && event.text.empty()) continue;
      send_delta(i, event);
    }
    choices_[i].num_sent = choices_[i].num_tokens;
    if (choice.has_ended && !choice.is_end_sent) {
      choice.is_end_sent = true;
      send_end(i);
    }
  }
}

}  // namespace rorqual::server
