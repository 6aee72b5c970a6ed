// SPDX-License-Identifier: Apache-2.0
#include "cli/resolve.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>
#include <unistd.h>

#include <cstdio>
#include <fstream>
#include <nlohmann/json.hpp>

#include "cli/commands.h"

namespace rorqual::cli {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

/// A command with one option of each kind.
const CommandSpec& sample() {
  static const CommandSpec kSample = [] {
    CommandSpec command{.name = "sample", .summary = "s", .description = "d", .example = "rorqual sample x"};
    command.options = {
        {.name = "model", .group = "arguments", .help = "m", .value_name = "MODEL", .is_positional = true},
        {.name = "port",
         .kind = OptionKind::integer,
         .group = "g",
         .help = "p",
         .value_name = "PORT",
         .default_value = "8000",
         .min = 0,
         .max = 65535,
         .letter = 'p'},
        {.name = "max-model-len",
         .kind = OptionKind::size,
         .group = "g",
         .help = "l",
         .value_name = "N",
         .default_value = "auto",
         .choices = "auto",
         .min = 1},
        {.name = "ratio",
         .kind = OptionKind::real,
         .group = "g",
         .help = "r",
         .value_name = "X",
         .default_value = "0.5",
         .min = 0,
         .max = 1},
        {.name = "format",
         .kind = OptionKind::choice,
         .group = "g",
         .help = "f",
         .value_name = "F",
         .default_value = "text",
         .choices = "text|json"},
        {.name = "caching", .kind = OptionKind::flag, .group = "g", .help = "c", .default_value = "on"},
        {.name = "api-key", .group = "g", .help = "k", .value_name = "KEY", .is_list = true},
        {.name = "stop", .group = "g", .help = "stop", .value_name = "TEXT", .is_list = true},
    };
    for (auto& option : shared_options()) command.options.push_back(option);
    return command;
  }();
  return kSample;
}

Result<Resolution> run(const std::vector<std::string>& arguments, const Environment& environment = {}) {
  std::string offending;
  return resolve(sample(), arguments, environment, offending);
}

std::string failure(const std::vector<std::string>& arguments, const Environment& environment = {}) {
  auto result = run(arguments, environment);
  EXPECT_FALSE(result.ok());
  if (result.ok()) return {};
  EXPECT_EQ(result.error().code(), Code::invalid_argument);
  return result.error().message();
}

/// A file that is removed with the object.
class TemporaryFile {
 public:
  explicit TemporaryFile(const std::string& text) {
    char name[] = "/tmp/rorqual-config-XXXXXX";
    const int fd = mkstemp(name);
    EXPECT_GE(fd, 0);
    close(fd);
    path_ = name;
    std::ofstream(path_) << text;
  }

