// SPDX-License-Identifier: Apache-2.0
#include "api/request.h"

#include <gtest/gtest.h>

#include "api/json_values.h"

namespace rorqual::api {
namespace {

ApiPolicy open_policy() {
  ApiPolicy policy;
  policy.model_names = {"m"};
  return policy;
}

std::string chat_body(const std::string& fields) {
  return R"({"model":"m","messages":[{"role":"user","content":"q"}])" + (fields.empty() ? "" : "," + fields) +
         "}";
}

ApiError chat_error(const std::string& fields, const ApiPolicy& policy = open_policy()) {
  const auto request = parse_chat_request(chat_body(fields), policy);
  EXPECT_FALSE(request.ok()) << fields;
  return request.ok() ? ApiError{} : request.error();
}

TEST(ChatRequest, ReadsTheExtensions) {
  const auto request = parse_chat_request(
      chat_body(R"("top_k":-1,"min_p":0.1,"temperature":0,"n":2,"logit_bias":{"5":-1.5},"stop":"x","seed":7,
                   "max_completion_tokens":9,"prompt_logprobs":3,"stop_token_ids":[4],"reasoning_effort":33)"),
      open_policy());
  ASSERT_TRUE(request.ok()) << request.error().message;
  EXPECT_EQ(request->sampling.top_k, 0);
  EXPECT_FLOAT_EQ(request->sampling.min_p, 0.1f);
  EXPECT_EQ(request->sampling.temperature, 0.0f);
  EXPECT_EQ(request->sampling.n, 2);
  EXPECT_EQ(request->sampling.max_tokens, 9);
  EXPECT_EQ(request->sampling.prompt_logprobs, 3);
  EXPECT_EQ(request->conversation.effort, 33);
  ASSERT_EQ(request->sampling.logit_bias.size(), 1u);
  EXPECT_EQ(request->sampling.logit_bias[0].first, 5);
  EXPECT_EQ(request->parsing.stop, std::vector<std::string>{"x"});
}

TEST(ChatRequest, PinsSamplingUnderTheOfficialPolicyOnly) {
  const std::string fields = R"("temperature":0.5,"top_p":0.5)";
  EXPECT_FLOAT_EQ(parse_chat_request(chat_body(fields), open_policy())->sampling.top_p, 0.5f);
  const auto pinned = parse_chat_request(chat_body(fields), ApiPolicy::official({"m"}));
  ASSERT_TRUE(pinned.ok());
  EXPECT_FLOAT_EQ(pinned->sampling.temperature, 1.0f);
  EXPECT_FLOAT_EQ(pinned->sampling.top_p, 0.95f);
}

TEST(ChatRequest, RefusesNumbersOutOfRangeInEveryField) {
  for (const std::string field :
       {"max_tokens", "n", "seed", "top_k", "min_tokens", "prompt_logprobs", "top_logprobs", "priority",
        "temperature", "top_p", "min_p", "repetition_penalty"}) {
    for (const std::string value : {"-2", "1.5e300", "\"1\"", "true", "[]", "1e400"}) {
      const bool is_fine = field == "priority" && value == "-2";
      const auto request = parse_chat_request(chat_body("\"" + field + "\":" + value), open_policy());
      EXPECT_EQ(request.ok(), is_fine) << field << " " << value;
      if (!request.ok()) {
        EXPECT_EQ(request.error().http_status, 400);
      }
    }
  }
}

TEST(ChatRequest, NamesTheServedModels) {
  const auto request = parse_chat_request(R"({"model":"x","messages":[]})", open_policy());
  ASSERT_FALSE(request.ok());
  EXPECT_EQ(request.error().http_status, 404);
  EXPECT_NE(request.error().message.find("m"), std::string::npos);
}

TEST(ChatRequest, LimitsDepthAndRefusesBrokenBodies) {
  EXPECT_EQ(chat_error("\"x\":" + std::string(100000, '[')).error_class, ErrorClass::malformed_body);
  EXPECT_EQ(chat_error("\"temperature\":NaN").error_class, ErrorClass::malformed_body);
  EXPECT_FALSE(parse_chat_request("[]", open_policy()).ok());
  EXPECT_FALSE(parse_chat_request("", open_policy()).ok());
}

TEST(JsonValues, AreCountedOutsideOfStrings) {
  EXPECT_FALSE(has_more_values("[1,2,3]", 4));
  EXPECT_TRUE(has_more_values("[1,2,3,4]", 4));
  EXPECT_TRUE(has_more_values("[[],[],{}]", 3));
  EXPECT_FALSE(has_more_values(R"([",,,,[[{{", "\",,,,"])", 3));
  EXPECT_FALSE(has_more_values("[\"\\", 2));  // ends inside an escape
}

TEST(ChatRequest, GivesTheOfficialErrorBody) {
  EXPECT_EQ(chat_error(R"("top_p":0)", ApiPolicy::official({"m"})).body(),
            R"({"error":{"message":"Invalid top_p value, the valid range of top_p is (0, 1.0]",)"
            R"("type":"invalid_request_error","param":null,"code":"invalid_request_error"}})");
}

TEST(ChatRequest, MapsTheDeveloperRoleUnlessToldOtherwise) {
  const std::string body =
      R"({"model":"m","messages":[{"role":"developer","content":"d"},{"role":"user","content":"q"}]})";
  const auto request = parse_chat_request(body, open_policy());
  ASSERT_TRUE(request.ok());
  EXPECT_EQ(request->conversation.messages[0].role, text::Role::system);
  EXPECT_FALSE(parse_chat_request(body, ApiPolicy::official({"m"})).ok());
}

/// The prompt of a body under the switches `names`.
std::string prompt_of(const std::string& body, const std::string& names) {
  ApiPolicy policy = open_policy();
  policy.prompt_compat = *text::parse_prompt_compat(names);
  const auto request = parse_chat_request(body, policy);
  EXPECT_TRUE(request.ok()) << body << names << (request.ok() ? "" : request.error().message);
  return request.ok() ? text::render_chat(request->conversation).text : "";
}

constexpr const char* kTool =
    R"("tools":[{"type":"function","function":{"parameters":{"type":"object"},"extra":1,"name":"f"}}])";

TEST(PromptSwitches, DeveloperIsAUserTurnInsteadOfASystemMessage) {
  const std::string body =
      R"({"model":"m","thinking":{"type":"disabled"},
          "messages":[{"role":"developer","content":"d"},{"role":"user","content":"q"}]})";
  EXPECT_EQ(prompt_of(body, ""), "<｜begin▁of▁sentence｜><｜System｜>d<｜User｜>q<｜Assistant｜></think>");
  EXPECT_EQ(prompt_of(body, "developer"),
            "<｜begin▁of▁sentence｜><｜User｜>d<｜User｜>q<｜Assistant｜></think>");
}

TEST(PromptSwitches, DeveloperHoldsForResponsesToo) {
  const std::string body =
      R"({"model":"m","reasoning":{"effort":"none"},"input":[{"role":"developer","content":"d"},
          {"role":"user","content":"q"}]})";
  ApiPolicy policy = open_policy();
  policy.prompt_compat.developer = true;
  const auto request = parse_responses_request(body, policy);
  ASSERT_TRUE(request.ok()) << request.error().message;
  EXPECT_EQ(text::render_chat(request->conversation).text,
            "<｜begin▁of▁sentence｜><｜User｜>d<｜User｜>q<｜Assistant｜></think>");
}

TEST(PromptSwitches, ResponseFormatIsNotShown) {
  for (const std::string format : {R"({"type":"json_object"})",
                                   R"({"type":"json_schema","json_schema":{"schema":{"type":"object"}}})"}) {
    const std::string body =
        R"({"model":"m","messages":[{"role":"user","content":"json"}],"response_format":)" + format + "}";
    EXPECT_NE(prompt_of(body, "").find("## Response Format:"), std::string::npos);
    EXPECT_EQ(prompt_of(body, "response_format"),
              prompt_of(R"({"model":"m","messages":[{"role":"user","content":"json"}]})", ""));
  }
}

TEST(PromptSwitches, ToolsStayWithToolChoiceNone) {
  const std::string body = R"({"model":"m","messages":[{"role":"user","content":"q"}],)" + std::string(kTool);
  EXPECT_EQ(prompt_of(body + R"(,"tool_choice":"none"})", "").find("## Tools"), std::string::npos);
  EXPECT_EQ(prompt_of(body + R"(,"tool_choice":"none"})", "tool_choice_none"), prompt_of(body + "}", ""));
  ApiPolicy policy = open_policy();
  policy.prompt_compat.tool_choice_none = true;
  const auto request = parse_chat_request(body + R"(,"tool_choice":"none"})", policy);
  ASSERT_TRUE(request.ok());
  EXPECT_FALSE(request->parsing.parse_tool_calls);
  EXPECT_EQ(request->constraint.kind, Constraint::Kind::none);
}

TEST(PromptSwitches, ToolFieldsArePrintedAsSent) {
  const std::string body =
      R"({"model":"m","messages":[{"role":"user","content":"q"}],)" + std::string(kTool) + "}";
  EXPECT_NE(prompt_of(body, "").find("\n{\"name\": \"f\", \"description\": \"\", \"parameters\": {\"type\": "
                                     "\"object\"}}\n"),
            std::string::npos);
  EXPECT_NE(prompt_of(body, "tool_fields")
                .find("\n{\"parameters\": {\"type\": \"object\"}, \"extra\": 1, \"name\": \"f\"}\n"),
            std::string::npos);
}

TEST(PromptSwitches, LeadingSystemAndPlainTextReachTheConversation) {
  const std::string body = R"({"model":"m","messages":[{"role":"user","content":"q"},
      {"role":"system","content":"S"}],)" +
                           std::string(kTool) + "}";
  EXPECT_NE(prompt_of(body, "leading_system").find("<｜System｜>S\n\n## Tools"), std::string::npos);
  EXPECT_EQ(prompt_of(body, "").find("<｜System｜>S\n\n## Tools"), std::string::npos);
  ApiPolicy policy = open_policy();
  policy.prompt_compat.plain_text = true;
  EXPECT_TRUE(parse_chat_request(body, policy)->conversation.spells_control_tokens);
}

