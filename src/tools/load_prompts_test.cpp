// SPDX-License-Identifier: Apache-2.0
// Prompts of a load: exact lengths, files, bodies; recorded conversations and what they have in common.
#include "tools/load_prompts.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <vector>

#include "base/file.h"
#include "tools/load_conversation.h"
#include "tools/text_input.h"

namespace rorqual::tools {
namespace {

using Json = nlohmann::ordered_json;
using ::testing::HasSubstr;

/// A file of the test that is gone afterwards.
class TextFile {
 public:
  explicit TextFile(const std::string& text) : path_(::testing::TempDir() + "load_prompts_test.json") {
    EXPECT_TRUE(write_text_file(path_, text).ok());
  }

  ~TextFile() { std::remove(path_.c_str()); }

  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

TEST(RandomPrompts, HaveExactlyTheTokensAskedFor) {
  const auto tokenizer = load_tokenizer("");
  ASSERT_TRUE(tokenizer.ok());
  const TokenCounter count = [&](std::string_view text) -> Result<int64_t> {
    return static_cast<int64_t>(tokenizer->encode(text, text::EncodeMode::with_added).size());
  };
  for (const int64_t tokens : {1, 2, 63, 64, 1024}) {
    const auto prompts = RandomPrompts::create(tokens, 5, count);
    ASSERT_TRUE(prompts.ok()) << prompts.error().message();
    for (uint64_t i = 0; i < 20; ++i) EXPECT_EQ(*count(prompts->text(i)), tokens);
  }
}

TEST(RandomPrompts, AreAllDifferentFromTheFirstPageOn) {
  const TokenCounter words = [](std::string_view text) -> Result<int64_t> {
    return 1 + std::count(text.begin(), text.end(), ' ');  // one token is added to every text
  };
  const auto prompts = RandomPrompts::create(300, 9, words);
  ASSERT_TRUE(prompts.ok());
  std::set<std::string> beginnings;
  for (uint64_t i = 0; i < 2000; ++i) {
    const std::string text = prompts->text(i);
    EXPECT_EQ(*words(text), 300);
    beginnings.insert(text.substr(0, 100));
  }
  EXPECT_EQ(beginnings.size(), 2000U);
  EXPECT_EQ(RandomPrompts::create(300, 9, words)->text(7), prompts->text(7));
  EXPECT_NE(RandomPrompts::create(300, 10, words)->text(7), prompts->text(7));
}

TEST(RandomPrompts, RefuseTokenizersWhoseSumsAreWrong) {
  const TokenCounter halves = [](std::string_view text) -> Result<int64_t> {
    const auto words = std::count(text.begin(), text.end(), ' ');
    return words <= 2 ? words : words / 2;
  };
  const auto prompts = RandomPrompts::create(50, 1, halves);
  ASSERT_FALSE(prompts.ok());
  EXPECT_EQ(prompts.error().code(), Code::unsupported);
}

TEST(PromptFiles, HoldTextsIdsAndChats) {
  const TextFile file(
      "{\"prompt\": \"a\", \"output_tokens_count\": 7}\n\n{\"prompt\": [1, 2], \"max_tokens\": 9}\n"
      "{\"messages\": [{\"role\": \"user\", \"content\": \"b\"}], \"tools\": [], \"max_tokens\": 3}\n");
  const auto prompts = read_load_prompts(file.path());
  ASSERT_TRUE(prompts.ok()) << prompts.error().message();
  ASSERT_EQ(prompts->size(), 3U);
  EXPECT_EQ((*prompts)[0].output_tokens, 7);
  EXPECT_EQ((*prompts)[1].max_tokens, 9);
  EXPECT_TRUE((*prompts)[2].is_chat);
  const Json chat = Json::parse((*prompts)[2].fields);
  EXPECT_TRUE(chat.contains("tools"));
  EXPECT_FALSE(chat.contains("max_tokens"));
}

TEST(PromptFiles, NameTheBadLine) {
  const TextFile file("{\"prompt\": \"a\"}\n{\"text\": \"b\"}\n");
  const auto prompts = read_load_prompts(file.path());
  ASSERT_FALSE(prompts.ok());
  EXPECT_THAT(prompts.error().message(), HasSubstr("load_prompts_test.json:2: has neither"));
}

TEST(Bodies, AskForExactLengthsAndUsage) {
  LoadBody fields;
  fields.model = "m";
  fields.output_tokens = 5;
  fields.temperature = 0.0;
  fields.extra = R"({"top_k": 3, "temperature": 0.5})";
  LoadPrompt prompt;
  prompt.fields = R"({"prompt": "hello"})";
  const auto text = load_body(fields, prompt, "");
  ASSERT_TRUE(text.ok());
  const Json body = Json::parse(*text);
  EXPECT_EQ(body["max_tokens"], 5);
  EXPECT_EQ(body["min_tokens"], 5);
  EXPECT_EQ(body["ignore_eos"], true);
  EXPECT_EQ(body["stream"], true);
  EXPECT_EQ(body["stream_options"]["include_usage"], true);
  EXPECT_EQ(body["temperature"], 0.5);
  EXPECT_EQ(body["top_k"], 3);
  EXPECT_EQ(body["prompt"], "hello");
  prompt.output_tokens = 2;
  EXPECT_EQ(Json::parse(*load_body(fields, prompt, ""))["max_tokens"], 2);
}

TEST(Bodies, PutThePrefixBehindTheFirstControlToken) {
  LoadPrompt prompt;
  prompt.fields = Json{{"prompt", "<｜begin▁of▁sentence｜>def f"}}.dump();
  EXPECT_EQ(Json::parse(*load_body({}, prompt, "x "))["prompt"], "<｜begin▁of▁sentence｜>x def f");
  prompt.fields = R"({"messages": [{"role": "user", "content": "q"}]})";
  EXPECT_EQ(Json::parse(*load_body({}, prompt, "x "))["messages"][0]["content"], "x q");
  prompt.fields = R"({"prompt": [1, 2]})";
  EXPECT_FALSE(load_body({}, prompt, "x ").ok());
  EXPECT_NE(unique_prefix(1, 2), unique_prefix(1, 3));
}

TEST(Bodies, RefuseExtraFieldsThatAreNoObject) {
  LoadBody fields;
  fields.extra = "[1]";
  LoadPrompt prompt;
  prompt.fields = R"({"prompt": "a"})";
  const auto body = load_body(fields, prompt, "");
  ASSERT_FALSE(body.ok());
  EXPECT_THAT(body.error().message(), HasSubstr("--body"));
}

TEST(Conversations, AreAskedTurnByTurnWithRecordedAnswers) {
  const TextFile file(
      R"({"name": "n", "tools": [{"type": "function"}], "fields": {"thinking": {"type": "disabled"}},
    "messages": [{"role": "system", "content": "S"}, {"role": "user", "content": "1"},
                 {"role": "assistant", "content": "A"}, {"role": "tool", "tool_call_id": "c", "content": "T"},
                 {"role": "assistant", "content": "B"}]})");
  const auto conversation = AgentConversation::read(file.path());
  ASSERT_TRUE(conversation.ok()) << conversation.error().message();
  ASSERT_EQ(conversation->num_turns(), 2);
  const Json first = Json::parse(conversation->body(0, "s7. ", "m", 4));
  EXPECT_EQ(first["messages"].size(), 2U);
  EXPECT_EQ(first["messages"][0]["content"], "s7. S");
  EXPECT_EQ(first["max_tokens"], 4);
  EXPECT_EQ(first["return_token_ids"], true);
  EXPECT_EQ(first["thinking"]["type"], "disabled");
  const Json second = Json::parse(conversation->body(1, "s7. ", "m", 4));
  EXPECT_EQ(second["messages"].size(), 4U);
  EXPECT_EQ(second["messages"][2]["content"], "A");
  EXPECT_EQ(second["tools"].size(), 1U);
}

TEST(Conversations, AreRefusedWithTheReason) {
  const auto reason = [](const std::string& text) {
    const TextFile file(text);
    const auto read = AgentConversation::read(file.path());
    return read.ok() ? std::string() : read.error().message();
  };
  EXPECT_THAT(reason("[]"), HasSubstr("messages"));
  EXPECT_THAT(reason(R"({"messages": [{"role": "user", "content": "x"}]})"), HasSubstr("system"));
  EXPECT_THAT(reason(R"({"messages": [{"role": "system", "content": "x"}]})"), HasSubstr("assistant"));
}

TEST(RetainedPrompts, GiveTheLongestCommonPrefixInWholeBlocks) {
  RetainedPrompts retained;
  std::vector<int32_t> prompt(200);
  for (size_t i = 0; i < prompt.size(); ++i) prompt[i] = static_cast<int32_t>(i);
  EXPECT_EQ(retained.common_tokens(prompt, 64), 0);
  retained.add({prompt.begin(), prompt.begin() + 100}, {100, 101, 9999});
  EXPECT_EQ(retained.common_tokens(prompt, 1), 102);
  EXPECT_EQ(retained.common_tokens(prompt, 64), 64);
  retained.add(prompt, {});
  EXPECT_EQ(retained.common_tokens(prompt, 1), 199);  // the last token is always computed
  EXPECT_EQ(retained.common_tokens(prompt, 64), 192);
  const TextFile file("");
  ASSERT_TRUE(retained.write(file.path()).ok());
  RetainedPrompts again;
  ASSERT_TRUE(again.read(file.path()).ok());
  EXPECT_EQ(again.common_tokens(prompt, 1), 199);
  EXPECT_TRUE(again.read("/nonexistent/file").ok());
}

TEST(RetainedPrompts, LeaveOutTheLastSampledToken) {
  RetainedPrompts retained;
  retained.add({1, 2}, {3, 4});
  EXPECT_EQ(retained.common_tokens({1, 2, 3, 4, 5}, 1), 3);
}

}  // namespace
}  // namespace rorqual::tools
