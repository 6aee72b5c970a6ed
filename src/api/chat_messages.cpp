// SPDX-License-Identifier: Apache-2.0
// Messages of chat completions.
#include "api/chat_messages.h"

#include <algorithm>
#include <set>
#include <utility>

#include "api/limits.h"
#include "api/request_draft.h"

namespace rorqual::api {

namespace {

void read_part(BodyReader& reader, const Json& part) {
  if (!reader.expect_object(part, "a content part")) return;
  const std::string type = reader.require_variant(part, "type", {"text", "image_url", "file"});
  if (type == "text") reader.require_string(part, "text");
  if (type == "image_url") {
    const Json* image = reader.require(part, "image_url");
    if (image == nullptr || !reader.expect_object(*image, "an image URL object")) return;
    reader.require_string(*image, "url");
    reader.variant(*image, "detail", {"low", "high", "original", "auto"});
  }
  if (type == "file") {
    for (const char* key : {"file_id", "file_data", "filename"}) reader.string(part, key);
  }
}

/// A required string, moved out of the body.
std::string take_string(BodyReader& reader, Json& object, const char* key) {
  const Json* value = reader.require(object, key);
  if (value == nullptr || !value->is_string()) return reader.require_string(object, key);
  return std::move(object.find(key)->get_ref<std::string&>());
}

void read_content(BodyReader& reader, Json& item, RawMessage& raw) {
  const Json* content = reader.find(item, "content");
  const bool is_optional = raw.message.role == text::Role::assistant;
  if (content == nullptr) {
    if (!is_optional && reader.require(item, "content") != nullptr) {
      reader.fail("content should be a string or a list");
    }
    return;
  }
  raw.has_content = true;
  raw.content = &*item.find("content");
  if (content->is_string()) return;
  if (raw.message.role == text::Role::latest_reminder || !content->is_array()) {
    reader.fail("content should be a string or a list");
    return;
  }
  for (size_t i = 0; i < content->size(); ++i) {
    const auto scope = reader.enter("content", i);
    read_part(reader, (*content)[i]);
  }
}

void read_tool_calls(BodyReader& reader, Json& item, RawMessage& raw) {
  if (reader.objects(item, "tool_calls", "a tool call") == nullptr) return;
  raw.has_tool_calls = true;
  Json& calls = *item.find("tool_calls");
  for (size_t i = 0; i < calls.size(); ++i) {
    Json& call = calls[i];
    const auto scope = reader.enter("tool_calls", i);
    text::ToolCall out;
    out.id = reader.require_string(call, "id");
    reader.require_variant(call, "type", {"function"});
    const Json* function = reader.require(call, "function");
    if (function == nullptr || !reader.expect_object(*function, "a function call")) return;
    const auto function_scope = reader.enter("function");
    out.name = reader.require_string(*function, "name");
    out.arguments = take_string(reader, *call.find("function"), "arguments");
    raw.message.tool_calls.push_back(std::move(out));
  }
}

text::Role role_from_name(const std::string& name, const ApiPolicy& policy) {
  if (name == "developer" && policy.prompt_compat.developer) return text::Role::developer;
  if (name == "system" || name == "developer") return text::Role::system;
  if (name == "assistant") return text::Role::assistant;
  if (name == "tool") return text::Role::tool;
  return name == "latest_reminder" ? text::Role::latest_reminder : text::Role::user;
}

RawMessage read_message(BodyReader& reader, Json& item, const ApiPolicy& policy) {
  RawMessage raw;
  const std::string role =
      policy.developer_as_system || policy.prompt_compat.developer
          ? reader.require_variant(item, "role",
                                   {"system", "user", "assistant", "tool", "latest_reminder", "developer"})
          : reader.require_variant(item, "role", {"system", "user", "assistant", "tool", "latest_reminder"});
  raw.message.role = role_from_name(role, policy);
  read_content(reader, item, raw);
  if (raw.message.role == text::Role::tool)
    raw.message.tool_call_id = reader.require_string(item, "tool_call_id");
  if (raw.message.role == text::Role::assistant) {
    if (reader.find(item, "reasoning_content") != nullptr)
      raw.message.reasoning = take_string(reader, item, "reasoning_content");
    if (policy.extensions && raw.message.reasoning.empty()) {
      raw.message.reasoning = reader.string(item, "reasoning").value_or("");
    }
    raw.message.is_prefix = reader.boolean_or(item, "prefix", false);
    read_tool_calls(reader, item, raw);
  }
  return raw;
}

ApiResult<text::ImageInput> convert_file(const BodyReader& reader, const Json& part,
                                         const std::string& path) {
  const bool has_id = reader.find(part, "file_id") != nullptr;
  const Json* data = reader.find(part, "file_data");
  const auto problem = [&](const std::string& what) { return ApiError::conversion(path + ": " + what); };
  if (has_id && data != nullptr) return problem("file cannot have both file_id and file_data");
  if (has_id && reader.find(part, "filename") != nullptr) {
    return problem("file cannot have filename when file_id is present");
  }
  if (has_id) return problem("file_id is not supported. Pass the image as a base64 data url instead.");
  if (data == nullptr) return problem("file must have a file_id or file_data");
  const auto url = data->get<std::string>();
  if (!url.starts_with("data:")) return problem("file_data is not a valid base64 data url");
  auto image = image_from_url(url, "high", path);
  if (!image) {
    return problem(
        "You have uploaded an unsupported file. Please make sure your file is valid and has one of the "
        "following formats: webp, png, jpeg, and gif.");
  }
  return *image;
}

ApiResult<text::ImageInput> convert_image_url(const BodyReader& reader, const Json& part,
                                              const std::string& path) {
  const Json& holder = part["image_url"];
  const auto url = holder["url"].get<std::string>();
  const Json* detail = reader.find(holder, "detail");
  auto image = image_from_url(url, detail == nullptr ? "" : detail->get<std::string>(), path);
  if (!image) return ApiError::conversion(path + ": Unsupported image_url format");
  if (image->kind == text::ImageInput::Kind::url && url.size() > kMaxImageUrlBytes) {
    return ApiError::conversion(
        path + ".image_url.url[0]: image_url.url external link length " + std::to_string(url.size()) +
        " too long, max link length 8192. Consider passing file data directly with base64 data "
        "url instead.");
  }
  return *image;
}

ApiResult<std::vector<text::ContentPart>> convert_content(const RawMessage& raw, const std::string& path) {
  std::vector<text::ContentPart> parts;
  if (raw.content->is_string()) {
    parts.push_back({false, std::move(raw.content->get_ref<std::string&>()), {}});
    return parts;
  }
  const BodyReader reader;
  for (auto& part : *raw.content) {
    const auto type = part["type"].get<std::string>();
    if (type == "text") {
      parts.push_back({false, std::move(part["text"].get_ref<std::string&>()), {}});
      continue;
    }
    RORQUAL_API_TRY_ASSIGN(auto image, type == "file" ? convert_file(reader, part, path)
                                                      : convert_image_url(reader, part, path));
    if (raw.message.role == text::Role::assistant) {
      return ApiError::conversion("Image in assistant message is not supported");
    }
    parts.push_back({true, "", std::move(image)});
  }
  return parts;
}

/// Order of calls and results; fed with one message after the other.
class CallOrder {
 public:
  std::optional<ApiError> next(const RawMessage& raw, size_t index) {
    const bool is_tool = raw.message.role == text::Role::tool;
    if (missing_ > 0) return result(raw, index, is_tool);
    if (is_tool) {
      return ApiError::conversion(
          "Messages with role 'tool' must be a response to a preceding message with 'tool_calls'");
    }
    if (!raw.has_tool_calls) return std::nullopt;
    return calls(raw, index);
  }