TEST(ChatRequest, ContinuesTheFinalMessage) {
  const auto request = parse_chat_request(
      R"({"model":"m","continue_final_message":true,"messages":[{"role":"user","content":"q"},
          {"role":"assistant","content":"Once"}]})",
      open_policy());
  ASSERT_TRUE(request.ok()) << request.error().message;
  EXPECT_EQ(request->parsing.initial_stage, text::InitialStage::content_continuation);
  EXPECT_NE(chat_error(R"("continue_final_message":"yes")").message.find("continue_final_message"),
            std::string::npos);
}

TEST(MaxTokens, DependOnModeAndRoom) {
  const auto request = parse_chat_request(chat_body(""), open_policy());
  EXPECT_EQ(*resolve_max_tokens(*request, 100, 1048576), 65536);
  EXPECT_EQ(*resolve_max_tokens(*request, 100, 4096), 3996);
  const auto chat =
      parse_chat_request(chat_body(R"("thinking":{"type":"disabled"},"max_tokens":50)"), open_policy());
  EXPECT_EQ(*resolve_max_tokens(*chat, 100, 4096), 50);
  const auto full = resolve_max_tokens(*chat, 4090, 4096);
  ASSERT_FALSE(full.ok());
  EXPECT_NE(full.error().message.find("4096 tokens"), std::string::npos);
  EXPECT_NE(full.error().message.find("4140 tokens"), std::string::npos);
}

