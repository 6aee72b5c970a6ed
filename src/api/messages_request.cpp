// SPDX-License-Identifier: Apache-2.0
// POST /v1/messages (Anthropic form): body to request.
#include <algorithm>
#include <set>

#include "api/body_reader.h"
#include "api/request.h"
#include "api/request_draft.h"
#include "text/json_text.h"

namespace rorqual::api {

namespace {

using text::ContentPart;
using text::Message;
using text::Role;

struct RawMessage {
  Role role = Role::user;
  Json content;
};

void read_image_source(BodyReader& reader, const Json& block) {
  const Json* source = reader.require(block, "source");
  if (source == nullptr || !reader.expect_object(*source, "an image source")) return;
  const std::string type = reader.require_variant(*source, "type", {"base64", "url", "file"});
  if (type == "url") reader.require_string(*source, "url");
  if (type == "file") reader.require_string(*source, "file_id");
  if (type != "base64") return;
  reader.require_variant(*source, "media_type",
                         {"image/jpeg", "image/jpg", "image/png", "image/gif", "image/webp"});
  reader.require_string(*source, "data");
}

void read_document(BodyReader& reader, const Json& block) {
  const Json* source = reader.require(block, "source");
  if (source != nullptr) reader.expect_object(*source, "a document source");
}

void read_result_content(BodyReader& reader, const Json& block) {
  const Json* content = reader.find(block, "content");
  if (content == nullptr || content->is_string()) return;
  if (!content->is_array()) {
    reader.fail("expected a string or a list");
    return;
  }
  for (const auto& item : *content) {
    if (!reader.expect_object(item, "a tool result block")) return;
    const std::string type =
        reader.require_variant(item, "type", {"text", "image", "document", "tool_reference"});
    if (type == "text") reader.require_string(item, "text");
    if (type == "image") read_image_source(reader, item);
    if (type == "document") read_document(reader, item);
    if (type == "tool_reference") reader.require_string(item, "tool_name");
  }
}

void read_block(BodyReader& reader, const Json& block) {
  if (!reader.expect_object(block, "a content block")) return;
  const std::string type =
      reader.require_variant(block, "type",
                             {"text", "image", "document", "thinking", "server_tool_use", "tool_use",
                              "tool_result", "web_search_tool_result", "tool_addition"});
  if (type == "text") reader.require_string(block, "text");
  if (type == "image") read_image_source(reader, block);
  if (type == "document") read_document(reader, block);
  if (type == "thinking") reader.require_string(block, "thinking");
  if (type == "tool_use" || type == "server_tool_use") {
    reader.require_string(block, "id");
    reader.require_string(block, "name");
    reader.require(block, "input");
  }
  if (type == "tool_addition") reader.require(block, "tool");
  if (type == "tool_result" || type == "web_search_tool_result") reader.require_string(block, "tool_use_id");
  if (type == "tool_result") read_result_content(reader, block);
}

std::vector<RawMessage> read_messages(BodyReader& reader, const Json& body) {
  std::vector<RawMessage> out;
  const Json* messages = reader.require(body, "messages");
  if (messages == nullptr || !reader.expect_array(*messages, "a sequence")) return out;
  for (size_t i = 0; i < messages->size(); ++i) {
    const auto scope = reader.enter("messages", i);
    const Json& item = (*messages)[i];
    if (!reader.expect_object(item, "a message")) return out;
    RawMessage raw;
    const std::string role = reader.require_variant(item, "role", {"user", "assistant", "system"});
    raw.role = role == "assistant" ? Role::assistant : role == "system" ? Role::system : Role::user;
    const Json* content = reader.require(item, "content");
    if (content == nullptr) return out;
    raw.content = *content;
    if (content->is_array()) {
      for (size_t k = 0; k < content->size(); ++k) {
        const auto block_scope = reader.enter("content", k);
        read_block(reader, (*content)[k]);
      }
    } else if (!content->is_string()) {
      reader.fail("expected a string or a list");
    }
    if (!reader.ok()) return out;
    out.push_back(std::move(raw));
  }
  return out;
}

/// The system field as parts; nullopt if absent.
std::optional<std::vector<ContentPart>> read_system(BodyReader& reader, const Json& body) {
  const Json* system = reader.find(body, "system");
  if (system == nullptr) return std::nullopt;
  std::vector<ContentPart> parts;
  if (system->is_string()) {
    parts.push_back({false, system->get<std::string>(), {}});
    return parts;
  }
  if (!system->is_array()) {
    reader.fail("expected a string or a list");
    return parts;
  }
  for (const auto& block : *system) {
    if (!reader.expect_object(block, "a system block")) return parts;
    reader.require_variant(block, "type", {"text"});
    parts.push_back({false, reader.require_string(block, "text"), {}});
  }
  return parts;
}

struct RawTool {
  Tool tool;
  bool is_server = false;
};

std::vector<RawTool> read_tools(BodyReader& reader, const Json& body, const ApiPolicy& policy) {
  std::vector<RawTool> out;
  const Json* tools = reader.objects(body, "tools", "a tool");
  if (tools == nullptr) return out;
  for (size_t i = 0; i < tools->size(); ++i) {
    const auto scope = reader.enter("tools", i);
    const Json& item = (*tools)[i];
    RawTool raw;
    const auto type = reader.string(item, "type");
    raw.is_server = type && !(policy.extensions && *type == "custom");  // "custom" is a tool of the client
    raw.tool.name = reader.require_string(item, "name");
    raw.tool.description = reader.string(item, "description");
    reader.boolean(item, "strict");  // accepted, without effect in this protocol
    raw.tool.defer_loading = reader.boolean_or(item, "defer_loading", false);
    const Json* schema = reader.find(item, "input_schema");
    raw.tool.parameters_json =
        schema == nullptr ? "null" : text::json_text(*schema, text::JsonStyle::compact);
    out.push_back(std::move(raw));
  }
  return out;
}

void read_tool_choice(BodyReader& reader, const Json& body, RequestDraft& draft) {
  const Json* choice = reader.find(body, "tool_choice");
  if (choice == nullptr || !reader.expect_object(*choice, "a tool choice")) return;
  const std::string type = reader.require_variant(*choice, "type", {"auto", "any", "tool", "none"});
  draft.request.parallel_tool_calls = !reader.boolean_or(*choice, "disable_parallel_tool_use", false);
  if (type == "none") draft.tool_choice = ToolChoice::none;
  if (type != "tool") return;
  draft.tool_choice = ToolChoice::named;
  draft.chosen_tool = reader.require_string(*choice, "name");
}

// ---- conversion ----

ApiResult<text::ImageInput> convert_image(const Json& block, const std::string& path) {
  const Json& source = block["source"];
  const auto type = source["type"].get<std::string>();
  if (type == "file") {
    return ApiError::conversion(path +
                                ": file_id is not supported. Pass the image as a base64 data url instead.");
  }
  if (type == "url") {
    const auto url = source["url"].get<std::string>();
    auto image = image_from_url(url, "high", path);
    if (!image) return ApiError::conversion(path + ": invalid url: " + text::json_quote(url));
    return *image;
  }
  const auto data = source["data"].get<std::string>();
  const bool is_base64 = data.size() % 4 == 0 && std::all_of(data.begin(), data.end(), [](unsigned char c) {
                           return std::isalnum(c) != 0 || c == '+' || c == '/' || c == '=';
                         });
  if (!is_base64) return ApiError::conversion(path + ": base64 decode error");
  return text::ImageInput{text::ImageInput::Kind::data_url,
                          "data:" + source["media_type"].get<std::string>() + ";base64," + data, "high",
                          path};
}

std::string document_text(const Json& block) {
  const Json& source = block["source"];
  const auto media = source.find("media_type");
  return "[Unsupported document type: " +
         (media != source.end() && media->is_string() ? media->get<std::string>() : std::string("unknown")) +
         "]";
}

/// Parts of a tool result; images get the path of the result.
ApiResult<std::vector<ContentPart>> convert_result(const Json& block, const std::string& path,
                                                   const std::vector<Tool>& tools) {
  std::vector<ContentPart> parts;
  const auto content = block.find("content");
  if (content == block.end() || content->is_null()) return parts;
  if (content->is_string()) {
    parts.push_back({false, content->get<std::string>(), {}});
    return parts;
  }
  for (const auto& item : *content) {
    const auto type = item["type"].get<std::string>();
    if (type == "image") {
      RORQUAL_API_TRY_ASSIGN(auto image, convert_image(item, path + ".tool_result"));
      parts.push_back({true, "", std::move(image)});
    } else if (type == "tool_reference") {
      const auto name = item["tool_name"].get<std::string>();
      const bool known =
          std::any_of(tools.begin(), tools.end(), [&](const Tool& t) { return t.name == name; });
      if (!known)
        return ApiError::conversion(path + ": tool reference '" + name + "' not found in available tools");
    } else {
      parts.push_back({false, type == "text" ? item["text"].get<std::string>() : document_text(item), {}});
    }
  }
  return parts;
}

/// Turns the list of messages into ours; keeps the calls that wait for results.
class Converter {
 public:
  explicit Converter(const std::vector<Tool>& tools) : tools_(tools) {}

