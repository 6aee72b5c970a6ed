// SPDX-License-Identifier: Apache-2.0
// POST /v1/responses: body to request.
#include <algorithm>
#include <set>
#include <string_view>

#include "api/body_reader.h"
#include "api/request.h"
#include "api/request_draft.h"
#include "text/json_text.h"

namespace rorqual::api {

namespace {

#include "api/apply_patch_tool.inc"

using text::ContentPart;
using text::Message;
using text::Role;

void read_content(BodyReader& reader, const Json& content, const char* problem) {
  if (content.is_string()) return;
  if (!content.is_array()) {
    reader.fail(problem);
    return;
  }
  for (size_t i = 0; i < content.size(); ++i) {
    const Json& part = content[i];
    const auto scope = reader.enter("content", i);
    if (!reader.expect_object(part, "a content block")) return;
    const std::string type =
        reader.require_variant(part, "type", {"input_text", "output_text", "input_image", "input_file"});
    if (type == "input_text" || type == "output_text") reader.require_string(part, "text");
    if (type != "input_image") continue;
    reader.string(part, "image_url");
    reader.string(part, "file_id");
    reader.variant(part, "detail", {"low", "high", "original", "auto"});
  }
}

void read_reasoning(BodyReader& reader, const Json& item) {
  const Json* content = reader.objects(item, "content", "a reasoning text");
  if (content == nullptr) return;
  for (const auto& part : *content) reader.require_string(part, "text");
}

void read_item(BodyReader& reader, const Json& item) {
  if (!item.is_object() || (!item.contains("type") && !item.contains("role"))) {
    reader.fail("invalid input item");
    return;
  }
  const std::string type = reader.string(item, "type").value_or("message");
  if (type == "message") {
    reader.require_variant(item, "role", {"user", "assistant", "system", "developer"});
    if (const Json* content = reader.require(item, "content")) {
      read_content(reader, *content, "content should be a string or a list of content blocks");
    }
  } else if (type == "function_call" || type == "custom_tool_call") {
    reader.require_string(item, "call_id");
    reader.require_string(item, "name");
    reader.require_string(item, type == "function_call" ? "arguments" : "input");
    reader.string(item, "namespace");
  } else if (type == "function_call_output" || type == "custom_tool_call_output") {
    reader.require_string(item, "call_id");
    if (const Json* output = reader.require(item, "output")) {
      read_content(reader, *output, "output should be a string or a list of output content parts");
    }
  } else if (type == "reasoning") {
    read_reasoning(reader, item);
  }
}

void read_input(BodyReader& reader, const Json& body) {
  const Json* input = reader.find(body, "input");
  if (input == nullptr || input->is_string()) return;
  if (!input->is_array()) {
    reader.fail("input should be a string or a list of input items");
    return;
  }
  for (size_t i = 0; i < input->size(); ++i) {
    const auto scope = reader.enter("input", i);
    read_item(reader, (*input)[i]);
  }
}

Tool read_function(BodyReader& reader, const Json& item) {
  Tool tool;
  tool.name = reader.require_string(item, "name");
  tool.description = reader.string(item, "description");
  tool.strict = reader.boolean(item, "strict");
  if (const Json* parameters = reader.find(item, "parameters")) {
    tool.parameters_json = text::json_text(*parameters, text::JsonStyle::compact);
  }
  return tool;
}

struct RawTool {
  std::string type;
  Tool tool;                                          // function; name only for custom and namespace
  std::vector<std::pair<std::string, Tool>> members;  // namespace: type and tool
};

std::vector<RawTool> read_tools(BodyReader& reader, const Json& body) {
  std::vector<RawTool> out;
  const Json* tools = reader.objects(body, "tools", "a tool");
  if (tools == nullptr) return out;
  for (size_t i = 0; i < tools->size(); ++i) {
    const auto scope = reader.enter("tools", i);
    const Json& item = (*tools)[i];
    RawTool raw;
    raw.type = reader.require_string(item, "type");
    if (raw.type == "function") raw.tool = read_function(reader, item);
    if (raw.type == "custom" || raw.type == "namespace") raw.tool.name = reader.require_string(item, "name");
    if (raw.type == "namespace") {
      raw.tool.description = reader.string(item, "description");
      const Json* members = reader.objects(item, "tools", "a tool");
      for (size_t k = 0; members != nullptr && k < members->size(); ++k) {
        const auto member_scope = reader.enter("tools", k);
        const std::string type = reader.require_string((*members)[k], "type");
        raw.members.emplace_back(type, read_function(reader, (*members)[k]));
      }
    }
    out.push_back(std::move(raw));
  }
  return out;
}

void read_tool_choice(BodyReader& reader, const Json& body, RequestDraft& draft) {
  const Json* choice = reader.find(body, "tool_choice");
  if (choice == nullptr) return;
  if (choice->is_object() && !choice->empty()) {
    const std::string type = reader.require_variant(
        *choice, "type", {"function", "web_search", "web_search_2025_08_26", "custom"});
    if (type != "function" && type != "custom") return;
    draft.tool_choice = ToolChoice::named;
    draft.chosen_tool = reader.require_string(*choice, "name");
    return;
  }
  const bool is_name =
      choice->is_string() && (*choice == "none" || *choice == "auto" || *choice == "required");
  if (!is_name) {
    reader.fail("expected one of `none`, `auto`, `required` or a tool choice object");
    return;
  }
  if (*choice == "none") draft.tool_choice = ToolChoice::none;
  if (*choice == "required") draft.tool_choice = ToolChoice::required;
}

void read_text_format(BodyReader& reader, const Json& body, RequestDraft& draft) {
  const Json* holder = reader.find(body, "text");
  if (holder == nullptr || !reader.expect_object(*holder, "a text configuration") ||
      !holder->contains("format"))
    return;
  const Json& format = (*holder)["format"];
  if (!reader.expect_object(format, "a text format")) return;
  draft.has_format = true;
  const std::string type = reader.require_variant(format, "type", {"text", "json_schema", "json_object"});
  if (type == "json_object") draft.format = ResponseFormat::json_object;
  if (type != "json_schema") return;
  draft.format = ResponseFormat::json_schema;
  draft.schema_is_strict = reader.boolean_or(format, "strict", false);
  if (const Json* schema = reader.require(format, "schema")) draft.schema = *schema;
}

// ---- conversion ----

/// Wire name of a tool inside a namespace; repeated names get a number.
std::string wire_name(const std::string& name_space, const std::string& name, std::set<std::string>& taken) {
  const std::string base = name_space + "::" + name;
  std::string wire = base;
  for (int i = 1; !taken.insert(wire).second; ++i) wire = base + "_" + std::to_string(i);
  return wire;
}

std::optional<ApiError> convert_namespace(const RawTool& raw, const std::string& where,
                                          std::set<std::string>& taken, RequestDraft& draft) {
  if (auto problem = check_tool_name(raw.tool.name, where + ".name")) return problem;
  std::set<std::string> names;
  for (size_t i = 0; i < raw.members.size(); ++i) {
    const auto& [type, member] = raw.members[i];
    const std::string member_where = where + ".tools[" + std::to_string(i) + "]";
    if (type != "function") {
      return ApiError::conversion(
          "Currently custom tools are not allowed inside a namespace. Found custom tool '" + member.name +
          "' in " + member_where + ".");
    }
    if (auto problem = check_tool_name(member.name, member_where + ".name")) return problem;
    if (!names.insert(member.name).second) {
      return ApiError::conversion("Tool names within a namespace must be unique.");
    }
    Tool tool = member;
    tool.name = wire_name(raw.tool.name, member.name, taken);
    const std::string prefix = raw.tool.description.value_or("");
    if (!prefix.empty()) tool.description = prefix + "\n" + tool.description.value_or("");
    draft.request.tool_origins.push_back({tool.name, raw.tool.name, member.name});
    draft.tools.push_back(std::move(tool));
  }
  return std::nullopt;
}

std::optional<ApiError> convert_tools(const std::vector<RawTool>& raw, RequestDraft& draft) {
  std::set<std::string> taken;
  for (size_t i = 0; i < raw.size(); ++i) {
    const std::string where = "tools[" + std::to_string(i) + "]";
    if (raw[i].type == "function") {
      if (auto problem = check_tool_name(raw[i].tool.name, where + ".name")) return problem;
      draft.tools.push_back(raw[i].tool);
    } else if (raw[i].type == "custom") {
      if (raw[i].tool.name != "apply_patch") {
        return ApiError::conversion("Unsupported custom tool: '" + raw[i].tool.name +
                                    "'. Only 'apply_patch' is supported.");
      }
      Tool tool;
      tool.name = raw[i].tool.name;
      tool.description = std::string(kApplyPatchDescription);
      tool.parameters_json = std::string(kApplyPatchParameters);
      draft.request.tool_origins.push_back({tool.name, "", tool.name, /*is_custom=*/true});
      draft.tools.push_back(std::move(tool));
    } else if (raw[i].type == "namespace") {
      if (auto problem = convert_namespace(raw[i], where, taken, draft)) return problem;
    }
  }
  return std::nullopt;
}

/// Items to messages: reasoning, text and calls of one turn join one assistant message.
class Converter {
 public:
  explicit Converter(bool developer_is_user_turn) : developer_is_user_turn_(developer_is_user_turn) {}

