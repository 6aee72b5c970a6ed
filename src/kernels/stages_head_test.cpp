// SPDX-License-Identifier: Apache-2.0
// The head stage over BF16 and FP8 weights: against a scalar loop over the checkpoint's own bytes, in both
// numerics, on every tier and thread count, on shapes with tails.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "base/thread_pool.h"
#include "kernels/kernels.h"
#include "kernels/operators.h"
#include "kernels/test_matrices.h"
#include "num/formats.h"

namespace rorqual::kernels {
namespace {

constexpr uint32_t kSeed = 20261130;
constexpr float kEps = 1e-6f;

struct HeadCase {
  int64_t rows, vocab, width;
  Numerics numerics;
};

std::vector<float> hidden_rows(std::mt19937& random, const HeadCase& c) {
  std::normal_distribution<float> normal(0.0f, 3.0f);
  std::vector<float> values(static_cast<size_t>(c.rows * c.width));
  for (float& value : values) value = num::bf16_round(normal(random));
  return values;
}

/// Code value of element (row, col) without its scale, and the scale of its block, read from the checkpoint.
struct Source {
  const TestMatrix& matrix;
  int64_t width;

  float value(int64_t row, int64_t col) const {
    const std::byte* bytes = matrix.source().data();
    if (matrix.view().format == WeightFormat::fp8_block32)
      return num::e4m3_decode(static_cast<uint8_t>(bytes[row * width + col]));
    uint16_t half = 0;
    std::memcpy(&half, bytes + 2 * (row * width + col), 2);
    return num::bf16_decode(half);
  }

  float scale(int64_t row, int64_t block) const {
    const int64_t blocks = (width + 31) / 32;
    return num::e8m0_decode(matrix.scales()[static_cast<size_t>(row / 32 * blocks + block)]);
  }
};

/// docs/numerics.md: norm by the law, then the linear order; nothing rounds x in front of the weights.
std::vector<float> plain_head(const TestMatrix& weight, const std::vector<float>& hidden,
                              const std::vector<float>& norm, const HeadCase& c) {
  const ScopedFlushToZero flush;
  const Source source{weight, c.width};
  const bool has_scales = weight.view().format == WeightFormat::fp8_block32;
  std::vector<float> logits, x(static_cast<size_t>(c.width));
  for (int64_t t = 0; t < c.rows; ++t) {
    available_operators().front()->rms_norm(hidden.data() + t * c.width, norm.data(), kEps, c.width,
                                            c.numerics == Numerics::reference, x.data());
    for (int64_t row = 0; row < c.vocab; ++row) {
      float acc = 0;
      for (int64_t block = 0; block * 32 < c.width; ++block) {
        float chain[2] = {0, 0};
        for (int64_t k = block * 32; k < std::min(block * 32 + 32, c.width); ++k)
          chain[k % 2] = std::fma(x[static_cast<size_t>(k)], source.value(row, k), chain[k % 2]);
        const float sum = chain[0] + chain[1];
        acc = has_scales ? std::fma(sum, source.scale(row, block), acc) : acc + sum;
      }
      logits.push_back(acc);
    }
  }
  return logits;
}

std::vector<float> run_head(const KernelTable& table, int threads, const HeadCase& c,
                            const HeadArgs& operands) {
  ThreadPool pool(threads);
  Scratch scratch;
  Context ctx{&pool, &scratch, c.numerics};
  std::vector<float> logits(static_cast<size_t>(c.rows * c.vocab), -7.0f);
  HeadArgs args = operands;
  args.num_rows = c.rows;
  args.d_model = c.width;
  args.norm_eps = kEps;
  args.logits = logits.data();
  table.head(ctx, args);
  return logits;
}

TEST(HeadStage, EqualsAScalarLoopOnEveryTierForBf16AndFp8Weights) {
  std::mt19937 random(kSeed);
  std::normal_distribution<float> normal;
  for (const WeightFormat format : {WeightFormat::bf16, WeightFormat::fp8_block32}) {
    for (const Numerics numerics : {Numerics::exact, Numerics::reference}) {
      for (const int64_t vocab : {1, 15, 32, 37, 101}) {
        for (const int64_t width : {32, 40, 64, 160}) {
          const TestMatrix weight(random, format, vocab, width);
          ASSERT_FALSE(weight.view().wide_scales);
          for (const int64_t rows : {1, 3, 17}) {
            const HeadCase c{rows, vocab, width, numerics};
            const auto hidden = hidden_rows(random, c);
            std::vector<float> norm(static_cast<size_t>(width));
            for (float& value : norm) value = num::bf16_round(normal(random));
            const auto want = plain_head(weight, hidden, norm, c);
            HeadArgs operands;
            operands.hidden = hidden.data();
            operands.norm_weight = norm.data();
            operands.head = weight.view();
            for (const KernelTable* table : available_kernels()) {
              for (const int threads : {1, 3}) {
                const auto got = run_head(*table, threads, c, operands);
                ASSERT_EQ(std::memcmp(want.data(), got.data(), want.size() * sizeof(float)), 0)
                    << table->name << " " << format_name(format) << " [" << vocab << ", " << width << "] x "
                    << rows << " threads " << threads << " seed " << kSeed;
              }
            }
          }
        }
      }
    }
  }
}

TEST(HeadStage, AnFp8BlockOfZerosMayHaveAnyScaleAndGivesZero) {
  constexpr int64_t vocab = 20, width = 64;
  std::vector<std::byte> codes(vocab * width, std::byte{0});
  const std::vector<uint8_t> scales = {0, 254};
  std::vector<uint8_t> packed_scales(
      static_cast<size_t>(packed_scale_bytes(WeightFormat::fp8_block32, vocab, width)));
  auto buffer = tensor::Buffer::allocate(packed_data_bytes(WeightFormat::fp8_block32, vocab, width));
  ASSERT_TRUE(buffer.ok());
  HeadArgs operands;
  operands.head = pack_matrix(WeightFormat::fp8_block32, vocab, width, codes.data(), scales.data(),
                              buffer->data(), packed_scales.data());
  EXPECT_FALSE(operands.head.wide_scales);
  std::mt19937 random(kSeed);
  const HeadCase c{2, vocab, width, Numerics::reference};
  const auto hidden = hidden_rows(random, c);
  const std::vector<float> norm(width, 1.0f);
  operands.hidden = hidden.data();
  operands.norm_weight = norm.data();
  for (const KernelTable* table : available_kernels()) {
    for (const float logit : run_head(*table, 1, c, operands)) EXPECT_EQ(logit, 0.0f) << table->name;
  }
}

}  // namespace
}  // namespace rorqual::kernels
