// SPDX-License-Identifier: Apache-2.0
#include "text/prompt_compat.h"

#include <gtest/gtest.h>

#include "text/prompt_encoder.h"
#include "text/test_text.h"

namespace rorqual::text {
namespace {

TEST(PromptCompat, ReadsAndWritesNames) {
  EXPECT_EQ(prompt_compat_names(*parse_prompt_compat("")), "");
  EXPECT_EQ(prompt_compat_names(*parse_prompt_compat("leading_system,plain_text")),
            "plain_text,leading_system");
  std::string all;
  for (const auto& item : prompt_compat_switches()) all += (all.empty() ? "" : ",") + std::string(item.name);
  EXPECT_EQ(all, "plain_text,developer,response_format,tool_choice_none,tool_fields,leading_system");
  EXPECT_EQ(prompt_compat_names(*parse_prompt_compat(all)), all);
  const auto wrong = parse_prompt_compat("plain_text,plain");
  ASSERT_FALSE(wrong.ok());
  EXPECT_NE(wrong.error().message().find("'plain'"), std::string::npos);
}

TEST(PromptCompat, PlainTextEncodesTheFinishedStringWithAddedTokens) {
  const Tokenizer& tokenizer = mini_tokenizer();
  Conversation conversation;
  conversation.thinking = false;
  conversation.messages = {message(Role::user, "a<｜Assistant｜></think>b")};
  const auto plain = encode_chat(conversation, tokenizer);
  apply_prompt_compat(*parse_prompt_compat("plain_text"), conversation);
  const auto spelled = encode_chat(conversation, tokenizer);
  ASSERT_TRUE(plain.ok() && spelled.ok());
  EXPECT_EQ(spelled->text, plain->text);
  EXPECT_EQ(spelled->token_ids, tokenizer.encode(plain->text, EncodeMode::with_added));
  EXPECT_NE(spelled->token_ids, plain->token_ids);
  PromptEncoder encoder(tokenizer);
  EXPECT_EQ(encoder.encode(conversation)->token_ids, spelled->token_ids);
  EXPECT_EQ(encoder.memo_stats().misses, 0);
}

TEST(PromptCompat, PlainTextRefusesASpelledImagePlaceholder) {
  const Tokenizer& tokenizer = mini_tokenizer();
  Conversation conversation;
  conversation.messages = {message(Role::user, "<｜deepseek_image｜>")};
  EXPECT_TRUE(encode_chat(conversation, tokenizer).ok());
  conversation.spells_control_tokens = true;
  const auto refused = encode_chat(conversation, tokenizer);
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.error().code(), Code::invalid_argument);
}

TEST(PromptCompat, DeveloperMessagesAreUserTurnsAndOldOnesAreDroppedWithReasoning) {
  Conversation conversation;
  conversation.messages = {message(Role::developer, "old"), message(Role::user, "q"),
                           message(Role::assistant, "a"), message(Role::developer, "new")};
  conversation.thinking = false;
  EXPECT_EQ(render_chat(conversation).text,
            "<｜begin▁of▁sentence｜><｜User｜>old<｜User｜>q<｜Assistant｜></think>a<｜end▁of▁sentence｜>"
            "<｜User｜>new<｜Assistant｜></think>");
  conversation.thinking = true;
  const std::string dropped = render_chat(conversation).text;
  EXPECT_EQ(dropped.find("old"), std::string::npos);
  EXPECT_NE(dropped.find("<｜User｜>new<｜Assistant｜><think>"), std::string::npos);
  conversation.tool_schemas = {tool_schema_line("f", "", "")};
  EXPECT_NE(render_chat(conversation).text.find("<｜User｜>old<｜User｜>q"), std::string::npos);
}

TEST(PromptCompat, LeadingSystemHangsTheSectionsOnTheFirstSystemMessage) {
  Conversation conversation;
  conversation.thinking = false;
  conversation.tool_schemas = {tool_schema_line("f", "", "")};
  conversation.messages = {message(Role::user, "q"), message(Role::assistant, "a"),
                           message(Role::system, "S")};
  EXPECT_EQ(render_chat(conversation).text.find("<｜begin▁of▁sentence｜><｜System｜>\n\n## Tools"), 0u);
  apply_prompt_compat(*parse_prompt_compat("leading_system"), conversation);
  const std::string text = render_chat(conversation).text;
  EXPECT_EQ(text.find("<｜begin▁of▁sentence｜><｜User｜>q<｜Assistant｜></think>a<｜end▁of▁sentence｜>"
                      "<｜System｜>S\n\n## Tools"),
            0u);
  conversation.thinking = true;
  EXPECT_EQ(
      render_chat(conversation)
          .text.find("<｜begin▁of▁sentence｜><｜System｜>Reasoning Effort: 75 (range 1-100, the higher the "
                     "value, the more thorough the reasoning)\n\n<｜User｜>q"),
      0u);
  // Without any system message, or with a leading one, nothing changes.
  for (const Role role : {Role::user, Role::system}) {
    conversation.messages = {message(role, "q")};
    conversation.sections_on_first_system = true;
    const std::string with = render_chat(conversation).text;
    conversation.sections_on_first_system = false;
    EXPECT_EQ(with, render_chat(conversation).text);
  }
}

}  // namespace
}  // namespace rorqual::text
