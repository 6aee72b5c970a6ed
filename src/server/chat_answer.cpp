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

}  // namespace

void ChatAnswer::write_head(JsonWriter& json, const char* object) const {
  json.begin_object();
  json.field("id", head_.id)
      .field("object", object)
      .field("created", head_.created_s)
      .field("model", head_.model);
}

/// Fingerprint and usage, which end every piece.
void ChatAnswer::write_tail(JsonWriter& json, bool is_last_piece) const {
  json.field("system_fingerprint", backend().fingerprint);
  write_chunk_usage(json, usage_so_far(), is_last_piece);
  json.end_object();
}

/// null is written for null. vLLM's name beside the official one, if the server was told so.
void ChatAnswer::write_reasoning(JsonWriter& json, const std::string* reasoning) const {
  for (const char* name : {"reasoning_content", "reasoning"}) {
    if (std::string_view(name) == "reasoning" && !service_.options.reasoning_alias) continue;
    if (reasoning != nullptr) {
      json.field(name, *reasoning);
    } else {
      json.null_field(name);
    }
  }
}

void ChatAnswer::on_begin() {
  const bool thinking = plan_.request.conversation.thinking && plan_.request.include_reasoning;
  for (size_t i = 0; i < parts_.size(); ++i) {
    JsonWriter json;
    write_head(json, "chat.completion.chunk");
    json.key("choices").begin_array().begin_object().field("index", static_cast<int64_t>(i));
    json.key("delta").begin_object().field("role", "assistant");
    const std::string empty;
    if (thinking) {
      json.null_field("content");
    } else {
      json.field("content", "");
    }
    write_reasoning(json, thinking ? &empty : nullptr);
    json.end_object().null_field("logprobs").null_field("finish_reason");
    if (plan_.request.sampling.return_token_ids && i == 0) write_ids(json, "prompt_token_ids", plan_.prompt);
    json.end_object().end_array();
    if (plan_.request.prompt.returns_text && i == 0) json.field("prompt_text", plan_.prompt_text);
    write_tail(json, false);
    send_piece(json.take());
  }
}

const char* ChatAnswer::finish_reason(size_t index) const {
  switch (cause(index)) {
    case EndCause::length:
      return "length";
    case EndCause::tool_calls:
      return "tool_calls";
    case EndCause::repetition:
      return "repetition";
    case EndCause::stop:
      break;
  }
  return "stop";
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
  if (choices_[index].is_repeating) {
    json.field("stop_reason", "repetition_detected");
  } else if (const auto matched = matched_stop(index)) {
    json.field("stop_reason", *matched);
  } else if (stop_token && *stop_token != backend().engine.info().eos_token_id) {
    json.field("stop_reason", int64_t{*stop_token});
  }
}

void ChatAnswer::write_delta(JsonWriter& json, Choice& choice, const ParserEvent& event) const {
  json.key("delta").begin_object();
  if (event.kind == Kind::content) {
    json.field("content", event.text);
    write_reasoning(json, nullptr);
  } else if (event.kind == Kind::reasoning) {
    json.null_field("content");
    write_reasoning(json, &event.text);
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
  if (event.kind == Kind::tool_end) return;
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
  const Choice& choice = parts_[index];
  const bool is_last =
      std::all_of(parts_.begin(), parts_.end(), [](const Choice& c) { return c.is_end_sent; });
  JsonWriter json;
  write_head(json, "chat.completion.chunk");
  json.key("choices").begin_array().begin_object().field("index", static_cast<int64_t>(index));
  json.key("delta").begin_object().field("content", "");
  write_reasoning(json, nullptr);
  json.end_object();
  write_logprobs(json, choice);
  json.field("finish_reason", finish_reason(index));
  write_stop_reason(json, index);
  if (plan_.request.sampling.return_token_ids) write_ids(json, "token_ids", choice.token_ids);
  json.end_object().end_array();
  write_tail(json, is_last);
  send_piece(json.take());
}

void ChatAnswer::write_message(JsonWriter& json, const Choice& choice) const {
  json.key("message").begin_object().field("role", "assistant").field("content", choice.output.content);
  const auto& reasoning = choice.output.reasoning;
  write_reasoning(json, reasoning && !reasoning->empty() ? &*reasoning : nullptr);
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
  if (plan_.request.prompt.returns_text) json.field("prompt_text", plan_.prompt_text);
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
