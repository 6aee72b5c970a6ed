// SPDX-License-Identifier: Apache-2.0
// The corpora are built here from made-up packages: the shapes of the real ones, not their contents.
#include "kl/corpus_build.h"

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <map>
#include <set>
#include <sstream>

#include "base/file.h"
#include "kl/corpus_build_extract.h"
#include "text/utf8.h"

namespace rorqual::kl {
namespace {

namespace fs = std::filesystem;

TEST(CorpusRecipe, names_only_packages_of_its_table_and_each_once) {
  std::set<std::string_view> names;
  for (const auto& package : corpus_packages()) {
    EXPECT_TRUE(names.insert(package.name).second) << package.name;
    EXPECT_FALSE(package.version.empty() || package.licence.empty()) << package.name;
  }
  std::set<std::string_view> used;
  for (const auto kind : {CorpusKind::neutral, CorpusKind::code}) {
    for (const auto& part : corpus_parts(kind)) used.insert(part.package);
  }
  EXPECT_EQ(names, used);
}

TEST(CorpusRecipe, has_the_same_packages_as_the_script_that_fetches_them) {
  const auto script = read_text_file(std::string(RORQUAL_SOURCE_DIR) + "/scripts/corpus_packages", 1 << 20);
  ASSERT_TRUE(script.ok());
  size_t listed = 0;
  for (const auto& package : corpus_packages()) {
    EXPECT_NE((*script).find(fmt::format("\n{}={}\n", package.name, package.version)), std::string::npos)
        << package.name;
  }
  const auto begin = (*script).find("packages='"), end = (*script).find("\n'\n", begin);
  for (size_t at = begin; at < end; ++at) listed += (*script)[at] == '\n';
  EXPECT_EQ(listed, corpus_packages().size());
}

TEST(CorpusRecipe, has_a_recorded_hash_for_every_text_and_package) {
  for (const auto kind : {CorpusKind::neutral, CorpusKind::code, CorpusKind::agentic}) {
    EXPECT_EQ(recorded_corpus_sha256(kind).size(), 64U);
    for (const auto& part : corpus_parts(kind)) {
      EXPECT_EQ(recorded_package_sha256(kind, part.package).size(), 64U) << part.package;
    }
  }
}

TEST(CorpusRecipe, has_at_least_twelve_scripts_and_half_of_the_bytes_or_less_in_latin_letters) {
  std::map<Script, int64_t> bytes;
  for (const auto& part : corpus_parts(CorpusKind::neutral)) bytes[part.script] += part.bytes;
  EXPECT_GE(bytes.size(), 12U);
  EXPECT_LE(2 * bytes[Script::latin], corpus_default_bytes(CorpusKind::neutral));
}

TEST(Script, knows_letters_of_every_listed_script) {
  const std::map<char32_t, Script> samples = {
      {U'a', Script::latin},  {U'é', Script::latin},      {U'ж', Script::cyrillic}, {U'λ', Script::greek},
      {U'中', Script::han},   {U'か', Script::kana},      {U'한', Script::hangul},  {U'ع', Script::arabic},
      {U'ש', Script::hebrew}, {U'क', Script::devanagari}, {U'ক', Script::bengali},  {U'ગ', Script::gujarati},
      {U'த', Script::tamil},  {U'త', Script::telugu},     {U'ಕ', Script::kannada},  {U'ไ', Script::thai},
      {U'ខ', Script::khmer},  {U'မ', Script::myanmar},    {U'ქ', Script::georgian}, {U'հ', Script::armenian},
      {U'1', Script::other},  {U' ', Script::other},      {U'×', Script::other},    {U'€', Script::other}};
  for (const auto& [letter, script] : samples)
    EXPECT_EQ(script_of(letter), script) << static_cast<uint32_t>(letter);
}

TEST(Extract, takes_titles_and_paragraphs_of_a_help_page_and_resolves_entities) {
  const auto found = markup_paragraphs(
      "<page><info><desc>no</desc><p>nor this</p></info><title>A  title</title>\n<p>One &amp; two\n "
      "<gui>three</gui> "
      "&#8212; <!-- <p>hidden</p> --> four.</p><code>x = "
      "1</code><list><item><p>Item.</p></item></list></page>",
      ExtractKind::mallard);
  EXPECT_EQ(found, (std::vector<std::string>{"A title", "One & two three — four.", "Item."}));
}

TEST(Extract, takes_paragraphs_only_of_a_manual_and_survives_a_page_that_ends_inside_a_tag) {
  EXPECT_EQ(markup_paragraphs("<h2>Head</h2><p>Text.</p><table><tr><p>cell</p></tr></table><p>Last &",
                              ExtractKind::html),
            (std::vector<std::string>{"Text."}));
  EXPECT_TRUE(markup_paragraphs("<p>open <", ExtractKind::html).empty());
}

std::string little(uint32_t value) {
  std::string out;
  for (int i = 0; i < 4; ++i) out += static_cast<char>(value >> (8 * i) & 0xFF);
  return out;
}

/// A catalog as msgfmt writes it.
std::string catalog(const std::vector<std::pair<std::string, std::string>>& messages) {
  const auto count = static_cast<uint32_t>(messages.size());
  std::string table[2], strings;
  for (int side = 0; side < 2; ++side) {
    for (const auto& [original, translation] : messages) {
      const auto& text = side == 0 ? original : translation;
      table[side] += little(static_cast<uint32_t>(text.size())) +
                     little(28 + 16 * count + static_cast<uint32_t>(strings.size()));
      strings += text + '\0';
    }
  }
  return little(0x950412DE) + little(0) + little(count) + little(28) + little(28 + 8 * count) + little(0) +
         little(0) + table[0] + table[1] + strings;
}

TEST(Extract, takes_long_plain_messages_of_a_catalog) {
  const std::string longer = "A message that is long enough";
  const auto file = catalog({{"", "Project-Id-Version: x"},
                             {"short", "kurz"},
                             {longer, "Eine Meldung, die lang genug ist"},
                             {longer + " 2", "Mit %s darin"},
                             {longer + " 3", "Schreib an a@b.org"},
                             {longer + " 4", longer + " 4"}});
  const auto found = catalog_messages(file, 20);
  ASSERT_TRUE(found.ok());
  EXPECT_EQ(*found, std::vector<std::string>{"Eine Meldung, die lang genug ist"});
}

TEST(Extract, refuses_catalogs_whose_strings_lie_outside_the_file) {
  auto file = catalog({{std::string(30, 'a'), std::string(30, 'b')}});
  for (size_t size = 0; size < file.size() - 1; ++size) {
    const auto cut = catalog_messages(file.substr(0, size), 20);
    EXPECT_FALSE(cut.ok()) << size;
  }
  file[8] = static_cast<char>(0xFF);  // number of messages
  EXPECT_EQ(catalog_messages(file, 20).error().code(), Code::corrupt_data);
}

TEST(Extract, drops_the_leading_comment_and_lines_with_authors_or_addresses) {
  EXPECT_EQ(
      clean_source("#!/bin/sh\n# Licence\n\n# more\nx=1\n# Author: A\ny=2 # mail me@example.org\r\nz=3\r\n"),
      "x=1\nz=3\n");
  EXPECT_EQ(clean_source("/*\n anything\n*/\nint a;\n"), "int a;\n");
  EXPECT_EQ(clean_source("\xFF\xFE"), "");
  EXPECT_EQ(clean_source("int t[] = {1,2,3,4,5,6,7,8,9,10,11,12};\n"), "");
}

TEST(Extract, knows_addresses_from_decorators) {
  EXPECT_TRUE(holds_address("see a.b@c-d.org"));
  EXPECT_TRUE(holds_address("https://x"));
  EXPECT_FALSE(holds_address("@decorator.name"));
  EXPECT_FALSE(holds_address("$array[@x] a@b"));
}

/// A root with every package of the recipe.
class FakePackages : public ::testing::Test {
 protected:
  void SetUp() override {
    root_ = fs::temp_directory_path() /
            fmt::format("rorqual-corpus-{}", ::testing::UnitTest::GetInstance()->random_seed());
    root_ += fmt::format("-{}", getpid());
    for (const auto kind : {CorpusKind::neutral, CorpusKind::code}) {
      for (const auto& part : corpus_parts(kind)) write_part(part);
    }
  }

