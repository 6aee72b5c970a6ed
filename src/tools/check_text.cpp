// SPDX-License-Identifier: Apache-2.0
// Text vectors: one function per kind, one line of JSON per case.
#include "tools/check_text.h"

#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <sstream>

#include "api/request.h"
#include "base/file.h"
#include "text/chat_encoder.h"
#include "text/image_tokens.h"
#include "text/json_text.h"
#include "text/tokenizer.h"
#include "tools/check_differences.h"
#include "tools/check_parsing.h"
#include "tools/check_report.h"

namespace rorqual::tools {

namespace {

using Json = nlohmann::ordered_json;

constexpr int64_t kMaxFile_bytes = int64_t{256} << 20;

/// Problem of a case, or "".
using Check = std::function<std::string(const Json&)>;

std::string compact(const Json& value) {
  return text::json_text(value, text::JsonStyle::compact);
}

// ---- encoding ----

const char* stage_name(text::InitialStage stage) {
  switch (stage) {
    case text::InitialStage::reasoning:
      return "ReasoningStart";
    case text::InitialStage::reasoning_continuation:
      return "ReasoningContinuation";
    case text::InitialStage::content_continuation:
      return "ContentContinuation";
    case text::InitialStage::content:
      break;
  }
  return nullptr;
}

Json images_json(const std::vector<text::ImageInput>& images) {
  Json out = Json::array();
  for (const auto& image : images) {
    out.push_back({{"kind", image.kind == text::ImageInput::Kind::url ? "url" : "data_url"},
                   {"url", image.url},
                   {"detail", image.detail},
                   {"path", image.path}});
  }
  return out;
}

Json parsing_json(const text::ParserOptions& options) {
  const char* stage = stage_name(options.initial_stage);
  return {{"parse_tool_calls", options.parse_tool_calls},
          {"starts_in_tool_calls", options.starts_in_tool_calls},
          {"parse_json_output", options.parse_json_output},
          {"thinking_initial_stage", stage == nullptr ? Json(nullptr) : Json(stage)},
          {"stop", options.stop}};
}

Json inference_json(const api::ChatRequest& request) {
  const auto& s = request.sampling;
  const char* kind = request.constraint.kind_name();
  return {{"max_tokens", optional_json(s.max_tokens)},
          {"temperature", static_cast<double>(s.temperature)},
          {"top_p", static_cast<double>(s.top_p)},
          {"logprobs", s.logprobs},
          {"top_logprobs", optional_json(s.top_logprobs)},
          {"seed", optional_json(s.seed)},
          {"constraint", kind == nullptr ? Json(nullptr) : Json{kind, request.constraint.text}}};
}

api::ApiResult<api::ChatRequest> parse_request(const std::string& api_name, const std::string& body) {
  static const api::ApiPolicy policy = api::ApiPolicy::official({"DeepSeek-V4-Pro", "DeepSeek-V4.1-Flash"});
  if (api_name == "messages") return api::parse_messages_request(body, policy);
  if (api_name == "responses") return api::parse_responses_request(body, policy);
  return api::parse_chat_request(body, policy);
}

std::string check_error(const api::ApiResult<api::ChatRequest>& parsed, const Json& expected) {
  if (parsed.ok()) return "accepted, expected an error: " + compact(expected).substr(0, 300);
  const api::ApiError& error = parsed.error();
  const bool is_conversion = error.error_class == api::ErrorClass::conversion;
  Json got{{"class", is_conversion ? "conversion" : "malformed_body"}, {"status", error.http_status}};
  Json want{{"class", expected.at("class")}, {"status", expected.at("status")}};
  if (expected.at("class") == "conversion") {
    got["body"] = is_conversion ? Json::parse(error.body(), nullptr, false) : Json(error.message);
    want["body"] = expected.at("body");
  }
  return value_difference("error", got, want);
}

std::string check_encoding_case(const Json& row, const text::Tokenizer& tokenizer) {
  const Json& expected = row.at("expected");
  const auto parsed = parse_request(row.at("api").get<std::string>(), compact(row.at("request")));
  if (expected.contains("error")) return check_error(parsed, expected.at("error"));
  if (!parsed.ok()) return "refused: " + parsed.error().message;
  const auto prompt = text::encode_chat(parsed->conversation, tokenizer);
  if (!prompt.ok()) return prompt.error().message();
  return first_of({text_difference("prompt", prompt->text, expected.at("prompt").get<std::string>()),
                   value_difference("special_ranges", prompt->special_ranges, expected.at("special_ranges")),
                   ids_difference("token_ids", prompt->token_ids, expected.at("token_ids")),
                   value_difference("images", images_json(prompt->images), expected.at("images")),
                   value_difference("parsing", parsing_json(parsed->parsing), expected.at("parsing")),
                   value_difference("inference", inference_json(*parsed), expected.at("inference"))});
}

// ---- features of the reference encoder ----

std::optional<int32_t> reference_effort(const Json& value) {
  if (value.is_null()) return 75;
  if (value.is_number_integer() && value >= 1 && value <= 100) return value.get<int32_t>();
  if (value == "low") return 50;
  if (value == "high" || value == "xhigh") return 75;
  if (value == "max") return 100;
  return std::nullopt;
}

std::optional<text::Role> reference_role(const std::string& name) {
  using text::Role;
  for (const auto& [role_name, role] : {std::pair{"system", Role::system},
                                        {"user", Role::user},
                                        {"assistant", Role::assistant},
                                        {"tool", Role::tool},
                                        {"latest_reminder", Role::latest_reminder},
                                        {"developer", Role::developer}}) {
    if (name == role_name) return role;
  }
  return std::nullopt;
}

std::string tool_line(const Json& tool) {
  const Json& function = tool.contains("function") ? tool.at("function") : tool;
  return text::json_text(function);
}

/// One message of the reference encoder's input; tools and response_format may hang on it.
std::optional<text::Message> reference_message(const Json& item, text::Conversation& conversation) {
  const auto role = reference_role(item.value("role", ""));
  if (!role) return std::nullopt;
  text::Message message;
  message.role = *role;
  message.content.push_back({false,
                             item.contains("content") && item.at("content").is_string()
                                 ? item.at("content").get<std::string>()
                                 : "",
                             {}});
  if (item.contains("reasoning_content") && item.at("reasoning_content").is_string())
    message.reasoning = item.at("reasoning_content").get<std::string>();
  message.tool_call_id = item.value("tool_call_id", "");
  message.is_prefix = item.value("wo_eos", false) || item.value("prefix", false);
  if (item.contains("task") && item.at("task").is_string()) {
    message.task = text::quick_task_from_name(item.at("task").get<std::string>());
    if (message.task == text::QuickTask::none) return std::nullopt;
  }
  for (const auto& call : item.value("tool_calls", Json::array())) {
    const Json& function = call.at("function");
    message.tool_calls.push_back({call.value("id", ""), function.at("name").get<std::string>(),
                                  function.at("arguments").get<std::string>()});
  }
  for (const auto& tool : item.value("tools", Json::array()))
    conversation.tool_schemas.push_back(tool_line(tool));
  if (item.contains("response_format"))
    conversation.response_schema = text::json_text(item.at("response_format"));
  return message;
}

bool append_messages(const Json& list, text::Conversation& conversation) {
  for (const auto& item : list) {
    auto message = reference_message(item, conversation);
    if (!message) return false;
    conversation.messages.push_back(*std::move(message));
  }
  return true;
}

/// nullopt where the reference encoder refuses the input.
std::optional<text::Conversation> reference_conversation(const Json& row) {
  const Json& kwargs = row.at("kwargs");
  text::Conversation conversation;
  conversation.thinking = row.at("thinking_mode") == "thinking";
  const auto effort = reference_effort(kwargs.value("reasoning_effort", Json(nullptr)));
  if (conversation.thinking && !effort) return std::nullopt;
  conversation.effort = effort.value_or(75);
  conversation.add_bos = kwargs.value("add_default_bos_token", true);
  conversation.keep_reasoning =
      kwargs.value("drop_thinking", true) ? text::KeepReasoning::after_last_user : text::KeepReasoning::all;
  const Json context =
      kwargs.contains("context") && kwargs.at("context").is_array() ? kwargs.at("context") : Json::array();
  if (!append_messages(context, conversation)) return std::nullopt;
  conversation.num_context_messages = conversation.messages.size();
  if (!append_messages(row.at("messages"), conversation)) return std::nullopt;
  return conversation;
}

std::string check_encoder_ext_case(const Json& row) {
  const Json& expected = row.at("expected");
  const auto conversation = reference_conversation(row);
  if (expected.contains("error")) {
    return conversation ? "accepted, expected an error: " + compact(expected.at("error")).substr(0, 200)
                        : std::string();
  }
  if (!conversation) return "refused";
  return text_difference("prompt", text::render_chat(*conversation).text,
                         expected.at("prompt").get<std::string>());
}

// ---- tokenizer ----

std::string check_tokenizer_case(const Json& row, const text::Tokenizer& tokenizer) {
  const auto text = row.at("text").get<std::string>();
  const auto with_added = tokenizer.encode(text, text::EncodeMode::with_added);
  text::Detokenizer stream(tokenizer, false);
  std::string streamed;
  for (const int32_t id : with_added) streamed += stream.push(id);
  streamed += stream.flush();
  return first_of(
      {ids_difference("ids_plain", tokenizer.encode(text, text::EncodeMode::plain), row.at("ids_plain")),
       ids_difference("ids_with_added", with_added, row.at("ids_with_added")),
       text_difference("decoded text", tokenizer.decode(with_added, false), text),
       text_difference("streamed text", streamed, text)});
}

std::string check_image_tokens_case(const Json& row) {
  const auto count = text::image_token_count(row.at("width").get<int64_t>(), row.at("height").get<int64_t>());
  if (!count.ok()) return count.error().message();
  return value_difference("image_tokens", *count, row.at("image_tokens"));
}

// ---- files ----

Status check_file(const std::string& path, const Check& check, CheckReport& report) {
  RORQUAL_TRY_ASSIGN(const std::string content, read_text_file(path, kMaxFile_bytes));
  std::istringstream lines(content);
  std::string line;
  for (int64_t number = 1; std::getline(lines, line); ++number) {
    if (line.empty()) continue;
    const Json row = Json::parse(line, nullptr, false);
    if (!row.is_object()) {
      return Error(Code::corrupt_data, path + ":" + std::to_string(number) + ": not a JSON object",
                   "vector files have one JSON object per line");
    }
    const std::string place = path + ":" + std::to_string(number);
    try {
      const std::string problem = check(row);
      report.expect(problem.empty(), [&] { return row.value("id", place) + ": " + problem; });
    } catch (
        const Json::exception& error) {  // a vector file is input: a field may be absent or of another type
      return Error(Code::corrupt_data, place + ": not a vector of this kind: " + error.what(),
                   "give the files of one KIND; tests/golden/encoding/README.md has their fields");
    }
  }
  return Ok{};
}

Result<Check> make_check(const CheckTextOptions& options) {
  if (options.kind == "encoder-ext") return Check(check_encoder_ext_case);
  if (options.kind == "image-tokens") return Check(check_image_tokens_case);
  std::string (*check)(const Json&, const text::Tokenizer&) = nullptr;
  if (options.kind == "encoding") check = check_encoding_case;
  if (options.kind == "tokenizer") check = check_tokenizer_case;
  if (options.kind == "parsing") check = check_parsing_case;
  if (check == nullptr) {
    return Error(Code::invalid_argument, "unknown kind of check '" + options.kind + "'",
                 "text kinds: encoding, encoder-ext, tokenizer, parsing, image-tokens");
  }
  if (options.tokenizer.empty()) {
    return Error(Code::invalid_argument, "check " + options.kind + " needs the tokenizer of DeepSeek-V4.1",
                 "give --tokenizer FILE; scripts/make_real_tokenizer.py makes the file");
  }
  auto json_file = read_text_file(options.tokenizer, kMaxFile_bytes);
  if (!json_file.ok()) {
    return Error(
        json_file.error().code(), "cannot read the tokenizer: " + json_file.error().message(),
        "scripts/setup --test makes .cache/tokenizer-v41/tokenizer.json (scripts/make_real_tokenizer.py)");
  }
  const std::string json = *std::move(json_file);
  RORQUAL_TRY_ASSIGN(auto tokenizer, text::Tokenizer::from_json(json));
  const auto shared = std::make_shared<const text::Tokenizer>(std::move(tokenizer));
  return Check([check, shared](const Json& row) { return check(row, *shared); });
}

}  // namespace

Status check_text(const CheckTextOptions& options, CheckReport& report) {
  RORQUAL_TRY_ASSIGN(const Check check, make_check(options));
  for (const auto& file : options.files) RORQUAL_TRY(check_file(file, check, report));
  return Ok{};
}

}  // namespace rorqual::tools
