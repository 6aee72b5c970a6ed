// SPDX-License-Identifier: Apache-2.0
#include "kl/full_logits.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <filesystem>

#include "base/file.h"
#include "format/safetensors_writer.h"
#include "kl/compare.h"
#include "kl/npz.h"
#include "kl/sample_dump.h"

namespace rorqual::kl {
namespace {

using ::testing::HasSubstr;
using Matrix = std::vector<std::vector<float>>;

std::string temporary(const std::string& name) {
  const auto folder = std::filesystem::path(::testing::TempDir()) / "rorqual-kl-logits";
  std::filesystem::create_directories(folder);
  return (folder / name).string();
}

TEST(FullLogits, ComeBackFromTheFileTheyWereStreamedTo) {
  const Matrix logits = sample::random_logits(1, 12, 30);
  const Dump dump = sample::dump_of(logits, sample::random_tokens(1, 12, 30), {6, 6}, 4);
  const auto path = temporary("full.safetensors");
  auto writer = LogitsWriter::create(path, 12, 30);
  ASSERT_TRUE(writer.ok()) << writer.error().message();
  for (const auto& row : logits) ASSERT_TRUE((*writer)->append(row).ok());
  const auto finished = (*writer)->finish(dump);
  ASSERT_TRUE(finished.ok()) << finished.error().message();
  auto read = read_dump(path);
  ASSERT_TRUE(read.ok()) << read.error().message();
  EXPECT_EQ(read->top_ids, dump.top_ids);
  EXPECT_EQ(read->token_logprob, dump.token_logprob);
  EXPECT_EQ(read->logits_path, path);
  auto rows = open_logits(*read);
  ASSERT_TRUE(rows.ok()) << rows.error().message();
  EXPECT_EQ((*rows)->num_rows(), 12);
  std::vector<float> row(30);
  for (int64_t i = 11; i >= 0; --i) {
    ASSERT_TRUE((*rows)->read(i, row).ok());
    EXPECT_EQ(row, logits[static_cast<size_t>(i)]);
  }
  // The same capture without them says so.
  EXPECT_EQ(open_logits(dump).error().code(), Code::unsupported);
}

TEST(FullLogits, ThatAreNotFinishedLeaveNoFile) {
  const auto path = temporary("unfinished.safetensors");
  {
    auto writer = LogitsWriter::create(path, 2, 3);
    ASSERT_TRUE(writer.ok());
    ASSERT_TRUE((*writer)->append(std::vector<float>{1, 2, 3}).ok());
    const auto finished = (*writer)->finish(sample::random_dump(1, {2}, 2, 3));
    ASSERT_FALSE(finished.ok());
    EXPECT_THAT(finished.error().message(), HasSubstr("1 of 2 logit rows"));
  }
  EXPECT_FALSE(std::filesystem::exists(path));
  for (const auto& entry : std::filesystem::directory_iterator(std::filesystem::path(path).parent_path()))
    EXPECT_EQ(entry.path().string().find("unfinished"), std::string::npos) << entry.path();
}

TEST(FullLogits, ThatDoNotFitOnTheDiskAreRefusedWithBothNumbers) {
  const auto writer = LogitsWriter::create(temporary("huge.safetensors"), int64_t{1} << 40, 129280);
  ASSERT_FALSE(writer.ok());
  EXPECT_EQ(writer.error().code(), Code::io);
  EXPECT_THAT(writer.error().message(), HasSubstr("568579452955525120 bytes, the disk has"));
  EXPECT_EQ(LogitsWriter::create(temporary("x.npz"), 1, 1).error().code(), Code::invalid_argument);
}

// ---- panels of other programs ----

/// Two cases of 5 and 4 tokens, 2 and 3 of them scored; rows of a random model.
struct Panel {
  std::vector<int64_t> first_ids = {1, 2, 3, 4, 5}, second_ids = {9, 8, 7, 6};
  Matrix first = sample::random_logits(1, 2, 12), second = sample::random_logits(2, 3, 12);

  static std::vector<float> flat(const Matrix& rows) {
    std::vector<float> out;
    for (const auto& row : rows) out.insert(out.end(), row.begin(), row.end());
    return out;
  }