  void TearDown() override { fs::remove_all(root_); }

  static std::string sentence(const CorpusPart& part, int number) {
    static const std::map<Script, std::string> kLetters = {
        {Script::latin, "abc"},   {Script::cyrillic, "жил"}, {Script::greek, "λόγ"},
        {Script::han, "中文字"},  {Script::kana, "かな漢"},  {Script::hangul, "한글은"},
        {Script::arabic, "عرب"},  {Script::hebrew, "שלו"},   {Script::devanagari, "कखग"},
        {Script::bengali, "কখগ"}, {Script::gujarati, "કખગ"}, {Script::tamil, "தமிழ"},
        {Script::telugu, "తెలు"},  {Script::kannada, "ಕನ್ನ"},  {Script::thai, "ไทย"},
        {Script::khmer, "ខ្មែ"},   {Script::myanmar, "မြန်"},  {Script::georgian, "ქარ"},
        {Script::armenian, "հայ"}};
    std::string out = fmt::format("{}{}", part.language, number);
    for (int i = 0; i < 20; ++i) out += " " + kLetters.at(part.script) + kLetters.at(part.script);
    return out;
  }

  void write_part(const CorpusPart& part) const {
    const bool is_file = part.suffix.empty();
    std::string text;
    std::vector<std::pair<std::string, std::string>> messages;
    for (int i = 0; i < 400; ++i) {
      if (part.extract == ExtractKind::source) {
        text += fmt::format("def name_{0}(value):\n    return some_call(value, name_{0})\n\n", i + 1000);
      } else {
        messages.emplace_back(std::string(45, 'm') + std::to_string(i), sentence(part, i));
      }
    }
    if (part.extract == ExtractKind::source || is_file) {
      if (part.extract == ExtractKind::catalog) text = catalog(messages);
      const std::string name(part.suffix.starts_with('/') ? part.suffix.substr(1) : part.suffix);
      const std::string stem = part.suffix.starts_with('/') ? "" : "file";
      for (int n = 0; n < (is_file ? 1 : 3); ++n) {
        const auto folder = n == 0 || stem.empty() ? std::string() : fmt::format("/sub{}", n);
        write(is_file ? std::string(part.path) : fmt::format("{}{}/{}{}", part.path, folder, stem, name),
              text);
      }
      return;
    }
    for (int page = 0; page < 40; ++page) {
      std::string markup = "<page>";
      for (int i = 0; i < 10; ++i)
        markup += "<p>" + messages[static_cast<size_t>(page * 10 + i)].second + "</p>";
      write(fmt::format("{}/page{}{}", part.path, page, part.suffix), markup + "</page>");
    }
  }

