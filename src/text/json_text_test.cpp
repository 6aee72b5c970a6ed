// SPDX-License-Identifier: Apache-2.0
#include "text/json_text.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "text/image_tokens.h"
#include "text/stop_matcher.h"

namespace rorqual::text {
namespace {

std::string round_trip(const std::string& json, JsonStyle style = JsonStyle::spaced) {
  const auto value = parse_json(json);
  return value ? json_text(*value, style) : "refused";
}

TEST(JsonText, SpellsNumbersLikePython) {
  EXPECT_EQ(
      round_trip("[1, -1, 18446744073709551615, 1.50, 1e5, 1e-7, 1e16, 1e20, 5e-324, -0.0, -0, 0.0001]"),
      "[1, -1, 18446744073709551615, 1.5, 100000.0, 1e-07, 1e+16, 1e+20, 5e-324, -0.0, -0.0, 0.0001]");
  EXPECT_EQ(round_trip("100000000000000000000"), "1e+20");
  EXPECT_EQ(round_trip("[1e20,1e-7,1.0]", JsonStyle::compact), "[1e20,1e-7,1.0]");
}

TEST(JsonText, EscapesOnlyWhatItMust) {
  EXPECT_EQ(round_trip(R"({"k":"\u0000\u001f\n\t\"\\\u007f\u2028é"})"),
            "{\"k\": \"\\u0000\\u001f\\n\\t\\\"\\\\\x7f\u2028é\"}");
}

TEST(JsonText, KeepsTheFirstPlaceAndTheLastValueOfARepeatedKey) {
  EXPECT_EQ(round_trip(R"({"x":1,"y":3,"x":2})"), "{\"x\": 2, \"y\": 3}");
}

TEST(JsonText, RefusesWhatIsNotJson) {
  for (const std::string json : {"", "NaN", "+1", "01", "1e400", "{\"a\":1}x", "\"\\ud800\"", "\"\xff\"",
                                 "\"\n\"", "\xEF\xBB\xBF{}", "[1,]", "{'a':1}"}) {
    std::string message;
    EXPECT_FALSE(parse_json(json, &message)) << json;
    EXPECT_FALSE(message.empty()) << json;
  }
}

TEST(JsonText, LimitsTheDepth) {
  EXPECT_TRUE(parse_json(std::string(128, '[') + std::string(128, ']')));
  EXPECT_FALSE(parse_json(std::string(129, '[') + std::string(129, ']')));
  EXPECT_FALSE(parse_json(std::string(1'000'000, '[')));
  EXPECT_TRUE(parse_json("\"" + std::string(1000, '[') + "\""));
}

TEST(StopMatcher, ReleasesAPartialMatchAndFindsItAcrossPieces) {
  StopMatcher matcher({"STOP", "x"});
  EXPECT_EQ(matcher.push("aST"), "a");
  EXPECT_EQ(matcher.push("ST"), "ST");
  EXPECT_EQ(matcher.push("OPrest"), "");
  EXPECT_TRUE(matcher.is_matched());
  EXPECT_EQ(matcher.matched(), "STOP");
  EXPECT_EQ(matcher.push("more"), "");
}

TEST(StopMatcher, PrefersTheEarlierEndThenTheOrderOfTheList) {
  StopMatcher first({"y", "xy"});
  EXPECT_EQ(first.push("xyz"), "x");
  StopMatcher second({"xy", "y"});
  EXPECT_EQ(second.push("xyz"), "");
  StopMatcher nested({"abcd", "bc"});
  EXPECT_EQ(nested.push("abcd"), "a");
  EXPECT_EQ(nested.matched(), "bc");
}

TEST(ImageTokens, FollowTheSizePlan) {
  EXPECT_EQ(*image_token_count(1, 1), 184);
  EXPECT_EQ(*image_token_count(640, 480), 206);
  EXPECT_EQ(*image_token_count(1920, 1080), 968);
  EXPECT_EQ(*image_token_count(60000, 10), 1024);
  EXPECT_EQ(*image_token_count(10, 60000), 1024);
  EXPECT_FALSE(image_token_count(0, 5).ok());
}

}  // namespace
}  // namespace rorqual::text
