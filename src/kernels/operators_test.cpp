// SPDX-License-Identifier: Apache-2.0
// Matrix, row and expert operators: every tier against the scalar law, bit for bit, and the law against
// double.
#include "kernels/operators.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
#include <random>
#include <string>
#include <vector>

#include "base/thread_pool.h"
#include "kernels/test_matrices.h"
#include "num/formats.h"
#include "num/quantise.h"

namespace rorqual::kernels {
namespace {

constexpr uint32_t kSeed = 20261130;

const OperatorTable& law() {
  return *available_operators().front();
}

/// F32 values of very different size, with zeros of both signs, and subnormals if asked for.
std::vector<float> random_values(std::mt19937& random, int64_t count, int spread, bool subnormals = false) {
  std::normal_distribution<float> normal;
  std::vector<float> values(static_cast<size_t>(count));
  for (float& value : values) {
    value = num::scale_pow2(normal(random),
                            static_cast<int>(random() % static_cast<uint32_t>(2 * spread + 1)) - spread);
    const uint32_t kind = random() % 16;
    if (kind == 0) value = 0.0f;
    if (kind == 1) value = -0.0f;
    if (kind == 2 && subnormals) value = num::float_of(static_cast<uint32_t>(random() % 0x00ffffffu));
  }
  return values;
}

::testing::AssertionResult same_bits(const std::vector<float>& want, const std::vector<float>& got) {
  if (want.size() != got.size()) return ::testing::AssertionFailure() << "sizes differ";
  for (size_t i = 0; i < want.size(); ++i) {
    if (num::bits_of(want[i]) != num::bits_of(got[i])) {
      return ::testing::AssertionFailure()
             << "element " << i << ": want " << want[i] << " (0x" << std::hex << num::bits_of(want[i])
             << "), got " << got[i] << " (0x" << num::bits_of(got[i]) << "), seed " << std::dec << kSeed;
    }
  }
  return ::testing::AssertionSuccess();
}

class OperatorsTest : public ::testing::Test {
 protected:
  void SetUp() override {
    ASSERT_FALSE(available_operators().empty()) << "this CPU has no AVX2, FMA and F16C";
  }

  /// Runs `check` for each tier above the law.
  static void for_tiers(const std::function<void(const OperatorTable&)>& check) {
    for (const OperatorTable* tier : available_operators()) {
      SCOPED_TRACE(std::string(tier->name));
      check(*tier);
    }
  }