  void write(const std::string& path, const std::string& text) const {
    const auto full = root_ / path;
    fs::create_directories(full.parent_path());
    std::ofstream(full, std::ios::binary) << text;
  }

  CorpusBuildOptions options(int64_t bytes) const { return {.root = root_.string(), .bytes = bytes}; }

  fs::path root_;
};

TEST_F(FakePackages, give_the_same_text_twice_with_every_language_in_every_quarter) {
  const auto first = build_corpus(CorpusKind::neutral, options(0)),
             again = build_corpus(CorpusKind::neutral, options(0));
  ASSERT_TRUE(first.ok()) << first.error().message();
  ASSERT_TRUE(again.ok());
  EXPECT_EQ((*first).text, (*again).text);
  EXPECT_EQ((*first).sha256.size(), 64U);
  EXPECT_TRUE(text::is_valid_utf8((*first).text));
  EXPECT_GE(static_cast<int64_t>((*first).text.size()), corpus_default_bytes(CorpusKind::neutral));
  std::map<Script, std::set<int64_t>> quarters;
  const auto size = static_cast<int64_t>((*first).text.size());
  for (const auto& document : (*first).documents) quarters[document.script].insert(4 * document.begin / size);
  EXPECT_GE(quarters[Script::latin].size(), 4U);
  EXPECT_GE(quarters[Script::cyrillic].size(), 4U);
  EXPECT_GE(quarters[Script::thai].size(), 3U);
}

TEST_F(FakePackages, differ_from_the_recorded_ones_and_every_package_is_named) {
  const auto built = build_corpus(CorpusKind::code, options(0));
  ASSERT_TRUE(built.ok()) << built.error().message();
  EXPECT_TRUE((*built).is_recorded_size);
  EXPECT_FALSE((*built).is_as_recorded);
  for (const auto& use : (*built).packages) EXPECT_FALSE(use.is_as_recorded) << use.package;
}

TEST_F(FakePackages, that_are_missing_are_named_with_the_commands_that_get_them) {
  fs::remove_all(root_ / "usr/share/gocode");
  const auto built = build_corpus(CorpusKind::code, options(0));
  ASSERT_FALSE(built.ok());
  EXPECT_EQ(built.error().code(), Code::not_found);
  EXPECT_NE(built.error().message().find("3 Debian packages"), std::string::npos) << built.error().message();
  EXPECT_NE(built.error().hint().find("golang-github-gorilla-mux-dev"), std::string::npos);
  EXPECT_NE(built.error().hint().find("scripts/corpus_packages"), std::string::npos);
}

TEST_F(FakePackages, cannot_give_more_than_they_hold) {
  const auto built = build_corpus(CorpusKind::neutral, options(int64_t{1} << 30));
  ASSERT_FALSE(built.ok());
  EXPECT_EQ(built.error().code(), Code::invalid_argument);
}

TEST_F(FakePackages, count_only_with_their_own_files_on_a_system_with_a_package_list) {
  const auto before = build_corpus(CorpusKind::code, options(0));
  write("usr/lib/python3/dist-packages/click/stranger.py",
        std::string("def other(value):\n    return value\n\n"));
  std::string list = "/.\n";
  for (const auto& entry : fs::recursive_directory_iterator(root_ / "usr/lib/python3/dist-packages/click")) {
    if (entry.path().filename() != "stranger.py")
      list += "/" + fs::relative(entry.path(), root_).string() + "\n";
  }
  write("var/lib/dpkg/info/python3-click.list", list);
  const auto after = build_corpus(CorpusKind::code, options(0));
  ASSERT_TRUE(before.ok() && after.ok());
  EXPECT_EQ((*before).sha256, (*after).sha256);
}

}  // namespace
}  // namespace rorqual::kl
