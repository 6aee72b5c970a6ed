// SPDX-License-Identifier: Apache-2.0
#include "prefix/page_key.h"

#include <gtest/gtest.h>

#include <random>
#include <set>

namespace rorqual::prefix {
namespace {

constexpr int64_t kPage = 4;

std::vector<int32_t> count_up(int64_t count, int32_t first = 1) {
  std::vector<int32_t> tokens(static_cast<size_t>(count));
  for (size_t i = 0; i < tokens.size(); ++i) tokens[i] = first + static_cast<int32_t>(i);
  return tokens;
}

ImageSpan image(int64_t begin, int64_t end, uint8_t fill) {
  ImageSpan span{.begin = begin, .end = end};
  span.digest.fill(fill);
  return span;
}

// Keys name pages on disk: other values would silently empty every disk cache. The first and the third are
// SHA-256 of the documented layout by another program.
TEST(PageKey, KeepsItsValuesBetweenBuilds) {
  const PageKey root = root_key("model", "");
  EXPECT_EQ(to_hex(root), "761754741d69e2bda5a943439338b7bb");
  const auto tokens = count_up(kPage);
  EXPECT_EQ(to_hex(page_keys(root, {.tokens = tokens}, kPage, 1)[0]), "62e5e1cb63ecc39845bf01f8a3c2167a");
  const ImageSpan span = image(1, 3, 7);
  EXPECT_EQ(to_hex(page_keys(root, {.tokens = tokens, .images = {&span, 1}}, kPage, 1)[0]),
            "ec6e3d657831960ccc370f738b847382");
}

TEST(PageKey, RootsDifferBySaltAndModelAndNotByWhereOneEnds) {
  std::set<PageKey> keys;
  for (const auto& [model, salt] :
       std::vector<std::pair<std::string, std::string>>{{"", ""},
                                                        {"a", ""},
                                                        {"", "a"},
                                                        {"ab", "c"},
                                                        {"a", "bc"},
                                                        {"abc", ""},
                                                        {"", "abc"},
                                                        {std::string("a\0", 2), ""},
                                                        {"a", std::string("\0", 1)}}) {
    EXPECT_TRUE(keys.insert(root_key(model, salt)).second) << model << "|" << salt;
  }
}

TEST(PageKey, EveryTokenOfThePageAndTheParentMatter) {
  auto tokens = count_up(2 * kPage);
  const PageKey root = root_key("m", "");
  const auto second = [](const PageKey& parent, const std::vector<int32_t>& of) {
    return page_keys(parent, {.tokens = of}, kPage, 2, {parent})[1];
  };
  const PageKey base = second(root, tokens);
  for (size_t i = 0; i < tokens.size(); ++i) {
    auto other = tokens;
    other[i] ^= 0x10000;
    const bool is_inside = i >= static_cast<size_t>(kPage);
    EXPECT_EQ(second(root, other) != base, is_inside) << i;
    EXPECT_NE(page_keys(root, {.tokens = other}, kPage, 2)[1],
              page_keys(root, {.tokens = tokens}, kPage, 2)[1]);
  }
  EXPECT_NE(second(base, tokens), base);
  EXPECT_NE(page_keys(root, {.tokens = tokens}, 2 * kPage, 1)[0],
            page_keys(root, {.tokens = tokens}, kPage, 1)[0]);
}

TEST(PageKey, ImagesCountByContentPlaceAndLengthOnThePagesThatTheyTouch) {
  const std::vector<int32_t> tokens(static_cast<size_t>(4 * kPage), 9);
  const PageKey root = root_key("m", "");
  const auto keys = [&](std::vector<ImageSpan> spans) {
    return page_keys(root, {.tokens = tokens, .images = spans}, kPage, 4);
  };
  const auto plain = keys({});
  const auto one = keys({image(kPage + 1, 2 * kPage + 1, 1)});  // touches pages 1 and 2
  EXPECT_EQ(one[0], plain[0]);
  EXPECT_NE(one[1], plain[1]);
  std::set<PageKey> second;
  for (const auto& spans :
       std::vector<std::vector<ImageSpan>>{{},
                                           {image(kPage + 1, 2 * kPage + 1, 1)},
                                           {image(kPage + 1, 2 * kPage + 1, 2)},
                                           {image(kPage + 2, 2 * kPage + 1, 1)},
                                           {image(kPage + 1, 2 * kPage + 2, 1)},
                                           {image(0, 2 * kPage + 1, 1)},
                                           {image(kPage, kPage + 1, 1), image(kPage + 1, 2 * kPage, 1)},
                                           {image(kPage, kPage + 1, 1), image(kPage + 1, 2 * kPage, 2)}}) {
    EXPECT_TRUE(second.insert(keys(spans)[1]).second);
  }
  EXPECT_EQ(keys({image(3 * kPage, 4 * kPage, 5)})[2], plain[2]) << "an image does not reach back";
  const std::vector<ImageSpan> spans{image(kPage + 1, 2 * kPage + 1, 1)};
  EXPECT_EQ(page_keys(root, {.tokens = tokens, .images = spans}, kPage, 4, {one[0], one[1]}), one);
}

TEST(PageKey, AListThatIsContinuedAnywhereIsTheSame) {
  std::mt19937_64 random(41);
  std::vector<int32_t> tokens(64 * 20 + 13);
  for (auto& token : tokens) token = static_cast<int32_t>(random() % 129280);
  const std::vector<ImageSpan> spans{image(70, 300, 3), image(300, 301, 4), image(900, 1400, 5)};
  const PrefixInput input{.tokens = tokens, .images = spans};
  const PageKey root = root_key("m", "s");
  const auto keys = page_keys(root, input, 64, 20);
  ASSERT_EQ(keys.size(), 20u);
  EXPECT_EQ(std::set<PageKey>(keys.begin(), keys.end()).size(), 20u);
  std::vector<PageKey> step_by_step;
  for (int64_t i = 0; i <= 20; ++i) {
    const std::vector<PageKey> known(keys.begin(), keys.begin() + i);
    EXPECT_EQ(page_keys(root, input, 64, 20, known), keys) << i;
    EXPECT_EQ(page_keys(root, input, 64, i, keys), keys) << i;
    step_by_step = page_keys(root, input, 64, i, std::move(step_by_step));
    EXPECT_EQ(step_by_step, known) << i;
  }
}

}  // namespace
}  // namespace rorqual::prefix
