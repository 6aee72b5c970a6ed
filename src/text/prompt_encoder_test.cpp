// SPDX-License-Identifier: Apache-2.0
#include "text/prompt_encoder.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <thread>

#include "text/test_text.h"

namespace rorqual::text {
namespace {

/// Conversations of every shape the API can give, small enough for many.
class ConversationMaker {
 public:
  explicit ConversationMaker(uint64_t seed) : random_(seed) {}

  size_t below(size_t bound) { return static_cast<size_t>(random_() % bound); }

  bool coin() { return below(2) == 0; }

  std::string words() {
    static const char* kWords[] = {
        "alpha",      " beta", "\n\n", "<think>", "<｜User｜>",         "12345", "世界",
        "{\"a\": 1}", "",      "x",    " ",       "</｜DSML｜ invoke>", "é"};
    std::string out;
    for (size_t i = below(6); i > 0; --i) out += kWords[below(std::size(kWords))];
    return out;
  }

  Message random_message() {
    const size_t kind = below(8);
    if (kind == 0) return message(Role::system, words());
    if (kind == 1) return message(Role::latest_reminder, words());
    if (kind == 2) return message(Role::developer, words());
    if (kind < 5) return message(Role::user, words());
    Message out = message(Role::assistant, words());
    if (coin()) out.reasoning = words();
    for (size_t i = below(3); i > 0; --i) {
      out.tool_calls.push_back(
          {"id" + std::to_string(i), "f" + words(), coin() ? "{\"k\": \"v\"}" : words()});
    }
    return out;
  }

  void append(Conversation& conversation) {
    conversation.messages.push_back(random_message());
    auto calls = conversation.messages.back().tool_calls;
    std::shuffle(calls.begin(), calls.end(), random_);
    for (const auto& call : calls) {
      Message result = message(Role::tool, words());
      result.tool_call_id = call.id;
      if (below(4) == 0) result.content.push_back({true, "", {ImageInput::Kind::url, "http://x", "", ""}});
      conversation.messages.push_back(std::move(result));
    }
  }

  Conversation make() {
    Conversation out;
    change_options(out);
    for (size_t i = below(12); i > 0; --i) append(out);
    return out;
  }

  void change_options(Conversation& c) {
    c.thinking = coin();
    c.effort = coin() ? 75 : 50;
    c.tool_schemas =
        coin() ? std::vector<std::string>{tool_schema_line("f", words(), "{}")} : std::vector<std::string>();
    c.response_schema = below(4) == 0 ? "{\"type\": \"json_object\"}" : "";
    c.force_tool_call = !c.tool_schemas.empty() && !c.thinking && coin();
    c.add_bos = below(8) != 0;
    c.add_generation_prompt = below(8) != 0;
    c.keep_reasoning = static_cast<KeepReasoning>(below(3));
    c.sections_on_first_system = below(4) == 0;
    c.num_context_messages = 0;
  }

  /// Turns that follow, edits in the middle, other options, an answer to continue: what clients do.
  void evolve(Conversation& c) {
    switch (below(6)) {
      case 0:
      case 1:
        append(c);
        break;
      case 2:
        if (!c.messages.empty()) c.messages[below(c.messages.size())].content = {{false, words(), {}}};
        break;
      case 3:
        if (!c.messages.empty()) c.messages.resize(below(c.messages.size()));
        break;
      case 4:
        change_options(c);
        break;
      default:
        c.messages.push_back(message(Role::assistant, words()));
        c.messages.back().is_prefix = coin();
        if (coin()) c.messages.back().reasoning = words();
        if (coin()) c.num_context_messages = below(c.messages.size() + 1);
    }
  }

