// SPDX-License-Identifier: Apache-2.0
#include "kl/kl_report.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>

#include "base/file.h"
#include "kl/sample_dump.h"
#include "text/test_text.h"

namespace rorqual::kl {
namespace {

using testing::HasSubstr;
using testing::Not;

constexpr int64_t kTop = 16;
const std::vector<int64_t> kWindows = {30, 30, 30};

using text::mini_tokenizer;

/// Tokens that would break a page if they were not escaped.
std::vector<int32_t> hostile_tokens(int64_t rows) {
  const auto some = mini_tokenizer().encode(
      "<script>alert(\"1\")</script><!-- & ' \x01\x1B[31m\u202E\n\xE4\xB8", text::EncodeMode::plain);
  std::vector<int32_t> tokens;
  for (int64_t i = 0; i < rows; ++i) tokens.push_back(some[static_cast<size_t>(i) % some.size()]);
  return tokens;
}

/// Captures of one corpus: the reference and two candidates of different noise.
struct Sample {
  Dump reference, mild, strong;

  explicit Sample(const std::string& corpus) {
    const int64_t rows = 90, vocab = mini_tokenizer().vocab_size();
    const auto logits = sample::random_logits(3, rows, vocab);
    const auto tokens = hostile_tokens(rows);
    reference = sample::dump_of(logits, tokens, kWindows, kTop);
    mild = sample::dump_of(sample::with_noise(logits, 4, 0.1F), tokens, kWindows, kTop);
    strong = sample::dump_of(sample::with_noise(logits, 5, 0.4F), tokens, kWindows, kTop);
    for (auto* dump : {&reference, &mild, &strong}) dump->info.corpus = corpus;
  }

  ReportCorpus with_one() const {
    ReportCorpus corpus;
    corpus.reference = &reference;
    auto comparison = compare(reference, mild);
    EXPECT_TRUE(comparison.ok());
    corpus.candidates.push_back({&mild, *std::move(comparison)});
    return corpus;
  }

