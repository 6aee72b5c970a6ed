// SPDX-License-Identifier: Apache-2.0
#include "text/json_text.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <random>

#include "text/image_tokens.h"
#include "text/stop_matcher.h"
#include "text/utf8.h"

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

TEST(JsonText, ErrorsQuoteIllFormedTextAsValidUtf8) {
  for (const std::string json : {"\"\xB0\"", "\"\xF0\x90\x41\"", "\xC3", "{\"a\": \"\xED\xA0\x80\"}"}) {
    std::string message;
    EXPECT_FALSE(parse_json(json, &message));
    EXPECT_TRUE(is_valid_utf8(message)) << message;
    EXPECT_NE(message.find("\xEF\xBF\xBD"), std::string::npos) << message;
  }
}

TEST(JsonText, LimitsTheDepth) {
  EXPECT_TRUE(parse_json(std::string(128, '[') + std::string(128, ']')));
  EXPECT_FALSE(parse_json(std::string(129, '[') + std::string(129, ']')));
  EXPECT_FALSE(parse_json(std::string(1'000'000, '[')));
  EXPECT_TRUE(parse_json("\"" + std::string(1000, '[') + "\""));
}

/// Both readers give the same verdict and the same value.
void expect_agreement(const std::string& json) {
  std::string message, strict_message;
  const auto fast = parse_json(json, &message), strict = parse_json_strict(json, &strict_message);
  ASSERT_EQ(fast.has_value(), strict.has_value()) << json;
  ASSERT_EQ(message, strict_message) << json;
  if (!fast) return;
  ASSERT_EQ(json_text(*fast), json_text(*strict)) << json;
  ASSERT_EQ(fast->type(), strict->type()) << json;
}

TEST(JsonText, ReadsTheSameOnBothWays) {
  for (const std::string json : {"0",
                                 "-0",
                                 "[-0]",
                                 "{\"a\":-0}",
                                 "\"-0\"",
                                 "[0,-1,9223372036854775807,9223372036854775808,-9223372036854775808]",
                                 "18446744073709551615",
                                 "18446744073709551616",
                                 "-9223372036854775809",
                                 "1e308",
                                 "1e309",
                                 "1E+2",
                                 "-0e0",
                                 "0.1",
                                 "\"\\ud83d\\ude00\"",
                                 "\"\\ude00\"",
                                 "\"\\ud83dx\"",
                                 "\"\\ud83d\\n\"",
                                 "\"\\u0000\"",
                                 "{\"a\":1,\"a\":{\"b\":2},\"c\":3,\"a\":[]}",
                                 "{\"\\u0061\":1,\"a\":2}",
                                 " [ ] ",
                                 "[]]",
                                 "[1 2]",
                                 "{\"a\"}",
                                 "\"\\x\"",
                                 "nul",
                                 "true",
                                 "\"\x7f\"",
                                 "\"\xed\x9f\xbf\"",
                                 "\"\xed\xa0\x80\"",
                                 "[\"\\u12\"]",
                                 "\t1\n",
                                 "1\v",
                                 ""}) {
    expect_agreement(json);
  }
  expect_agreement(std::string(128, '[') + std::string(128, ']'));
  expect_agreement(std::string(129, '[') + std::string(129, ']'));
  std::string nested;
  for (int i = 0; i < 128; ++i) nested += "{\"a\":";
  expect_agreement(nested + "1" + std::string(128, '}'));
  expect_agreement(nested + "[]" + std::string(128, '}'));
}

TEST(JsonText, ReadsTheSameOnBothWaysForRandomTexts) {
  static const char* kParts[] = {"{",    "}",  "[",      "]",   ",",     ":",           "\"a\"", "\"b\"",
                                 "1",    "-0", "0",      "1.5", "1e400", "\"\\ud800\"", "\"é\"", "true",
                                 "null", " ",  "\"-0\"", "-1",  "{}",    "[]"};
  const uint64_t seed = 20261017;
  RecordProperty("seed", std::to_string(seed));
  std::mt19937_64 random(seed);
  for (int round = 0; round < 20'000; ++round) {
    std::string json = "[";
    for (uint64_t i = random() % 8; i > 0; --i) {
      json += kParts[random() % std::size(kParts)];
      if (random() % 2 == 0) json += ",";
    }
    if (json.back() == ',') json.pop_back();
    expect_agreement(json + (random() % 8 == 0 ? "" : "]"));
    if (HasFatalFailure()) return;
  }
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

TEST(StopMatcher, IgnoresWhatEndsTooEarly) {
  StopMatcher matcher({"aa", "b"});
  matcher.set_ignoring(true);
  EXPECT_EQ(matcher.push("xbaa"), "xb");  // the last two may begin another one
  EXPECT_EQ(matcher.push("a"), "a");
  EXPECT_FALSE(matcher.is_matched());
  matcher.set_ignoring(false);
  EXPECT_EQ(matcher.push("ab"), "a");  // of "aa" one letter came before
  EXPECT_EQ(matcher.matched(), "aa");
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
