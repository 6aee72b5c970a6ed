// SPDX-License-Identifier: Apache-2.0
// MoE, linear, output projection, embedding and head stages: against plain loops over the operators, and the
// same bits for every tier, thread count and batch.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <memory>
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

constexpr uint32_t kSeed = 42;
constexpr int64_t kWidth = 64;
constexpr int64_t kHidden = 96;
constexpr int64_t kExperts = 7;
constexpr int64_t kActive = 3;

std::vector<float> bf16_values(std::mt19937& random, int64_t count) {
  std::normal_distribution<float> normal;
  std::vector<float> values(static_cast<size_t>(count));
  for (float& value : values) value = num::bf16_round(normal(random));
  return values;
}

/// Bits, so that -0 and +0 differ and NaN equals itself.
std::vector<uint32_t> bits(const std::vector<float>& values) {
  std::vector<uint32_t> result;
  for (const float value : values) result.push_back(num::bits_of(value));
  return result;
}

/// All weights of a small mixture.
class TestMoe {
 public:
  explicit TestMoe(std::mt19937& random, int64_t width = kWidth, int64_t hidden = kHidden)
      : width_(width), hidden_(hidden) {
    gate_ = std::make_unique<TestMatrix>(random, WeightFormat::bf16, kExperts, width);
    for (int64_t e = 0; e < kExperts; ++e) experts_.push_back(expert(random, WeightFormat::mxfp4));
    bias_ = bf16_values(random, kExperts);
    bias_vl_ = bf16_values(random, kExperts);
    weights_.gate = gate_->view();
    weights_.bias = bias_.data();
    weights_.bias_vl = bias_vl_.data();
    weights_.experts = experts_;
    weights_.shared = expert(random, WeightFormat::fp8_block32);
  }

  const MoeWeights& weights() const { return weights_; }

  MoeArgs args(int64_t num_rows, const float* x, float* y) const {
    MoeArgs args;
    args.num_rows = num_rows;
    args.d_model = width_;
    args.d_expert = hidden_;
    args.num_active = kActive;
    args.routed_scale = 1.5f;
    args.swiglu_limit = 10.0f;
    args.weights = &weights_;
    args.x = x;
    args.y = y;
    return args;
  }

 private:
  ExpertWeights expert(std::mt19937& random, WeightFormat format) {
    const auto matrix = [&](int64_t rows, int64_t cols) {
      matrices_.push_back(std::make_unique<TestMatrix>(random, format, rows, cols));
      return matrices_.back()->view();
    };
    const Matrix w1 = matrix(hidden_, width_);
    const Matrix w2 = matrix(width_, hidden_);
    const Matrix w3 = matrix(hidden_, width_);
    return {.w1 = w1, .w2 = w2, .w3 = w3};
  }

  int64_t width_, hidden_;
  std::vector<std::unique_ptr<TestMatrix>> matrices_;
  std::unique_ptr<TestMatrix> gate_;
  std::vector<ExpertWeights> experts_;
  std::vector<float> bias_, bias_vl_;
  MoeWeights weights_;
};

std::vector<float> product(const OperatorTable& ops, const Matrix& weight, const std::vector<float>& x,
                           bool round) {
  std::vector<float> y(static_cast<size_t>(weight.rows));
  std::vector<float> padded = x;
  padded.resize(static_cast<size_t>(weight.num_blocks() * kBlockCols), 0.0f);
  ops.linear({.weight = &weight,
              .panel_begin = 0,
              .panel_end = weight.num_panels(),
              .num_rows = 1,
              .x = padded.data(),
              .x_stride = weight.num_blocks() * kBlockCols,
              .y = y.data(),
              .y_stride = weight.rows,
              .round_bf16 = round});
  return y;
}