TEST(CompletionRequest, TakesTextTokensAndLists) {
  const auto one = parse_completion_request(R"({"model":"m","prompt":"a"})", open_policy());
  ASSERT_TRUE(one.ok());
  EXPECT_EQ(one->sampling.max_tokens, 16);
  const auto ids = parse_completion_request(
      R"({"model":"m","prompt":[[1,2],[3]],"echo":true,"max_tokens":0,"logprobs":5})", open_policy());
  ASSERT_TRUE(ids.ok()) << ids.error().message;
  ASSERT_EQ(ids->prompts.size(), 2u);
  EXPECT_EQ(ids->prompts[0].tokens, (std::vector<int32_t>{1, 2}));
  EXPECT_EQ(ids->sampling.max_tokens, 0);
  EXPECT_EQ(ids->sampling.top_logprobs, 5);
  for (const std::string prompt :
       {"[]", "[[]]", "[-1]", "[2147483648]", "[1.5]", "null", "{}", "[1,\"a\"]"}) {
    EXPECT_FALSE(parse_completion_request("{\"model\":\"m\",\"prompt\":" + prompt + "}", open_policy()).ok())
        << prompt;
  }
}

TEST(CompletionRequest, TakesConstraintsAsChatDoes) {
  const std::string body = R"({"model":"m","prompt":"a",)";
  const auto regex = parse_completion_request(body + R"("structured_outputs":{"regex":"a"}})", open_policy());
  ASSERT_TRUE(regex.ok()) << regex.error().message;
  EXPECT_EQ(regex->constraint.kind, Constraint::Kind::regex);
  EXPECT_EQ(regex->constraint.text, "a");
  const auto format = parse_completion_request(
      body + R"("response_format":{"type":"json_schema","json_schema":{"schema":{"type":"null"}}}})",
      open_policy());
  ASSERT_TRUE(format.ok()) << format.error().message;
  EXPECT_EQ(format->constraint.kind, Constraint::Kind::json);
  EXPECT_EQ(format->constraint.text, R"({"type":"null"})");
  EXPECT_TRUE(parse_completion_request(body + R"("structured_outputs":null})", open_policy()).ok());
  for (const char* outputs : {R"({})", R"({"regex":"a","choice":["b"]})",
                              R"({"regex":"a","whitespace_pattern":" "})", R"({"regex":""})"}) {
    const auto refused =
        parse_completion_request(body + R"("structured_outputs":)" + outputs + "}", open_policy());
    ASSERT_FALSE(refused.ok()) << outputs;
    EXPECT_NE(refused.error().message.find("structured_outputs"), std::string::npos);
  }
}

