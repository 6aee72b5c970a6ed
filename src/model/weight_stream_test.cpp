// SPDX-License-Identifier: Apache-2.0
#include "model/weight_stream.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

#include "num/formats.h"

namespace rorqual::model {
namespace {

constexpr int64_t kRuns = 8192;

struct Moments {
  double mean = 0, deviation = 0, kurtosis = 0;
};

Moments moments_of(const std::vector<double>& values) {
  Moments m;
  for (const double v : values) m.mean += v;
  m.mean /= static_cast<double>(values.size());
  double second = 0, fourth = 0;
  for (const double v : values) {
    const double d = v - m.mean;
    second += d * d;
    fourth += d * d * d * d;
  }
  second /= static_cast<double>(values.size());
  m.deviation = std::sqrt(second);
  m.kurtosis = fourth / static_cast<double>(values.size()) / (second * second);
  return m;
}

TEST(StreamKey, DependsOnSeedAndName) {
  EXPECT_EQ(stream_key(1, "a.weight"), stream_key(1, "a.weight"));
  EXPECT_NE(stream_key(1, "a.weight"), stream_key(2, "a.weight"));
  EXPECT_NE(stream_key(1, "a.weight"), stream_key(1, "b.weight"));
}

TEST(StreamKey, IsTheSameOnEveryMachineAndInEveryVersion) {
  EXPECT_EQ(stream_key(1, "embed.weight"), 0x5B9C4DF76626A37Cu);
  EXPECT_EQ(stream_word(stream_key(1, "embed.weight"), 0), 0x318389086A2BBF07u);
}

TEST(NormalLaw, Bf16HasMeanAndDeviationOfANormalDistribution) {
  const NormalLaw law(0.5, 0.25);
  std::vector<std::byte> bytes(kRuns * 64);
  law.fill_bf16(stream_key(3, "x"), 0, kRuns, bytes.data());
  std::vector<double> values;
  for (size_t i = 0; i < bytes.size(); i += 2) {
    uint16_t code = 0;
    std::memcpy(&code, bytes.data() + i, 2);
    values.push_back(static_cast<double>(num::bf16_decode(code)));
  }
  const Moments m = moments_of(values);
  EXPECT_NEAR(m.mean, 0.5, 0.003);
  EXPECT_NEAR(m.deviation, 0.25, 0.003);
  EXPECT_NEAR(m.kurtosis, 3.0, 0.1);
}

TEST(NormalLaw, F32FillsTheMantissa) {
  const NormalLaw law(0.0, 1.0);
  std::vector<std::byte> bytes(kRuns * 128);
  law.fill_f32(stream_key(3, "x"), 0, kRuns, bytes.data());
  std::vector<double> values;
  int64_t low_bits_set = 0;
  for (size_t i = 0; i < bytes.size(); i += 4) {
    float value = 0;
    std::memcpy(&value, bytes.data() + i, 4);
    values.push_back(static_cast<double>(value));
    low_bits_set += num::bf16_round(value) != value ? 1 : 0;
  }
  const Moments m = moments_of(values);
  EXPECT_NEAR(m.mean, 0.0, 0.01);
  EXPECT_NEAR(m.deviation, 1.0, 0.01);
  EXPECT_GT(low_bits_set, kRuns * kRunElements * 9 / 10);
}

TEST(NormalLaw, HyperConnectionTensorsHaveTheirOwnMeans) {
  std::vector<float> base(32), scale(32);
  NormalLaw(0, 0.0, NormalLaw::Pattern::hyper_base, 4)
      .fill_f32(1, 0, 1, reinterpret_cast<std::byte*>(base.data()));
  NormalLaw(0, 0.0, NormalLaw::Pattern::hyper_scale, 4)
      .fill_f32(1, 0, 1, reinterpret_cast<std::byte*>(scale.data()));
  for (size_t i = 0; i < 24; ++i) {
    const float expected = i < 4 ? 0.0f : i < 8 ? -0.5f : (i - 8) % 5 == 0 ? 2.0f : 0.0f;
    EXPECT_EQ(base[i], expected) << "element " << i;
  }
  EXPECT_EQ(scale[0], 0.5f);
  EXPECT_EQ(scale[1], 0.5f);
  EXPECT_EQ(scale[2], 0.8f);
}

struct LawCase {
  QuantisedLaw::Format format;
  int64_t group_elements;
  int64_t runs_per_row;
  double deviation;
};

/// Dequantised values; expects valid codes.
std::vector<double> draw(const LawCase& test) {
  const QuantisedLaw law(test.format, test.group_elements, test.deviation);
  const uint64_t key = stream_key(5, "w.weight"), scale_key = stream_key(5, "w.scale");
  std::vector<std::byte> codes(static_cast<size_t>(kRuns * law.run_bytes())), scales(kRuns);
  law.fill_codes({key, scale_key, 0, kRuns, test.runs_per_row}, codes.data());
  law.fill_scales(scale_key, 0, kRuns / kRunElements, scales.data());
  std::vector<double> values;
  for (int64_t i = 0; i < kRuns * kRunElements; ++i) {
    const int64_t run = i / kRunElements;
    const int64_t scale = test.runs_per_row == 0
                              ? run
                              : run / test.runs_per_row / 32 * test.runs_per_row + run % test.runs_per_row;
    const auto scale_code = static_cast<uint8_t>(scales[static_cast<size_t>(scale)]);
    EXPECT_NE(scale_code, 255);
    float value = 0;
    if (test.format == QuantisedLaw::Format::mxfp4) {
      const auto packed = static_cast<uint8_t>(codes[static_cast<size_t>(i / 2)]);
      value = num::e2m1_decode(static_cast<uint8_t>(i % 2 == 0 ? packed & 15 : packed >> 4));
    } else {
      const auto code = static_cast<uint8_t>(codes[static_cast<size_t>(i)]);
      EXPECT_NE(code & 0x7F, 0x7F) << "E4M3 NaN";
      value = num::e4m3_decode(code);
    }
    values.push_back(std::ldexp(static_cast<double>(value), scale_code - 127));
  }
  return values;
}

TEST(QuantisedLaw, ValuesAreNormalInEveryFormat) {
  for (const double deviation : {0.12, 1.5 / std::sqrt(5120.0), 1.05 / std::sqrt(2304.0), 0.9}) {
    for (const LawCase& test : {LawCase{QuantisedLaw::Format::mxfp4, 32, 0, deviation},
                                LawCase{QuantisedLaw::Format::fp8, 1024, 16, deviation},
                                LawCase{QuantisedLaw::Format::fp8, 32, 0, deviation}}) {
      const Moments m = moments_of(draw(test));
      EXPECT_NEAR(m.mean / deviation, 0.0, 0.02);
      EXPECT_NEAR(m.deviation / deviation, 1.0, 0.01) << "deviation " << deviation;
      EXPECT_NEAR(m.kurtosis, 3.0, 0.25) << "deviation " << deviation;
    }
  }
}

TEST(QuantisedLaw, GroupsUseMostOfTheirRange) {
  // A scale is the smallest power of two that does not saturate the group's largest magnitude, so most groups
  // reach the upper half of the code range.
  const QuantisedLaw law(QuantisedLaw::Format::mxfp4, 32, 0.021);
  std::vector<std::byte> codes(kRuns * 16);
  law.fill_codes({1, 2, 0, kRuns, 0}, codes.data());
  int64_t reaching = 0;
  for (int64_t run = 0; run < kRuns; ++run) {
    int largest = 0;
    for (size_t b = 0; b < 16; ++b) {
      const auto packed = static_cast<int>(codes[static_cast<size_t>(run) * 16 + b]);
      largest = std::max({largest, packed & 7, (packed >> 4) & 7});
    }
    reaching += largest >= 6 ? 1 : 0;  // 4 or 6
  }
  EXPECT_GT(reaching, kRuns / 2);
}

TEST(QuantisedLaw, AnyRangeOfRunsIsAPartOfTheWhole) {
  for (const LawCase& test :
       {LawCase{QuantisedLaw::Format::mxfp4, 32, 0, 0.02}, LawCase{QuantisedLaw::Format::fp8, 1024, 5, 0.02},
        LawCase{QuantisedLaw::Format::fp8, 32, 0, 0.12}}) {
    const QuantisedLaw law(test.format, test.group_elements, test.deviation);
    const int64_t size = law.run_bytes();
    std::vector<std::byte> whole(static_cast<size_t>(512 * size)), part(static_cast<size_t>(512 * size));
    law.fill_codes({7, 8, 0, 512, test.runs_per_row}, whole.data());
    for (int64_t first : {1, 2, 3, 17, 160, 333}) {
      const int64_t count = 512 - first;
      law.fill_codes({7, 8, first, count, test.runs_per_row}, part.data());
      EXPECT_EQ(std::memcmp(part.data(), whole.data() + first * size, static_cast<size_t>(count * size)), 0)
          << "from run " << first;
    }
  }
}

}  // namespace
}  // namespace rorqual::model
