// SPDX-License-Identifier: Apache-2.0
#include "kl/panel_prompts.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "text/utf8.h"

namespace rorqual::kl {
namespace {

TEST(PanelPrompts, there_are_100_different_ones) {
  const auto prompts = panel_prompts();
  EXPECT_EQ(prompts.size(), 100U);
  EXPECT_EQ(std::set(prompts.begin(), prompts.end()).size(), 100U);
}

TEST(PanelPrompts, each_is_short_valid_text_without_blanks_around_it) {
  for (const auto prompt : panel_prompts()) {
    EXPECT_TRUE(text::is_valid_utf8(prompt)) << prompt;
    EXPECT_GE(text::count_code_points(prompt), 12) << prompt;
    EXPECT_LE(text::count_code_points(prompt), 300) << prompt;
    EXPECT_NE(prompt.front(), ' ') << prompt;
    EXPECT_NE(prompt.back(), ' ') << prompt;
    EXPECT_NE(prompt.back(), '\n') << prompt;
  }
}

TEST(PanelPrompts, about_a_sixth_is_in_other_scripts) {
  const auto prompts = panel_prompts();
  // A text whose bytes are mostly outside ASCII is in another script.
  const auto other = std::count_if(prompts.begin(), prompts.end(), [](std::string_view prompt) {
    const auto high = std::count_if(prompt.begin(), prompt.end(),
                                    [](char c) { return static_cast<unsigned char>(c) >= 0x80; });
    return 2 * high > static_cast<long>(prompt.size());
  });
  EXPECT_EQ(other, 20);
}

}  // namespace
}  // namespace rorqual::kl
