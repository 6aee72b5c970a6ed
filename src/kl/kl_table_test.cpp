// SPDX-License-Identifier: Apache-2.0
#include "kl/kl_table.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>

#include "kl/compare.h"
#include "kl/sample_dump.h"

namespace rorqual::kl {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

/// A fresh folder with captures of two corpora: reference, and two runs.
class Tables : public ::testing::Test {
 protected:
  void SetUp() override {
    folder_ =
        std::filesystem::path(::testing::TempDir()) /
        ("rorqual-kl-table-" + std::string(::testing::UnitTest::GetInstance()->current_test_info()->name()));
    std::filesystem::remove_all(folder_);
    for (const char* name : {"reference", "first", "second"})
      std::filesystem::create_directories(folder_ / name);
    for (const char* corpus : {"code", "neutral"}) {
      write("reference", corpus, 0);
      write("first", corpus, 0.3f);
    }
    write("second", "code", 0.5f);
  }

  void write(const std::string& side, const std::string& corpus, float noise) {
    const auto logits = sample::random_logits(1, 20, 30);
    Dump dump =
        sample::dump_of(sample::with_noise(logits, 2, noise), sample::random_tokens(3, 20, 30), {10, 10}, 5);
    dump.info.corpus = corpus;
    const auto path = (folder_ / side / (corpus + ".npz")).string();
    ASSERT_TRUE(write_dump(path, dump).ok());
    dumps_[side + corpus] = dump;
  }

  std::vector<std::string> files(const std::string& path) {
    auto found = find_dumps((folder_ / path).string());
    return found.ok() ? *found : std::vector<std::string>{found.error().message()};
  }

  std::filesystem::path folder_;
  std::map<std::string, Dump> dumps_;
};

TEST_F(Tables, FindCapturesByFolderPatternAndName) {
  EXPECT_EQ(files("first").size(), 2u);
  EXPECT_EQ(files("*/code.npz").size(), 3u);
  EXPECT_EQ(files("first/code.npz").size(), 1u);
  const auto missing = find_dumps((folder_ / "no*").string());
  ASSERT_FALSE(missing.ok());
  EXPECT_EQ(missing.error().code(), Code::not_found);
}

TEST_F(Tables, HaveCorporaAsColumnsAndMeansOfRuns) {
  auto both = files("first");
  both.push_back(files("second")[0]);
  auto table = make_kl_table(files("reference"), {{"noise floor", files("reference")}, {"served", both}});
  ASSERT_TRUE(table.ok()) << table.error().message();
  EXPECT_THAT(table->corpora, ElementsAre("neutral", "code"));
  EXPECT_EQ(table->rows[0].cells.at("code").mean_kl, 0);
  auto one = compare(dumps_["referencecode"], dumps_["firstcode"]);
  auto two = compare(dumps_["referencecode"], dumps_["secondcode"]);
  ASSERT_TRUE(one.ok() && two.ok());
  const TableCell& cell = table->rows[1].cells.at("code");
  EXPECT_EQ(cell.runs, 2);
  EXPECT_DOUBLE_EQ(cell.mean_kl, (one->summary.mean_kl + two->summary.mean_kl) / 2);
  EXPECT_DOUBLE_EQ(cell.top1, (one->summary.top1 + two->summary.top1) / 2);
  EXPECT_EQ(table->rows[1].cells.at("neutral").runs, 1);
  const report::Table shown = layout(*table);
  EXPECT_THAT(shown.header, ElementsAre("Model", "Neutral", "Code"));
  EXPECT_EQ(shown.rows[0][1], "0.0000 \xc2\xb7 100.0%");
  EXPECT_EQ(shown.rows[1][0], "served, mean of 1 to 2 runs");
}

TEST_F(Tables, ShowMissingCellsAsDashesAndSayWhatHasNoReference) {
  auto table =
      make_kl_table({files("reference/code.npz")}, {{"second", files("second")}, {"first", files("first")}});
  ASSERT_TRUE(table.ok());
  EXPECT_THAT(table->corpora, ElementsAre("code"));
  EXPECT_THAT(table->notes, ElementsAre(HasSubstr("corpus 'neutral' have no reference")));
  auto wide = make_kl_table(files("reference"), {{"second", files("second")}});
  ASSERT_TRUE(wide.ok());
  EXPECT_EQ(layout(*wide).rows[0][1], "\xe2\x80\x94");
}

TEST_F(Tables, RefuseTwoReferencesOfOneCorpus) {
  const auto file = files("reference/code.npz")[0];
  const auto table = make_kl_table({file, file}, {{"first", files("first")}});
  ASSERT_FALSE(table.ok());
  EXPECT_THAT(table.error().message(), HasSubstr("two references for corpus 'code'"));
}

}  // namespace
}  // namespace rorqual::kl