  void expect(const Result<ExternalPanel>& panel) const {
    ASSERT_TRUE(panel.ok()) << panel.error().message();
    EXPECT_THAT(panel->dump.token, ::testing::ElementsAre(4, 5, 8, 7, 6));
    EXPECT_THAT(panel->dump.window_rows, ::testing::ElementsAre(0, 2, 5));
    EXPECT_THAT(panel->dump.window_first_scored, ::testing::ElementsAre(3, 1));
    EXPECT_EQ(panel->dump.info.vocab_size, 12);
    EXPECT_EQ(panel->dump.info.top_k, 4);
    Matrix all = first;
    all.insert(all.end(), second.begin(), second.end());
    const Dump expected = sample::dump_of(all, panel->dump.token, {2, 3}, 4);
    EXPECT_EQ(panel->dump.top_ids, expected.top_ids);
    for (size_t i = 0; i < expected.top_logprobs.size(); ++i)
      EXPECT_NEAR(panel->dump.top_logprobs[i], expected.top_logprobs[i], 1e-6);
    std::vector<float> row(12);
    for (const int64_t i : {4, 0, 3, 1, 2}) {
      ASSERT_TRUE(panel->logits->read(i, row).ok());
      EXPECT_EQ(row, all[static_cast<size_t>(i)]);
    }
  }
};

TEST(ExternalPanels, AreReadFromOneArchive) {
  const Panel panel;
  const auto first = Panel::flat(panel.first), second = Panel::flat(panel.second);
  const std::vector<int64_t> scored = {3, 1};
  const auto path = temporary("short.npz");
  const NpzMember members[] = {{"case_0/ids", "<i8", {5}, std::as_bytes(std::span(panel.first_ids))},
                               {"case_0/first_scored", "<i8", {}, std::as_bytes(std::span(scored).first(1))},
                               {"case_0/logits", "<f4", {2, 12}, std::as_bytes(std::span(first))},
                               {"case_1/ids", "<i8", {4}, std::as_bytes(std::span(panel.second_ids))},
                               {"case_1/first_scored", "<i8", {1}, std::as_bytes(std::span(scored).last(1))},
                               {"case_1/logits", "<f4", {3, 12}, std::as_bytes(std::span(second))}};
  ASSERT_TRUE(write_npz(path, members).ok());
  panel.expect(read_external_panel(path, 4));
  panel.expect(read_capture_or_panel(path, 4));
}

TEST(ExternalPanels, AreReadThroughManifestsAndRowsPerToken) {
  // The first case's rows cover all tokens but the last, as a forward pass gives them.
  const Panel panel;
  Matrix whole = sample::random_logits(7, 4, 12);
  whole[2] = panel.first[0];
  whole[3] = panel.first[1];
  const auto first = Panel::flat(whole), second = Panel::flat(panel.second);
  const NpzMember only[] = {{"x", "<f4", {4, 12}, std::as_bytes(std::span(first))}};
  ASSERT_TRUE(write_npz(temporary("case0.npz"), only).ok());
  {
    auto writer = format::SafetensorsWriter::create(temporary("case1.safetensors"),
                                                    {{"logits", tensor::DType::f32, {3, 12}}});
    ASSERT_TRUE(writer.ok());
    ASSERT_TRUE(writer->append_tensor("logits", std::as_bytes(std::span(second))).ok());
    ASSERT_TRUE(writer->finish().ok());
  }
  const auto json = temporary("manifest.json");
  ASSERT_TRUE(write_text_file(json, R"({"model": "m", "corpus": "panel", "cases": [
    {"id": "a", "prompt_ids": [1, 2, 3], "continuation_ids": [4, 5], "logits": "case0.npz:x"},
    {"id": "b", "ids": [9, 8, 7, 6], "first_scored": 1, "logits": "case1.safetensors"}]})")
                  .ok());
  auto from_json = read_external_panel(json, 4);
  panel.expect(from_json);
  EXPECT_EQ(from_json->dump.info.corpus, "panel");
  const auto tsv = temporary("manifest.tsv");
  ASSERT_TRUE(write_text_file(tsv,
                              "id\tids\tfirst_scored\tlogits\na\t1 2 3 4 5\t3\tcase0.npz\n"
                              "b\t9,8,7,6\t1\tcase1.safetensors:logits\n")
                  .ok());
  panel.expect(read_external_panel(tsv, 4));
  // A whole dump of the panel can be compared with its own rows.
  CompareOptions options;
  options.id_set = IdSet::full;
  options.reference_logits = options.candidate_logits = from_json->logits.get();
  auto same = compare(from_json->dump, from_json->dump, options);
  ASSERT_TRUE(same.ok());
  EXPECT_EQ(same->summary.mean_kl, 0);
}

