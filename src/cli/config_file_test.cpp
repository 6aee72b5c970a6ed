// SPDX-License-Identifier: Apache-2.0
#include "cli/config_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace rorqual::cli {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

std::vector<std::string> items_of(const Result<std::vector<ConfigEntry>>& entries, const std::string& name) {
  if (!entries.ok()) return {"error: " + entries.error().message()};
  for (const auto& entry : *entries) {
    if (entry.name == name) return entry.items;
  }
  return {"absent"};
}

TEST(ConfigFile, ReadsScalarsQuotesListsAndComments) {
  const auto entries = parse_config_text(
      "---\nport: 8001  # comment\nhost: \"a # b\"\nname: 'it''s'\nmax_model_len: 1M\nempty:\nlist: [a, \"b, "
      "c\", 'd']\n"
      "stop:\n  - one\n  - \"two\\n\"\n");
  EXPECT_THAT(items_of(entries, "port"), ElementsAre("8001"));
  EXPECT_THAT(items_of(entries, "host"), ElementsAre("a # b"));
  EXPECT_THAT(items_of(entries, "max-model-len"), ElementsAre("1M"));
  EXPECT_THAT(items_of(entries, "list"), ElementsAre("a", "b, c", "d"));
  EXPECT_THAT(items_of(entries, "stop"), ElementsAre("one", "two\n"));
  EXPECT_TRUE(items_of(entries, "empty").empty());
}

TEST(ConfigFile, ADoubledSingleQuoteIsOneQuote) {
  EXPECT_THAT(items_of(parse_config_text("name: 'it''s'\n"), "name"), ElementsAre("it's"));
}

TEST(ConfigFile, ReadsJsonObjects) {
  const auto entries =
      parse_config_text(R"( {"port": 8001, "prefix_caching": true, "stop": ["a", "b"], "x": null} )");
  EXPECT_THAT(items_of(entries, "port"), ElementsAre("8001"));
  EXPECT_THAT(items_of(entries, "prefix-caching"), ElementsAre("on"));
  EXPECT_THAT(items_of(entries, "stop"), ElementsAre("a", "b"));
}

TEST(ConfigFile, RefusesWhatTheSubsetDoesNotHave) {
  for (const char* text : {"a:\n  b: 1\n", "just words\n", "- item\n", "a: [b\n", "a: \"b\n",
                           "a: &anchor b\n", "a: 1\na: 2\n", "{\"a\": {}}", "{\"a\": ", ": x\n"}) {
    const auto entries = parse_config_text(text);
    EXPECT_FALSE(entries.ok()) << text;
    if (!entries.ok()) {
      EXPECT_EQ(entries.error().code(), Code::invalid_argument);
    }
  }
}

TEST(ConfigFile, ErrorsNameTheLine) {
  const auto entries = parse_config_text("a: 1\n\noops\n");
  ASSERT_FALSE(entries.ok());
  EXPECT_THAT(entries.error().message(), HasSubstr("line 3"));
}

}  // namespace
}  // namespace rorqual::cli
