// SPDX-License-Identifier: Apache-2.0
#include "runtime/philox.h"

#include <gtest/gtest.h>

#include <array>
#include <cstdint>
#include <set>

namespace rorqual::runtime {
namespace {

using Words = std::array<uint32_t, 4>;

// The known-answer rows of philox4x32 with 10 rounds that the authors publish with Random123 (kat_vectors).
TEST(Philox, GivesThePublishedKnownAnswers) {
  EXPECT_EQ(philox4x32({0, 0, 0, 0}, {0, 0}), (Words{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
  constexpr uint32_t kOnes = 0xffffffff;
  EXPECT_EQ(philox4x32({kOnes, kOnes, kOnes, kOnes}, {kOnes, kOnes}),
            (Words{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}));
  EXPECT_EQ(philox4x32({0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, {0xa4093822, 0x299f31d0}),
            (Words{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}));
}

TEST(Philox, PlacesSeedPositionAndChoiceAsDocumented) {
  const uint64_t seed = 0x299f31d0a4093822;
  const int64_t position = 0x05a308d3243f6a88;
  const Words x = philox4x32({0x243f6a88, 0x05a308d3, 7, 0}, {0xa4093822, 0x299f31d0});
  const uint64_t bits = (uint64_t{x[1]} << 32 | x[0]) >> 11;
  EXPECT_EQ(position_uniform(seed, 7, position), static_cast<double>(bits) / 9007199254740992.0);
}

TEST(Philox, UniformNumbersAreInRangeDistinctAndEven) {
  std::set<double> seen;
  std::array<int, 10> bins{};
  for (int64_t position = 0; position < 10000; ++position) {
    const double u = position_uniform(42, 0, position);
    ASSERT_GE(u, 0.0);
    ASSERT_LT(u, 1.0);
    seen.insert(u);
    ++bins[static_cast<size_t>(u * 10)];
  }
  EXPECT_EQ(seen.size(), 10000u);
  for (const int count : bins) EXPECT_NEAR(count, 1000, 150);  // five standard deviations
}

TEST(Philox, EverySeedChoiceAndPositionHasItsOwnNumber) {
  std::set<double> seen;
  for (uint64_t seed = 0; seed < 10; ++seed) {
    for (uint32_t choice = 0; choice < 10; ++choice) {
      for (int64_t position = 0; position < 10; ++position)
        seen.insert(position_uniform(seed, choice, position));
    }
  }
  EXPECT_EQ(seen.size(), 1000u);
  EXPECT_NE(position_uniform(uint64_t{1} << 32, 0, 0), position_uniform(0, 0, 0));
  EXPECT_NE(position_uniform(0, 0, int64_t{1} << 32), position_uniform(0, 0, 0));
}

}  // namespace
}  // namespace rorqual::runtime
