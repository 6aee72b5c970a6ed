// SPDX-License-Identifier: Apache-2.0
#include "tools/load_conversation.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>

#include "base/file.h"

namespace rorqual::tools {
namespace {

using Json = nlohmann::ordered_json;

constexpr int64_t kMaxFile_bytes = int64_t{256} << 20;

bool is_from(const Json& message, const char* role) {
  return message.is_object() && message.contains("role") && message["role"] == role;
}

}  // namespace

Result<AgentConversation> AgentConversation::read(const std::string& path) {
  RORQUAL_TRY_ASSIGN(const std::string text, read_text_file(path, kMaxFile_bytes));
  const Json json = Json::parse(text, nullptr, false);
  const auto damaged = [&](const std::string& what) {
    return Error(Code::corrupt_data, fmt::format("{}: {}", path, what),
                 R"(a conversation is {"name", "tools", "fields", "messages"}; docs/load.md#agent)");
  };
  if (!json.is_object() || !json.contains("messages") || !json["messages"].is_array())
    return damaged("has no list 'messages'");
  AgentConversation conversation;
  if (json.contains("name") && json["name"].is_string()) conversation.name_ = json["name"];
  Json fields = Json::object();
  if (json.contains("fields") && json["fields"].is_object()) fields = json["fields"];
  if (json.contains("tools")) fields["tools"] = json["tools"];
  conversation.fields_ = fields.dump();
  const Json& messages = json["messages"];
  if (messages.empty() || !is_from(messages.front(), "system") || !messages.front().contains("content") ||
      !messages.front()["content"].is_string()) {
    return damaged("the first message is no system message with a text");
  }
  for (const Json& message : messages) {
    if (is_from(message, "assistant")) conversation.turn_ends_.push_back(conversation.messages_.size());
    conversation.messages_.push_back(message.dump());
  }
  if (conversation.turn_ends_.empty()) return damaged("has no message of the assistant");
  return conversation;
}

std::string AgentConversation::body(int64_t turn, const std::string& session, const std::string& model,
                                    int64_t output_tokens) const {
  Json body = Json::parse(fields_);
  body["model"] = model;
  body["stream"] = true;
  body["stream_options"] = {{"include_usage", true}};
  body["max_tokens"] = output_tokens;
  body["min_tokens"] = output_tokens;
  body["ignore_eos"] = true;
  body["return_token_ids"] = true;
  Json messages = Json::array();
  for (size_t i = 0; i < turn_ends_[static_cast<size_t>(turn)]; ++i) {
    messages.push_back(Json::parse(messages_[i]));
  }
  Json& system = messages.front()["content"];
  system = fmt::format("{}{}", session, system.get<std::string>());
  body["messages"] = std::move(messages);
  return body.dump(-1, ' ', false, Json::error_handler_t::replace);
}

void RetainedPrompts::add(const std::vector<int32_t>& prompt, const std::vector<int32_t>& output) {
  auto& ids = kept_.emplace_back(prompt);
  if (!output.empty()) ids.insert(ids.end(), output.begin(), output.end() - 1);
}

int64_t RetainedPrompts::common_tokens(const std::vector<int32_t>& prompt, int64_t block_tokens) const {
  int64_t best = 0;
  for (const auto& ids : kept_) {
    const auto parts = std::mismatch(prompt.begin(), prompt.end(), ids.begin(), ids.end());
    best = std::max<int64_t>(best, parts.first - prompt.begin());
  }
  best = std::min(best, static_cast<int64_t>(prompt.size()) - 1);
  return std::max<int64_t>(best, 0) / block_tokens * block_tokens;
}

Status RetainedPrompts::read(const std::string& path) {
  auto text = read_text_file(path, kMaxFile_bytes);
  if (!text.ok() && text.error().code() == Code::not_found) return Ok();
  if (!text.ok()) return std::move(text).error();
  const Json json = Json::parse(*text, nullptr, false);
  try {
    kept_ = json.at("retained").get<std::vector<std::vector<int32_t>>>();
  } catch (const Json::exception& error) {  // the file is input
    return Error(Code::corrupt_data, fmt::format("{}: {}", path, error.what()), "remove the file");
  }
  return Ok();
}

Status RetainedPrompts::write(const std::string& path) const {
  return write_text_file(path, Json{{"retained", kept_}}.dump() + "\n");
}

}  // namespace rorqual::tools