/// One row by the formulas of the model, without grouping.
std::vector<float> plain_row(const OperatorTable& ops, const MoeArgs& args, const float* x_row, bool image,
                             bool reference) {
  const ScopedFlushToZero flush;
  const MoeWeights& weights = *args.weights;
  std::vector<float> x(x_row, x_row + args.d_model);
  const std::vector<float> logits = product(ops, weights.gate, x, false);
  int32_t index[kActive];
  float weight[kActive];
  ops.route(logits.data(), image ? weights.bias_vl : weights.bias, kExperts, args, index, weight, nullptr);
  if (reference) ops.qdq_fp8(x.data(), args.d_model, x.data());
  std::vector<float> y(x.size(), 0.0f);
  const auto add_expert = [&](const ExpertWeights& expert, float factor) {
    std::vector<float> hidden = product(ops, expert.w1, x, reference);
    const std::vector<float> up = product(ops, expert.w3, x, reference);
    ops.swiglu(hidden.data(), up.data(), args.d_expert, args.swiglu_limit, factor, reference, hidden.data());
    if (reference) ops.qdq_fp8(hidden.data(), args.d_expert, hidden.data());
    const std::vector<float> out = product(ops, expert.w2, hidden, reference);
    for (size_t i = 0; i < y.size(); ++i) y[i] += out[i];
  };
  for (int32_t e = 0; e < kExperts; ++e) {
    const auto* found = std::find(index, index + kActive, e);
    if (found != index + kActive) add_expert(weights.experts[static_cast<size_t>(e)], weight[found - index]);
  }
  add_expert(weights.shared, 1.0f);
  if (reference) ops.round_bf16(y.data(), args.d_model, y.data());
  return y;
}

struct Runner {
  explicit Runner(int threads, Numerics numerics) : pool(threads) {
    ctx.pool = &pool;
    ctx.scratch = &scratch;
    ctx.numerics = numerics;
  }

  ThreadPool pool;
  Scratch scratch;
  Context ctx;
};

class StagesTest : public ::testing::Test {
 protected:
  void SetUp() override { ASSERT_FALSE(available_kernels().empty()) << "this CPU has no AVX2, FMA and F16C"; }

  std::mt19937 random_{kSeed};
};

TEST_F(StagesTest, MoeEqualsPlainLoopsOnEveryTierAndThreadCount) {
  const TestMoe moe(random_);
  constexpr int64_t num_rows = 61;
  const auto x = bf16_values(random_, num_rows * kWidth);
  std::vector<uint8_t> image(num_rows);
  for (auto& flag : image) flag = random_() % 3 == 0;
  for (const Numerics numerics : {Numerics::exact, Numerics::reference}) {
    std::vector<float> want;
    MoeArgs args = moe.args(num_rows, x.data(), nullptr);
    for (int64_t t = 0; t < num_rows; ++t) {
      const auto row = plain_row(*available_operators()[0], args, x.data() + t * kWidth,
                                 image[static_cast<size_t>(t)] != 0, numerics == Numerics::reference);
      want.insert(want.end(), row.begin(), row.end());
    }
    for (const KernelTable* table : available_kernels()) {
      for (const int threads : {1, 3}) {
        Runner runner(threads, numerics);
        std::vector<float> y(x.size());
        args.y = y.data();
        args.is_image = image.data();
        table->moe(runner.ctx, args);
        EXPECT_EQ(bits(want), bits(y)) << table->name << " threads " << threads << " seed " << kSeed;
      }
    }
  }
}

TEST_F(StagesTest, MoeGivesARowTheSameBitsInAnyBatchEvenBeyondOneBatchOfSortedRows) {
  const TestMoe moe(random_);
  constexpr int64_t num_rows = 400;  // 1,600 sorted rows: more than one batch
  const auto x = bf16_values(random_, num_rows * kWidth);
  const KernelTable& table = *available_kernels().back();
  Runner runner(2, Numerics::reference);
  std::vector<float> all(x.size()), alone(x.size());
  table.moe(runner.ctx, moe.args(num_rows, x.data(), all.data()));
  for (int64_t t = 0; t < num_rows; t += 7) {
    table.moe(runner.ctx, moe.args(1, x.data() + t * kWidth, alone.data() + t * kWidth));
    for (int64_t c = 0; c < kWidth; ++c) {
      const auto i = static_cast<size_t>(t * kWidth + c);
      ASSERT_EQ(num::bits_of(all[i]), num::bits_of(alone[i]))
          << "row " << t << " column " << c << " seed " << kSeed;
    }
  }
}