  std::optional<ApiError> add(const Json& item, size_t index) {
    const BodyReader reader;
    const Json* type_field = reader.find(item, "type");
    const std::string type = type_field == nullptr ? "message" : type_field->get<std::string>();
    const std::string where = "input[" + std::to_string(index) + "]";
    const bool is_call = type == "function_call" || type == "custom_tool_call";
    const bool is_output = type == "function_call_output" || type == "custom_tool_call_output";
    if (!is_call && !is_output && !waiting_.empty()) return unanswered();
    if (is_call) return call(item, type);
    if (is_output) return output(item, where);
    if (type == "reasoning") return reasoning(item);
    return type == "message" ? message(item, where) : std::nullopt;
  }

  std::optional<ApiError> end() const {
    return waiting_.empty() ? std::nullopt : std::optional(unanswered());
  }

  std::vector<Message> take() { return std::move(out_); }

 private:
  ApiError unanswered() const {
    return ApiError::conversion("No tool output found for tool call " + waiting_.front() + ".");
  }

  /// The assistant message under construction.
  Message& turn() {
    const bool is_open = !out_.empty() && out_.back().role == Role::assistant && turn_is_open_;
    if (!is_open) {
      out_.emplace_back();
      out_.back().role = Role::assistant;
      turn_is_open_ = true;
    }
    return out_.back();
  }