  std::optional<ApiError> end() const {
    if (missing_ == 0) return std::nullopt;
    return insufficient();
  }

 private:
  static ApiError insufficient() {
    return ApiError::conversion(
        "An assistant message with 'tool_calls' must be followed by tool messages responding to each "
        "'tool_call_id'. "
        "(insufficient tool messages following tool_calls message)");
  }

  static ApiError duplicate(const std::string& id, size_t index) {
    return ApiError::conversion("Duplicate value for 'tool_call_id' of " + id + " in message[" +
                                std::to_string(index) + "]");
  }

  std::optional<ApiError> calls(const RawMessage& raw, size_t index) {
    if (raw.message.tool_calls.empty()) {
      return ApiError::conversion(
          "Invalid 'messages[" + std::to_string(index) +
          "].tool_calls': empty array. Expected an array with minimum length 1, but got an empty "
          "array instead.");
    }
    ids_.clear();
    answered_.clear();
    for (const auto& call : raw.message.tool_calls) {
      if (!ids_.insert(call.id).second) return duplicate(call.id, index);
    }
    missing_ = ids_.size();
    return std::nullopt;
  }

  std::optional<ApiError> result(const RawMessage& raw, size_t index, bool is_tool) {
    if (!is_tool) return insufficient();
    const std::string& id = raw.message.tool_call_id;
    if (!ids_.contains(id)) {
      return ApiError::conversion(
          "An assistant message with 'tool_calls' must be followed by tool messages responding to each "
          "'tool_call_id', "
          "The following tool_call_ids did not have response messages: " +
          id);
    }
    if (!answered_.insert(id).second) return duplicate(id, index);
    --missing_;
    return std::nullopt;
  }