TEST_F(StagesTest, MoeReportsChoicesAndWorksWithNoRows) {
  const TestMoe moe(random_);
  const auto x = bf16_values(random_, 2 * kWidth);
  std::vector<float> y(x.size()), weight(2 * kActive), gap(2);
  std::vector<int32_t> index(2 * kActive, -1);
  Runner runner(1, Numerics::reference);
  MoeArgs args = moe.args(2, x.data(), y.data());
  args.router_index = index.data();
  args.router_weight = weight.data();
  args.router_gap = gap.data();
  available_kernels().back()->moe(runner.ctx, args);
  for (size_t t = 0; t < 2; ++t) {
    EXPECT_GE(gap[t], 0.0f);
    float sum = 0;
    for (size_t i = 0; i < kActive; ++i) {
      EXPECT_GE(index[t * kActive + i], 0);
      EXPECT_LT(index[t * kActive + i], kExperts);
      sum += weight[t * kActive + i];
    }
    EXPECT_NEAR(sum, 1.5f, 1e-6f);
  }
  available_kernels().back()->moe(runner.ctx, moe.args(0, x.data(), y.data()));
}

TEST_F(StagesTest, MoeInExactNumericsAcceptsWidthsThatAreNoMultipleOf32) {
  constexpr int64_t width = 40;
  constexpr int64_t hidden = 51;
  const TestMoe moe(random_, width, hidden);
  const auto x = bf16_values(random_, 5 * width);
  Runner runner(2, Numerics::exact);
  const MoeArgs plain_args = moe.args(5, x.data(), nullptr);
  for (const KernelTable* table : available_kernels()) {
    std::vector<float> y(x.size()), want;
    table->moe(runner.ctx, moe.args(5, x.data(), y.data()));
    for (int64_t t = 0; t < 5; ++t) {
      const auto row = plain_row(*available_operators()[0], plain_args, x.data() + t * width, false, false);
      want.insert(want.end(), row.begin(), row.end());
    }
    EXPECT_EQ(bits(want), bits(y)) << table->name;
  }
}

TEST_F(StagesTest, LinearRoundsAndQuantisesOnlyInReferenceNumerics) {
  const TestMatrix weight(random_, WeightFormat::fp8_block32, 50, 96);
  constexpr int64_t num_rows = 53;
  std::normal_distribution<float> normal;
  std::vector<float> x(num_rows * 96);
  for (float& value : x) value = normal(random_);
  for (const Numerics numerics : {Numerics::exact, Numerics::reference}) {
    const bool reference = numerics == Numerics::reference;
    std::vector<float> want;
    for (int64_t t = 0; t < num_rows; ++t) {
      const ScopedFlushToZero flush;
      std::vector<float> row(x.begin() + t * 96, x.begin() + (t + 1) * 96);
      if (reference) available_operators()[0]->qdq_fp8(row.data(), 96, row.data());
      const auto y = product(*available_operators()[0], weight.view(), row, reference);
      want.insert(want.end(), y.begin(), y.end());
    }
    for (const KernelTable* table : available_kernels()) {
      Runner runner(3, numerics);
      std::vector<float> y(want.size());
      table->linear(runner.ctx, {.num_rows = num_rows,
                                 .weight = weight.view(),
                                 .x = x.data(),
                                 .y = y.data(),
                                 .quantise_input = true});
      EXPECT_EQ(bits(want), bits(y)) << table->name;
    }
  }
}

TEST_F(StagesTest, OutputProjectionIsBlockDiagonalForAnyRank) {
  for (const int64_t rank : {16, 32, 8, 24}) {  // 8 and 24: panels straddle two groups
    constexpr int64_t groups = 4;
    constexpr int64_t num_rows = 50;
    AttentionWeights weights;
    const TestMatrix wo_a(random_, WeightFormat::bf16, groups * rank, 64);
    const TestMatrix wo_b(random_, WeightFormat::fp8_block32, 48, groups * rank);
    weights.wo_a = wo_a.view();
    weights.wo_b = wo_b.view();
    AttentionShape shape;
    shape.d_model = 48;
    shape.num_heads = 8;
    shape.head_dim = 32;
    shape.o_groups = groups;
    shape.o_lora_rank = rank;
    const auto attended = bf16_values(random_, num_rows * 256);
    std::vector<float> want;
    for (int64_t t = 0; t < num_rows; ++t) {
      const ScopedFlushToZero flush;
      std::vector<float> z;
      for (int64_t group = 0; group < groups; ++group) {
        const auto* begin = attended.data() + t * 256 + group * 64;
        const auto rows =
            product(*available_operators()[0], wo_a.view(), std::vector<float>(begin, begin + 64), true);
        z.insert(z.end(), rows.begin() + group * rank, rows.begin() + (group + 1) * rank);
      }
      available_operators()[0]->qdq_fp8(z.data(), groups * rank, z.data());
      const auto y = product(*available_operators()[0], wo_b.view(), z, true);
      want.insert(want.end(), y.begin(), y.end());
    }
    for (const KernelTable* table : available_kernels()) {
      Runner runner(2, Numerics::reference);
      std::vector<float> y(want.size());
      table->attention_output(runner.ctx, {.num_rows = num_rows,
                                           .shape = shape,
                                           .weights = &weights,
                                           .attended = attended.data(),
                                           .y = y.data()});
      EXPECT_EQ(bits(want), bits(y)) << table->name << " rank " << rank;
    }
  }
}

