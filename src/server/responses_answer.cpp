// SPDX-License-Identifier: Apache-2.0
// Reasoning, message and call items.
#include "server/responses_answer.h"

#include <algorithm>
#include <utility>

namespace rorqual::server {

namespace {

using text::ParserEvent;
using Kind = ParserEvent::Kind;

void write_responses_usage(JsonWriter& json, const Usage& usage, const ReuseReport* reuse) {
  json.begin_object().field("input_tokens", usage.prompt_tokens);
  json.key("input_tokens_details").begin_object().field("cached_tokens", usage.cached_tokens).end_object();
  json.field("output_tokens", usage.completion_tokens);
  json.key("output_tokens_details").begin_object();
  json.field("reasoning_tokens", usage.reasoning_tokens).end_object();
  json.field("total_tokens", usage.prompt_tokens + usage.completion_tokens);
  if (reuse != nullptr) {
    json.key("rorqual");
    write_reuse(json, *reuse);
  }
  json.end_object();
}

}  // namespace

// ---- items ----

ResponsesAnswer::Item ResponsesAnswer::make_item(Item::Kind kind) const {
  Item item;
  item.kind = kind;
  item.index = num_items_;
  return item;
}

ResponsesAnswer::Item ResponsesAnswer::make_call(const std::string& wire_name, int32_t call_index) {
  Item item = make_item(Item::Kind::function_call);
  item.call_id = call_id(parts_[0], call_index);
  item.name = wire_name;
  for (const api::ToolOrigin& origin : plan_.request.tool_origins) {
    if (origin.wire_name != wire_name) continue;
    item.name = origin.name;
    item.name_space = origin.name_space;
    if (!origin.is_custom) continue;
    item.kind = Item::Kind::custom_call;
    item.input.emplace("input");
  }
  return item;
}

std::string ResponsesAnswer::item_id(const Item& item) const {
  const char* prefix = "msg_";
  if (item.kind == Item::Kind::reasoning) prefix = "rs_";
  if (item.kind == Item::Kind::function_call) prefix = "fc_";
  if (item.kind == Item::Kind::custom_call) prefix = "ctc_";
  return prefix + plan_.head.id.substr(plan_.head.id.find('_') + 1) + "_" + std::to_string(item.index);
}

void ResponsesAnswer::write_part(JsonWriter& json, const Item& item) const {
  json.begin_object();
  if (item.kind == Item::Kind::reasoning) {
    json.field("type", "reasoning_text").field("text", item.text);
  } else {
    json.field("type", "output_text").field("text", item.text).key("annotations").begin_array().end_array();
    json.key("logprobs").raw("[" + item.logprobs + "]");
  }
  json.end_object();
}

void ResponsesAnswer::write_item(JsonWriter& json, const Item& item, Status status) const {
  const char* status_name = status == Status::in_progress  ? "in_progress"
                            : status == Status::incomplete ? "incomplete"
                                                           : "completed";
  json.begin_object().field("id", item_id(item));
  const auto content = [&] {
    json.key("content").begin_array();
    if (status != Status::in_progress) write_part(json, item);
    json.end_array();
  };
  switch (item.kind) {
    case Item::Kind::reasoning: {
      json.field("type", "reasoning").key("summary").begin_array().end_array();
      content();
      const std::string& id = plan_.head.id;
      json.field("encrypted_content", id.substr(id.find('_') + 1) + "-" + std::to_string(item.index));
      json.field("status", status_name);
      break;
    }
    case Item::Kind::message:
      json.field("type", "message").field("status", status_name).field("role", "assistant");
      content();
      if (status != Status::in_progress) json.key("phase").string(item.phase);
      break;
    case Item::Kind::function_call:
      json.field("type", "function_call").field("status", status_name).field("call_id", item.call_id);
      json.field("name", item.name);
      if (!item.name_space.empty()) json.field("namespace", item.name_space);
      json.field("arguments", item.text);
      break;
    case Item::Kind::custom_call:
      json.field("type", "custom_tool_call").field("status", status_name).field("call_id", item.call_id);
      json.field("name", item.name).field("input", item.text);
      break;
  }
  json.end_object();
}

void ResponsesAnswer::add_complete(const Item& item, Status status) {
  JsonWriter json;
  write_item(json, item, status);
  if (!output_.empty()) output_ += ',';
  output_ += json.take();
  ++num_items_;
}

// ---- the response object ----

ResponsesAnswer::Status ResponsesAnswer::end_status() const {
  return cause(0) == EndCause::length ? Status::incomplete : Status::completed;
}

void ResponsesAnswer::write_response(JsonWriter& json, Status status, const HttpError* error) const {
  static constexpr const char* kNames[] = {"in_progress", "completed", "incomplete", "failed"};
  json.begin_object().field("id", head_.id).field("object", "response").field("created_at", head_.created_s);
  json.field("status", kNames[static_cast<size_t>(status)]).key("background").boolean(false).key("error");
  if (error != nullptr) {
    json.begin_object().field("code", "server_error").field("message", error->message).end_object();
  } else {
    json.null();
  }
  json.key("incomplete_details");
  if (status == Status::incomplete) {
    json.begin_object().field("reason", "max_output_tokens").end_object();
  } else {
    json.null();
  }
  json.field("model", head_.model).key("output").raw("[" + output_ + "]");
  for (const auto& [name, value] : plan_.request.repeated_fields) json.key(name).raw(value);
  json.null_field("previous_response_id").key("store").boolean(false).key("usage");
  if (status == Status::completed || status == Status::incomplete) {
    write_responses_usage(json, usage_so_far(), reuse());
  } else {
    json.null();
  }
  json.end_object();
}

std::string ResponsesAnswer::whole_body() {
  Choice& choice = parts_[0];
  const Status status = end_status();
  std::vector<Item> items;
  const auto add = [&](Item item, const std::string& text) {
    item.index = static_cast<int64_t>(items.size());
    item.text = text;
    items.push_back(std::move(item));
  };
  const auto& reasoning = choice.output.reasoning;
  if (reasoning && !reasoning->empty()) add(make_item(Item::Kind::reasoning), *reasoning);
  if (!choice.output.content.empty()) {
    Item item = make_item(Item::Kind::message);
    item.logprobs = choice.content_logprobs;
    if (!choice.output.calls.empty()) item.phase = "commentary";
    add(std::move(item), choice.output.content);
  }
  int32_t index = 0;
  for (const auto& call : choice.output.calls) {
    Item item = make_call(call.name, index++);
    std::string text = call.arguments;
    if (item.input) {
      text = item.input->push(call.arguments);
      text += item.input->finish();
    }
    add(std::move(item), text);
  }
  for (const Item& item : items) {
    const bool is_cut = status == Status::incomplete && &item == &items.back();
    add_complete(item, is_cut ? Status::incomplete : Status::completed);
  }
  JsonWriter json;
  write_response(json, status, nullptr);
  return json.take();
}

// ---- events ----

void ResponsesAnswer::begin_event(JsonWriter& json, const char* type) {
  json.begin_object().field("type", type).field("sequence_number", sequence_number_++);
}

void ResponsesAnswer::end_event(JsonWriter& json, const char* type) {
  json.end_object();
  send_event(type, json.take());
}

/// Of the open item.
void ResponsesAnswer::begin_item_event(JsonWriter& json, const char* type) {
  begin_event(json, type);
  json.field("item_id", item_id(*open_)).field("output_index", open_->index);
  const bool has_parts = open_->kind == Item::Kind::reasoning || open_->kind == Item::Kind::message;
  if (has_parts) json.field("content_index", int64_t{0});
}

void ResponsesAnswer::send_response(const char* event, Status status, const HttpError* error) {
  JsonWriter json;
  begin_event(json, event);
  json.key("response");
  write_response(json, status, error);
  end_event(json, event);
}

void ResponsesAnswer::on_begin() {
  send_response("response.created", Status::in_progress);
  send_response("response.in_progress", Status::in_progress);
}

void ResponsesAnswer::send_part(const char* event, bool is_done) {
  JsonWriter json;
  begin_item_event(json, event);
  json.key("part");
  write_part(json, is_done ? *open_ : make_item(open_->kind));
  end_event(json, event);
}

void ResponsesAnswer::open_item(Item item) {
  close_item(Status::completed);
  open_ = std::move(item);
  JsonWriter json;
  begin_event(json, "response.output_item.added");
  json.field("output_index", open_->index).key("item");
  write_item(json, *open_, Status::in_progress);
  end_event(json, "response.output_item.added");
  const bool has_parts = open_->kind == Item::Kind::reasoning || open_->kind == Item::Kind::message;
  if (has_parts) send_part("response.content_part.added", false);
}

/// One delta of the open item.
void ResponsesAnswer::add_text(const std::string& text) {
  if (text.empty()) return;
  static constexpr const char* kTypes[] = {"response.reasoning_text.delta", "response.output_text.delta",
                                           "response.function_call_arguments.delta",
                                           "response.custom_tool_call_input.delta"};
  const char* type = kTypes[static_cast<size_t>(open_->kind)];
  open_->text += text;
  JsonWriter json;
  begin_item_event(json, type);
  json.field("delta", text);
  if (open_->kind == Item::Kind::message) {
    const std::string entries = std::exchange(parts_[0].content_logprobs, {});
    json.key("logprobs").raw("[" + entries + "]");
    if (!open_->logprobs.empty() && !entries.empty()) open_->logprobs += ',';
    open_->logprobs += entries;
  }
  end_event(json, type);
}

void ResponsesAnswer::close_item(Status status) {
  if (!open_) return;
  if (open_->input) add_text(open_->input->finish());
  static constexpr const char* kTypes[] = {"response.reasoning_text.done", "response.output_text.done",
                                           "response.function_call_arguments.done",
                                           "response.custom_tool_call_input.done"};
  static constexpr const char* kFields[] = {"text", "text", "arguments", "input"};
  const auto kind = static_cast<size_t>(open_->kind);
  JsonWriter json;
  begin_item_event(json, kTypes[kind]);
  if (open_->kind == Item::Kind::function_call) json.field("name", open_->name);
  json.field(kFields[kind], open_->text);
  if (open_->kind == Item::Kind::message) json.key("logprobs").raw("[" + open_->logprobs + "]");
  end_event(json, kTypes[kind]);
  const bool has_parts = open_->kind == Item::Kind::reasoning || open_->kind == Item::Kind::message;
  if (has_parts) send_part("response.content_part.done", true);
  JsonWriter done;
  begin_event(done, "response.output_item.done");
  done.field("output_index", open_->index).key("item");
  write_item(done, *open_, status);
  end_event(done, "response.output_item.done");
  add_complete(*open_, status);
  open_.reset();
}

void ResponsesAnswer::send_delta(size_t /*choice*/, const ParserEvent& event) {
  switch (event.kind) {
    case Kind::reasoning:
    case Kind::content: {
      const auto kind = event.kind == Kind::content ? Item::Kind::message : Item::Kind::reasoning;
      if (!open_ || open_->kind != kind) {
        close_item(Status::completed);  // before make_item, which takes the next number
        open_item(make_item(kind));
      }
      add_text(event.text);
      break;
    }
    case Kind::tool_begin:
      if (open_ && open_->kind == Item::Kind::message) open_->phase = "commentary";
      close_item(Status::completed);
      open_item(make_call(event.text, event.tool_index));
      break;
    case Kind::tool_arguments:
      add_text(open_->input ? open_->input->push(event.text) : event.text);
      break;
    case Kind::tool_end:
      close_item(Status::completed);
      break;
  }
}

void ResponsesAnswer::send_end(size_t /*choice*/) {
  const Status status = end_status();
  close_item(status);
  send_response(status == Status::incomplete ? "response.incomplete" : "response.completed", status);
}

void ResponsesAnswer::send_failure(const HttpError& error) {
  if (open_) add_complete(*open_, Status::incomplete);
  open_.reset();
  send_response("response.failed", Status::failed, &error);
}

}  // namespace rorqual::server