  ~TemporaryFile() { std::remove(path_.c_str()); }

  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

TEST(Resolve, GivesDefaultsWithTheirOrigin) {
  auto result = run({});
  ASSERT_TRUE(result.ok());
  const auto& values = result->values;
  EXPECT_EQ(values.integer("port"), 8000);
  EXPECT_EQ(values.at("port").origin, Origin::built_in);
  EXPECT_FALSE(values.number("max-model-len").has_value());
  EXPECT_TRUE(values.flag("caching"));
  EXPECT_DOUBLE_EQ(values.real("ratio"), 0.5);
  EXPECT_FALSE(values.has("model"));
}

TEST(Resolve, ReadsAllSpellingsOfOptions) {
  auto result =
      run({"folder", "--port=9000", "--max-model-len", "256K", "--no-caching", "--stop", "a", "--stop=b"});
  ASSERT_TRUE(result.ok()) << result.error().message();
  const auto& values = result->values;
  EXPECT_EQ(values.text("model"), "folder");
  EXPECT_EQ(values.integer("port"), 9000);
  EXPECT_EQ(values.number("max-model-len"), 262144);
  EXPECT_FALSE(values.flag("caching"));
  EXPECT_THAT(values.list("stop"), ElementsAre("a", "b"));
}

TEST(Resolve, TheLastOfARepeatedOptionCounts) {
  auto result = run({"--port", "1", "-p", "2", "--no-caching", "--caching"});
  ASSERT_TRUE(result.ok()) << result.error().message();
  EXPECT_EQ(result->values.integer("port"), 2);
  EXPECT_TRUE(result->values.flag("caching"));
}

TEST(Resolve, CommandLineWinsOverEnvironmentAndThatOverTheFile) {
  const TemporaryFile file("port: 1\nratio: 0.25\nformat: json\n");
  const Environment environment = {{"RORQUAL_PORT", "2"}, {"RORQUAL_RATIO", "0.75"}};
  auto result = run({"--config", file.path(), "--port", "3"}, environment);
  ASSERT_TRUE(result.ok()) << result.error().message();
  const auto& values = result->values;
  EXPECT_EQ(values.integer("port"), 3);
  EXPECT_EQ(values.at("port").origin, Origin::command_line);
  EXPECT_DOUBLE_EQ(values.real("ratio"), 0.75);
  EXPECT_EQ(values.at("ratio").origin, Origin::environment);
  EXPECT_EQ(values.text("format"), "json");
  EXPECT_EQ(values.at("format").origin, Origin::config_file);
}

TEST(Resolve, AnUnknownOptionNamesTheNearest) {
  EXPECT_EQ(failure({"--max-model-length", "5"}),
            "unknown option '--max-model-length'; did you mean '--max-model-len'?");
  EXPECT_EQ(failure({"--zzzzzz"}), "unknown option '--zzzzzz'");
}

TEST(Resolve, RefusesValuesOutsideKindOrRange) {
  EXPECT_EQ(failure({"--port", "70000"}), "--port: got '70000', expected an integer from 0 to 65535");
  EXPECT_EQ(failure({"--port", "80x"}), "--port: got '80x', expected an integer from 0 to 65535");
  EXPECT_THAT(failure({"--max-model-len", "0"}), HasSubstr("of at least 1, or auto"));
  EXPECT_THAT(failure({"--max-model-len", "1.5K"}), HasSubstr("got '1.5K'"));
  EXPECT_THAT(failure({"--ratio", "nan"}), HasSubstr("expected a number from 0 to 1"));
  EXPECT_EQ(failure({"--format", "jsn"}),
            "--format: got 'jsn', expected one of text, json; did you mean 'json'?");
  EXPECT_THAT(failure({"--caching=maybe"}), HasSubstr("caching"));
}

TEST(Resolve, RefusesSuperfluousArgumentsAndMissingValues) {
  EXPECT_EQ(failure({"a", "b"}), "unexpected argument 'b' for 'rorqual sample'");
  EXPECT_THAT(failure({"--port"}), HasSubstr("option '--port' needs a value"));
  EXPECT_THAT(failure({"--port", "--caching"}), HasSubstr("option '--port' needs a value"));
}

TEST(Resolve, NamesTheVariableOfABadValue) {
  EXPECT_EQ(failure({}, {{"RORQUAL_PORT", "x"}}),
            "--port (from RORQUAL_PORT): got 'x', expected an integer from 0 to 65535");
}

TEST(Resolve, ReadsSwitchesAndListsFromTheEnvironment) {
  auto result = run({}, {{"RORQUAL_CACHING", "Disabled"}, {"RORQUAL_STOP", "a,b"}});
  ASSERT_TRUE(result.ok());
  EXPECT_FALSE(result->values.flag("caching"));
  EXPECT_THAT(result->values.list("stop"), ElementsAre("a", "b"));
}

TEST(Resolve, WarnsAboutUnknownVariablesOfOurs) {
  auto result = run({}, {{"RORQUAL_CPU_ISB", "ref"}, {"RORQUAL_CPU_ISA", "ref"}});
  ASSERT_TRUE(result.ok());
  EXPECT_THAT(result->warnings,
              ElementsAre("unknown environment variable 'RORQUAL_CPU_ISB'; did you mean 'RORQUAL_CPU_ISA'?"));
}

TEST(Resolve, NamesFileAndLineOfABadEntry) {
  const TemporaryFile unknown("# comment\n\nprt: 1\n");
  EXPECT_EQ(failure({"--config", unknown.path()}),
            unknown.path() + ":3: unknown option 'prt'; did you mean 'port'?");
  const TemporaryFile bad("port: many\n");
  EXPECT_THAT(failure({"--config", bad.path()}), HasSubstr("--port in " + bad.path() + ":1: got 'many'"));
}

TEST(Resolve, AMissingConfigFileIsNotFound) {
  auto result = run({"--config", "/nonexistent/rorqual.yaml"});
  ASSERT_FALSE(result.ok());
  EXPECT_EQ(result.error().code(), Code::not_found);
}

TEST(PrintConfig, ShowsOriginsAndHidesKeys) {
  auto result = run({"--port", "1", "--api-key", "secret"});
  ASSERT_TRUE(result.ok());
  const auto text = print_config(result->values, false);
  EXPECT_THAT(text, HasSubstr("port: 1"));
  EXPECT_THAT(text, HasSubstr("# command line"));
  EXPECT_THAT(text, testing::Not(HasSubstr("secret")));
  const auto json = nlohmann::json::parse(print_config(result->values, true));
  EXPECT_EQ(json["options"]["port"]["value"], 1);
  EXPECT_EQ(json["options"]["port"]["origin"], "command line");
  EXPECT_EQ(json["options"]["api-key"]["value"][0], "***");
}

TEST(PrintConfig, ItsOutputIsAConfigFile) {
  auto first =
      run({"--port", "1", "--max-model-len", "64K", "--no-caching", "--stop", "a, b", "--stop", "#c"});
  ASSERT_TRUE(first.ok());
  const TemporaryFile file(print_config(first->values, false));
  auto second = run({"--config", file.path()});
  ASSERT_TRUE(second.ok()) << second.error().message();
  EXPECT_EQ(second->values.integer("port"), 1);
  EXPECT_EQ(second->values.number("max-model-len"), 65536);
  EXPECT_FALSE(second->values.flag("caching"));
  EXPECT_THAT(second->values.list("stop"), ElementsAre("a, b", "#c"));
}

TEST(SecretOptions, AreAllThatHoldAKey) {
  for (const auto& command : commands()) {
    for (const auto& option : command.options) {
      const bool holds_key = option.name.ends_with("api-key");
      EXPECT_EQ(is_secret_option(option.name), holds_key) << command.name << " --" << option.name;
    }
  }
}

TEST(NonDefaultOptions, ListsOnlyWhatWasGiven) {
  auto result = run({"--port", "1", "--stop", "x", "--api-key", "secret"});
  ASSERT_TRUE(result.ok());
  EXPECT_EQ(non_default_options(result->values), "port=1 api-key=*** stop=x");
  EXPECT_THAT(non_default_options(run({})->values), IsEmpty());
}

}  // namespace
}  // namespace rorqual::cli