  std::optional<ApiError> call(const Json& item, const std::string& type) {
    const BodyReader reader;
    text::ToolCall out;
    out.id = item["call_id"].get<std::string>();
    const Json* name_space = reader.find(item, "namespace");
    out.name = (name_space == nullptr ? "" : name_space->get<std::string>() + "::") +
               item["name"].get<std::string>();
    out.arguments = type == "function_call"
                        ? item["arguments"].get<std::string>()
                        : text::json_text(Json{{"input", item["input"]}}, text::JsonStyle::compact);
    if (!ids_.insert(out.id).second) return ApiError::conversion("Duplicate 'call_id': " + out.id + ".");
    waiting_.push_back(out.id);
    turn().tool_calls.push_back(std::move(out));
    return std::nullopt;
  }

  std::optional<ApiError> output(const Json& item, const std::string& where) {
    const auto id = item["call_id"].get<std::string>();
    if (answered_.contains(id)) return ApiError::conversion("Duplicate tool output for call_id: " + id + ".");
    const auto it = std::find(waiting_.begin(), waiting_.end(), id);
    if (it == waiting_.end()) {
      return ApiError::conversion("No tool call found for tool output with call_id " + id + ".");
    }
    waiting_.erase(it);
    answered_.insert(id);
    Message message;
    message.role = Role::tool;
    message.tool_call_id = id;
    auto parts = convert_content(item["output"], Role::tool, where);
    if (!parts.ok()) return parts.error();
    message.content = *std::move(parts);
    out_.push_back(std::move(message));
    turn_is_open_ = false;
    return std::nullopt;
  }

  std::optional<ApiError> reasoning(const Json& item) {
    const BodyReader reader;
    if (!out_.empty() && turn_is_open_ && (!out_.back().content.empty() || !out_.back().tool_calls.empty())) {
      turn_is_open_ = false;
    }
    Message& message = turn();
    const Json* content = reader.find(item, "content");
    for (size_t i = 0; content != nullptr && i < content->size(); ++i) {
      if (!message.reasoning.empty()) message.reasoning += "\n";
      message.reasoning += (*content)[i]["text"].get<std::string>();
    }
    return std::nullopt;
  }

