// SPDX-License-Identifier: Apache-2.0
// POST /v1/chat/completions: body to request. First the shape of everything (malformed body), then the rules
// (official texts) in the official order.
#include <set>

#include "api/body_reader.h"
#include "api/chat_messages.h"
#include "api/extension_fields.h"
#include "api/request.h"
#include "api/request_draft.h"
#include "api/structured_outputs.h"
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
  const bool may_be_many = policy.extensions;
  if (const auto top =
          reader.integer(body, "top_logprobs", may_be_many ? -1 : 0, may_be_many ? INT32_MAX : UINT8_MAX)) {
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
  read_length_fields(reader, body, policy, sampling);
}

void read_stream(BodyReader& reader, const Json& body, const ApiPolicy& policy, RequestDraft& draft) {
  auto& stream = draft.request.stream;
  stream.stream = reader.boolean_or(body, "stream", false);
  if (policy.extensions) stream.interval = reader.integer(body, "stream_interval", 1, INT32_MAX).value_or(1);
  const Json* options = reader.find(body, "stream_options");
  if (options == nullptr || !reader.expect_object(*options, "struct with field `include_usage`")) return;
  draft.has_stream_options = true;
  const auto scope = reader.enter("stream_options");
  stream.include_usage = reader.boolean_or(*options, "include_usage", false);
  stream.continuous_usage_stats = reader.boolean_or(*options, "continuous_usage_stats", false);
}

void read_tools(BodyReader& reader, const Json& body, const ApiPolicy& policy, RequestDraft& draft) {
  const Json* tools = reader.objects(body, "tools", "a tool");
  if (tools == nullptr) return;
  for (size_t i = 0; i < tools->size(); ++i) {
    const Json& item = (*tools)[i];
    const auto scope = reader.enter("tools", i);
    reader.require_variant(item, "type", {"function"});
    const Json* function = reader.require(item, "function");
    if (function == nullptr || !reader.expect_object(*function, "a function definition")) return;
    const auto function_scope = reader.enter("function");
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
    const auto scope = reader.enter("tool_choice");
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

void read_response_format(BodyReader& reader, const Json& body, const ApiPolicy& policy,
                          RequestDraft& draft) {
  const Json* format = reader.find(body, "response_format");
  if (format == nullptr || !reader.expect_object(*format, "an object with field `type`")) return;
  draft.has_format = true;
  const auto scope = reader.enter("response_format");
  if (policy.extensions && format->value("type", Json()) == "structural_tag") {
    draft.request.constraint = {Constraint::Kind::structural_tag,
                                text::json_text(*format, text::JsonStyle::compact)};
    return;
  }
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
  const auto holder_scope = reader.enter("json_schema");
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
  const auto scope = reader.enter("chat_template_kwargs");
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

/// What vLLM's fields say of the end of the conversation.
struct FinalMessage {
  bool continues = false;  // the assistant's message at the end is the beginning of the answer
  bool asks_for_cue = false;
};

FinalMessage read_final_message(BodyReader& reader, const Json& body, const ApiPolicy& policy) {
  if (!policy.extensions) return {};
  return {reader.boolean_or(body, "continue_final_message", false),
          reader.boolean_or(body, "add_generation_prompt", false)};
}

std::optional<ApiError> continue_final_message(const FinalMessage& final, RequestDraft& draft) {
  if (!final.continues) return std::nullopt;
  if (final.asks_for_cue) {
    return ApiError::conversion(
        "Cannot set both `continue_final_message` and `add_generation_prompt` to True.",
        "continue_final_message");
  }
  auto& messages = draft.request.conversation.messages;
  if (messages.empty() || messages.back().role != text::Role::assistant ||
      !messages.back().tool_calls.empty()) {
    return ApiError::conversion(
        "`continue_final_message` needs a last message of the assistant, without tool calls.",
        "continue_final_message");
  }
  messages.back().is_prefix = true;
  return std::nullopt;
}

std::optional<ApiError> check_tool_names(const RequestDraft& draft) {
  for (size_t i = 0; i < draft.tools.size(); ++i) {
    const std::string where = "tools[" + std::to_string(i) + "].function.name";
    if (auto problem = check_tool_name(draft.tools[i].name, where)) return std::move(*problem).in(where);
  }
  return std::nullopt;
}

ApiResult<ChatRequest> parse(std::string_view text, const ApiPolicy& policy) {
  RORQUAL_API_TRY_ASSIGN(Json body, parse_body(text));
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
  read_response_format(reader, body, policy, draft);
  read_sampling(reader, body, policy, draft);
  read_stream(reader, body, policy, draft);
  read_template_fields(reader, body, policy, draft);
  read_structured_outputs(reader, body, policy, draft.request.constraint);
  read_prompt_fields(reader, body, policy, draft.request.prompt);
  check_fields_without_effect(reader, body, policy);
  draft.request.echo = policy.extensions && reader.boolean_or(body, "echo", false);
  const FinalMessage final = read_final_message(reader, body, policy);
  if (!reader.ok()) return reader.error();

  if (auto problem = check_model(draft.request.model, policy)) return *problem;
  if (auto problem = refuse_fields(body, policy)) return *problem;
  if (auto problem = check_tool_names(draft)) return *problem;
  RORQUAL_API_TRY_ASSIGN(draft.request.conversation.messages, convert_chat_messages(std::move(raw)));
  if (auto problem = continue_final_message(final, draft)) return *problem;
  return finish_request(std::move(draft), policy);
}

}  // namespace

ApiResult<ChatRequest> parse_chat_request(std::string_view text, const ApiPolicy& policy) {
  return in_policy_form(parse(text, policy), policy);
}

}  // namespace rorqual::api
