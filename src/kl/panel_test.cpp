// SPDX-License-Identifier: Apache-2.0
// Panels from a scripted engine, and panel files that are damaged.
#include "kl/panel.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <functional>

#include "base/file.h"
#include "runtime/scripted_engine.h"
#include "text/test_text.h"

namespace rorqual::kl {
namespace {

using text::mini_tokenizer;

Result<Panel> scripted_panel(const char* script, int64_t streams, int64_t max_tokens = 3) {
  runtime::EngineInfo info;
  info.model_name = "script";
  info.numerics = "exact";
  info.vocab_size = 5000;
  info.max_model_len = 1000;
  auto engine = runtime::make_scripted_engine(script, info, {});
  EXPECT_TRUE(engine.ok());
  const std::vector<std::string_view> prompts = {"One?", "Two?", "Three?", "Four?"};
  return make_panel(**engine, mini_tokenizer(), prompts, {.max_tokens = max_tokens, .streams = streams});
}

Panel sample() {
  auto panel = scripted_panel(R"({"tokens":[300,301]})", 1);
  EXPECT_TRUE(panel.ok()) << panel.error().message();
  return *std::move(panel);
}

TEST(Panels, HoldRenderedPromptsAndGreedyContinuations) {
  const auto panel = scripted_panel(R"({"tokens":[300,301,302,303]}
{"tokens":[310]}
{"tokens":[]}
{"tokens":[320,321],"first_pause_ms":1})",
                                    1);
  ASSERT_TRUE(panel.ok()) << panel.error().message();
  ASSERT_EQ(panel->cases.size(), 4u);
  EXPECT_EQ(panel->model, "script");
  EXPECT_EQ(panel->numerics, "exact");
  EXPECT_EQ(panel->cases[0].continuation, (std::vector<int32_t>{300, 301, 302}));
  EXPECT_EQ(panel->cases[0].finish, "length");
  EXPECT_EQ(panel->cases[1].continuation, (std::vector<int32_t>{310}));
  EXPECT_EQ(panel->cases[1].finish, "stop");
  EXPECT_TRUE(panel->cases[2].continuation.empty());
  EXPECT_EQ(panel->cases[3].logprobs, (std::vector<float>{-1, -1}));
  EXPECT_EQ(panel->cases[3].gaps, (std::vector<float>{1, 1}));
  const auto& tokenizer = mini_tokenizer();
  EXPECT_EQ(tokenizer.decode(panel->cases[1].prompt, false),
            "<｜begin▁of▁sentence｜><｜User｜>Two?<｜Assistant｜></think>");
  const Corpus corpus = panel_corpus(*panel);
  ASSERT_EQ(corpus.windows.size(), 3u) << "the case without a continuation has nothing to score";
  EXPECT_EQ(corpus.scored_positions(), 3 + 1 + 2);
  EXPECT_EQ(corpus.windows[1].first_scored, static_cast<int64_t>(panel->cases[1].prompt.size()));
}

TEST(Panels, AreTheSameForAnyNumberOfStreams) {
  // All lines answer alike, so that the order of arrival cannot matter, only the order of storing.
  const char* script = R"({"tokens":[300,301],"first_pause_ms":2}
{"tokens":[300,301]})";
  const auto one = scripted_panel(script, 1);
  const auto many = scripted_panel(script, 4);
  ASSERT_TRUE(one.ok() && many.ok());
  EXPECT_EQ(one->sha256, many->sha256);
  for (size_t i = 0; i < 4; ++i) EXPECT_EQ(one->cases[i].prompt, many->cases[i].prompt);
}

TEST(Panels, EndWithTheEnginesError) {
  const auto panel = scripted_panel(R"({"tokens":[300]}
{"tokens":[301],"error":"broken on purpose"})",
                                    2);
  ASSERT_FALSE(panel.ok());
  EXPECT_NE(panel.error().message().find("case_001: broken on purpose"), std::string::npos)
      << panel.error().message();
}

TEST(PanelFiles, ReadBackAndGiveTheSameBytes) {
  const std::string path = testing::TempDir() + "panel_test.json";
  const Panel panel = sample();
  ASSERT_TRUE(write_panel(path, panel).ok());
  const auto first = read_text_file(path, 1 << 20);
  const auto read = read_panel_file(path);
  ASSERT_TRUE(read.ok()) << read.error().message();
  ASSERT_TRUE(write_panel(path, *read).ok());
  EXPECT_EQ(*read_text_file(path, 1 << 20), *first);
  EXPECT_EQ(read->cases[2].message, "Three?");
  EXPECT_EQ(read->cases[2].logprobs, panel.cases[2].logprobs);
  std::filesystem::remove(path);
}

TEST(PanelFiles, NameTheCaseAndFieldThatIsWrong) {
  const std::string path = testing::TempDir() + "panel_bad.json";
  const std::vector<std::pair<const char*, std::function<void(Panel&)>>> faults = {
      {"prompt is empty", [](Panel& p) { p.cases[1].prompt.clear(); }},
      {"logprobs", [](Panel& p) { p.cases[1].logprobs.pop_back(); }},
      {"gaps", [](Panel& p) { p.cases[1].gaps.push_back(1); }},
      {"token 5000", [](Panel& p) { p.cases[1].prompt[0] = 5000; }},
      {"token -1", [](Panel& p) { p.cases[1].continuation[0] = -1; }},
      {"logprob 0.5", [](Panel& p) { p.cases[1].logprobs[0] = 0.5f; }},
      {"finish", [](Panel& p) { p.cases[1].finish = "eos"; }},
      {"twice", [](Panel& p) { p.cases[1].id = "case_000"; }},
  };
  for (const auto& [words, spoil] : faults) {
    Panel panel = sample();
    spoil(panel);
    ASSERT_TRUE(write_panel(path, panel).ok());
    const auto read = read_panel_file(path);
    ASSERT_FALSE(read.ok()) << words;
    EXPECT_EQ(read.error().code(), Code::corrupt_data) << words;
    EXPECT_NE(read.error().message().find(words), std::string::npos) << read.error().message();
  }
  for (const char* text : {"", "[]", "3", R"({"schema":"rorqual.kl.panel/1"})", R"({"schema":7})"}) {
    ASSERT_TRUE(write_text_file(path, text).ok());
    const auto read = read_panel_file(path);
    ASSERT_FALSE(read.ok()) << text;
    EXPECT_EQ(read.error().code(), Code::corrupt_data) << text;
    EXPECT_EQ(read.error().message().find("json.exception"), std::string::npos) << read.error().message();
  }
  std::filesystem::remove(path);
  EXPECT_EQ(read_panel_file(path).error().code(), Code::not_found);
}

}  // namespace
}  // namespace rorqual::kl
