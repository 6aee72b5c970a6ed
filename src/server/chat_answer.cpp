// SPDX-License-Identifier: Apache-2.0
// Messages and deltas of chat completions.
#include "server/chat_answer.h"

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

void write_ids(JsonWriter& json, const char* name, const std::vector<int32_t>& ids) {
  json.key(name).begin_array();
  for (const int32_t id : ids) json.integer(id);
  json.end_array();
}

/// token, logprob and bytes of one entry; the object stays open.
void write_entry(JsonWriter& json, const text::Tokenizer& tokenizer, const runtime::TokenLogprob& t,
                 bool as_id) {
  json.begin_object();
  json.field("token", token_label(tokenizer, t.token, as_id)).key("logprob").logprob(t.logprob);
  json.key("bytes").begin_array();
  for (const char c : tokenizer.token_bytes(t.token)) json.integer(static_cast<unsigned char>(c));
  json.end_array();
}

}  // namespace

ChatAnswer::ChatAnswer(Service& service, std::shared_ptr<Exchange> exchange, Plan plan)
    : Answer(service, std::move(exchange), plan.head, static_cast<size_t>(plan.request.sampling.n)),
      plan_(std::move(plan)) {
  usage_.prompt_tokens = static_cast<int64_t>(plan_.prompt.size());
  for (size_t i = 0; i < choices_.size(); ++i) {
    parts_.emplace_back(text::OutputParser(backend().tokenizer, plan_.request.parsing));
  }
}

void ChatAnswer::write_head(JsonWriter& json, const char* object) const {
  json.begin_object();
  json.field("id", head_.id)
      .field("object", object)
      .field("created", head_.created_s)
      .field("model", head_.model);
}

Usage ChatAnswer::usage_so_far() const {
  Usage usage = usage_;
  for (size_t i = 0; i < parts_.size(); ++i) {
    usage.completion_tokens += completion_tokens(i);
    usage.reasoning_tokens += parts_[i].reasoning_tokens;
  }
  return usage;
}

/// Fingerprint and usage, which end every piece. The official form has usage on the last piece; a client that
/// asked for the piece of its own gets null in all others.
void ChatAnswer::write_tail(JsonWriter& json, bool is_last_piece) const {
  json.field("system_fingerprint", backend().fingerprint);
  const api::StreamFields& stream = head_.stream;
  if (stream.continuous_usage_stats || (is_last_piece && !stream.include_usage)) {
    json.key("usage");
    write_usage(json, usage_so_far(), is_last_piece && !stream.include_usage ? reuse() : nullptr);
  } else if (stream.include_usage) {
    json.null_field("usage");
  }
  json.end_object();
}

void ChatAnswer::on_begin() {
  const bool thinking = plan_.request.conversation.thinking && plan_.request.include_reasoning;
  for (size_t i = 0; i < parts_.size(); ++i) {
    JsonWriter json;
    write_head(json, "chat.completion.chunk");
    json.key("choices").begin_array().begin_object().field("index", static_cast<int64_t>(i));
    json.key("delta").begin_object().field("role", "assistant");
    if (thinking) {
      json.null_field("content").field("reasoning_content", "");
    } else {
      json.field("content", "").null_field("reasoning_content");
    }
    json.end_object().null_field("logprobs").null_field("finish_reason");
    if (plan_.request.sampling.return_token_ids && i == 0) write_ids(json, "prompt_token_ids", plan_.prompt);
    json.end_object().end_array();
    write_tail(json, false);
    send_piece(json.take());
  }
}

void ChatAnswer::on_prompt_rows(size_t choice, std::vector<std::optional<runtime::PositionLogprobs>> rows) {
  if (choice != 0) return;  // the same for all choices
  JsonWriter json;
  write_prompt_logprobs(json, rows, plan_.request.sampling.prompt_logprobs.value_or(0), backend().tokenizer);
  prompt_logprobs_ = json.take();
}

