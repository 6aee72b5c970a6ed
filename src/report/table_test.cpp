// SPDX-License-Identifier: Apache-2.0
#include "report/table.h"

#include <gtest/gtest.h>

namespace rorqual::report {
namespace {

Table sample() {
  return {{"name", "KL"}, {Align::left, Align::right}, {{"neutral", "0.0522"}, {"code", "11.5"}}};
}

TEST(Table, TextPadsColumnsAndAlignsNumbersRight) {
  EXPECT_EQ(to_text(sample()),
            "name         KL\n"
            "neutral  0.0522\n"
            "code       11.5\n");
}

TEST(Table, TextCountsWideCharactersTwiceAndCombiningMarksNot) {
  const Table table{{"a", "b"}, {}, {{"日本", "x"}, {"e\xCC\x81tude", "y"}, {"é", "z"}}};
  EXPECT_EQ(to_text(table),
            "a      b\n"
            "日本   x\n"
            "e\xCC\x81tude  y\n"
            "é      z\n");
}

TEST(Table, TextWithoutHeaderHasNoHeaderLineAndNoTrailingBlanks) {
  EXPECT_EQ(to_text({{}, {}, {{"a", ""}, {"bcd", "e"}}}), "a\nbcd  e\n");
  EXPECT_EQ(to_text({}), "");
}

TEST(Table, TextKeepsEachRowOnOneLine) {
  EXPECT_EQ(to_text({{"h"}, {}, {{"a\nb\x1B[31m\xE4"}}}), "h\na\\nb\\x1B[31m\\xE4\n");
}

TEST(Table, ShortRowsGetEmptyCells) {
  const Table table{{"a", "b"}, {}, {{"1"}, {"1", "2", "3"}}};
  EXPECT_EQ(to_csv(table), "a,b,\r\n1,,\r\n1,2,3\r\n");
  EXPECT_EQ(to_markdown(table),
            "| a   | b   |     |\n| --- | --- | --- |\n| 1   |     |     |\n| 1   | 2   | 3   |\n");
}

TEST(Table, MarkdownMarksAlignmentAndEscapesBars) {
  EXPECT_EQ(to_markdown(sample()),
            "| name    |     KL |\n"
            "| ------- | -----: |\n"
            "| neutral | 0.0522 |\n"
            "| code    |   11.5 |\n");
  EXPECT_EQ(to_markdown({{"a|b"}, {}, {{"<b>\n"}}}), "| a\\|b    |\n| ------- |\n| \\<b>\\\\n |\n");
}

TEST(Table, CsvQuotesByRfc4180) {
  EXPECT_EQ(to_csv({{"a", "b"}, {}, {{"x,y", "say \"hi\""}, {"two\nlines", "plain"}}}),
            "a,b\r\n\"x,y\",\"say \"\"hi\"\"\"\r\n\"two\nlines\",plain\r\n");
}

TEST(Table, HtmlEscapesEveryCell) {
  const auto html = to_html({{"<h>", "n"}, {Align::left, Align::right}, {{"<script>&\"'", "1\xFF"}}});
  EXPECT_EQ(html,
            "<table class=\"data\"><thead><tr><th scope=\"col\">&lt;h&gt;</th><th scope=\"col\" "
            "class=\"number\">n</th></tr></thead><tbody>\n"
            "<tr><td>&lt;script&gt;&amp;&quot;&#39;</td><td class=\"number\">1\\xFF</td></tr>\n"
            "</tbody></table>\n");
}

}  // namespace
}  // namespace rorqual::report
