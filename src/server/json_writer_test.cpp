// SPDX-License-Identifier: Apache-2.0
#include "server/json_writer.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstdlib>
#include <limits>
#include <random>

namespace rorqual::server {
namespace {

TEST(JsonWriterTest, PlacesCommasAndKeysInTheOrderWritten) {
  JsonWriter json;
  json.begin_object()
      .field("b", int64_t{1})
      .key("a")
      .begin_array()
      .integer(-2)
      .string("x")
      .null()
      .end_array();
  json.key("o").begin_object().end_object().key("t").boolean(true).null_field("n").end_object();
  EXPECT_EQ(json.take(), R"({"b":1,"a":[-2,"x",null],"o":{},"t":true,"n":null})");
}

TEST(JsonWriterTest, EscapesWhatJsonDemandsAndNothingElse) {
  JsonWriter json;
  json.string(std::string_view("\"\\\n\r\t\b\f\0\x1f/é😀\x7f", 17));
  EXPECT_EQ(json.take(), "\"\\\"\\\\\\n\\r\\t\\b\\f\\u0000\\u001f/é😀\x7f\"");
}

TEST(JsonWriterTest, ReplacesInvalidUtf8) {
  const auto written = [](std::string_view text) {
    JsonWriter json;
    json.string(text);
    return json.take();
  };
  EXPECT_EQ(written("a\xFF"), "\"a\xEF\xBF\xBD\"");
  EXPECT_EQ(written("\xE4\xBD"), "\"\xEF\xBF\xBD\xEF\xBF\xBD\"");                  // cut short
  EXPECT_EQ(written("\xC0\x80"), "\"\xEF\xBF\xBD\xEF\xBF\xBD\"");                  // overlong
  EXPECT_EQ(written("\xED\xA0\x80"), "\"\xEF\xBF\xBD\xEF\xBF\xBD\xEF\xBF\xBD\"");  // surrogate
  EXPECT_EQ(written("\xF4\x8F\xBF\xBF"), "\"\xF4\x8F\xBF\xBF\"");                  // U+10FFFF
  EXPECT_EQ(written("\xF4\x90\x80\x80").size(), 2 + 4 * 3u);                       // beyond
}

TEST(JsonWriterTest, PrintsLogprobsThatReadBackAsTheSameFloat) {
  const unsigned seed = std::random_device{}();
  SCOPED_TRACE("seed " + std::to_string(seed));
  std::mt19937 random(seed);
  for (int i = 0; i < 300'000; ++i) {
    const float value = std::bit_cast<float>(static_cast<uint32_t>(random()));
    if (!std::isfinite(value)) continue;
    const std::string text = logprob_text(value);
    // As a client does: a double first, then float32.
    ASSERT_EQ(std::bit_cast<uint32_t>(static_cast<float>(std::strtod(text.c_str(), nullptr))),
              std::bit_cast<uint32_t>(value))
        << text;
  }
}

TEST(JsonWriterTest, PrintsLogprobsShort) {
  EXPECT_EQ(logprob_text(-0.1f), "-0.1");
  EXPECT_EQ(logprob_text(0.0f), "0.0");
  EXPECT_EQ(logprob_text(-3.0f), "-3.0");
  EXPECT_EQ(logprob_text(-std::numeric_limits<float>::infinity()), "-9999.0");
  EXPECT_EQ(logprob_text(std::numeric_limits<float>::quiet_NaN()), "-9999.0");
}

TEST(JsonWriterTest, CountsCodePoints) {
  EXPECT_EQ(count_code_points(""), 0);
  EXPECT_EQ(count_code_points("aé中😀"), 4);
}

}  // namespace
}  // namespace rorqual::server
