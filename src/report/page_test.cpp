// SPDX-License-Identifier: Apache-2.0
#include "report/page.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>

#include "base/file.h"

namespace rorqual::report {
namespace {

using testing::HasSubstr;
using testing::Not;

Page sample() {
  return Page({.title = "T <1>",
               .lead = "lead & more",
               .facts = {{"model", "mini <x>"}},
               .limits = {"only a < bound"}});
}

TEST(Page, BeginsWithWhatWasMeasuredAndItsLimits) {
  const auto html = sample().html();
  EXPECT_EQ(html.rfind("<!DOCTYPE html>", 0), 0U);
  EXPECT_THAT(html, HasSubstr("<h1>T &lt;1&gt;</h1>\n<p>lead &amp; more</p>"));
  EXPECT_THAT(html, HasSubstr("<dt>model</dt><dd>mini &lt;x&gt;</dd>"));
  EXPECT_THAT(html, HasSubstr("<li>only a &lt; bound</li>"));
}

TEST(Page, AsksNothingOfTheNetwork) {
  auto page = sample();
  page.table({{"a"}, {}, {{"b"}}}, "c");
  const auto html = page.html();
  for (const char* word : {"src=", "href=\"http", "url(", "@import", "<link", "<iframe", "fetch("})
    EXPECT_THAT(html, Not(HasSubstr(word))) << word;
  EXPECT_THAT(html, HasSubstr("default-src 'none'"));
}

TEST(Page, PolicyAllowsItsOwnScriptOnly) {
  // Digest of the script element's text, as `openssl dgst -sha256 -binary | base64` gives it.
  const auto html = sample().html();
  const auto begin = html.rfind("<script>") + 8;
  const auto script = html.substr(begin, html.rfind("</script>") - begin);
  const auto folder = std::filesystem::path(testing::TempDir());
  const auto script_path = (folder / "page_test_script").string(),
             digest_path = (folder / "page_test_digest").string();
  ASSERT_TRUE(write_text_file(script_path, script).ok());
  const auto command =
      "python3 -c \"import "
      "base64,hashlib,sys;print(base64.b64encode(hashlib.sha256(open(sys.argv[1],'rb').read())"
      ".digest()).decode())\" " +
      script_path + " > " + digest_path;
  ASSERT_EQ(std::system(command.c_str()), 0);
  const auto digest = read_text_file(digest_path, 1000);
  ASSERT_TRUE(digest.ok());
  EXPECT_THAT(html, HasSubstr("script-src 'sha256-" + digest->substr(0, digest->find('\n')) + "'"));
}

TEST(Page, ListsSectionsWhenThereAreSeveral) {
  auto page = sample();
  page.section("One <a>");
  EXPECT_THAT(page.html(), Not(HasSubstr("<nav")));
  page.section("Two");
  const auto html = page.html();
  EXPECT_THAT(html, HasSubstr("<a href=\"#s1\">One &lt;a&gt;</a>"));
  EXPECT_THAT(html, HasSubstr("<h2 id=\"s2\">Two</h2>"));
}

TEST(Page, EscapesTextsCaptionsAndNotices) {
  auto page = sample();
  page.subsection("<h>");
  page.paragraph("<p1>");
  page.notice(Tone::bad, "<n>");
  page.table({{"<th>"}, {}, {{"<td1>"}}}, "<cap>");
  page.figure("<svg></svg>", "<fig>");
  const auto html = page.html();
  for (const char* text : {"<h>", "<p1>", "<n>", "<th>", "<td1>", "<cap>", "<fig>"})
    EXPECT_THAT(html, Not(HasSubstr(text)));
  EXPECT_THAT(html, HasSubstr("class=\"notice bad\">&lt;n&gt;"));
  EXPECT_THAT(html, HasSubstr("<table class=\"data\"><caption>&lt;cap&gt;</caption><thead>"));
  EXPECT_THAT(html, HasSubstr("<svg></svg>"));
}

TEST(Page, DataCannotEndItsElement) {
  auto page = sample();
  page.data("{\"a\":\"</script><!--<script>&\"}");
  EXPECT_THAT(page.html(),
              HasSubstr("id=\"data\">{\"a\":\"\\u003c/script\\u003e\\u003c!--\\u003cscript\\u003e\\u0026\"}"
                        "</script>"));
}

TEST(Page, IsWrittenWhole) {
  const auto path = testing::TempDir() + "/page_test.html";
  auto page = sample();
  page.section("s");
  ASSERT_TRUE(write_page(path, page).ok());
  const auto text = read_text_file(path, 1 << 20);
  ASSERT_TRUE(text.ok());
  EXPECT_EQ(*text, page.html());
  EXPECT_FALSE(write_page("/nonexistent-folder/page.html", page).ok());
}

}  // namespace
}  // namespace rorqual::report