  std::optional<ApiError> add(const RawMessage& raw, size_t index) {
    const std::string where = "messages." + std::to_string(index);
    if (raw.content.is_array() && raw.content.empty()) {
      return ApiError::conversion(where + ": all messages must have non-empty content");
    }
    if (raw.role != Role::user && !waiting_.empty()) return unanswered_before(index);
    if (raw.content.is_string()) {
      if (!waiting_.empty()) return unanswered_before(index);
      Message message;
      message.role = raw.role;
      message.content.push_back({false, raw.content.get<std::string>(), {}});
      out_.push_back(std::move(message));
      return std::nullopt;
    }
    return raw.role == Role::assistant ? assistant(raw, where, index) : user(raw, where, index);
  }

  std::optional<ApiError> end() const {
    return waiting_.empty() ? std::nullopt : std::optional(unanswered());
  }

  std::vector<Message> take() { return std::move(out_); }

 private:
  ApiError unanswered_before(size_t index) const {
    return ApiError::conversion(unanswered_text("messages." + std::to_string(index) + ": "));
  }

  ApiError unanswered() const {
    return ApiError::conversion(unanswered_text("messages." + std::to_string(calls_index_) + ":"));
  }

  std::string unanswered_text(const std::string& place) const {
    std::string ids;
    for (const auto& id : waiting_) {
      if (!answered_.contains(id)) ids += (ids.empty() ? "" : ", ") + id;
    }
    return place + "`tool_use` ids were found without `tool_result` blocks immediately after: " + ids +
           ". Each `tool_use` block must have a corresponding `tool_result` block in the next message.";
  }

