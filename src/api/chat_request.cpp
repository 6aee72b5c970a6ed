// SPDX-License-Identifier: Apache-2.0
// POST /v1/chat/completions: body to request. First the shape of everything (malformed body), then the rules
// (official texts) in the official order.
#include <set>

#include "api/body_reader.h"
#include "api/chat_messages.h"
#include "api/request.h"
#include "api/request_draft.h"
#include "text/json_text.h"

namespace rorqual::api {

namespace {

void read_sampling(BodyReader& reader, const Json& body, const ApiPolicy& policy, RequestDraft& draft) {
  auto& sampling = draft.request.sampling;
  draft.temperature = reader.number(body, "temperature");
  draft.top_p = reader.number(body, "top_p");
  draft.presence_penalty = reader.number(body, "presence_penalty");
  draft.frequency_penalty = reader.number(body, "frequency_penalty");
  draft.n = reader.unsigned_integer(body, "n", policy.max_choices == 1 ? UINT8_MAX : UINT32_MAX);
  draft.seed = reader.unsigned_integer(body, "seed", UINT64_MAX);
  if (const auto tokens = reader.unsigned_integer(body, "max_tokens", UINT32_MAX)) {
    sampling.max_tokens = static_cast<int64_t>(*tokens);
  }
  if (policy.max_completion_tokens) {
    const auto tokens = reader.unsigned_integer(body, "max_completion_tokens", UINT32_MAX);
    if (tokens) sampling.max_tokens = static_cast<int64_t>(*tokens);
  }
  sampling.logprobs = reader.boolean_or(body, "logprobs", false);
  if (const auto top = reader.unsigned_integer(body, "top_logprobs", UINT8_MAX)) {
    sampling.top_logprobs = static_cast<int32_t>(*top);
  }
  if (const Json* stop = reader.find(body, "stop")) {
    draft.stop_is_single = stop->is_string();
    if (draft.stop_is_single) {
      sampling.stop.push_back(stop->get<std::string>());
    } else {
      sampling.stop = reader.strings(body, "stop");
    }
  }
  read_extensions(reader, body, policy, sampling);
}

void read_stream(BodyReader& reader, const Json& body, RequestDraft& draft) {
  auto& stream = draft.request.stream;
  stream.stream = reader.boolean_or(body, "stream", false);
  const Json* options = reader.find(body, "stream_options");
  if (options == nullptr || !reader.expect_object(*options, "struct with field `include_usage`")) return;
  draft.has_stream_options = true;
  stream.include_usage = reader.boolean_or(*options, "include_usage", false);
  stream.continuous_usage_stats = reader.boolean_or(*options, "continuous_usage_stats", false);
}

void read_tools(BodyReader& reader, const Json& body, const ApiPolicy& policy, RequestDraft& draft) {
  const Json* tools = reader.objects(body, "tools", "a tool");
  if (tools == nullptr) return;
  for (const auto& item : *tools) {
    reader.require_variant(item, "type", {"function"});
    const Json* function = reader.require(item, "function");
    if (function == nullptr || !reader.expect_object(*function, "a function definition")) return;
    Tool tool;
    tool.name = reader.require_string(*function, "name");
    tool.description = reader.string(*function, "description");
    tool.strict = reader.boolean(*function, "strict");
    if (const Json* parameters = reader.find(*function, "parameters")) {
      tool.parameters_json = text::json_text(*parameters, text::JsonStyle::compact);
    }
    if (policy.prompt_compat.tool_fields) tool.function_json = text::json_text(*function);
    draft.tools.push_back(std::move(tool));
  }
}

void read_tool_choice(BodyReader& reader, const Json& body, RequestDraft& draft) {
  const Json* choice = reader.find(body, "tool_choice");
  if (choice == nullptr) return;
  if (choice->is_object()) {
    if (choice->empty()) reader.fail("expected one of `none`, `auto`, `required` or a tool");
    reader.require_variant(*choice, "type", {"function"});
    const Json* function = reader.require(*choice, "function");
    if (function == nullptr || !reader.expect_object(*function, "a function name")) return;
    draft.chosen_tool = reader.require_string(*function, "name");
    draft.tool_choice = ToolChoice::named;
    return;
  }
  if (!choice->is_string()) {
    reader.fail("expected one of `none`, `auto`, `required` or a tool");
    return;
  }
  const std::string name = reader.require_variant(body, "tool_choice", {"none", "auto", "required"});
  if (name == "none") draft.tool_choice = ToolChoice::none;
  if (name == "required") draft.tool_choice = ToolChoice::required;
}

void read_response_format(BodyReader& reader, const Json& body, RequestDraft& draft) {
  const Json* format = reader.find(body, "response_format");
  if (format == nullptr || !reader.expect_object(*format, "an object with field `type`")) return;
  draft.has_format = true;
  const std::string type =
      reader.require_variant(*format, "type", {"json_object", "json_schema", "regex", "text"});
  if (type == "json_object") draft.format = ResponseFormat::json_object;
  if (type == "regex") {
    draft.format = ResponseFormat::regex;
    draft.regex = reader.require_string(*format, "regex");
  }
  if (type != "json_schema") return;
  draft.format = ResponseFormat::json_schema;
  const Json* holder = reader.require(*format, "json_schema");
  if (holder == nullptr || !reader.expect_object(*holder, "a named schema")) return;
  reader.string(*holder, "name");
  draft.schema_is_strict = reader.boolean_or(*holder, "strict", false);
  const Json* schema = reader.require(*holder, "schema");
  if (schema != nullptr) draft.schema = *schema;
}

/// vLLM's ways to switch thinking.
void read_template_fields(BodyReader& reader, const Json& body, const ApiPolicy& policy,
                          RequestDraft& draft) {
  auto& request = draft.request;
  if (!policy.extensions) return;
  request.include_reasoning = reader.boolean_or(body, "include_reasoning", true);
  request.parallel_tool_calls = reader.boolean_or(body, "parallel_tool_calls", true);
  request.request_id = reader.string(body, "request_id");
  request.conversation.add_generation_prompt = reader.boolean_or(body, "add_generation_prompt", true);
  const Json* kwargs = reader.find(body, "chat_template_kwargs");
  if (kwargs == nullptr || !reader.expect_object(*kwargs, "a map")) return;
  for (const char* key : {"thinking", "enable_thinking"}) {
    const auto value = reader.boolean(*kwargs, key);
    if (value && !draft.thinking) draft.thinking = value;
  }
  if (!draft.effort_name && !draft.effort_number)
    read_effort(reader, *kwargs, "reasoning_effort", policy, draft);
  if (!reader.boolean_or(*kwargs, "drop_thinking", true)) {
    request.conversation.keep_reasoning = text::KeepReasoning::all;
  }
}

/// One of vLLM's structured_outputs in place of a response format.
void read_structured_outputs(BodyReader& reader, const Json& body, const ApiPolicy& policy,
                             RequestDraft& draft) {
  const Json* outputs = policy.extensions ? reader.find(body, "structured_outputs") : nullptr;
  if (outputs == nullptr || !reader.expect_object(*outputs, "a map")) return;
  auto& constraint = draft.request.constraint;
  int count = 0;
  for (const auto& [key, kind] : {std::pair{"json", Constraint::Kind::json},
                                  {"regex", Constraint::Kind::regex},
                                  {"choice", Constraint::Kind::choice},
                                  {"grammar", Constraint::Kind::grammar},
                                  {"structural_tag", Constraint::Kind::structural_tag}}) {
    const Json* value = reader.find(*outputs, key);
    if (value == nullptr) continue;
    ++count;
    constraint = {kind, value->is_string() ? value->get<std::string>()
                                           : text::json_text(*value, text::JsonStyle::compact)};
  }
  if (reader.boolean_or(*outputs, "json_object", false)) {
    ++count;
    constraint = {Constraint::Kind::json, ""};
  }
  if (count != 1) reader.fail("field `structured_outputs`: exactly one kind of constraint is expected");
}

/// Makes an assistant's message at the end the beginning of the answer.
void continue_final_message(RequestDraft& draft) {
  auto& messages = draft.request.conversation.messages;
  if (messages.empty()) return;
  if (messages.back().role == text::Role::assistant && messages.back().tool_calls.empty()) {
    messages.back().is_prefix = true;
  }
}

std::optional<ApiError> check_tool_names(const RequestDraft& draft) {
  for (size_t i = 0; i < draft.tools.size(); ++i) {
    auto problem = check_tool_name(draft.tools[i].name, "tools[" + std::to_string(i) + "].function.name");
    if (problem) return problem;
  }
  return std::nullopt;
}

}  // namespace

ApiResult<ChatRequest> parse_chat_request(std::string_view text, const ApiPolicy& policy) {
  RORQUAL_API_TRY_ASSIGN(const Json body, parse_body(text));
  BodyReader reader;
  RequestDraft draft;
  draft.request.model = reader.require_string(body, "model");
  draft.json_word_message =
      "Prompt must contain the word 'json' in some form to use 'response_format' of type 'json_object'.";
  std::vector<RawMessage> raw = read_chat_messages(reader, body, policy);
  read_thinking(reader, body, draft);
  read_effort(reader, body, "reasoning_effort", policy, draft);
  read_tools(reader, body, policy, draft);
  read_tool_choice(reader, body, draft);
  read_response_format(reader, body, draft);
  read_sampling(reader, body, policy, draft);
  read_stream(reader, body, draft);
  read_template_fields(reader, body, policy, draft);
  read_structured_outputs(reader, body, policy, draft);
  const bool continues = policy.extensions && reader.boolean_or(body, "continue_final_message", false);
  if (!reader.ok()) return reader.error();

  if (auto problem = check_model(draft.request.model, policy)) return *problem;
  if (auto problem = check_tool_names(draft)) return *problem;
  RORQUAL_API_TRY_ASSIGN(draft.request.conversation.messages, convert_chat_messages(std::move(raw)));
  if (continues) continue_final_message(draft);
  return finish_request(std::move(draft), policy);
}

}  // namespace rorqual::api
