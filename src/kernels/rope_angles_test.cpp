// SPDX-License-Identifier: Apache-2.0
// Rotary angles: cos and sin are the correctly rounded values of the F32 product, for all positions of the
// model.
#include <gtest/gtest.h>

#include <cmath>
#include <random>
#include <vector>

#include "kernels/kernels.h"

namespace rorqual::kernels {
namespace {

struct Angles {
  std::vector<float> cos, sin;
};

Angles compute(const KernelTable& table, const std::vector<int64_t>& positions,
               const std::vector<float>& inv_freq) {
  ThreadPool pool(2);
  Scratch scratch;
  Context ctx{&pool, &scratch, Numerics::reference};
  Angles a;
  a.cos.resize(positions.size() * inv_freq.size());
  a.sin.resize(a.cos.size());
  table.rope_angles(ctx, positions, {inv_freq}, a.cos.data(), a.sin.data());
  return a;
}

/// F80 sine and cosine are precise to 2^-64; values nearer to a tie than that would need more digits and do
/// not occur.
TEST(RopeAngles, AreCorrectlyRoundedForRandomPositionsAndFrequencies) {
  constexpr uint32_t kSeed = 7;
  std::mt19937 engine(kSeed);
  std::vector<int64_t> positions = {0, 1, 2, 127, 128, 4095, 65535, 65536, 1000003, 1048575};
  for (int i = 0; i < 3000; ++i) positions.push_back(static_cast<int64_t>(engine() % 1100000));
  std::vector<float> inv_freq;
  for (int i = 0; i < 32; ++i) inv_freq.push_back(1.0f / std::pow(10000.0f, static_cast<float>(i) / 32.0f));
  for (const KernelTable* table : available_kernels()) {
    const Angles a = compute(*table, positions, inv_freq);
    for (size_t t = 0; t < positions.size(); ++t) {
      for (size_t i = 0; i < inv_freq.size(); ++i) {
        const float angle = static_cast<float>(positions[t]) * inv_freq[i];
        const size_t at = t * inv_freq.size() + i;
        ASSERT_EQ(a.cos[at], static_cast<float>(std::cos(static_cast<long double>(angle))))
            << "seed " << kSeed << " position " << positions[t] << " frequency " << i;
        ASSERT_EQ(a.sin[at], static_cast<float>(std::sin(static_cast<long double>(angle))))
            << "seed " << kSeed << " position " << positions[t] << " frequency " << i;
      }
    }
  }
}

TEST(RopeAngles, AreCorrectlyRoundedNextToMultiplesOfHalfPi) {
  // Positions times frequency 1: integers close to multiples of π/2 (continued fraction of π/2), where all
  // leading digits cancel.
  const std::vector<int64_t> positions = {11,     22,      33,     44,     355,    710,   1065,
                                          312689, 1146408, 833719, 208341, 103993, 521030};
  const std::vector<float> inv_freq = {1.0f, 2.0f, 0.5f};
  for (const KernelTable* table : available_kernels()) {
    const Angles a = compute(*table, positions, inv_freq);
    for (size_t t = 0; t < positions.size(); ++t) {
      for (size_t i = 0; i < inv_freq.size(); ++i) {
        const long double angle =
            static_cast<long double>(positions[t]) * static_cast<long double>(inv_freq[i]);
        EXPECT_EQ(a.cos[t * 3 + i], static_cast<float>(std::cos(angle))) << positions[t];
        EXPECT_EQ(a.sin[t * 3 + i], static_cast<float>(std::sin(angle))) << positions[t];
      }
    }
  }
}

}  // namespace
}  // namespace rorqual::kernels