  std::optional<ApiError> assistant(const RawMessage& raw, const std::string& where, size_t index) {
    Message message;
    message.role = Role::assistant;
    bool has_reasoning = false;
    std::set<std::string> ids;
    for (size_t i = 0; i < raw.content.size(); ++i) {
      const Json& block = raw.content[i];
      const auto type = block["type"].get<std::string>();
      if (type == "tool_result" || type == "web_search_tool_result") {
        return ApiError::conversion(where + ": `tool_result` blocks can only be in `user` messages");
      }
      if (type == "image") return ApiError::conversion("Image in assistant message is unsupported");
      if (type == "thinking") {
        message.reasoning += (has_reasoning ? "\n\n" : "") + block["thinking"].get<std::string>();
        has_reasoning = true;
      } else if (type == "tool_use") {
        const auto id = block["id"].get<std::string>();
        if (!ids.insert(id).second) {
          return ApiError::conversion(where + ".content." + std::to_string(i) +
                                      ": `tool_use` ids must be unique");
        }
        message.tool_calls.push_back({id, block["name"].get<std::string>(),
                                      text::json_text(block["input"], text::JsonStyle::compact)});
        calls_are_last_ = true;
      } else {
        if (type == "text") message.content.push_back({false, block["text"].get<std::string>(), {}});
        if (type == "document") message.content.push_back({false, document_text(block), {}});
        calls_are_last_ = false;
      }
    }
    calls_index_ = index;
    answered_.clear();
    for (const auto& call : message.tool_calls) waiting_.push_back(call.id);
    if (!waiting_.empty() && !calls_are_last_) return unanswered();
    out_.push_back(std::move(message));
    return std::nullopt;
  }

