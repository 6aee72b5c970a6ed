// SPDX-License-Identifier: Apache-2.0
#include "cli/completion.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdio>
#include <cstdlib>
#include <sstream>

#include "base/file.h"

namespace rorqual::cli {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;

/// "bench serve" has the name of another command as its second word.
std::vector<CommandSpec> sample_commands() {
  const OptionSpec format{.name = "format",
                          .kind = OptionKind::choice,
                          .help = "it's a form",
                          .choices = "text|json",
                          .letter = 'f'};
  const OptionSpec kind{.name = "kind", .help = "what", .choices = "ops|forward", .is_positional = true};
  const OptionSpec fast{.name = "fast", .kind = OptionKind::flag, .help = "quick", .default_value = "on"};
  const OptionSpec corpus{
      .name = "corpus", .help = "which", .choices = "neutral|code", .is_positional = true};
  return {{.name = "serve", .summary = "the server", .options = {format}},
          {.name = "check", .summary = "checks", .options = {kind}},
          {.name = "kl capture", .summary = "scores a text", .options = {format, corpus, fast}},
          {.name = "kl compare", .summary = "compares", .options = {}},
          {.name = "bench serve", .summary = "measures", .options = {fast}}};
}

/// What bash offers for a line; the last word is the one being completed.
std::vector<std::string> offered(const std::vector<std::string>& words) {
  const auto script = completion_script("bash", sample_commands());
  EXPECT_TRUE(script.ok());
  std::string line = *script + "COMP_WORDS=(";
  for (const auto& word : words) line += " '" + word + "'";
  line += ")\nCOMP_CWORD=$((${#COMP_WORDS[@]} - 1))\n_rorqual\nprintf '%s\\n' \"${COMPREPLY[@]}\"\n";
  const auto path = testing::TempDir() + "/completion_test.bash";
  EXPECT_TRUE(write_text_file(path, line).ok());
  const std::string command = "bash --norc --noprofile -u '" + path + "' 2>&1";
  FILE* pipe = popen(command.c_str(), "r");
  EXPECT_NE(pipe, nullptr);
  std::string output(65536, '\0');
  output.resize(fread(output.data(), 1, output.size(), pipe));
  EXPECT_EQ(pclose(pipe), 0) << output;
  std::vector<std::string> replies;
  std::istringstream lines(output);
  for (std::string reply; std::getline(lines, reply);) {
    if (!reply.empty()) replies.push_back(reply);
  }
  return replies;
}

TEST(BashCompletion, OffersFirstWordsOnce) {
  EXPECT_THAT(offered({"rorqual", ""}), ElementsAre("serve", "check", "kl", "bench", "--help", "--version"));
  EXPECT_THAT(offered({"rorqual", "k"}), ElementsAre("kl"));
}

TEST(BashCompletion, OffersTheSecondWordOfAGroup) {
  EXPECT_THAT(offered({"rorqual", "kl", ""}), ElementsAre("capture", "compare", "--help"));
  EXPECT_THAT(offered({"rorqual", "kl", "com"}), ElementsAre("compare"));
  EXPECT_THAT(offered({"rorqual", "bench", "s"}), ElementsAre("serve"));
}

TEST(BashCompletion, OffersOptionsAfterOneAndTwoWords) {
  EXPECT_THAT(offered({"rorqual", "serve", "--"}), ElementsAre("--help", "--format"));
  EXPECT_THAT(offered({"rorqual", "kl", "capture", "-"}),
              ElementsAre("--help", "--format", "--fast", "--no-fast"));
  EXPECT_THAT(offered({"rorqual", "bench", "serve", "--"}), ElementsAre("--help", "--fast", "--no-fast"));
}

TEST(BashCompletion, OffersValuesOfChoices) {
  EXPECT_THAT(offered({"rorqual", "serve", "--format", ""}), ElementsAre("text", "json"));
  EXPECT_THAT(offered({"rorqual", "kl", "capture", "--format", "j"}), ElementsAre("json"));
  EXPECT_THAT(offered({"rorqual", "kl", "capture", "--format", "="}), ElementsAre("text", "json"));
  EXPECT_THAT(offered({"rorqual", "kl", "capture", "--format", "=", "t"}), ElementsAre("text"));
}

TEST(BashCompletion, OffersPositionalChoicesInTheirPlaceOnly) {
  EXPECT_THAT(offered({"rorqual", "check", ""}), ElementsAre("ops", "forward"));
  EXPECT_THAT(offered({"rorqual", "kl", "capture", "n"}), ElementsAre("neutral"));
  EXPECT_THAT(offered({"rorqual", "kl", "capture", "neutral", ""}), IsEmpty());
}

TEST(BashCompletion, OffersNothingForUnknownWords) {
  EXPECT_THAT(offered({"rorqual", "nothing", "--"}), IsEmpty());
  EXPECT_THAT(offered({"rorqual", "kl", "nothing", "--"}), IsEmpty());
}

TEST(BashCompletion, OfAllCommandsIsValidBash) {
  const auto script = completion_script("bash");
  ASSERT_TRUE(script.ok());
  const auto path = testing::TempDir() + "/completion_all.bash";
  ASSERT_TRUE(write_text_file(path, *script).ok());
  EXPECT_EQ(std::system(("bash -n '" + path + "'").c_str()), 0);
  EXPECT_THAT(*script, HasSubstr("\"serve\") COMPREPLY="));
}

TEST(ZshCompletion, RunsTheBashFunction) {
  const auto zsh = completion_script("zsh", sample_commands()),
             bash = completion_script("bash", sample_commands());
  ASSERT_TRUE(zsh.ok() && bash.ok());
  EXPECT_EQ(zsh->rfind("#compdef rorqual\n", 0), 0U);
  EXPECT_THAT(*zsh, HasSubstr(*bash));
}

TEST(FishCompletion, ConditionsGoByPlace) {
  const auto script = completion_script("fish", sample_commands());
  ASSERT_TRUE(script.ok());
  EXPECT_THAT(*script, HasSubstr("-n '__rorqual_words 1' -f -a kl -d 'capture, compare'\n"));
  EXPECT_THAT(*script, HasSubstr("-n '__rorqual_words 1' -f -a serve -d 'the server'\n"));
  EXPECT_THAT(*script,
              HasSubstr("-n '__rorqual_words 2; and __rorqual_at kl' -f -a capture -d 'scores a text'\n"));
  EXPECT_THAT(
      *script,
      HasSubstr("-n '__rorqual_at kl capture' -l format -d 'it\\'s a form' -s f -r -f -a 'text json'\n"));
  EXPECT_THAT(*script, HasSubstr("-n '__rorqual_at bench serve' -l fast"));
  EXPECT_THAT(*script, Not(HasSubstr("'__rorqual_at serve' -l fast")));
}

TEST(Completion, OfOtherShellsIsAnError) {
  const auto script = completion_script("tcsh");
  ASSERT_FALSE(script.ok());
  EXPECT_EQ(script.error().code(), Code::invalid_argument);
}

}  // namespace
}  // namespace rorqual::cli