TEST_F(StagesTest, EmbeddingFillsAllStreamsAndStartsOnTheFirst) {
  constexpr int64_t width = 5;
  std::vector<uint16_t> table(10 * width);
  for (size_t i = 0; i < table.size(); ++i) table[i] = num::bf16_encode(static_cast<float>(i));
  const std::vector<int32_t> ids = {3, 0, 9};
  StepPlan plan;
  plan.num_rows = 3;
  plan.token_ids = ids;
  std::vector<float> streams(3 * 2 * width), pre_mix(3 * 2);
  Runner runner(2, Numerics::reference);
  available_kernels().back()->embed(runner.ctx, {.plan = &plan,
                                                 .table_bf16 = table.data(),
                                                 .d_model = width,
                                                 .num_streams = 2,
                                                 .streams = streams.data(),
                                                 .pre_mix = pre_mix.data()});
  for (size_t t = 0; t < 3; ++t) {
    for (size_t c = 0; c < width; ++c) {
      const auto value = static_cast<float>(static_cast<size_t>(ids[t]) * width + c);
      EXPECT_EQ(streams[(t * 2) * width + c], value);
      EXPECT_EQ(streams[(t * 2 + 1) * width + c], value);
    }
  }
  EXPECT_EQ(pre_mix, (std::vector<float>{1, 0, 1, 0, 1, 0}));
}

TEST_F(StagesTest, HeadNormalisesAndKeepsF32Logits) {
  const TestMatrix head(random_, WeightFormat::bf16, 37, kWidth);
  const auto hidden = bf16_values(random_, 3 * kWidth);
  const auto norm = bf16_values(random_, kWidth);
  for (const KernelTable* table : available_kernels()) {
    Runner runner(2, Numerics::reference);
    std::vector<float> logits(3 * 37), want;
    table->head(runner.ctx, {.num_rows = 3,
                             .d_model = kWidth,
                             .norm_eps = 1e-20f,
                             .hidden = hidden.data(),
                             .norm_weight = norm.data(),
                             .head = head.view(),
                             .logits = logits.data()});
    for (int64_t t = 0; t < 3; ++t) {
      const ScopedFlushToZero flush;
      std::vector<float> x(kWidth);
      available_operators()[0]->rms_norm(hidden.data() + t * kWidth, norm.data(), 1e-20f, kWidth, true,
                                         x.data());
      const auto y = product(*available_operators()[0], head.view(), x, false);
      want.insert(want.end(), y.begin(), y.end());
    }
    EXPECT_EQ(bits(want), bits(logits)) << table->name;
  }
}

TEST_F(StagesTest, SelectionByNameAndByEnvironment) {
  EXPECT_EQ(select_kernels("ref"), available_kernels().front());
  EXPECT_EQ(select_kernels("no-such-tier"), nullptr);
  ASSERT_EQ(setenv("RORQUAL_CPU_ISA", "ref", 1), 0);
  EXPECT_EQ(select_kernels(), available_kernels().front());
  EXPECT_EQ(select_kernels("avx2")->name, "avx2");  // a name wins over the environment
  ASSERT_EQ(setenv("RORQUAL_CPU_ISA", "avx1024", 1), 0);
  EXPECT_EQ(select_kernels(), nullptr);
  ASSERT_EQ(unsetenv("RORQUAL_CPU_ISA"), 0);
  EXPECT_EQ(select_kernels(), available_kernels().back());
}

}  // namespace
}  // namespace rorqual::kernels