  std::optional<ApiError> user(const RawMessage& raw, const std::string& where, size_t index) {
    Message message;
    message.role = raw.role;
    bool in_results = true;
    for (size_t i = 0; i < raw.content.size(); ++i) {
      const Json& block = raw.content[i];
      const std::string block_path = where + ".content." + std::to_string(i);
      const auto type = block["type"].get<std::string>();
      if (type == "tool_result") {
        if (auto problem = result(block, block_path, in_results)) return problem;
        continue;
      }
      if (in_results && waiting_.size() > answered_.size()) return unanswered();
      in_results = false;
      if (type == "thinking") {
        return ApiError::conversion(where + ".content: thinking blocks may only be in `assistant` messages");
      }
      if (type == "tool_use" || type == "server_tool_use") {
        return ApiError::conversion(where + ": `tool_use` blocks can only be in `assistant` messages");
      }
      if (type == "text") message.content.push_back({false, block["text"].get<std::string>(), {}});
      if (type == "document") message.content.push_back({false, document_text(block), {}});
      if (type == "image") {
        auto image = convert_image(block, where + ".content[" + std::to_string(i) + "]");
        if (!image.ok()) return image.error();
        message.content.push_back({true, "", *std::move(image)});
      }
    }
    if (waiting_.size() > answered_.size()) return unanswered();
    waiting_.clear();
    answered_.clear();
    calls_index_ = index;
    if (!message.content.empty()) out_.push_back(std::move(message));
    return std::nullopt;
  }

  std::optional<ApiError> result(const Json& block, const std::string& block_path, bool in_results) {
    const auto id = block["tool_use_id"].get<std::string>();
    const bool known = std::find(waiting_.begin(), waiting_.end(), id) != waiting_.end();
    if (!known || !in_results) {
      return ApiError::conversion(
          "unexpected `" + block_path + ": tool_use_id` found in `tool_result` blocks: " + id +
          ". Each `tool_result` block must have a corresponding `tool_use` block in the previous "
          "message.");
    }
    if (!answered_.insert(id).second) {
      return ApiError::conversion(block_path +
                                  ": each tool_use must have a single result. Found multiple `tool_result` "
                                  "blocks with id: " +
                                  id);
    }
    Message message;
    message.role = Role::tool;
    message.tool_call_id = id;
    auto parts = convert_result(block, block_path, tools_);
    if (!parts.ok()) return parts.error();
    message.content = *std::move(parts);
    out_.push_back(std::move(message));
    return std::nullopt;
  }

