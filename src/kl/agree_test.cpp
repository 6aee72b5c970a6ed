// SPDX-License-Identifier: Apache-2.0
#include "kl/agree.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "runtime/scripted_engine.h"

namespace rorqual::kl {
namespace {

using ::testing::HasSubstr;

constexpr int64_t kVocab = 100;

/// One case per continuation; A gave every token log-probability -0.5 and a gap of 1 nat.
Panel make_panel(const std::vector<std::vector<int32_t>>& continuations) {
  Panel panel;
  panel.model = "a";
  panel.vocab_size = kVocab;
  panel.max_tokens = 4;
  for (size_t i = 0; i < continuations.size(); ++i) {
    PanelCase& c = panel.cases.emplace_back();
    c.id = fmt::format("case_{}", i);
    c.prompt = {1, 2};
    c.continuation = continuations[i];
    c.logprobs.assign(c.continuation.size(), -0.5f);
    c.gaps.assign(c.continuation.size(), 1.0f);
    c.finish = c.continuation.size() == 4 ? "length" : "stop";
  }
  panel.sha256 = panel_sha256(panel);
  return panel;
}

/// Each line of the script answers one request, in the order of submission: the case by itself, then forced.
Result<Agreement> agree_with_script(const Panel& panel, const std::string& script,
                                    AgreeOptions options = {}) {
  runtime::EngineInfo info;
  info.vocab_size = kVocab;
  info.max_model_len = 100;
  auto engine = runtime::make_scripted_engine(script, info, {});
  EXPECT_TRUE(engine.ok());
  return agree(**engine, panel, options);
}

TEST(Agree, AnEngineThatWritesThePanelsTokensIsIdentical) {
  const auto panel = make_panel({{7, 8, 9}, {5, 6, 5, 6}});
  const auto result = agree_with_script(panel,
                                        "{\"tokens\":[7,8,9]}\n{\"tokens\":[7,8,9]}\n"
                                        "{\"tokens\":[5,6,5,6]}\n{\"tokens\":[5,6,5,6]}\n");
  ASSERT_TRUE(result.ok()) << result.error().message();
  EXPECT_EQ(result->identical, 2);
  EXPECT_EQ(result->tokens, 7);
  EXPECT_EQ(result->matches, 7);
  EXPECT_EQ(result->disagreements(), 0);
  EXPECT_EQ(result->identical_share(), 1.0);
  EXPECT_EQ(result->forced_share(), 1.0);
  EXPECT_NEAR(result->mean_logprob_delta, -0.5 + 1.0, 1e-6) << "the script's tokens have log-probability -1";
}

TEST(Agree, TheFirstDifferenceOfOutputsAndTheForcedDisagreementsAreFound) {
  auto panel = make_panel({{7, 8, 9}, {5, 6, 5, 6}});
  panel.cases[1].gaps[2] = 0.01f;
  const auto result = agree_with_script(panel,
                                        "{\"tokens\":[7,3,9]}\n{\"tokens\":[7,3,9]}\n"
                                        "{\"tokens\":[5,6,4,6]}\n{\"tokens\":[5,6,4,6]}\n");
  ASSERT_TRUE(result.ok()) << result.error().message();
  EXPECT_EQ(result->identical, 0);
  EXPECT_EQ(result->cases[0].first_difference, 1);
  EXPECT_EQ(result->cases[1].first_difference, 2);
  EXPECT_EQ(result->matches, 5);
  EXPECT_EQ(result->disagreements(), 2);
  EXPECT_EQ(result->near_ties, 1) << "only the second one has a gap below 0.05";
  EXPECT_DOUBLE_EQ(result->forced_share(), 5.0 / 7.0);
  ASSERT_EQ(result->cases[0].disagreements.size(), 1u);
  const Disagreement& first = result->cases[0].disagreements[0];
  EXPECT_EQ(first.position, 1);
  EXPECT_EQ(first.expected, 8);
  EXPECT_EQ(first.best, 3);
  EXPECT_FALSE(first.is_near_tie());
  EXPECT_TRUE(result->cases[1].disagreements[0].is_near_tie());
}

TEST(Agree, AnOutputThatEndsElsewhereIsNotIdentical) {
  AgreeOptions options;
  options.is_forced = false;
  const auto shorter = agree_with_script(make_panel({{7, 8, 9}}), "{\"tokens\":[7,8]}\n", options);
  ASSERT_TRUE(shorter.ok());
  EXPECT_EQ(shorter->cases[0].first_difference, 2);
  const auto longer = agree_with_script(make_panel({{7, 8, 9}}), "{\"tokens\":[7,8,9,4]}\n", options);
  EXPECT_EQ(longer->cases[0].first_difference, 3);
  auto cut = make_panel({{7, 8, 9, 4}});
  cut.cases[0].finish = "stop";  // A ended by itself, B runs into the limit
  const auto same_tokens = agree_with_script(cut, "{\"tokens\":[7,8,9,4,2]}\n", options);
  EXPECT_EQ(same_tokens->cases[0].first_difference, 4);
  EXPECT_FALSE(same_tokens->is_forced);
  EXPECT_EQ(same_tokens->disagreements(), 0);
  EXPECT_EQ(same_tokens->forced_share(), 1.0);
}

TEST(Agree, AnEmptyContinuationIsComparedButNotForced) {
  const auto result = agree_with_script(make_panel({{}}), "{\"tokens\":[]}\n");
  ASSERT_TRUE(result.ok()) << result.error().message();
  EXPECT_EQ(result->identical, 1);
  EXPECT_EQ(result->tokens, 0);
  EXPECT_EQ(result->mean_logprob_delta, 0.0);
}

TEST(Agree, RefusesAnotherVocabularyAndPassesErrorsOfTheEngineOnWithTheCase) {
  auto panel = make_panel({{7, 8, 9}});
  panel.vocab_size = kVocab + 1;
  const auto other = agree_with_script(panel, "{\"tokens\":[7]}\n");
  ASSERT_FALSE(other.ok());
  EXPECT_EQ(other.error().code(), Code::corrupt_data);
  EXPECT_THAT(other.error().message(), HasSubstr("vocabulary of 101 tokens, the engine of 100"));
  const auto broken =
      agree_with_script(make_panel({{7, 8, 9}, {1}}), "{\"tokens\":[7],\"error\":\"the device is gone\"}\n");
  ASSERT_FALSE(broken.ok());
  EXPECT_THAT(broken.error().message(), HasSubstr("case_0"));
  EXPECT_THAT(broken.error().message(), HasSubstr("the device is gone"));
  AgreeOptions none;
  none.streams = 0;
  EXPECT_EQ(agree_with_script(make_panel({{7}}), "{\"tokens\":[7]}\n", none).error().code(),
            Code::invalid_argument);
}

TEST(Agree, OneRequestAtATimeGivesTheSameAsSeveralAndProgressIsToldToTheEnd) {
  const auto panel = make_panel({{7, 8, 9}, {5, 6, 5, 6}, {3}});
  const std::string script =
      "{\"tokens\":[7,8,9]}\n{\"tokens\":[7,1,9]}\n{\"tokens\":[5,6]}\n{\"tokens\":[5,6,5,6]}\n"
      "{\"tokens\":[3]}\n{\"tokens\":[4]}\n";
  AgreeOptions one;
  one.streams = 1;
  runtime::EngineInfo info;
  info.vocab_size = kVocab;
  info.max_model_len = 100;
  auto engine = runtime::make_scripted_engine(script, info, {});
  int64_t last = 0, total = 0;
  const auto alone = agree(**engine, panel, one, [&](int64_t done, int64_t all) {
    EXPECT_GT(done, last);
    last = done;
    total = all;
  });
  const auto together = agree_with_script(panel, script);
  ASSERT_TRUE(alone.ok() && together.ok());
  EXPECT_EQ(last, 6);
  EXPECT_EQ(total, 6);
  EXPECT_EQ(alone->identical, 2);
  EXPECT_EQ(alone->matches, 6);
  EXPECT_EQ(alone->identical, together->identical);
  EXPECT_EQ(alone->matches, together->matches);
  EXPECT_EQ(alone->mean_logprob_delta, together->mean_logprob_delta);
  for (size_t i = 0; i < panel.cases.size(); ++i) {
    EXPECT_EQ(alone->cases[i].first_difference, together->cases[i].first_difference) << i;
    EXPECT_EQ(alone->cases[i].matches, together->cases[i].matches) << i;
  }
}

}  // namespace
}  // namespace rorqual::kl