TEST(ExternalPanels, MayShareOneArrayOfAllCases) {
  const Panel panel;
  std::vector<float> both(2 * 3 * 12, 0);
  const auto first = Panel::flat(panel.first), second = Panel::flat(panel.second);
  std::copy(first.begin(), first.end(), both.begin());
  std::copy(second.begin(), second.end(), both.begin() + 36);
  const int64_t shape[] = {2, 3, 12};
  std::string bytes = make_npy_header("<f4", shape);
  bytes.append(reinterpret_cast<const char*>(both.data()), both.size() * 4);
  ASSERT_TRUE(write_text_file(temporary("all.npy"), bytes).ok());
  const auto path = temporary("shared.json");
  ASSERT_TRUE(write_text_file(path, R"({"logits": "all.npy", "cases": [
    {"ids": [1, 2, 3, 4, 5], "first_scored": 3}, {"ids": [9, 8, 7, 6], "first_scored": 1, "first_row": 0}]})")
                  .ok());
  panel.expect(read_external_panel(path, 4));
}

TEST(ExternalPanels, ThatAreWrongNameTheCase) {
  const Panel panel;
  const auto second = Panel::flat(panel.second);
  const NpzMember only[] = {{"logits", "<f4", {3, 12}, std::as_bytes(std::span(second))}};
  ASSERT_TRUE(write_npz(temporary("rows.npz"), only).ok());
  const auto with = [&](const std::string& item) {
    const auto path = temporary("wrong.json");
    EXPECT_TRUE(write_text_file(path, "[" + item + "]").ok());
    const auto result = read_external_panel(path, 4);
    return result.ok() ? "accepted" : result.error().message();
  };
  EXPECT_EQ(with(R"({"ids": [9, 8, 7, 6], "first_scored": 1, "logits": "rows.npz"})"), "accepted");
  EXPECT_THAT(with(R"({"id": "q", "ids": [9, 8, 7, 6], "first_scored": 4, "logits": "rows.npz"})"),
              HasSubstr("case 'q': first_scored is 4, expected 1 to 3"));
  EXPECT_THAT(with(R"({"ids": [9, 8, 7, 12], "first_scored": 1, "logits": "rows.npz"})"),
              HasSubstr("token id 12"));
  EXPECT_THAT(with(R"({"ids": [9, 8, 7, 6, 5, 4, 3], "first_scored": 1, "logits": "rows.npz"})"),
              HasSubstr("logits are [3, 12], expected 6 rows"));
  EXPECT_THAT(with(R"({"ids": [9, 8, 7, 6], "first_scored": 1, "logits": "none.npz"})"),
              HasSubstr("none.npz"));
  EXPECT_THAT(with(R"({"ids": [9, 8, 7, 6], "first_scored": 1})"), HasSubstr("names no file of logits"));
  EXPECT_THAT(with(R"({"ids": [9, "x"], "first_scored": 1})"), HasSubstr("is no token id"));
  EXPECT_THAT(with("3"), HasSubstr("not an object"));
}

TEST(ExternalPanels, WithRowsOfTheNextTokenAreRecognised) {
  // Rows that make their own token likely; the manifest declares them one position too early.
  const int64_t tokens = 40;
  std::vector<int64_t> ids;
  Matrix rows;
  for (int64_t i = 0; i < tokens; ++i) ids.push_back(i % 11);
  for (int64_t i = 0; i + 1 < tokens; ++i) {
    rows.emplace_back(12, 0.0f);
    rows.back()[static_cast<size_t>(ids[static_cast<size_t>(i) + 1])] = 6;
  }
  const auto flat = Panel::flat(rows);
  const std::vector<int64_t> first = {1};
  const NpzMember members[] = {{"ids", "<i8", {tokens}, std::as_bytes(std::span(ids))},
                               {"first_scored", "<i8", {}, std::as_bytes(std::span(first))},
                               {"logits", "<f4", {tokens - 1, 12}, std::as_bytes(std::span(flat))}};
  ASSERT_TRUE(write_npz(temporary("right.npz"), members).ok());
  EXPECT_TRUE(read_external_panel(temporary("right.npz"), 4).ok());
  const auto path = temporary("late.json");
  std::string list;
  for (const int64_t id : ids) list += (list.empty() ? "" : ", ") + std::to_string(id);
  ASSERT_TRUE(write_text_file(path, "[{\"ids\": [" + list +
                                        "], \"first_scored\": 3, \"first_row\": 1, \"logits\": "
                                        "\"right.npz:logits\"}]")
                  .ok());
  const auto shifted = read_external_panel(path, 4);
  ASSERT_FALSE(shifted.ok());
  EXPECT_THAT(shifted.error().message(), HasSubstr("rows are shifted by one position"));
}

}  // namespace
}  // namespace rorqual::kl