  const std::vector<Tool>& tools_;
  std::vector<Message> out_;
  std::vector<std::string> waiting_;
  std::set<std::string> answered_;
  size_t calls_index_ = 0;
  bool calls_are_last_ = false;
};

std::optional<ApiError> convert_tools(std::vector<RawTool> raw, RequestDraft& draft) {
  for (size_t i = 0; i < raw.size(); ++i) {
    const std::string where = "tools[" + std::to_string(i) + "]";
    if (raw[i].is_server) return ApiError::conversion(where + ": server tools are not supported");
    if (auto problem = check_tool_name(raw[i].tool.name, where + ".name")) return problem;
    draft.tools.push_back(std::move(raw[i].tool));
  }
  const bool all_deferred =
      !draft.tools.empty() &&
      std::all_of(draft.tools.begin(), draft.tools.end(), [](const Tool& t) { return t.defer_loading; });
  if (all_deferred) {
    return ApiError::conversion(
        "tools: at least one tool must have defer_loading=false. All tools cannot be deferred.");
  }
  return std::nullopt;
}

ApiResult<std::vector<Message>> convert_messages(const std::vector<RawMessage>& raw,
                                                 const std::vector<Tool>& tools,
                                                 const std::optional<std::vector<ContentPart>>& system) {
  if (raw.empty()) return ApiError::conversion("messages: at least one message is required");
  Converter converter(tools);
  for (size_t i = 0; i < raw.size(); ++i) {
    if (auto problem = converter.add(raw[i], i)) return *problem;
  }
  if (auto problem = converter.end()) return *problem;
  std::vector<Message> messages = converter.take();
  if (system) {
    Message message;
    message.role = Role::system;
    message.content = *system;
    messages.insert(messages.begin(), std::move(message));
  }
  return messages;
}

/// Effort, and the format of the text, which the official service does not know here.
void read_output_config(BodyReader& reader, const Json& body, const ApiPolicy& policy, RequestDraft& draft) {
  const Json* config = reader.find(body, "output_config");
  if (config == nullptr || !reader.expect_object(*config, "an output configuration")) return;
  const auto scope = reader.enter("output_config");
  read_effort(reader, *config, "effort", policy, draft);
  const Json* format = policy.extensions ? reader.find(*config, "format") : nullptr;
  if (format == nullptr || !reader.expect_object(*format, "a format")) return;
  const auto format_scope = reader.enter("format");
  reader.require_variant(*format, "type", {"json_schema"});
  draft.has_format = true;
  draft.format = ResponseFormat::json_schema;
  if (const Json* schema = reader.require(*format, "schema")) draft.schema = *schema;
}

ApiResult<ChatRequest> parse(std::string_view text, const ApiPolicy& policy) {
  RORQUAL_API_TRY_ASSIGN(const Json body, parse_body(text));
  BodyReader reader;
  RequestDraft draft;
  auto& request = draft.request;
  request.protocol = Protocol::messages;
  draft.clamps_max_tokens = true;
  request.lowers_max_tokens = policy.extensions;
  request.model = reader.require_string(body, "model");
  const std::vector<RawMessage> raw = read_messages(reader, body);
  const auto system = read_system(reader, body);
  std::vector<RawTool> tools = read_tools(reader, body, policy);
  read_tool_choice(reader, body, draft);
  read_thinking(reader, body, draft);
  read_output_config(reader, body, policy, draft);
  draft.temperature = reader.number(body, "temperature");
  draft.top_p = reader.number(body, "top_p");
  if (const auto tokens = reader.unsigned_integer(body, "max_tokens", UINT32_MAX)) {
    request.sampling.max_tokens = static_cast<int64_t>(*tokens);
  }
  request.sampling.stop = reader.strings(body, "stop_sequences");
  request.stream.stream = reader.boolean_or(body, "stream", false);
  if (const Json* metadata = reader.find(body, "metadata")) reader.expect_object(*metadata, "a map");
  if (policy.extensions) {
    request.sampling.top_k =
        static_cast<int32_t>(std::max<int64_t>(reader.integer(body, "top_k", -1, INT32_MAX).value_or(0), 0));
  }
  if (!reader.ok()) return reader.error();

  if (auto problem = check_model(request.model, policy)) return *problem;
  if (auto problem = convert_tools(std::move(tools), draft)) return *problem;
  RORQUAL_API_TRY_ASSIGN(request.conversation.messages, convert_messages(raw, draft.tools, system));
  return finish_request(std::move(draft), policy);
}

}  // namespace

ApiResult<ChatRequest> parse_messages_request(std::string_view text, const ApiPolicy& policy) {
  return in_policy_form(parse(text, policy), policy);
}

}  // namespace rorqual::api