 private:
  std::mt19937_64 random_;
};

void expect_same(const Conversation& conversation, PromptEncoder& encoder, const std::string& place) {
  const auto expected = encode_chat(conversation, mini_tokenizer());
  const auto got = encoder.encode(conversation);
  ASSERT_TRUE(expected.ok() && got.ok()) << place;
  ASSERT_EQ(got->token_ids, expected->token_ids) << place << "\n" << expected->text;
  ASSERT_EQ(got->text_bytes, expected->text.size()) << place;
  ASSERT_EQ(got->images.size(), expected->images.size()) << place;
}

TEST(PromptEncoder, GivesTheIdsOfEncodeChatForRandomHistories) {
  const uint64_t seed = test_seed();
  RecordProperty("seed", std::to_string(seed));
  PromptEncoder large(mini_tokenizer()), tiny(mini_tokenizer(), 4096), off(mini_tokenizer(), 0);
  for (uint64_t round = 0; round < 150; ++round) {
    ConversationMaker maker(seed + round);
    Conversation conversation = maker.make();
    for (int step = 0; step < 12; ++step) {
      const std::string place = "seed " + std::to_string(seed) + " round " + std::to_string(round) +
                                " step " + std::to_string(step);
      for (PromptEncoder* encoder : {&large, &tiny, &off}) {
        expect_same(conversation, *encoder, place);
        if (HasFatalFailure()) return;
      }
      maker.evolve(conversation);
    }
  }
  EXPECT_GT(large.memo_stats().hits, 1000);
  EXPECT_GT(tiny.memo_stats().hits, 100);
  EXPECT_LE(tiny.memo_stats().bytes, 4096);
  EXPECT_EQ(off.memo_stats().hits, 0);
  EXPECT_EQ(off.memo_stats().bytes, 0);
}

TEST(PromptEncoder, EncodesOnlyWhatIsNew) {
  PromptEncoder encoder(mini_tokenizer());
  Conversation conversation;
  conversation.tool_schemas = {tool_schema_line("f", "does it", "{}")};
  for (int turn = 0; turn < 50; ++turn) {
    conversation.messages.push_back(message(Role::user, "question " + std::to_string(turn)));
    conversation.messages.push_back(message(Role::assistant, "answer " + std::to_string(turn)));
    ASSERT_TRUE(encoder.encode(conversation).ok());
  }
  const PromptMemoStats stats = encoder.memo_stats();
  EXPECT_EQ(stats.misses, 1 + 100);  // the head and each message, once
  EXPECT_EQ(stats.hits, 49 + 2 * (49 * 50 / 2));
  EXPECT_EQ(stats.blocks, 101);
}

TEST(PromptEncoder, DropsReasoningOfEarlierTurnsFromTheMemoToo) {
  PromptEncoder encoder(mini_tokenizer());
  Conversation conversation;
  conversation.messages = {message(Role::user, "q"), message(Role::assistant, "a")};
  conversation.messages[1].reasoning = "because";
  for (const KeepReasoning keep : {KeepReasoning::all, KeepReasoning::none, KeepReasoning::after_last_user}) {
    conversation.keep_reasoning = keep;
    expect_same(conversation, encoder, "keep " + std::to_string(static_cast<int>(keep)));
  }
}

TEST(PromptEncoder, RefusesALongTextBeforeTokenisingIt) {
  PromptEncoder encoder(mini_tokenizer());
  Conversation conversation;
  conversation.messages = {message(Role::user, std::string(100'000, 'x'))};
  const auto prompt = encoder.encode(conversation, 50'000);
  ASSERT_TRUE(prompt.ok());
  EXPECT_GT(prompt->text_bytes, 100'000u);
  EXPECT_TRUE(prompt->token_ids.empty());
  EXPECT_EQ(encoder.memo_stats().miss_tokens, 0);
}

TEST(PromptMemo, KeepsToItsMemoryAndDropsTheOldest) {
  PromptMemo memo(10'000);
  const auto put = [&memo](const std::string& key) {
    memo.put(std::make_shared<PromptMemo::Block>(PromptMemo::Block{key, std::vector<int32_t>(100, 1), 1}));
  };
  for (int i = 0; i < 200; ++i) {
    put("key" + std::to_string(i));
    EXPECT_LE(memo.stats().bytes, 10'000);
    ASSERT_NE(memo.find("key0"), nullptr) << "the block in use stays, after " << i;
  }
  EXPECT_EQ(memo.find("key1"), nullptr);
  EXPECT_NE(memo.find("key199"), nullptr);
  EXPECT_EQ(memo.find("key"), nullptr);
  put(std::string(9'000, 'k'));  // more than its share
  EXPECT_EQ(memo.find(std::string(9'000, 'k')), nullptr);
}

TEST(PromptEncoder, MayBeUsedByManyThreads) {
  PromptEncoder encoder(mini_tokenizer(), 20'000);
  std::vector<std::thread> threads;
  std::atomic<int> wrong{0};
  for (uint64_t t = 0; t < 4; ++t) {
    threads.emplace_back([&encoder, &wrong, t] {
      ConversationMaker maker(t % 2);  // two threads each meet the same conversations
      for (int i = 0; i < 150; ++i) {
        const Conversation conversation = maker.make();
        const auto expected = encode_chat(conversation, mini_tokenizer());
        const auto got = encoder.encode(conversation);
        if (!got.ok() || got->token_ids != expected->token_ids) ++wrong;
      }
    });
  }
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(wrong, 0);
}

}  // namespace
}  // namespace rorqual::text
