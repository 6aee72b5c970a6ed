// SPDX-License-Identifier: Apache-2.0
#include "kl/agentic_text.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <set>

#include "kl/agentic_text_workspace.h"
#include "text/utf8.h"

namespace rorqual::kl {
namespace {

SourceFile python_file(const std::string& path, int functions) {
  SourceFile file{
      .package = "sample", .language = "Python", .path = path, .text = "import os\nfrom sys import argv\n\n"};
  for (int i = 0; i < functions; ++i) {
    file.text += fmt::format(
        "def load_part_{0}(max_items):\n    # part {0} of {1}\n    return os.stat(max_items, "
        "load_part_{0})\n\n",
        i, path);
  }
  return file;
}

std::vector<SourceFile> sample() {
  return {python_file("a.py", 12), python_file("b.py", 20), python_file("sub/c.py", 30),
          python_file("d.py", 16)};
}

TEST(WorkFile, finds_definitions_imports_and_text_by_line) {
  const WorkFile file(python_file("a.py", 3));
  ASSERT_EQ(file.lines().size(), 15U);
  const auto definitions = file.definitions();
  ASSERT_EQ(definitions.size(), 3U);
  EXPECT_EQ(definitions[1].name, "load_part_1");
  EXPECT_EQ(definitions[1].line, 8U);
  EXPECT_EQ(file.imports().size(), 2U);
  const auto hits = file.find("load_part_2");
  ASSERT_EQ(hits.size(), 2U);
  EXPECT_EQ(hits[0].line, 12U);
  EXPECT_EQ(file.blank_lines(), 4U);
}

TEST(WorkFile, replaces_every_occurrence_once) {
  WorkFile file(python_file("a.py", 2));
  EXPECT_EQ(file.replace("max_items", "max_items_v2"), 4);
  EXPECT_EQ(file.find("max_items_v2_v2").size(), 0U);
  EXPECT_EQ(file.find("max_items_v2").size(), 4U);
  file.insert_before(1, "# top");
  EXPECT_EQ(file.lines()[0], "# top");
}

TEST(AgenticSessions, are_the_same_every_time_and_a_larger_text_only_appends) {
  const auto files = sample();
  const auto small = agentic_sessions(files, 60000), large = agentic_sessions(files, 150000);
  ASSERT_LT(small.size(), large.size());
  for (size_t i = 0; i < small.size(); ++i) EXPECT_EQ(small[i].text, large[i].text) << i;
}

TEST(AgenticSessions, have_six_styles_with_and_without_reasoning_and_closed_marks) {
  std::set<std::string_view> styles;
  bool with_reasoning = false, without = false;
  const auto count = [](const std::string& text, std::string_view mark) {
    int found = 0;
    for (auto at = text.find(mark); at != std::string::npos; at = text.find(mark, at + 1)) ++found;
    return found;
  };
  for (const auto& session : agentic_sessions(sample(), 150000)) {
    styles.insert(session.style);
    EXPECT_TRUE(text::is_valid_utf8(session.text));
    EXPECT_EQ(session.text.find("begin▁of▁sentence"), std::string::npos);
    EXPECT_EQ(count(session.text, "<tool_result>"), count(session.text, "</tool_result>"));
    EXPECT_GE(count(session.text, "<tool_result>"), 3) << session.style;
    EXPECT_TRUE(session.text.ends_with("<｜end▁of▁sentence｜>"));
    (count(session.text, "<think>") > 3 ? with_reasoning : without) = true;
  }
  EXPECT_EQ(styles.size(), 6U);
  EXPECT_TRUE(with_reasoning);
  EXPECT_TRUE(without);
}

TEST(AgenticSessions, leave_out_files_that_spell_control_tokens) {
  auto files = sample();
  files[3].text += "TOKEN = '<｜User｜>'\n";
  for (const auto& session : agentic_sessions(files, 60000)) {
    EXPECT_EQ(session.text.find("TOKEN ="), std::string::npos);
    EXPECT_EQ(session.text.find("d.py"), std::string::npos);
  }
}

}  // namespace
}  // namespace rorqual::kl
