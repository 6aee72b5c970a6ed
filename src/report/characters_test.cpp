// SPDX-License-Identifier: Apache-2.0
#include "report/characters.h"

#include <gtest/gtest.h>

#include <random>

namespace rorqual::report {
namespace {

TEST(FirstCharacter, ReadsOneToFourBytes) {
  for (const auto& [text, code] : {std::pair{"A", 0x41U}, {"é", 0xE9U}, {"中", 0x4E2DU}, {"😀", 0x1F600U}}) {
    const auto character = first_character(text);
    EXPECT_TRUE(character.is_valid) << text;
    EXPECT_EQ(character.code, code);
    EXPECT_EQ(character.num_bytes, std::string_view(text).size());
  }
}

TEST(FirstCharacter, RejectsWhatIsNotUtf8OneByteAtATime) {
  // Lone continuation, overlong, surrogate, above U+10FFFF, cut sequences.
  for (const char* text : {"\x80", "\xC0\xAF", "\xE0\x80\x80", "\xED\xA0\x80", "\xF4\x90\x80\x80", "\xE4\xB8",
                           "\xF0\x9F\x98", "\xFF"}) {
    const auto character = first_character(text);
    EXPECT_FALSE(character.is_valid);
    EXPECT_EQ(character.num_bytes, 1U);
    EXPECT_EQ(character.code, static_cast<uint8_t>(text[0]));
  }
}

TEST(DisplayWidth, CountsColumns) {
  EXPECT_EQ(display_width(""), 0);
  EXPECT_EQ(display_width("abc"), 3);
  EXPECT_EQ(display_width("한글"), 4);
  EXPECT_EQ(display_width("ｆ"), 2);
  EXPECT_EQ(display_width("😀"), 2);
  EXPECT_EQ(display_width("n\xCC\x83"), 1);
  EXPECT_EQ(display_width("·"), 1);
  EXPECT_EQ(display_width("\xE4\xB8"), 2);
}

TEST(Visible, ShowsControlDirectionAndBrokenBytes) {
  EXPECT_EQ(visible("a\tb\r\n"), R"(a\tb\r\n)");
  EXPECT_EQ(visible(std::string_view("\0\x7F", 2)), R"(\x00\x7F)");
  EXPECT_EQ(visible("x\u202Ey\u200B\uFEFF"), R"(x\u{202E}y\u{200B}\u{FEFF})");
  EXPECT_EQ(visible("\xE4\xB8"), "\\xE4\\xB8");
  EXPECT_EQ(visible("\uFFFF"), R"(\u{FFFF})");
  EXPECT_EQ(visible("Ä中😀 \u00A0"), "Ä中😀 \u00A0");
}

TEST(Escaped, LeavesNoMarkup) {
  EXPECT_EQ(escaped("</script><!--&\"'"), "&lt;/script&gt;&lt;!--&amp;&quot;&#39;");
  EXPECT_EQ(escaped_with_signs("<\n>"), "&lt;<span class=\"sign\">\\n</span>&gt;");
}

TEST(Escaped, RandomBytesGiveValidUtf8WithoutMarkup) {
  const auto seed = std::random_device{}();
  SCOPED_TRACE(seed);
  std::mt19937 generator(seed);
  for (int round = 0; round < 2000; ++round) {
    std::string bytes(generator() % 24, '\0');
    for (auto& byte : bytes) byte = static_cast<char>(generator());
    const auto text = escaped(bytes);
    EXPECT_EQ(text.find_first_of("<>\"'"), std::string::npos);
    for (std::string_view rest = text; !rest.empty();) {
      const auto character = first_character(rest);
      ASSERT_TRUE(character.is_valid);
      ASSERT_GE(character.code, 0x20U);
      rest.remove_prefix(character.num_bytes);
    }
  }
}

}  // namespace
}  // namespace rorqual::report
