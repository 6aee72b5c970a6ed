// SPDX-License-Identifier: Apache-2.0
// Thinking, text and tool_use blocks.
#include "server/messages_answer.h"

#include <utility>

#include "text/json_text.h"

namespace rorqual::server {

namespace {

using text::ParserEvent;
using Kind = ParserEvent::Kind;

/// Cached tokens are not among input_tokens. `reuse` as in write_usage.
void write_messages_usage(JsonWriter& json, const Usage& usage, const ReuseReport* reuse) {
  json.key("usage").begin_object().field("input_tokens", usage.prompt_tokens - usage.cached_tokens);
  json.field("cache_creation_input_tokens", int64_t{0});
  json.field("cache_read_input_tokens", usage.cached_tokens).field("output_tokens", usage.completion_tokens);
  if (reuse != nullptr) {
    json.key("rorqual");
    write_reuse(json, *reuse);
  }
  json.end_object();
}

/// The arguments of a call as the object that the protocol wants. What is none (an output that was cut or
/// malformed) goes into a field of its own instead of being lost.
std::string input_object(const std::string& arguments) {
  if (text::is_json_object(arguments)) return arguments;
  JsonWriter json;
  json.begin_object().field("raw_arguments", arguments).end_object();
  return json.take();
}

}  // namespace

void MessagesAnswer::write_message_head(JsonWriter& json) const {
  json.begin_object().field("id", head_.id).field("type", "message").field("role", "assistant");
  json.field("model", head_.model);
}

/// stop_reason and stop_sequence.
void MessagesAnswer::write_stop(JsonWriter& json) const {
  const auto sequence = matched_stop(0);
  const EndCause cause = ParsedAnswer::cause(0);
  const char* reason = "end_turn";
  if (sequence) reason = "stop_sequence";
  if (cause == EndCause::length) reason = "max_tokens";
  if (cause == EndCause::tool_calls) reason = "tool_use";
  json.field("stop_reason", reason);
  if (sequence) {
    json.field("stop_sequence", *sequence);
  } else {
    json.null_field("stop_sequence");
  }
}

void MessagesAnswer::on_prefix(int64_t cached_tokens) {
  if (is_stream()) send_start(cached_tokens);
}

void MessagesAnswer::send_start(int64_t cached_tokens) {
  if (std::exchange(is_started_, true)) return;
  JsonWriter json;
  json.begin_object().field("type", "message_start").key("message");
  write_message_head(json);
  json.key("content").begin_array().end_array().null_field("stop_reason").null_field("stop_sequence");
  Usage usage = usage_;
  usage.cached_tokens = cached_tokens;
  write_messages_usage(json, usage, nullptr);
  json.end_object().end_object();
  send_event("message_start", json.take());
}

void MessagesAnswer::open_block(Block block, const ParserEvent& event) {
  close_block();
  block_ = block;
  ++block_index_;
  JsonWriter json;
  json.begin_object().field("type", "content_block_start").field("index", block_index_);
  json.key("content_block").begin_object();
  if (block == Block::thinking) {
    json.field("type", "thinking").field("thinking", "").field("signature", "");
  } else if (block == Block::text) {
    json.field("type", "text").field("text", "");
  } else {
    json.field("type", "tool_use").field("id", call_id(parts_[0], event.tool_index));
    json.field("name", event.text).key("input").begin_object().end_object();
  }
  json.end_object().end_object();
  send_event("content_block_start", json.take());
  if (block_index_ == 0) send_event("ping", R"({"type":"ping"})");
}

void MessagesAnswer::close_block() {
  if (block_ == Block::none) return;
  // Clients send it back with the thinking; it means nothing here.
  if (block_ == Block::thinking) send_block_delta("signature_delta", "signature", head_.id);
  block_ = Block::none;
  JsonWriter json;
  json.begin_object().field("type", "content_block_stop").field("index", block_index_).end_object();
  send_event("content_block_stop", json.take());
}

void MessagesAnswer::send_block_delta(const char* type, const char* field, const std::string& text) {
  JsonWriter json;
  json.begin_object().field("type", "content_block_delta").field("index", block_index_);
  json.key("delta").begin_object().field("type", type).field(field, text).end_object().end_object();
  send_event("content_block_delta", json.take());
}

void MessagesAnswer::send_delta(size_t /*choice*/, const ParserEvent& event) {
  send_start(0);
  switch (event.kind) {
    case Kind::reasoning:
      if (block_ != Block::thinking) open_block(Block::thinking, event);
      send_block_delta("thinking_delta", "thinking", event.text);
      break;
    case Kind::content:
      if (block_ != Block::text) open_block(Block::text, event);
      send_block_delta("text_delta", "text", event.text);
      break;
    case Kind::tool_begin:
      open_block(Block::tool_use, event);
      break;
    case Kind::tool_arguments:
      send_block_delta("input_json_delta", "partial_json", event.text);
      break;
    case Kind::tool_end:
      close_block();
      break;
  }
}

void MessagesAnswer::send_end(size_t /*choice*/) {
  send_start(usage_.cached_tokens);
  close_block();
  JsonWriter json;
  json.begin_object().field("type", "message_delta").key("delta").begin_object();
  write_stop(json);
  json.end_object();
  write_messages_usage(json, usage_so_far(), reuse());
  json.end_object();
  send_event("message_delta", json.take());
  send_event("message_stop", R"({"type":"message_stop"})");
}

void MessagesAnswer::send_failure(const HttpError& error) {
  send_event("error", error_json(error, ErrorForm::anthropic));
}

std::string MessagesAnswer::whole_body() {
  Choice& choice = parts_[0];
  JsonWriter json;
  write_message_head(json);
  json.key("content").begin_array();
  if (const auto& reasoning = choice.output.reasoning; reasoning && !reasoning->empty()) {
    json.begin_object().field("type", "thinking").field("thinking", *reasoning);
    json.field("signature", head_.id).end_object();
  }
  if (!choice.output.content.empty()) {
    json.begin_object().field("type", "text").field("text", choice.output.content).end_object();
  }
  int32_t index = 0;
  for (const auto& call : choice.output.calls) {
    json.begin_object().field("type", "tool_use").field("id", call_id(choice, index++));
    json.field("name", call.name).key("input").raw(input_object(call.arguments)).end_object();
  }
  json.end_array();
  write_stop(json);
  write_messages_usage(json, usage_so_far(), reuse());
  json.end_object();
  return json.take();
}

}  // namespace rorqual::server
