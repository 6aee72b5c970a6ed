// SPDX-License-Identifier: Apache-2.0
#include "grammar/constraint.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "grammar/test_tokens.h"

namespace rorqual::grammar {
namespace {

using Calls = ConstraintPlace::Calls;
using Kind = ConstraintSpec::Kind;
using testing::HasSubstr;

constexpr const char* kSchema =
    R"({"type":"object","properties":{"n":{"type":"integer"},"s":{"type":"string","maxLength":5}},"required":["n"]})";
constexpr const char* kTools =
    R"([{"type":"function","function":{"name":"f","parameters":{"type":"object","properties":{"a":{"type":"integer"}},"required":["a"]}}}])";

ConstraintCompiler& compiler() {
  static ConstraintCompiler out(mini_tokenizer(), mini_tokenizer().vocab_size(), kEos);
  return out;
}

std::shared_ptr<runtime::TokenConstraint> constraint(ConstraintSpec spec, ConstraintPlace place = {}) {
  const auto out = compiler().compile(spec, place);
  if (!out.ok()) ADD_FAILURE() << out.error().message();
  return out.ok() ? out->for_reply() : nullptr;
}

/// Tokens of a text; "｜DSML｜" and "</think>" in it become their tokens.
std::vector<int32_t> ids(const std::string& text) {
  return mini_tokenizer().encode(text, text::EncodeMode::with_added);
}

std::vector<uint32_t> mask_of(runtime::TokenConstraint& masks, const std::vector<int32_t>& reply) {
  std::vector<uint32_t> mask((static_cast<size_t>(mini_tokenizer().vocab_size()) + 31) / 32, ~uint32_t{0});
  masks.mask(reply, mask);
  return mask;
}

bool is_allowed(const std::vector<uint32_t>& mask, int32_t id) {
  return (mask[static_cast<size_t>(id) / 32] >> (id % 32) & 1) != 0;
}

/// True if every token of `text` is allowed where it stands, and EOS after it iff `ends`.
bool fits(runtime::TokenConstraint& masks, const std::string& text, bool ends) {
  std::vector<int32_t> reply;
  for (const int32_t id : ids(text)) {
    if (!is_allowed(mask_of(masks, reply), id)) return false;
    reply.push_back(id);
  }
  return is_allowed(mask_of(masks, reply), kEos) == ends;
}

TEST(Constraint, JsonHoldsFromTheFirstToken) {
  const auto masks = constraint({Kind::json, kSchema});
  EXPECT_TRUE(fits(*masks, R"({"n": 12, "s": "ab"})", true));
  EXPECT_TRUE(fits(*masks, R"({"n": 12)", false));
  EXPECT_FALSE(fits(*masks, R"({"x")", false));
  EXPECT_FALSE(fits(*masks, "text", false));
}

TEST(Constraint, OtherKindsHoldToo) {
  EXPECT_TRUE(fits(*constraint({Kind::regex, "[ab]+"}), "abba", true));
  EXPECT_FALSE(fits(*constraint({Kind::regex, "[ab]+"}), "abc", false));
  EXPECT_TRUE(fits(*constraint({Kind::choice, R"(["yes","no"])"}), "no", true));
  EXPECT_FALSE(fits(*constraint({Kind::choice, R"(["yes","no"])"}), "maybe", false));
  EXPECT_TRUE(fits(*constraint({Kind::grammar, "root ::= \"a\" b\nb ::= [0-9]+"}), "a15", true));
  EXPECT_TRUE(fits(*constraint({Kind::structural_tag, R"({"format":{"type":"const_string","value":"x y"}})"}),
                   "x y", true));
}

TEST(Constraint, BeginsAfterTheReasoning) {
  const auto masks = constraint({Kind::json, kSchema}, {.after_reasoning = true});
  EXPECT_TRUE(fits(*masks, "anything { at all", false));  // no end before the answer
  EXPECT_TRUE(fits(*masks, "so</think>{\"n\": 1}", true));
  EXPECT_FALSE(fits(*masks, "so</think>no", false));
}

TEST(Constraint, OptionalCallsLeaveTextFree) {
  for (const bool thinks : {false, true}) {
    const auto masks = constraint({Kind::tools, kTools}, {thinks, Calls::optional});
    const std::string begin = thinks ? "hm</think>" : "";
    EXPECT_TRUE(fits(*masks, begin + "no call, a < b", true));
    EXPECT_TRUE(
        fits(*masks,
             begin + "text\n\n<｜DSML｜ calls>\n<｜DSML｜ invoke name=\"f\">\n<｜DSML｜ parameter name=\"a\" "
                     "string=\"false\">7</｜DSML｜ parameter>\n</｜DSML｜ invoke>\n</｜DSML｜ calls>",
             true));
    EXPECT_FALSE(fits(*masks, begin + "<｜DSML｜ calls>\n<｜DSML｜ invoke name=\"g\"", false));
    EXPECT_TRUE(fits(*masks, begin + "<｜DSML｜ calls>\n", false));
    EXPECT_FALSE(fits(*masks, begin + "｜DSML｜", false));  // would be markup in the text
    EXPECT_FALSE(fits(*masks, begin + "</｜DSML｜", false));
  }
}

TEST(Constraint, AfterOptionalCallsAnythingMayFollow) {
  const auto masks = constraint({Kind::tools, kTools}, {false, Calls::optional});
  auto reply =
      ids("<｜DSML｜ calls>\n<｜DSML｜ invoke name=\"f\">\n<｜DSML｜ parameter name=\"a\" "
          "string=\"false\">7</｜DSML｜ parameter>\n</｜DSML｜ invoke>\n</｜DSML｜ calls>");
  const auto full = mask_of(*masks, reply);
  EXPECT_EQ(full, std::vector<uint32_t>(full.size(), ~uint32_t{0}));
  for (const int32_t id : ids(" more")) reply.push_back(id);
  EXPECT_EQ(mask_of(*masks, reply), full);
  reply.resize(reply.size() - 6);  // and back into the block
  const auto fresh = constraint({Kind::tools, kTools}, {false, Calls::optional});
  EXPECT_EQ(mask_of(*masks, reply), mask_of(*fresh, reply));
}

TEST(Constraint, RequiredCallsAreMade) {
  const std::string call =
      "<｜DSML｜ invoke name=\"f\">\n<｜DSML｜ parameter name=\"a\" string=\"false\">7</｜DSML｜ "
      "parameter>\n</｜DSML｜ invoke>\n</｜DSML｜ calls>";
  const auto opened = constraint({Kind::tools, kTools}, {false, Calls::block_opened});
  EXPECT_TRUE(fits(*opened, call, true));
  EXPECT_FALSE(fits(*opened, "text", false));
  const auto thinking = constraint({Kind::tools, kTools}, {true, Calls::required});
  EXPECT_TRUE(fits(*thinking, "let me see", false));
  EXPECT_TRUE(fits(*thinking, "let me see</think>\n\n<｜DSML｜ calls>\n" + call, true));
  EXPECT_FALSE(fits(*thinking, "let me see</think>text", false));
  EXPECT_TRUE(fits(*thinking, "in the middle <｜DSML｜ calls>\n" + call, true));  // ends the reasoning, too
}

TEST(Constraint, ControlTokensAreNeverAllowed) {
  const auto masks = constraint({Kind::json, R"({"type":"string"})"});
  std::vector<int32_t> reply = ids("\"a");
  const auto mask = mask_of(*masks, reply);
  int num_added = 0;
  for (int32_t id = 0; id < mini_tokenizer().vocab_size(); ++id) {
    if (!mini_tokenizer().is_added(id)) continue;
    ++num_added;
    EXPECT_FALSE(is_allowed(mask, id)) << mini_tokenizer().token_bytes(id);
  }
  EXPECT_GT(num_added, 10);
  EXPECT_TRUE(is_allowed(mask, ids("b")[0]));
}

TEST(Constraint, NothingFollowsTheEndButEos) {
  const auto masks = constraint({Kind::choice, R"(["a"])"});
  auto reply = ids("a");
  reply.push_back(kEos);  // ignore_eos
  EXPECT_EQ(allowed_ids(mask_of(*masks, reply)), std::vector<int32_t>{kEos});
  reply.push_back(kEos);
  EXPECT_EQ(allowed_ids(mask_of(*masks, reply)), std::vector<int32_t>{kEos});
  reply.resize(reply.size() - 2);
  EXPECT_EQ(allowed_ids(mask_of(*masks, reply)), std::vector<int32_t>{kEos});
  reply.clear();
  EXPECT_TRUE(is_allowed(mask_of(*masks, reply), ids("a")[0]));
}

TEST(Constraint, WhiteSpaceDoesNotGoOnForEver) {
  const auto masks = constraint({Kind::json, kSchema});
  std::vector<int32_t> reply = ids("{\n");
  const int32_t tab = ids("\t")[0];
  for (int i = 0; i < 31; ++i) {
    ASSERT_TRUE(is_allowed(mask_of(*masks, reply), tab)) << i;
    reply.push_back(tab);
  }
  reply.push_back(tab);
  const auto mask = mask_of(*masks, reply);
  EXPECT_FALSE(is_allowed(mask, tab));
  EXPECT_TRUE(is_allowed(mask, ids("\"")[0]));
  const auto only_tabs = constraint({Kind::regex, "\\t{50}"});  // nothing else may come
  reply.assign(40, tab);
  EXPECT_TRUE(is_allowed(mask_of(*only_tabs, reply), tab));
}

/// Whatever was asked before, a mask depends on the reply alone: drafts that were rejected leave no trace.
TEST(Constraint, IsAPureFunctionOfTheReply) {
  std::mt19937_64 random(5);
  const std::pair<ConstraintSpec, ConstraintPlace> cases[] = {
      {{Kind::json, kSchema}, {}},
      {{Kind::json, kSchema}, {.after_reasoning = true}},
      {{Kind::tools, kTools}, {true, Calls::required}},
      {{Kind::tools, kTools}, {true, Calls::optional}},
      {{Kind::tools, kTools}, {false, Calls::block_opened}},
  };
  for (const auto& [spec, place] : cases) {
    const auto used = constraint(spec, place);
    std::vector<std::vector<int32_t>> replies;
    for (int i = 0; i < 6; ++i) {
      std::vector<int32_t> reply = place.after_reasoning ? ids("a <b</think>") : std::vector<int32_t>{};
      if (place.after_reasoning && i % 2 == 0) reply = ids("a <");
      const auto walker = constraint(spec, place);
      for (int k = 0; k < 60; ++k) {
        const auto allowed = allowed_ids(mask_of(*walker, reply));
        ASSERT_FALSE(allowed.empty());
        const int32_t id = allowed[random() % allowed.size()];
        if (id == kEos) break;
        reply.push_back(id);
      }
      replies.push_back(std::move(reply));
    }
    for (int i = 0; i < 200; ++i) {
      std::vector<int32_t> reply = replies[random() % replies.size()];
      reply.resize(random() % (reply.size() + 1));
      const auto fresh = constraint(spec, place);
      ASSERT_EQ(mask_of(*used, reply), mask_of(*fresh, reply)) << mini_tokenizer().decode(reply, false);
    }
  }
}

TEST(Constraint, RepliesShareNothingThatChanges) {
  const auto compiled = compiler().compile({Kind::json, kSchema}, {});
  ASSERT_TRUE(compiled.ok());
  const auto first = compiled->for_reply(), second = compiled->for_reply();
  const auto half = ids(R"({"n": 1)");
  mask_of(*first, half);
  EXPECT_EQ(mask_of(*second, {}), mask_of(*constraint({Kind::json, kSchema}), {}));
  std::vector<std::thread> threads;
  std::vector<int> good(8);
  for (size_t i = 0; i < good.size(); ++i) {
    threads.emplace_back([&, i] {
      const auto mine = compiled->for_reply();
      for (int k = 0; k < 20; ++k) good[i] += fits(*mine, R"({"n": 12, "s": "ab"})", true) ? 1 : 0;
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const int n : good) EXPECT_EQ(n, 20);
}

TEST(ConstraintCompiler, KeepsWhatWasUsedLast) {
  ConstraintCompiler small(mini_tokenizer(), mini_tokenizer().vocab_size(), kEos, 200'000);
  const auto compile = [&](int i) {
    return small.compile({Kind::choice, "[\"" + std::to_string(i) + "\"]"}, {}).ok();
  };
  for (int i = 0; i < 2000; ++i) ASSERT_TRUE(compile(i));
  EXPECT_EQ(small.stats().compilations, 2000);
  EXPECT_LE(small.stats().bytes, 200'000u);
  ASSERT_TRUE(compile(1999));
  EXPECT_EQ(small.stats().hits, 1);
  ASSERT_TRUE(compile(0));
  EXPECT_EQ(small.stats().compilations, 2001);
}

TEST(ConstraintCompiler, SaysWhatIsWrong) {
  const std::pair<ConstraintSpec, const char*> cases[] = {
      {{Kind::json, "{"}, "no JSON"},
      {{Kind::regex, "("}, "at character 1"},
      {{Kind::choice, "[]"}, "a list of 1 to"},
      {{Kind::choice, "[1]"}, "a list of 1 to"},
      {{Kind::grammar, "start: \"a\""}, "no rule"},
      {{Kind::grammar, "root ::= b"}, "cannot be used"},
      {{Kind::grammar, "root ::= \"a"}, "cannot be used"},
      {{Kind::grammar, "root ::= \"Token(\" Token(5)"}, "token ids"},
      {{Kind::grammar, "root ::= \"a\" | ExcludeToken(0)"}, "token ids"},
      {{Kind::structural_tag, "{}"}, "format"},
      {{Kind::tools, "[]"}, "no list"},
      {{Kind::json, std::string(600'000, ' ')}, "at most 524288"},
      {{Kind::regex, "a\xff"}, "UTF-8"},
  };
  for (const auto& [spec, part] : cases) {
    const auto out = compiler().compile(spec, {});
    ASSERT_FALSE(out.ok()) << spec.text.substr(0, 50);
    EXPECT_THAT(out.error().message(), HasSubstr(part));
  }
  EXPECT_TRUE(compiler().compile({Kind::grammar, "root ::= \"Token(5)\" [ToKken(]"}, {}).ok());
}

/// The same with the real vocabulary, in which tokens span the parts of the grammar.
TEST(Constraint, HoldsWithTheRealTokenizer) {
  const std::string path = std::string(RORQUAL_SOURCE_DIR) + "/.cache/tokenizer-v41/tokenizer.json";
  if (!std::filesystem::exists(path))
    GTEST_SKIP() << path << " is not there: scripts/make_real_tokenizer.py makes it";
  std::ifstream file(path);
  const std::string json{std::istreambuf_iterator<char>(file), {}};
  auto tokenizer = text::Tokenizer::from_json(json);
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.error().message();
  ConstraintCompiler real(*tokenizer, 129'280, kEos);
  const auto compiled = real.compile({Kind::tools, kTools}, {true, Calls::required});
  ASSERT_TRUE(compiled.ok()) << compiled.error().message();
  const auto masks = compiled->for_reply();
  const std::string text =
      "Thinking about <it></think>\n\n<｜DSML｜ calls>\n<｜DSML｜ invoke name=\"f\">\n<｜DSML｜ parameter "
      "name=\"a\" string=\"false\">-41</｜DSML｜ "
      "parameter>\n</｜DSML｜ invoke>\n</｜DSML｜ calls>";
  std::vector<int32_t> reply;
  for (const int32_t id : tokenizer->encode(text, text::EncodeMode::with_added)) {
    std::vector<uint32_t> mask(129'280 / 32, ~uint32_t{0});
    masks->mask(reply, mask);
    ASSERT_TRUE(is_allowed(mask, id))
        << tokenizer->decode(reply, false) << " + " << tokenizer->token_bytes(id);
    reply.push_back(id);
  }
  std::vector<uint32_t> mask(129'280 / 32, ~uint32_t{0});
  masks->mask(reply, mask);
  EXPECT_EQ(allowed_ids(mask), std::vector<int32_t>{kEos});
}

}  // namespace
}  // namespace rorqual::grammar