  std::set<std::string> ids_, answered_;
  size_t missing_ = 0;
};

bool is_empty_system(const text::Message& message) {
  return message.role == text::Role::system && message.content.size() <= 1 &&
         std::all_of(message.content.begin(), message.content.end(),
                     [](const text::ContentPart& part) { return !part.is_image && part.text.empty(); });
}

}  // namespace

std::vector<RawMessage> read_chat_messages(BodyReader& reader, Json& body, const ApiPolicy& policy) {
  std::vector<RawMessage> out;
  const Json* messages = reader.require(body, "messages");
  if (messages == nullptr || !reader.expect_array(*messages, "a sequence")) return out;
  out.reserve(messages->size());
  Json& items = *body.find("messages");
  for (size_t i = 0; i < items.size(); ++i) {
    const auto scope = reader.enter("messages", i);
    if (!reader.expect_object(items[i], "a message")) return out;
    out.push_back(read_message(reader, items[i], policy));
    if (!reader.ok()) return out;
  }
  return out;
}

ApiResult<std::vector<text::Message>> convert_chat_messages(std::vector<RawMessage> raw) {
  std::vector<text::Message> out;
  out.reserve(raw.size());
  CallOrder order;
  bool misplaced_prefix = false;
  for (size_t i = 0; i < raw.size(); ++i) {
    const auto in_field = [i](ApiError error, const char* field) {
      return std::move(error).in("messages[" + std::to_string(i) + "]" + field);
    };
    if (raw[i].has_content) {
      auto content = convert_content(raw[i], ".messages[" + std::to_string(i) + "]");
      if (!content.ok()) return in_field(content.error(), ".content");
      raw[i].message.content = *std::move(content);
    }
    if (auto problem = order.next(raw[i], i)) return in_field(*problem, "");
    text::Message message = std::move(raw[i].message);
    if (!raw[i].has_content && message.role == text::Role::assistant && !raw[i].has_tool_calls) {
      return in_field(ApiError::conversion("Invalid assistant message: content or tool_calls must be set"),
                      "");
    }
    misplaced_prefix |= message.is_prefix && i + 1 < raw.size();
    if (!is_empty_system(message)) out.push_back(std::move(message));
  }
  if (auto problem = order.end()) return std::move(*problem).in("messages");
  if (misplaced_prefix) {
    return ApiError::conversion(
        "Invalid completion message: prefix set true with message which is not final message or message role "
        "is not "
        "assistant",
        "messages");
  }
  if (raw.empty()) return ApiError::conversion("Empty input messages", "messages");
  return out;
}

}  // namespace rorqual::api