  ReportCorpus with_two() const {
    ReportCorpus corpus;
    corpus.reference = &reference;
    auto paired = compare_paired(reference, strong, mild);
    EXPECT_TRUE(paired.ok());
    corpus.candidates = {{&mild, paired->b}, {&strong, paired->a}};
    corpus.pairs = {{.candidate = 1,
                     .mean_difference = paired->mean_difference,
                     .relative_change = paired->relative_change,
                     .probability_greater = paired->probability_a_greater,
                     .difference_ci = paired->difference_ci,
                     .relative_ci = paired->relative_ci}};
    corpus.floor = paired->b.summary;
    return corpus;
  }
};

/// Empty if tests/report/check_page.py finds nothing wrong.
std::string faults_of(const std::string& html, const std::string& expectations) {
  const auto folder = testing::TempDir();
  const auto page = folder + "/kl_report_test.html", output = folder + "/kl_report_test.txt";
  EXPECT_TRUE(write_text_file(page, html).ok());
  const auto command = fmt::format("python3 {}/tests/report/check_page.py {} {} > {} 2>&1",
                                   RORQUAL_SOURCE_DIR, page, expectations, output);
  const bool passed = std::system(command.c_str()) == 0;
  const auto text = read_text_file(output, 1 << 20);
  EXPECT_TRUE(text.ok());
  return passed ? std::string() : "faults:\n" + *text;
}

TEST(KlReport, OfOneCandidateHasEverySectionAndFiftyPositions) {
  const Sample neutral("neutral");
  ReportInput input;
  input.reference_label = "exact";
  input.labels = {"mild"};
  input.corpora = {neutral.with_one()};
  input.tokenizer = &mini_tokenizer();
  const auto html = kl_report(input).html();
  // Means, by position, heat map, histogram, windows.
  EXPECT_EQ(faults_of(html, "--sections Overview,neutral --worst 50 --figures 5"), "");
  for (const char* part : {"Mean KL by corpus", "By class of token", "KL by position in the window",
                           "KL by window and position", "Histogram of KL per position",
                           "Mean KL of each window", "The 50 worst positions: mild", "byte fragment"})
    EXPECT_THAT(html, HasSubstr(part));
  EXPECT_THAT(html, Not(HasSubstr("Paired comparison")));
  EXPECT_THAT(html, Not(HasSubstr("noise floor</td>")));
}

TEST(KlReport, OfTwoCandidatesComparesThemInPairs) {
  const Sample neutral("neutral"), code("code");
  ReportInput input;
  input.reference_label = "exact";
  input.labels = {"mild", "strong"};
  input.corpora = {neutral.with_two(), code.with_two()};
  input.tokenizer = &mini_tokenizer();
  input.num_worst = 7;
  const auto html = kl_report(input).html();
  EXPECT_EQ(faults_of(html, "--sections Overview,neutral,code --worst 28 --figures 11"), "");
  EXPECT_THAT(html, HasSubstr("Paired comparison"));
  EXPECT_THAT(html, HasSubstr("noise floor"));
}

TEST(KlReport, ShowsTheNumbersOfTheComparison) {
  const Sample neutral("neutral");
  ReportInput input;
  input.reference_label = "exact";
  input.labels = {"mild"};
  input.corpora = {neutral.with_one()};
  const auto& summary = input.corpora[0].candidates[0].comparison.summary;
  const auto html = kl_report(input).html();
  ASSERT_GT(summary.mean_kl, 0.001);
  EXPECT_THAT(html,
              HasSubstr(fmt::format("<td>mean KL</td><td class=\"number\">{:.4f}</td>", summary.mean_kl)));
  EXPECT_THAT(html, HasSubstr(fmt::format("<td>best token equal</td><td class=\"number\">{:.2f} %</td>",
                                          100 * summary.top1)));
  EXPECT_THAT(html, HasSubstr(fmt::format("<td>perplexity, reference</td><td class=\"number\">{:.4f}</td>",
                                          summary.reference_perplexity)));
}

TEST(KlReport, WithoutTokenizerShowsIds) {
  const Sample neutral("neutral");
  ReportInput input;
  input.reference_label = "exact";
  input.labels = {"mild"};
  input.corpora = {neutral.with_one()};
  const auto html = kl_report(input).html();
  EXPECT_EQ(faults_of(html, "--sections Overview,neutral --worst 50 --figures 5"), "");
  EXPECT_THAT(html, HasSubstr(fmt::format("#{} </span>", neutral.reference.top_ids[0])));
  EXPECT_THAT(html, Not(HasSubstr("By class of token")));
}

TEST(KlReport, EscapesNamesAndFacts) {
  const Sample hostile("<i>corpus</i>");
  ReportInput input;
  input.reference_label = "<i>reference</i>";
  input.labels = {"<i>mild\x01</i>"};
  input.facts = {{"<i>fact</i>", "\"value\" & \xFF"}};
  input.corpora = {hostile.with_one()};
  input.tokenizer = &mini_tokenizer();
  const auto html = kl_report(input).html();
  EXPECT_EQ(faults_of(html, "--sections 'Overview,<i>corpus</i>' --worst 50 --figures 5"), "");
  EXPECT_THAT(html, Not(HasSubstr("<i>")));
}

TEST(KlReport, OfEqualCapturesSaysZero) {
  const Sample neutral("neutral");
  ReportCorpus corpus;
  corpus.reference = &neutral.reference;
  auto comparison = compare(neutral.reference, neutral.reference);
  ASSERT_TRUE(comparison.ok());
  corpus.candidates.push_back({&neutral.reference, *std::move(comparison)});
  ReportInput input;
  input.reference_label = "exact";
  input.labels = {"again"};
  input.corpora = {corpus};
  const auto html = kl_report(input).html();
  EXPECT_EQ(faults_of(html, "--sections Overview,neutral --worst 50 --figures 5"), "");
  EXPECT_THAT(html, HasSubstr("again: KL is exactly 0 at every position."));
  EXPECT_THAT(html, HasSubstr("no values to draw"));  // the histogram
}

TEST(KlReport, OfDamagedCapturesWarns) {
  const Sample neutral("neutral");
  ReportInput input;
  input.reference_label = "exact";
  input.labels = {"mild"};
  input.corpora = {neutral.with_one()};
  input.corpora[0].candidates[0].comparison.summary.overshoot_candidate = 3;
  EXPECT_THAT(kl_report(input).html(), HasSubstr("<p class=\"notice bad\">mild: stored probabilities"));
}

TEST(WindowIds, AreTakenFromACorpusThatGivesTheScoredTokens) {
  auto dump = sample::random_dump(1, {2, 3}, 4, 30);
  dump.token = {12, 13, 21, 22, 23};
  Corpus corpus;
  corpus.name = "words";
  corpus.windows = {{.ids = {10, 11, 12, 13}, .first_scored = 2},
                    {.ids = {20, 21, 22, 23}, .first_scored = 1}};
  ASSERT_TRUE(add_window_ids(dump, corpus).ok());
  EXPECT_THAT(dump.window_ids, testing::ElementsAre(10, 11, 12, 13, 20, 21, 22, 23));
  EXPECT_THAT(dump.window_begin, testing::ElementsAre(0, 4, 8));
  EXPECT_THAT(dump.window_first_scored, testing::ElementsAre(2, 1));

  corpus.windows[1].ids[2] = 5;
  const auto status = add_window_ids(dump, corpus);
  ASSERT_FALSE(status.ok());
  EXPECT_EQ(status.error().code(), Code::corrupt_data);
  EXPECT_THAT(status.error().message(), HasSubstr("the first difference is in row 3"));
  corpus.windows.pop_back();
  EXPECT_FALSE(add_window_ids(dump, corpus).ok());
}

TEST(KlReport, IsTheSameTwice) {
  const Sample neutral("neutral");
  ReportInput input;
  input.reference_label = "exact";
  input.labels = {"mild", "strong"};
  input.corpora = {neutral.with_two()};
  input.tokenizer = &mini_tokenizer();
  EXPECT_EQ(kl_report(input).html(), kl_report(input).html());
}

}  // namespace
}  // namespace rorqual::kl
