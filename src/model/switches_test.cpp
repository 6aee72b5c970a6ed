// SPDX-License-Identifier: Apache-2.0
#include "model/switches.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>
#include <string>

#include "kernels/matrix.h"

namespace rorqual::model {
namespace {

using ::testing::HasSubstr;

TEST(SwitchRegistry, NamesAreUniqueAndFieldsAreFilled) {
  std::set<std::string_view> names, public_names;
  for (const auto& spec : switch_registry()) {
    EXPECT_TRUE(names.insert(spec.option).second) << spec.option;
    EXPECT_TRUE(public_names.insert(spec.public_name).second) << spec.public_name;
    EXPECT_FALSE(spec.help.empty() || spec.changes.empty() || spec.since.empty()) << spec.option;
    EXPECT_NE(spec.exact_value, spec.lossy_value) << spec.option;
    for (const auto value : {spec.record.kl_neutral, spec.record.kl_code, spec.record.kl_agentic,
                             spec.record.kl_panel, spec.record.gate, spec.record.speed, spec.record.memory}) {
      EXPECT_FALSE(value.empty()) << spec.option;
    }
    EXPECT_EQ(find_switch(spec.option), &spec);
  }
  EXPECT_EQ(find_switch("no-such-switch"), nullptr);
}

TEST(SwitchRegistry, EveryValueCanBeSetAndReadBackAndTheDefaultIsExact) {
  for (const auto& spec : switch_registry()) {
    EXPECT_EQ(spec.read(Switches{}), spec.exact_value) << spec.option;
    Switches switches;
    spec.write(switches, spec.lossy_value);
    EXPECT_EQ(spec.read(switches), spec.lossy_value) << spec.option;
    spec.write(switches, spec.exact_value);
    EXPECT_EQ(switches, Switches{}) << spec.option;
  }
}

TEST(SwitchRegistry, TheReplayTrimTakesEachOfItsChoices) {
  const SwitchSpec& spec = *find_switch("replay-trim");
  Switches switches;
  for (const auto& [name, rows] :
       {std::pair<std::string_view, int64_t>{"64", 64}, {"1024", 1024}, {"exact", 0}}) {
    spec.write(switches, name);
    EXPECT_EQ(switches.replay_trim, rows);
    EXPECT_EQ(spec.read(switches), name);
  }
  EXPECT_EQ(parse_switches("replay-trim=256")->replay_trim, 256);
  EXPECT_FALSE(parse_switches("replay-trim=100").ok());
}

TEST(SwitchRegistry, TextOfTheSwitchesThatAreOnReadsBack) {
  EXPECT_EQ(describe_switches({}), "");
  Switches all;
  for (const auto& spec : switch_registry()) spec.write(all, spec.lossy_value);
  const auto text = describe_switches(all);
  EXPECT_THAT(text, HasSubstr("lm-head=fp8"));
  EXPECT_EQ(*parse_switches(text), all);
  EXPECT_EQ(*parse_switches(""), Switches{});
  EXPECT_THAT(parse_switches("lm-head=int4").error().message(), HasSubstr("expected bf16|fp8"));
  EXPECT_THAT(parse_switches("warp-drive=on").error().message(), HasSubstr("unknown switch 'warp-drive'"));
  EXPECT_FALSE(parse_switches("lm-head").ok());
}

TEST(SwitchRegistry, TheBytesOfTheHeadAreThoseOfThePackedMatrix) {
  using kernels::WeightFormat;
  constexpr int64_t kVocabulary = 129'280, kWidth = 5120;
  const auto bytes = [&](WeightFormat format) {
    return kernels::packed_data_bytes(format, kVocabulary, kWidth) +
           kernels::packed_scale_bytes(format, kVocabulary, kWidth);
  };
  EXPECT_EQ(bytes(WeightFormat::bf16), 1'323'827'200);
  EXPECT_EQ(bytes(WeightFormat::fp8_block32), 663'206'400);
  const auto& record = find_switch("lm-head")->record;
  EXPECT_THAT(std::string(record.memory), HasSubstr("1,323,827,200 -> 663,206,400 bytes"));
}

TEST(SwitchChoiceRules, AreExactByDefaultFastTakesWhatPassedTheGateAndAnExplicitValueWins) {
  EXPECT_EQ(*choose_switches({}), Switches{});
  SwitchChoice choice;
  choice.fast = true;
  for (const auto& spec : switch_registry()) {
    EXPECT_EQ(spec.read(*choose_switches(choice)), spec.is_in_fast ? spec.lossy_value : spec.exact_value);
    EXPECT_EQ(spec.is_in_fast, spec.record.gate.substr(0, 6) == "passed") << spec.option;
  }
  choice.given = {{"lm-head", "bf16"}};
  EXPECT_EQ(choose_switches(choice)->lm_head, HeadFormat::bf16);
  SwitchChoice single;
  single.given = {{"lm-head", "fp8"}};
  EXPECT_EQ(choose_switches(single)->lm_head, HeadFormat::fp8);
}

TEST(SwitchChoiceRules, RefuseExactSwitchesBesideALossyOne) {
  SwitchChoice choice;
  choice.exact = true;
  EXPECT_EQ(*choose_switches(choice), Switches{});
  choice.given = {{"lm-head", "bf16"}};
  EXPECT_EQ(*choose_switches(choice), Switches{});
  choice.given = {{"lm-head", "fp8"}};
  const auto refused = choose_switches(choice);
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.error().code(), Code::invalid_argument);
  EXPECT_THAT(refused.error().message(), HasSubstr("--lm-head is fp8"));
  choice.given.clear();
  choice.fast = true;
  EXPECT_FALSE(choose_switches(choice).ok());
}

}  // namespace
}  // namespace rorqual::model