  std::optional<ApiError> message(const Json& item, const std::string& where) {
    const auto role = item["role"].get<std::string>();
    const bool is_developer = role == "developer" && developer_is_user_turn_;
    const Role kind = role == "assistant" ? Role::assistant
                      : role == "user"    ? Role::user
                      : is_developer      ? Role::developer
                                          : Role::system;
    auto parts = convert_content(item["content"], kind, where);
    if (!parts.ok()) return parts.error();
    if (kind == Role::assistant) {
      auto& content = turn().content;
      content.insert(content.end(), parts->begin(), parts->end());
      return std::nullopt;
    }
    turn_is_open_ = false;
    Message message;
    message.role = kind;
    message.content = *std::move(parts);
    out_.push_back(std::move(message));
    return std::nullopt;
  }

  static ApiResult<text::ImageInput> convert_image(const Json& part, const std::string& where, size_t index) {
    const BodyReader reader;
    const std::string place = where + ".content[" + std::to_string(index) + "]";
    const Json* url = reader.find(part, "image_url");
    const bool has_file = reader.find(part, "file_id") != nullptr;
    if (url != nullptr && has_file) {
      return ApiError::conversion(place + ": input_image cannot have both image_url and file_id");
    }
    if (has_file) {
      return ApiError::conversion(place +
                                  ": file_id is not supported. Pass the image as a base64 data url instead.");
    }
    if (url == nullptr) return ApiError::conversion(place + ": input_image must have image_url or file_id");
    const Json* detail = reader.find(part, "detail");
    auto image =
        image_from_url(url->get<std::string>(), detail == nullptr ? "" : detail->get<std::string>(), where);
    if (!image) return ApiError::conversion(where + ": Unsupported image_url format");
    return *image;
  }

  static ApiResult<std::vector<ContentPart>> convert_content(const Json& content, Role role,
                                                             const std::string& where) {
    std::vector<ContentPart> parts;
    if (content.is_string()) {
      parts.push_back({false, content.get<std::string>(), {}});
      return parts;
    }
    for (size_t i = 0; i < content.size(); ++i) {
      const auto type = content[i]["type"].get<std::string>();
      if (type == "input_image") {
        RORQUAL_API_TRY_ASSIGN(auto image, convert_image(content[i], where, i));
        if (role == Role::assistant) {
          return ApiError::conversion(where + ": Image in assistant message is unsupported");
        }
        parts.push_back({true, "", std::move(image)});
      } else {
        parts.push_back(
            {false,
             type == "input_file" ? "[Unsupported Document]" : content[i]["text"].get<std::string>(),
             {}});
      }
    }
    return parts;
  }