  ScopedFlushToZero flush_;
  std::mt19937 random_{kSeed};
};

std::vector<float> run_linear(const OperatorTable& tier, const Matrix& weight, const std::vector<float>& x,
                              int64_t num_rows, bool round_bf16) {
  const int64_t stride = weight.num_blocks() * kBlockCols;
  std::vector<float> y(static_cast<size_t>(num_rows * weight.rows), -7.0f);
  tier.linear({.weight = &weight,
               .panel_begin = 0,
               .panel_end = weight.num_panels(),
               .num_rows = num_rows,
               .x = x.data(),
               .x_stride = stride,
               .y = y.data(),
               .y_stride = weight.rows,
               .round_bf16 = round_bf16});
  return y;
}

std::vector<float> padded_rows(std::mt19937& random, int64_t num_rows, int64_t cols, int spread,
                               bool subnormals) {
  const int64_t stride = (cols + kBlockCols - 1) / kBlockCols * kBlockCols;
  std::vector<float> x(static_cast<size_t>(num_rows * stride), 0.0f);
  for (int64_t t = 0; t < num_rows; ++t) {
    const auto row = random_values(random, cols, spread, subnormals);
    std::copy(row.begin(), row.end(), x.begin() + t * stride);
  }
  return x;
}

TEST_F(OperatorsTest, LinearHasTheBitsOfTheLawForAllFormatsAndShapes) {
  for (const WeightFormat format : kAllFormats) {
    for (const int64_t rows : {1, 15, 16, 17, 33}) {
      for (const int64_t cols : {1, 31, 32, 33, 100}) {
        for (const bool wide : {false, true}) {
          const TestMatrix weight(random_, format, rows, cols, wide);
          for (const int64_t num_rows : {0, 1, 2, 3, 6, 7, 49}) {
            const auto x = padded_rows(random_, num_rows, cols, 3, false);
            const auto want = run_linear(law(), weight.view(), x, num_rows, num_rows % 2 == 0);
            for_tiers([&](const OperatorTable& tier) {
              EXPECT_TRUE(same_bits(want, run_linear(tier, weight.view(), x, num_rows, num_rows % 2 == 0)))
                  << format_name(format) << " [" << rows << ", " << cols << "] x " << num_rows << " wide "
                  << wide;
            });
          }
        }
      }
    }
  }
}

TEST_F(OperatorsTest, LinearKeepsTheBitsWithSubnormalProducts) {
  for (const WeightFormat format : kAllFormats) {
    const TestMatrix weight(random_, format, 40, 96, true);
    for (const int64_t num_rows : {1, 5}) {
      const auto x = padded_rows(random_, num_rows, 96, 120, true);
      const auto want = run_linear(law(), weight.view(), x, num_rows, false);
      for_tiers([&](const OperatorTable& tier) {
        EXPECT_TRUE(same_bits(want, run_linear(tier, weight.view(), x, num_rows, false)))
            << format_name(format);
      });
    }
  }
}

TEST_F(OperatorsTest, LinearGivesARowTheSameBitsAloneAndAmongOthersAndInAnyPanelSplit) {
  for (const WeightFormat format : kAllFormats) {
    const TestMatrix weight(random_, format, 70, 64, false);
    constexpr int64_t num_rows = 13;
    const auto x = padded_rows(random_, num_rows, 64, 3, false);
    for_tiers([&](const OperatorTable& tier) {
      const auto all = run_linear(tier, weight.view(), x, num_rows, false);
      std::vector<float> alone(all.size(), 0.0f);
      for (int64_t t = 0; t < num_rows; ++t) {
        for (int64_t panel = 0; panel < weight.view().num_panels(); ++panel) {
          tier.linear({.weight = &weight.view(),
                       .panel_begin = panel,
                       .panel_end = panel + 1,
                       .num_rows = 1,
                       .x = x.data() + t * 64,
                       .x_stride = 64,
                       .y = alone.data() + t * 70,
                       .y_stride = 70});
        }
      }
      EXPECT_TRUE(same_bits(all, alone)) << format_name(format);
    });
  }
}

TEST_F(OperatorsTest, LinearIsCloseToTheExactProduct) {
  // Error of K fused steps: at most (K/2 + K/32 + 2) roundings of partial sums, each below Σ|x·w| · 2^-24.
  constexpr int64_t kCols = 160;
  for (const WeightFormat format : kAllFormats) {
    for (const bool wide : {false, true}) {
      const TestMatrix weight(random_, format, 21, kCols, wide);
      const auto x = padded_rows(random_, 2, kCols, 2, false);
      const auto y = run_linear(law(), weight.view(), x, 2, false);
      for (int64_t t = 0; t < 2; ++t) {
        for (int64_t row = 0; row < 21; ++row) {
          double exact = 0;
          double magnitude = 0;
          for (int64_t k = 0; k < kCols; ++k) {
            const double w = matrix_value(weight.view(), row, k);
            if (std::abs(w) < 0x1p-126) continue;  // flushed operands
            exact += w * static_cast<double>(x[static_cast<size_t>(t * kCols + k)]);
            magnitude += std::abs(w * static_cast<double>(x[static_cast<size_t>(t * kCols + k)]));
          }
          if (magnitude > 1e38) continue;
          const double bound = magnitude * (16 + 5 + 2) * 0x1p-24 + 0x1p-120;
          EXPECT_NEAR(y[static_cast<size_t>(t * 21 + row)], exact, bound)
              << format_name(format) << " wide " << wide;
        }
      }
    }
  }
}

TEST_F(OperatorsTest, RowOperatorsHaveTheBitsOfTheLaw) {
  for (const int64_t width : {0, 1, 7, 8, 15, 16, 17, 31, 32, 33, 96, 515}) {
    for (const int spread : {0, 8, 60}) {
      const auto x = random_values(random_, width, spread, true);
      const auto w = random_values(random_, width, 1);
      for_tiers([&](const OperatorTable& tier) {
        std::vector<float> want(x.size()), got(x.size());
        for (const bool round : {false, true}) {
          if (width > 0) {
            law().rms_norm(x.data(), w.data(), 1e-20f, width, round, want.data());
            tier.rms_norm(x.data(), w.data(), 1e-20f, width, round, got.data());
            EXPECT_TRUE(same_bits(want, got)) << "rms_norm " << width;
          }
          for (const float limit : {0.0f, 4.0f}) {
            law().swiglu(x.data(), w.data(), width, limit, 0.7f, round, want.data());
            tier.swiglu(x.data(), w.data(), width, limit, 0.7f, round, got.data());
            EXPECT_TRUE(same_bits(want, got)) << "swiglu " << width;
          }
        }
        law().round_bf16(x.data(), width, want.data());
        tier.round_bf16(x.data(), width, got.data());
        EXPECT_TRUE(same_bits(want, got)) << "round_bf16 " << width;
        const std::vector<float> sums = {law().sum(x.data(), width), law().sum_squares(x.data(), width),
                                         law().dot(x.data(), w.data(), width)};
        EXPECT_TRUE(same_bits(sums, {tier.sum(x.data(), width), tier.sum_squares(x.data(), width),
                                     tier.dot(x.data(), w.data(), width)}));
      });
    }
  }
}

TEST_F(OperatorsTest, NormWorksInPlace) {
  const auto x = random_values(random_, 50, 2);
  const std::vector<float> w(50, 1.5f);
  for_tiers([&](const OperatorTable& tier) {
    std::vector<float> out(50);
    tier.rms_norm(x.data(), w.data(), 1e-6f, 50, true, out.data());
    auto in_place = x;
    tier.rms_norm(in_place.data(), w.data(), 1e-6f, 50, true, in_place.data());
    EXPECT_TRUE(same_bits(out, in_place));
  });
}

struct QuantiserCase {
  const char* name;
  void (*OperatorTable::*qdq)(const float*, int64_t, float*);
  void (*OperatorTable::*encode)(const float*, int64_t, std::byte*);
  void (*OperatorTable::*decode)(const std::byte*, int64_t, float*);
  int64_t (*record_bytes)(int64_t width);
};

const QuantiserCase kQuantisers[] = {
    {"fp8", &OperatorTable::qdq_fp8, &OperatorTable::encode_fp8, &OperatorTable::decode_fp8,
     [](int64_t width) { return width + width / 32; }},
    {"fp4_e8m0", &OperatorTable::qdq_fp4_e8m0, &OperatorTable::encode_fp4_e8m0,
     &OperatorTable::decode_fp4_e8m0, [](int64_t width) { return width / 2 + width / 32; }},
    {"fp4_e4m3", &OperatorTable::qdq_fp4_e4m3, &OperatorTable::encode_fp4_e4m3,
     &OperatorTable::decode_fp4_e4m3, [](int64_t width) { return width / 2 + width / 16; }},
};

/// Rows at which quantisers differ: ties, zeros, floors, saturation, the edges of F32.
std::vector<std::vector<float>> quantiser_rows(std::mt19937& random) {
  constexpr int64_t kWidth = 96;
  std::vector<std::vector<float>> rows;
  for (const int spread : {0, 3, 12, 120}) {
    for (int i = 0; i < 40; ++i) rows.push_back(random_values(random, kWidth, spread, spread > 100));
  }
  for (const float scale : {0.0f, -0.0f, 1e-6f, 0x1p-133f, 0x1p-126f, 0x1.8p-125f, 0x1p-124f, 1e4f, 3e38f}) {
    rows.emplace_back(kWidth, scale);
  }
  std::vector<float> ties;
  for (int64_t i = 0; i < kWidth; ++i) ties.push_back(static_cast<float>(i - 48) / 8.0f);
  rows.push_back(ties);
  for (float& value : ties) value *= 0x1p-125f;
  rows.push_back(ties);
  std::vector<float> fp8_ties(kWidth, 448.0f);
  for (uint8_t code = 0; code < 60; ++code) {
    fp8_ties[code + 32u] = (num::e4m3_decode(code) + num::e4m3_decode(static_cast<uint8_t>(code + 1))) / 2;
  }
  rows.push_back(fp8_ties);
  return rows;
}

TEST_F(OperatorsTest, QuantisersHaveTheBitsOfTheLawAndRecordsHoldTheSameValues) {
  for (const auto& row : quantiser_rows(random_)) {
    const auto width = static_cast<int64_t>(row.size());
    for (const QuantiserCase& quantiser : kQuantisers) {
      SCOPED_TRACE(quantiser.name);
      std::vector<float> want(row.size());
      std::vector<std::byte> want_record(static_cast<size_t>(quantiser.record_bytes(width)));
      (law().*quantiser.qdq)(row.data(), width, want.data());
      (law().*quantiser.encode)(row.data(), width, want_record.data());
      for_tiers([&](const OperatorTable& tier) {
        std::vector<float> got(row.size()), decoded(row.size());
        std::vector<std::byte> record(want_record.size());
        (tier.*quantiser.qdq)(row.data(), width, got.data());
        EXPECT_TRUE(same_bits(want, got));
        (tier.*quantiser.encode)(row.data(), width, record.data());
        EXPECT_EQ(want_record, record);
        (tier.*quantiser.decode)(record.data(), width, decoded.data());
        EXPECT_TRUE(same_bits(want, decoded));
        auto in_place = row;
        (tier.*quantiser.qdq)(in_place.data(), width, in_place.data());
        EXPECT_TRUE(same_bits(want, in_place));
      });
    }
  }
}

TEST_F(OperatorsTest, DecodersAgreeOnEveryCodeAndScale) {
  for (int scale = 0; scale < 256; ++scale) {
    std::vector<std::byte> record(256 + 8);
    for (size_t i = 0; i < 256; ++i) record[i] = static_cast<std::byte>(i);
    std::fill(record.begin() + 256, record.end(), static_cast<std::byte>(scale));
    std::vector<std::byte> nibbles(record.begin(), record.begin() + 128);
    nibbles.resize(128 + 16, static_cast<std::byte>(scale));
    for_tiers([&](const OperatorTable& tier) {
      std::vector<float> want(256), got(256);
      law().decode_fp8(record.data(), 256, want.data());
      tier.decode_fp8(record.data(), 256, got.data());
      EXPECT_TRUE(same_bits(want, got)) << scale;
      law().decode_fp4_e8m0(nibbles.data(), 256, want.data());
      tier.decode_fp4_e8m0(nibbles.data(), 256, got.data());
      EXPECT_TRUE(same_bits(want, got)) << scale;
      law().decode_fp4_e4m3(nibbles.data(), 256, want.data());
      tier.decode_fp4_e4m3(nibbles.data(), 256, got.data());
      EXPECT_TRUE(same_bits(want, got)) << scale;
    });
  }
}

TEST_F(OperatorsTest, RopeHasTheBitsOfTheLawAndItsInverseUndoesIt) {
  for (const int64_t half : {1, 3, 4, 5, 32}) {
    const int64_t width = 2 * half + 11;
    const auto x = random_values(random_, width, 1);
    std::vector<float> cos(static_cast<size_t>(half)), sin(cos.size());
    for (size_t i = 0; i < cos.size(); ++i) {
      cos[i] = std::cos(static_cast<float>(i) + 0.3f);
      sin[i] = std::sin(static_cast<float>(i) + 0.3f);
    }
    for (const bool inverse : {false, true}) {
      for (const bool round : {false, true}) {
        std::vector<float> want(x.size());
        law().rope(x.data(), width, cos.data(), sin.data(), half, inverse, round, want.data());
        for_tiers([&](const OperatorTable& tier) {
          auto got = x;
          tier.rope(got.data(), width, cos.data(), sin.data(), half, inverse, round, got.data());
          EXPECT_TRUE(same_bits(want, got)) << half;
        });
      }
    }
    std::vector<float> turned(x.size()), back(x.size());
    law().rope(x.data(), width, cos.data(), sin.data(), half, false, false, turned.data());
    law().rope(turned.data(), width, cos.data(), sin.data(), half, true, false, back.data());
    for (size_t i = 0; i < x.size(); ++i) EXPECT_NEAR(back[i], x[i], 1e-5f * (1 + std::abs(x[i])));
  }
}

TEST_F(OperatorsTest, RoutingHasTheBitsOfTheLawForEveryScoring) {
  for (const Scoring scoring : {Scoring::sqrt_softplus, Scoring::sigmoid, Scoring::softmax}) {
    for (const int64_t experts : {6, 7, 16, 33, 384}) {
      for (const int64_t active : {1, 3, 6}) {
        MoeArgs args;
        args.num_active = active;
        args.scoring = scoring;
        args.routed_scale = 1.5f;
        args.gate_temperature = 1.25f;
        const auto logits = random_values(random_, experts, 3);
        const auto bias = random_values(random_, experts, 0);
        std::vector<int32_t> want_index(static_cast<size_t>(active)), index(want_index);
        std::vector<float> want(want_index.size() + 1), got(want.size());
        law().route(logits.data(), bias.data(), experts, args, want_index.data(), want.data() + 1,
                    want.data());
        for_tiers([&](const OperatorTable& tier) {
          tier.route(logits.data(), bias.data(), experts, args, index.data(), got.data() + 1, got.data());
          EXPECT_EQ(want_index, index);
          EXPECT_TRUE(same_bits(want, got));
        });
      }
    }
  }
}

TEST_F(OperatorsTest, RoutingBreaksTiesByTheLowestExpert) {
  MoeArgs args;
  args.num_active = 2;
  args.routed_scale = 2.0f;
  const std::vector<float> logits(5, 0.5f);
  const std::vector<float> bias = {0, 1, 0, 1, 1};
  for_tiers([&](const OperatorTable& tier) {
    int32_t index[2];
    float weight[2], gap = -1;
    tier.route(logits.data(), bias.data(), 5, args, index, weight, &gap);
    EXPECT_EQ(index[0], 1);
    EXPECT_EQ(index[1], 3);
    EXPECT_EQ(gap, 0.0f);
    EXPECT_EQ(weight[0], 1.0f);  // halves, times the scale
    EXPECT_EQ(weight[1], 1.0f);
  });
}

TEST_F(OperatorsTest, ReductionsUseSixteenChains) {
  // 2^24 + 1 is lost in F32 unless both go to different chains that meet with something in between.
  std::vector<float> x(32, 0.0f);
  x[0] = 0x1p24f;
  x[16] = 1.0f;  // same chain as x[0]: lost
  for_tiers([&](const OperatorTable& tier) {
    EXPECT_EQ(tier.sum(x.data(), 32), 0x1p24f);
    std::vector<float> y = x;
    y[8] = 1.0f;  // chain 8 meets chain 0 first and is lost too
    y[1] = 2.0f;  // chain 1 comes last and counts
    EXPECT_EQ(tier.sum(y.data(), 32), 0x1p24f + 2.0f);
  });
}

}  // namespace
}  // namespace rorqual::kernels
