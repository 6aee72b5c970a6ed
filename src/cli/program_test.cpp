// SPDX-License-Identifier: Apache-2.0
#include "cli/program.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <set>

#include "cli/commands.h"
#include "cli/completion.h"
#include "cli/help.h"
#include "cli/model_options.h"
#include "cli/nearest.h"

namespace rorqual::cli {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;

TEST(ErrorText, HasOneLineForTheErrorAndOneForTheHint) {
  const Error error(Code::corrupt_data, "shard 7 is 5 bytes, expected 9", "copy it again");
  EXPECT_EQ(error_text(error, {}, false), "error: shard 7 is 5 bytes, expected 9\n  hint: copy it again\n");
  EXPECT_EQ(error_text(Error(Code::io, "x"), {}, false), "error: x\n");
}

TEST(ErrorText, JsonHasCodeMessageHintParamAndExit) {
  const auto json =
      nlohmann::json::parse(error_text(Error(Code::invalid_argument, "m\xFF", "h"), "port", true));
  EXPECT_EQ(json["error"]["code"], "invalid_argument");
  EXPECT_EQ(json["error"]["hint"], "h");
  EXPECT_EQ(json["error"]["param"], "port");
  EXPECT_EQ(json["error"]["exit"], 2);
}

TEST(CheckCpu, NamesWhatIsMissing) {
  EXPECT_TRUE(check_cpu(true, true, true, "").ok());
  const auto status = check_cpu(false, false, true, "");
  ASSERT_FALSE(status.ok());
  EXPECT_EQ(status.error().code(), Code::unsupported);
  EXPECT_EQ(status.error().message(), "this CPU lacks AVX2, FMA, which the kernels need");
  EXPECT_TRUE(check_cpu(false, false, false, "ref").ok());
}

TEST(HideKeys, OverwritesValuesOfKeysAndNothingElse) {
  std::vector<std::string> words = {"rorqual",        "serve",  "--api-key", "abc",
                                    "--api-key=de",   "--port", "1",         "--upstream-api-key=f",
                                    "--api-key-file", "k",      "-p",        "--api-key"};
  std::vector<char*> arguments;
  for (auto& word : words) arguments.push_back(word.data());
  hide_keys(static_cast<int>(arguments.size()), arguments.data());
  EXPECT_THAT(words, ElementsAre("rorqual", "serve", "--api-key", "***", "--api-key=**", "--port", "1",
                                 "--upstream-api-key=*", "--api-key-file", "k", "-p", "--api-key"));
}

TEST(Tables, HaveNoFaults) {
  for (const auto& command : commands()) {
    EXPECT_THAT(table_fault(command), IsEmpty());
    EXPECT_FALSE(command.summary.empty());
    EXPECT_NE(command.run, nullptr);
  }
}

TEST(Tables, PlainHelpShowsAtMostFifteenOptions) {
  for (const auto& command : commands()) {
    int common = 0;
    for (const auto& option : command.options) common += option.is_common ? 1 : 0;
    EXPECT_LE(common, 15) << command.name;
  }
}

TEST(Tables, DefaultsFitTheirOptions) {
  for (const auto& command : commands()) {
    std::vector<std::string> arguments;
    for (const auto& option : command.options) {
      if (option.kind == OptionKind::flag || option.default_value.empty()) continue;
      arguments.push_back("--" + std::string(option.name) + "=" + std::string(option.default_value));
    }
    // What is required gets a word of its choices, so that only the defaults can fail.
    for (const auto& option : command.options) {
      if (!option.is_required) continue;
      if (!option.is_positional) arguments.push_back("--" + std::string(option.name));
      arguments.emplace_back(option.choices.empty() ? "x"
                                                    : option.choices.substr(0, option.choices.find('|')));
    }
    std::string offending;
    const auto result = resolve(command, arguments, {}, offending);
    EXPECT_TRUE(result.ok()) << command.name << ": " << result.error().message();
  }
}

TEST(Help, FindsGroupsOptionsAndWords) {
  const auto* command = find_command("completion");
  ASSERT_NE(command, nullptr);
  EXPECT_THAT(*command_help(*command, "all"), HasSubstr("--print-config"));
  EXPECT_THAT(*command_help(*command, "general"), HasSubstr("--config FILE"));
  EXPECT_THAT(*command_help(*command, "--config"), HasSubstr("RORQUAL_CONFIG"));
  EXPECT_THAT(*command_help(*command, "yaml"), HasSubstr("--config FILE"));
  const auto nothing = command_help(*command, "confg");
  ASSERT_FALSE(nothing.ok());
  EXPECT_THAT(nothing.error().message(), HasSubstr("did you mean 'config'"));
}

TEST(Help, MarkdownHasEveryOptionOfEveryCommand) {
  const auto text = reference_markdown();
  for (const auto& command : commands()) {
    EXPECT_THAT(text, HasSubstr("## rorqual " + std::string(command.name) + "\n"));
    for (const auto& option : command.options) EXPECT_THAT(text, HasSubstr(environment_name(option.name)));
  }
}

TEST(SwitchOptions, EveryCommandThatOpensAModelHasEveryLossySwitchAndItsDefaultIsExact) {
  int opening = 0;
  for (const auto& command : commands()) {
    if (command.find("numerics") == nullptr) continue;
    ++opening;
    EXPECT_NE(command.find("exact-switches"), nullptr) << command.name;
    EXPECT_NE(command.find("fast"), nullptr) << command.name;
    for (const auto& spec : model::switch_registry()) {
      const auto* option = command.find(spec.option);
      ASSERT_NE(option, nullptr) << command.name << " --" << spec.option;
      EXPECT_EQ(option->choices, spec.choices);
      EXPECT_EQ(option->default_value, spec.exact_value);
    }
  }
  EXPECT_GE(opening, 2);
}

TEST(SwitchOptions, BecomeTheSwitchesOfTheModel) {
  const auto* command = find_command("chat");
  std::string offending;
  const auto switches_of = [&](const std::vector<std::string>& arguments, const Environment& environment) {
    return open_options(resolve(*command, arguments, environment, offending)->values);
  };
  EXPECT_EQ(switches_of({}, {})->switches, model::Switches{});
  EXPECT_EQ(switches_of({"--lm-head=fp8"}, {})->switches.lm_head, model::HeadFormat::fp8);
  EXPECT_EQ(switches_of({"--fast"}, {})->switches.lm_head, model::HeadFormat::bf16);  // failed its gate
  EXPECT_EQ(switches_of({"--fast", "--lm-head=fp8"}, {})->switches.lm_head, model::HeadFormat::fp8);
  EXPECT_EQ(switches_of({"--fast", "--lm-head=bf16"}, {})->switches.lm_head, model::HeadFormat::bf16);
  EXPECT_EQ(switches_of({}, {{"RORQUAL_LM_HEAD", "fp8"}})->switches.lm_head, model::HeadFormat::fp8);
  EXPECT_TRUE(switches_of({"--exact-switches"}, {}).ok());
  EXPECT_EQ(switches_of({"--exact-switches"}, {{"RORQUAL_LM_HEAD", "fp8"}}).error().code(),
            Code::invalid_argument);
}

TEST(SwitchOptions, ThePageNamesEverySwitch) {
  const auto page = switches_markdown();
  for (const auto& spec : model::switch_registry()) {
    EXPECT_THAT(page, HasSubstr("### --" + std::string(spec.option)));
    EXPECT_THAT(page, HasSubstr(std::string(spec.public_name)));
  }
}

TEST(Completion, CoversCommandsAndOptions) {
  for (const char* shell : {"bash", "zsh", "fish"}) {
    const auto script = completion_script(shell);
    ASSERT_TRUE(script.ok());
    for (const auto& command : commands()) EXPECT_THAT(*script, HasSubstr(std::string(command.name)));
    EXPECT_THAT(*script, HasSubstr("print-config"));
  }
  EXPECT_FALSE(completion_script("tcsh").ok());
}

TEST(Nearest, FindsTypingErrorsAndPartsOfNames) {
  const std::vector<std::string> names = {"host", "port", "max-model-len", "max-num-seqs"};
  EXPECT_THAT(nearest("prot", names), testing::Contains("port"));
  EXPECT_THAT(nearest("model-len", names), ElementsAre("max-model-len"));
  EXPECT_THAT(nearest("max-model-length", names), ElementsAre("max-model-len"));
  EXPECT_THAT(nearest("zzzz", names), IsEmpty());
  EXPECT_THAT(nearest("", names), IsEmpty());
}

TEST(Program, UsesTheDocumentedExitCodes) {
  testing::internal::CaptureStderr();
  EXPECT_EQ(run_program({}, {}), 2);
  EXPECT_EQ(run_program({"verson"}, {}), 2);
  EXPECT_EQ(run_program({"version", "--nonsense"}, {}), 2);
  EXPECT_EQ(run_program({"version", "--config", "/nonexistent.yaml"}, {}), 3);
  EXPECT_EQ(run_program({"version", "--help=zzzz"}, {}), 3);
  const auto text = testing::internal::GetCapturedStderr();
  EXPECT_THAT(text, HasSubstr("did you mean 'version'?"));
  EXPECT_THAT(text, Not(HasSubstr("terminate called")));
}

}  // namespace
}  // namespace rorqual::cli
