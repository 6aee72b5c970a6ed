// SPDX-License-Identifier: Apache-2.0
#include "kl/corpus.h"

#include <gtest/gtest.h>

#include "base/sha256.h"
#include "text/test_text.h"

namespace rorqual::kl {
namespace {

using text::mini_tokenizer;

std::string long_text(int sentences) {
  std::string text;
  for (int i = 0; i < sentences; ++i) text += "Sentence number " + std::to_string(i) + " of a short story.\n";
  return text;
}

TEST(CutWindows, FollowTheProtocolWithoutOverlap) {
  const auto& tokenizer = mini_tokenizer();
  const std::string text = long_text(100);
  const auto ids = tokenizer.encode(text, text::EncodeMode::with_added);
  const int32_t bos = *tokenizer.added_token("<｜begin▁of▁sentence｜>");
  const auto corpus = cut_windows(tokenizer, "story", text, {.context = 64, .max_windows = 5});
  ASSERT_TRUE(corpus.ok()) << corpus.error().message();
  ASSERT_EQ(corpus->windows.size(), 5u);
  EXPECT_EQ(corpus->name, "story");
  EXPECT_EQ(corpus->context, 64);
  EXPECT_EQ(corpus->scored_positions(), 5 * 32);
  EXPECT_EQ(corpus->sha256, sha256_hex(std::as_bytes(std::span(text.data(), text.size()))));
  for (size_t i = 0; i < 5; ++i) {
    const Window& window = corpus->windows[i];
    ASSERT_EQ(window.ids.size(), 64u);
    EXPECT_EQ(window.first_scored, 32);
    EXPECT_EQ(window.ids[0], bos);
    for (size_t j = 0; j < 63; ++j) EXPECT_EQ(window.ids[j + 1], ids[i * 63 + j]) << i << " " << j;
  }
}

TEST(CutWindows, AreAsManyAsTheTextFills) {
  const std::vector<int32_t> ids(63 * 3 + 62, 7);
  const auto corpus = cut_ids(0, ids, "x", "text", {.context = 64, .max_windows = 24});
  ASSERT_TRUE(corpus.ok());
  EXPECT_EQ(corpus->windows.size(), 3u);
}

TEST(CutWindows, RefuseATextShorterThanOneWithBothNumbers) {
  const std::vector<int32_t> ids(62, 7);
  const auto corpus = cut_ids(0, ids, "x", "text", {.context = 64, .max_windows = 24});
  ASSERT_FALSE(corpus.ok());
  EXPECT_EQ(corpus.error().code(), Code::invalid_argument);
  EXPECT_NE(corpus.error().message().find("62"), std::string::npos);
  EXPECT_NE(corpus.error().message().find("63"), std::string::npos);
  EXPECT_FALSE(cut_ids(0, ids, "x", "text", {.context = 3, .max_windows = 24}).ok());
  EXPECT_FALSE(cut_ids(0, ids, "x", "text", {.context = 8, .max_windows = 0}).ok());
}

TEST(CutWindows, RecogniseChatMarkupInTheTextAsControlTokens) {
  const auto& tokenizer = mini_tokenizer();
  const auto corpus = cut_windows(tokenizer, "agentic", "<｜User｜>a<｜Assistant｜></think>b" + long_text(5),
                                  {.context = 16, .max_windows = 1});
  ASSERT_TRUE(corpus.ok()) << corpus.error().message();
  EXPECT_EQ(corpus->windows[0].ids[1], *tokenizer.added_token("<｜User｜>"));
}

TEST(WindowsHash, DependsOnIdsBoundariesAndScoredPart) {
  Corpus a;
  a.windows = {{{1, 2, 3, 4}, 2}, {{5, 6}, 1}};
  const std::string base = windows_sha256(a);
  EXPECT_EQ(base, windows_sha256(a));
  Corpus b = a;
  b.windows[1].ids[0] = 7;
  EXPECT_NE(windows_sha256(b), base);
  b = a;
  b.windows[0].first_scored = 3;
  EXPECT_NE(windows_sha256(b), base);
  b = a;
  b.windows = {{{1, 2, 3, 4, 5}, 2}, {{6}, 1}};
  EXPECT_NE(windows_sha256(b), base);
}

}  // namespace
}  // namespace rorqual::kl