TEST(ChatRequest, ConstraintsDoNotPushEachOtherAside) {
  const std::string body =
      R"({"model":"m","messages":[{"role":"user","content":"json"}],"thinking":{"type":"disabled"},"structured_outputs":{"regex":"a"})";
  EXPECT_TRUE(parse_chat_request(body + "}", open_policy()).ok());
  const std::string tools = R"(,"tools":[{"type":"function","function":{"name":"f"}}])";
  for (const std::string& more : {tools, std::string(R"(,"response_format":{"type":"json_object"})")}) {
    EXPECT_FALSE(parse_chat_request(body + more + "}", open_policy()).ok()) << more;
  }
  EXPECT_TRUE(parse_chat_request(body + tools + R"(,"tool_choice":"none"})", open_policy()).ok());
}

/// The official form leaves definitions out and references dangling; what is enforced has them.
TEST(ChatRequest, StrictSchemasAreEnforcedWithTheirDefinitions) {
  const std::string schema =
      R"({"type":"object","properties":{"p":{"$ref":"#/$defs/q"}},"$defs":{"q":{"type":"object","properties":{"n":{"type":"integer"}}}}})";
  const auto request = parse_chat_request(
      R"({"model":"m","messages":[{"role":"user","content":"a"}],"response_format":{"type":"json_schema","json_schema":{"strict":true,"schema":)" +
          schema + "}}}",
      open_policy());
  ASSERT_TRUE(request.ok()) << request.error().message;
  EXPECT_EQ(request->constraint.text.find("\"$defs\":"), std::string::npos);
  EXPECT_NE(
      request->constraint.enforced_text.find(
          R"("$defs":{"q":{"type":"object","properties":{"n":{"type":"integer"}},"additionalProperties":false,"required":["n"]}})"),
      std::string::npos)
      << request->constraint.enforced_text;
  const auto tool = parse_chat_request(
      R"({"model":"m","messages":[{"role":"user","content":"a"}],"tools":[{"type":"function","function":{"name":"f","strict":true,"parameters":)" +
          schema + "}}]}",
      open_policy());
  ASSERT_TRUE(tool.ok()) << tool.error().message;
  EXPECT_EQ(tool->constraint.text.find("\"$defs\":"), std::string::npos);
  EXPECT_NE(tool->constraint.enforced_text.find("\"$defs\":"), std::string::npos);
}

