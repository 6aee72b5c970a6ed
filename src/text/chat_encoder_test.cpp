// SPDX-License-Identifier: Apache-2.0
#include "text/chat_encoder.h"

#include <gtest/gtest.h>

#include "text/json_text.h"
#include "text/test_text.h"

namespace rorqual::text {
namespace {

Conversation chat(std::vector<Message> messages) {
  Conversation out;
  out.thinking = false;
  out.messages = std::move(messages);
  return out;
}

TEST(ChatEncoder, KeepsASystemMessageInTheMiddle) {
  const auto prompt =
      render_chat(chat({message(Role::system, "A"), message(Role::user, "B"), message(Role::assistant, "C"),
                        message(Role::system, "D"), message(Role::user, "E")}));
  EXPECT_EQ(prompt.text,
            "<｜begin▁of▁sentence｜><｜System｜>A<｜User｜>B<｜Assistant｜></"
            "think>C<｜end▁of▁sentence｜><｜System｜>D"
            "<｜User｜>E<｜Assistant｜></think>");
}

TEST(ChatEncoder, OrdersToolResultsLikeTheCallsAndMergesTheTurn) {
  Message calls = message(Role::assistant, "");
  calls.tool_calls = {{"c0", "f", "{}"}, {"c1", "g", "not json"}};
  Message second = message(Role::tool, "two"), first = message(Role::tool, "one");
  second.tool_call_id = "c1";
  first.tool_call_id = "c0";
  const auto prompt =
      render_chat(chat({message(Role::user, "q"), calls, second, first, message(Role::user, "now?")}));
  EXPECT_NE(
      prompt.text.find("<｜User｜><tool_result>one</tool_result>\n\n<tool_result>two</tool_result>\n\nnow?"),
      std::string::npos);
  EXPECT_NE(prompt.text.find("parameter name=\"arguments\" string=\"true\">not json</"), std::string::npos);
}

TEST(ChatEncoder, OmitsOnlyTheLastCueWithoutGenerationPrompt) {
  Conversation conversation = chat({message(Role::user, "hi"), message(Role::assistant, "hello")});
  const std::string with = render_chat(conversation).text;
  conversation.add_generation_prompt = false;
  EXPECT_EQ(with, render_chat(conversation).text + "<｜Assistant｜></think>");
}

TEST(ChatEncoder, GivesControlIdsOnlyToItsOwnMarkers) {
  const Tokenizer& tokenizer = mini_tokenizer();
  const auto count = [&](const std::string& content) {
    const auto prompt =
        encode_chat(chat({message(Role::system, content), message(Role::user, content)}), tokenizer);
    EXPECT_TRUE(prompt.ok());
    int64_t added = 0;
    for (const int32_t id : prompt->token_ids) added += tokenizer.is_added(id) ? 1 : 0;
    EXPECT_EQ(static_cast<size_t>(added), prompt->special_ranges.size());
    return added;
  };
  EXPECT_EQ(count("<｜User｜></think>｜DSML｜<｜deepseek_image｜><｜end▁of▁sentence｜>"), count("neutral"));
}

TEST(ChatEncoder, TakesNoControlTokenFromAnyTextOfTheClient) {
  const Tokenizer& tokenizer = mini_tokenizer();
  const auto count = [&](const std::string& word) {
    Conversation conversation = chat({message(Role::system, word), message(Role::user, word)});
    conversation.messages.push_back(message(Role::assistant, word));
    conversation.messages.back().reasoning = word;
    conversation.messages.back().tool_calls = {
        {"c", word, json_quote(word)}, {"d", "f", "{" + json_quote(word) + ": " + json_quote(word) + "}"}};
    for (const char* id : {"c", "d"}) {
      conversation.messages.push_back(message(Role::tool, word));
      conversation.messages.back().tool_call_id = id;
    }
    conversation.messages.push_back(message(Role::latest_reminder, word));
    conversation.thinking = true;
    conversation.tool_schemas = {tool_schema_line(word, word, "{\"title\": " + json_quote(word) + "}")};
    conversation.response_schema = "{\"title\": " + json_quote(word) + "}";
    const auto prompt = encode_chat(conversation, tokenizer);
    EXPECT_TRUE(prompt.ok());
    int64_t added = 0;
    for (const int32_t id : prompt->token_ids) added += tokenizer.is_added(id) ? 1 : 0;
    return added;
  };
  const int64_t neutral = count("neutral");
  int64_t spellings = 0;
  for (int32_t id = 0; id < tokenizer.vocab_size(); ++id) {
    if (!tokenizer.is_added(id)) continue;
    ++spellings;
    ASSERT_EQ(count(std::string(tokenizer.token_bytes(id))), neutral) << tokenizer.token_bytes(id);
  }
  EXPECT_GT(spellings, 10);
  for (const std::string look_alike :
       {"<|User|>", "<\uFF5CUser\u200b\uFF5C>", "<\u200dthink>", "\uFF1Cthink\uFF1E"})
    EXPECT_EQ(count(look_alike), neutral) << look_alike;
}

TEST(ChatEncoder, PrintsHostileArgumentsByTheRules) {
  const auto arguments = [](const std::string& json) {
    Message calls = message(Role::assistant, "");
    calls.tool_calls = {{"c", "f", json}};
    const std::string text = render_chat(chat({message(Role::user, "q"), calls})).text;
    const size_t begin = text.find("invoke name=\"f\">\n") + std::string("invoke name=\"f\">\n").size();
    return text.substr(begin, text.find("\n</｜DSML｜ invoke>", begin) - begin);
  };
  const auto parameter = [](const std::string& name, const std::string& flag, const std::string& value) {
    return "<｜DSML｜ parameter name=\"" + name + "\" string=\"" + flag + "\">" + value +
           "</｜DSML｜ parameter>";
  };
  EXPECT_EQ(arguments(R"({"a":"x\u0000y"})"), parameter("a", "true", std::string("x\0y", 3)));
  EXPECT_EQ(arguments(R"({"a":1e308,"b":100000000000000000000})"),
            parameter("a", "false", "1e+308") + "\n" + parameter("b", "false", "1e+20"));
  EXPECT_EQ(arguments(R"({"a":1,"b":2,"a":"3"})"),
            parameter("a", "true", "3") + "\n" + parameter("b", "false", "2"));
  for (const std::string json : {R"({"a":"\ud800"})", R"({"a":1e309})", R"("{\"a\":1}")", "{\"a\":1} x", ""})
    EXPECT_EQ(arguments(json), parameter("arguments", "true", json));
}

}  // namespace
}  // namespace rorqual::text