void ChatAnswer::add_logprobs(Choice& choice, const GenerationEvent& event) {
  const text::TokenPlace place = choice.parser.last_place();
  if (!event.logprobs || place == text::TokenPlace::none) return;
  const bool as_id = plan_.request.sampling.return_tokens_as_token_ids;
  JsonWriter json;
  write_entry(json, backend().tokenizer, event.logprobs->chosen, as_id);
  json.key("top_logprobs").begin_array();
  for (const auto& t : event.logprobs->top) {
    write_entry(json, backend().tokenizer, t, as_id);
    json.end_object();
  }
  json.end_array().end_object();
  std::string& entries =
      place == text::TokenPlace::content ? choice.content_logprobs : choice.reasoning_logprobs;
  if (!entries.empty()) entries += ',';
  entries += json.take();
}

void ChatAnswer::take_events(Choice& choice, std::vector<ParserEvent> events) {
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

bool ChatAnswer::on_token(size_t index, GenerationEvent& event) {
  Choice& choice = parts_[index];
  std::vector<ParserEvent> events = choice.parser.push(event.token);
  if (choice.parser.last_place() == text::TokenPlace::reasoning) ++choice.reasoning_tokens;
  add_logprobs(choice, event);
  if (plan_.request.sampling.return_token_ids) choice.token_ids.push_back(event.token);
  const bool only_call_ended = !plan_.request.parallel_tool_calls && choice.parser.num_calls_completed() > 0;
  take_events(choice, std::move(events));
  return choice.parser.is_done() || only_call_ended;
}

void ChatAnswer::on_choice_end(size_t index) {
  Choice& choice = parts_[index];
  take_events(choice, choice.parser.finish());
  const auto matched = choice.parser.matched_stop();
  if (matched && plan_.request.sampling.include_stop_str_in_output) {
    take_events(choice, {ParserEvent{.kind = Kind::content, .text = *matched}});
  }
  choice.has_ended = true;
  if (index == 0) usage_.cached_tokens = choices_[0].info.cached_tokens;
}

std::string ChatAnswer::finish_reason(size_t index) const {
  const ChoiceState& state = choices_[index];
  const bool by_length = !state.is_done && state.info.reason == runtime::FinishReason::length;
  return parts_[index].parser.finish_reason(by_length ? text::StopCause::length : text::StopCause::stop);
}

const std::string& ChatAnswer::call_id(Choice& choice, int32_t call_index) const {
  while (choice.call_ids.size() <= static_cast<size_t>(call_index)) {
    choice.call_ids.push_back(tool_call_id(static_cast<int32_t>(choice.call_ids.size())));
  }
  return choice.call_ids[static_cast<size_t>(call_index)];
}

void ChatAnswer::write_logprobs(JsonWriter& json, const Choice& choice) const {
  json.key("logprobs");
  if (!plan_.request.sampling.logprobs) {
    json.null();
    return;
  }
  json.begin_object().key("content").raw("[" + choice.content_logprobs + "]").key("reasoning_content");
  if (choice.reasoning_logprobs.empty()) {
    json.null();
  } else {
    json.raw("[" + choice.reasoning_logprobs + "]");
  }
  json.end_object();
}

/// vLLM's field, only there when it says something: the stop string or the stop token that ended the answer.
void ChatAnswer::write_stop_reason(JsonWriter& json, size_t index) const {
  const auto& stop_token = choices_[index].info.stop_token;
  if (const auto matched = parts_[index].parser.matched_stop()) {
    json.field("stop_reason", *matched);
  } else if (stop_token && *stop_token != backend().engine.info().eos_token_id) {
    json.field("stop_reason", int64_t{*stop_token});
  }
}

void ChatAnswer::write_delta(JsonWriter& json, Choice& choice, const ParserEvent& event) const {
  json.key("delta").begin_object();
  if (event.kind == Kind::content) {
    json.field("content", event.text).null_field("reasoning_content");
  } else if (event.kind == Kind::reasoning) {
    json.null_field("content").field("reasoning_content", event.text);
  } else {
    json.key("tool_calls").begin_array().begin_object().field("index", int64_t{event.tool_index});
    if (event.kind == Kind::tool_begin) {
      json.field("id", call_id(choice, event.tool_index)).field("type", "function");
      json.key("function").begin_object().field("name", event.text).field("arguments", "").end_object();
    } else {
      json.key("function").begin_object().field("arguments", event.text).end_object();
    }
    json.end_object().end_array();
  }
  json.end_object();
}

void ChatAnswer::send_delta(size_t index, const ParserEvent& event) {
  Choice& choice = parts_[index];
  JsonWriter json;
  write_head(json, "chat.completion.chunk");
  json.key("choices").begin_array().begin_object().field("index", static_cast<int64_t>(index));
  write_delta(json, choice, event);
  write_logprobs(json, choice);
  choice.content_logprobs.clear();
  choice.reasoning_logprobs.clear();
  json.null_field("finish_reason");
  if (plan_.request.sampling.return_token_ids) {
    write_ids(json, "token_ids", choice.token_ids);
    choice.token_ids.clear();
  }
  json.end_object().end_array();
  write_tail(json, false);
  send_piece(json.take());
}

void ChatAnswer::send_end(size_t index) {
  Choice& choice = parts_[index];
  choice.is_end_sent = true;
  const bool is_last =
      std::all_of(parts_.begin(), parts_.end(), [](const Choice& c) { return c.is_end_sent; });
  JsonWriter json;
  write_head(json, "chat.completion.chunk");
  json.key("choices").begin_array().begin_object().field("index", static_cast<int64_t>(index));
  json.key("delta").begin_object().field("content", "").null_field("reasoning_content").end_object();
  write_logprobs(json, choice);
  json.field("finish_reason", finish_reason(index));
  write_stop_reason(json, index);
  if (plan_.request.sampling.return_token_ids) write_ids(json, "token_ids", choice.token_ids);
  json.end_object().end_array();
  write_tail(json, is_last);
  send_piece(json.take());
}

void ChatAnswer::send_pieces() {
  for (size_t i = 0; i < parts_.size(); ++i) {
    Choice& choice = parts_[i];
    for (const ParserEvent& event : choice.pending) {
      if (event.kind == Kind::tool_end) continue;
      if (event.kind != Kind::tool_begin && event.text.empty()) continue;
      send_delta(i, event);
    }
    choice.pending.clear();
    if (choice.has_ended && !choice.is_end_sent) send_end(i);
  }
}

void ChatAnswer::write_message(JsonWriter& json, const Choice& choice) const {
  json.key("message").begin_object().field("role", "assistant").field("content", choice.output.content);
  if (choice.output.reasoning && !choice.output.reasoning->empty()) {
    json.field("reasoning_content", *choice.output.reasoning);
  } else {
    json.null_field("reasoning_content");
  }
  if (!choice.output.calls.empty()) {
    json.key("tool_calls").begin_array();
    int32_t call_index = 0;
    for (const auto& call : choice.output.calls) {
      json.begin_object().field("index", int64_t{call_index}).field("id", tool_call_id(call_index));
      json.field("type", "function").key("function").begin_object();
      json.field("name", call.name).field("arguments", call.arguments).end_object().end_object();
      ++call_index;
    }
    json.end_array();
  }
  json.end_object();
}

std::string ChatAnswer::whole_body() {
  JsonWriter json;
  write_head(json, "chat.completion");
  json.key("choices").begin_array();
  for (size_t i = 0; i < parts_.size(); ++i) {
    const Choice& choice = parts_[i];
    json.begin_object().field("index", static_cast<int64_t>(i));
    write_message(json, choice);
    write_logprobs(json, choice);
    json.field("finish_reason", finish_reason(i));
    write_stop_reason(json, i);
    if (plan_.request.sampling.return_token_ids) write_ids(json, "token_ids", choice.token_ids);
    json.end_object();
  }
  json.end_array().key("usage");
  write_usage(json, usage_so_far(), reuse());
  json.field("system_fingerprint", backend().fingerprint);
  if (!prompt_logprobs_.empty()) json.key("prompt_logprobs").raw(prompt_logprobs_);
  if (plan_.request.sampling.return_token_ids) write_ids(json, "prompt_token_ids", plan_.prompt);
  json.end_object();
  return json.take();
}

std::string ChatAnswer::usage_piece() {
  JsonWriter json;
  write_head(json, "chat.completion.chunk");
  json.key("choices").begin_array().end_array();
  json.field("system_fingerprint", backend().fingerprint).key("usage");
  write_usage(json, usage_so_far(), reuse());
  json.end_object();
  return json.take();
}

}  // namespace rorqual::server
