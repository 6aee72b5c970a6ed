// SPDX-License-Identifier: Apache-2.0
#include "text/string_field.h"

#include <gtest/gtest.h>

namespace rorqual::text {
namespace {

/// The text that comes out when the object arrives in pieces of `size` bytes.
std::string read(const std::string& json, size_t size) {
  StringField field("input");
  std::string out;
  for (size_t i = 0; i < json.size(); i += size) out += field.push(std::string_view(json).substr(i, size));
  return out + field.finish();
}

TEST(StringField, DecodesTheSameAtEveryCut) {
  const std::string json = R"({"input": "a\n\t\"b\"\\ \u00e9\ud83d\ude00\u0001 ü/\/"})";
  const std::string text = "a\n\t\"b\"\\ \xC3\xA9\xF0\x9F\x98\x80\x01 \xC3\xBC//";
  for (size_t size = 1; size <= json.size(); ++size) EXPECT_EQ(read(json, size), text) << size;
}

TEST(StringField, GivesTextBeforeTheObjectIsComplete) {
  StringField field("input");
  EXPECT_EQ(field.push("{\"input\": \"*** Begin"), "*** Begin");
  EXPECT_EQ(field.push(" Patch\\"), " Patch");
  EXPECT_EQ(field.push("n"), "\n");
  EXPECT_EQ(field.finish(), "");
}

TEST(StringField, TakesOtherFormsAtTheEnd) {
  EXPECT_EQ(read(R"({"other": 1, "input": "x"})", 3), "x");
  EXPECT_EQ(read(R"({"input":"x"})", 3), "x");
  EXPECT_EQ(read(R"({"input": 5})", 3), R"({"input": 5})");
  EXPECT_EQ(read("{}", 1), "{}");
  EXPECT_EQ(read("{\"in", 1), "{\"in");
}

TEST(StringField, LoneSurrogatesAreReplaced) {
  EXPECT_EQ(read(R"({"input": "\udc00x"})", 1), "\xEF\xBF\xBDx");
}

}  // namespace
}  // namespace rorqual::text