  std::vector<Message> out_;
  std::vector<std::string> waiting_;
  std::set<std::string> ids_, answered_;
  bool turn_is_open_ = false;
  const bool developer_is_user_turn_;
};

Message text_message(Role role, std::string content) {
  Message message;
  message.role = role;
  message.content.push_back({false, std::move(content), {}});
  return message;
}

ApiResult<std::vector<Message>> convert_input(const Json& body,
                                              const std::optional<std::string>& instructions,
                                              const ApiPolicy& policy) {
  const BodyReader reader;
  std::vector<Message> messages;
  const Json* input = reader.find(body, "input");
  if (instructions && !instructions->empty()) messages.push_back(text_message(Role::system, *instructions));
  if (input == nullptr) {
    if (!instructions) return ApiError::conversion("Either input or instructions must be provided");
    return messages;
  }
  if (input->is_string()) {
    messages.push_back(text_message(Role::user, input->get<std::string>()));
    return messages;
  }
  if (input->empty()) return ApiError::conversion("Input items array must not be empty");
  Converter converter(policy.prompt_compat.developer);
  for (size_t i = 0; i < input->size(); ++i) {
    if (auto problem = converter.add((*input)[i], i)) return *problem;
  }
  if (auto problem = converter.end()) return *problem;
  for (auto& message : converter.take()) messages.push_back(std::move(message));
  return messages;
}

void read_sampling(BodyReader& reader, const Json& body, const ApiPolicy& policy, RequestDraft& draft) {
  auto& sampling = draft.request.sampling;
  draft.temperature = reader.number(body, "temperature");
  draft.top_p = reader.number(body, "top_p");
  if (const auto tokens = reader.unsigned_integer(body, "max_output_tokens", UINT32_MAX)) {
    sampling.max_tokens = static_cast<int64_t>(*tokens);
  }
  if (const auto top = reader.unsigned_integer(body, "top_logprobs", UINT8_MAX)) {
    sampling.logprobs = true;
    sampling.top_logprobs = static_cast<int32_t>(*top);
  }
  if (policy.extensions) {
    const auto included = reader.strings(body, "include");
    if (std::find(included.begin(), included.end(), "message.output_text.logprobs") != included.end()) {
      sampling.logprobs = true;
    }
  }
  draft.request.stream.stream = reader.boolean_or(body, "stream", false);
  if (policy.extensions)
    draft.request.parallel_tool_calls = reader.boolean_or(body, "parallel_tool_calls", true);
  reader.string(body, "user");
}

/// What would need answers of the past, which this server does not keep: better an error than an answer
/// without them. The official service ignores these fields.
std::optional<ApiError> refuse_stored_state(const Json& body, const ApiPolicy& policy) {
  if (!policy.extensions) return std::nullopt;
  const BodyReader reader;
  for (const char* name : {"previous_response_id", "conversation"}) {
    if (reader.find(body, name) == nullptr) continue;
    return ApiError::conversion("`" + std::string(name) +
                                    "` is not supported: this server stores no responses (`store` is false). "
                                    "Send the whole conversation as `input`.",
                                name);
  }
  if (const Json* background = reader.find(body, "background");
      background != nullptr && *background != false) {
    return ApiError::conversion("`background` is not supported: this server stores no responses.",
                                "background");
  }
  if (reader.find(body, "prompt") != nullptr) {
    return ApiError::conversion("`prompt` is not supported: this server stores no prompt templates.",
                                "prompt");
  }
  return std::nullopt;
}

/// The fields of the request that an answer has, too: as sent, else the value in force.
void keep_repeated_fields(const Json& body, ChatRequest& request) {
  const BodyReader reader;
  const auto keep = [&](const char* name, Json fallback) {
    const Json* sent = reader.find(body, name);
    request.repeated_fields.emplace_back(
        name, text::json_text(sent == nullptr ? fallback : *sent, text::JsonStyle::compact));
  };
  const Json null;
  keep("instructions", null);
  keep("max_output_tokens", null);
  keep("metadata", Json::object());
  keep("parallel_tool_calls", true);
  keep("reasoning", Json{{"effort", null}, {"summary", null}});
  keep("temperature", 1.0);
  keep("text", Json{{"format", {{"type", "text"}}}});
  keep("tool_choice", "auto");
  keep("tools", Json::array());
  keep("top_logprobs", 0);
  keep("top_p", 1.0);
  keep("truncation", "disabled");
  keep("user", null);
}

ApiResult<ChatRequest> parse(std::string_view text, const ApiPolicy& policy) {
  RORQUAL_API_TRY_ASSIGN(const Json body, parse_body(text));
  BodyReader reader;
  RequestDraft draft;
  auto& request = draft.request;
  request.protocol = Protocol::responses;
  draft.json_word_message =
      "Response input messages must contain the word 'json' in some form to use 'text.format' of type "
      "'json_object'.";
  request.model = reader.require_string(body, "model");
  read_input(reader, body);
  const auto instructions = reader.string(body, "instructions");
  const std::vector<RawTool> tools = read_tools(reader, body);
  read_tool_choice(reader, body, draft);
  if (const Json* reasoning = reader.find(body, "reasoning")) {
    if (reader.expect_object(*reasoning, "a reasoning configuration")) {
      read_effort(reader, *reasoning, "effort", policy, draft);
    }
  }
  read_text_format(reader, body, draft);
  read_sampling(reader, body, policy, draft);
  if (!reader.ok()) return reader.error();

  if (auto problem = check_model(request.model, policy)) return *problem;
  if (auto problem = refuse_stored_state(body, policy)) return *problem;
  if (auto problem = convert_tools(tools, draft)) return std::move(*problem).in("tools");
  auto messages = convert_input(body, instructions, policy);
  if (!messages.ok()) return ApiError(messages.error()).in("input");
  request.conversation.messages = *std::move(messages);
  keep_repeated_fields(body, request);
  return finish_request(std::move(draft), policy);
}

}  // namespace

ApiResult<ChatRequest> parse_responses_request(std::string_view text, const ApiPolicy& policy) {
  return in_policy_form(parse(text, policy), policy);
}

}  // namespace rorqual::api