TEST(TokenizeRequest, TakesPromptOrMessages) {
  EXPECT_TRUE(parse_tokenize_request(R"({"prompt":"a"})", open_policy()).ok());
  const auto chat = parse_tokenize_request(R"({"messages":[{"role":"user","content":"q"}]})", open_policy());
  ASSERT_TRUE(chat.ok()) << chat.error().message;
  EXPECT_EQ(chat->conversation->messages.size(), 1u);
  EXPECT_FALSE(parse_tokenize_request("{}", open_policy()).ok());
  EXPECT_EQ(*parse_detokenize_request(R"({"tokens":[1,2]})"), (std::vector<int32_t>{1, 2}));
  for (const std::string tokens : {"[-1]", "null", "5", "\"a\"", "[null]"}) {
    EXPECT_FALSE(parse_detokenize_request("{\"tokens\":" + tokens + "}").ok()) << tokens;
  }
}

TEST(ChatRequest, ErrorsNameTheirFieldUnlessThePolicyIsTheOfficialOne) {
  for (const auto& [fields, param] :
       {std::pair{R"("temperature":3)", "temperature"}, {R"("thinking":{"type":"x"})", "thinking.type"}}) {
    EXPECT_EQ(chat_error(fields).param, param);
    EXPECT_EQ(chat_error(fields, ApiPolicy::official({"m"})).param, "");
  }
}

TEST(ResponsesRequest, KeepsWhereAToolCameFrom) {
  const auto request = parse_responses_request(
      R"({"model":"m","input":"q","tools":[{"type":"custom","name":"apply_patch"},{"type":"namespace","name":"n",
          "tools":[{"type":"function","name":"f"}]},{"type":"function","name":"g"}]})",
      open_policy());
  ASSERT_TRUE(request.ok()) << request.error().message;
  ASSERT_EQ(request->tool_origins.size(), 2u);
  EXPECT_EQ(request->tool_origins[0].wire_name, "apply_patch");
  EXPECT_TRUE(request->tool_origins[0].is_custom);
  EXPECT_EQ(request->tool_origins[1].wire_name, "n::f");
  EXPECT_EQ(request->tool_origins[1].name_space, "n");
  EXPECT_EQ(request->tool_origins[1].name, "f");
}

TEST(ResponsesRequest, RefusesWhatNeedsStoredStateUnlessThePolicyIsTheOfficialOne) {
  const std::string body = R"({"model":"m","input":"q","previous_response_id":"r"})";
  EXPECT_FALSE(parse_responses_request(body, open_policy()).ok());
  EXPECT_TRUE(parse_responses_request(body, ApiPolicy::official({"m"})).ok());
}

TEST(MessagesRequest, TakesCustomToolsAndTheFormatOfTheText) {
  const auto body = [](const std::string& fields) {
    return R"({"model":"m","messages":[{"role":"user","content":"q"}],)" + fields + "}";
  };
  const std::string tool = R"("tools":[{"type":"custom","name":"f","input_schema":{"type":"object"}}])";
  const auto request = parse_messages_request(body(tool), open_policy());
  ASSERT_TRUE(request.ok()) << request.error().message;
  EXPECT_EQ(request->conversation.tool_schemas.size(), 1u);
  EXPECT_FALSE(parse_messages_request(body(tool), ApiPolicy::official({"m"})).ok());
  const auto with_format = parse_messages_request(
      body(R"("output_config":{"format":{"type":"json_schema","schema":{"type":"object"}}})"), open_policy());
  ASSERT_TRUE(with_format.ok()) << with_format.error().message;
  EXPECT_EQ(with_format->constraint.kind, Constraint::Kind::json);
  EXPECT_EQ(with_format->constraint.text, R"({"type":"object"})");
  const auto wrong =
      parse_messages_request(body(R"("output_config":{"format":{"type":"xml"}})"), open_policy());
  ASSERT_FALSE(wrong.ok());
  EXPECT_EQ(wrong.error().param, "output_config.format.type");
}

}  // namespace
}  // namespace rorqual::api
