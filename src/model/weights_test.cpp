// SPDX-License-Identifier: Apache-2.0
#include "model/weights.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <string>

#include "format/tensor_source.h"
#include "model/manifest.h"
#include "num/formats.h"

namespace rorqual::model {
namespace {

class LoadedModel {
 public:
  explicit LoadedModel(const std::string& name) {
    auto opened = format::open_checkpoint(std::string(RORQUAL_SOURCE_DIR) + "/tests/models/" + name);
    EXPECT_TRUE(opened.ok());
    source = *std::move(opened);
    config = *parse_config(*source->read_text("config.json"));
  }

  Weights load(const WeightOptions& options) {
    ThreadPool pool(2);
    auto weights = load_weights(*source, config, options, pool, {});
    EXPECT_TRUE(weights.ok()) << (weights.ok() ? "" : weights.error().message());
    return *std::move(weights);
  }

  std::unique_ptr<format::TensorSource> source;
  Config config;
};

WeightOptions rank_of_two(int rank) {
  WeightOptions options;
  options.shard = {rank, 2};
  return options;
}

struct Offset {
  int64_t row = 0, col = 0;
};

/// `part` holds the values of `whole` from `offset` on.
void expect_part(const kernels::Matrix& whole, const kernels::Matrix& part, Offset offset,
                 const std::string& what) {
  ASSERT_LE(offset.row + part.rows, whole.rows) << what;
  ASSERT_LE(offset.col + part.cols, whole.cols) << what;
  for (int64_t r = 0; r < part.rows; ++r) {
    for (int64_t c = 0; c < part.cols; ++c) {
      ASSERT_EQ(kernels::matrix_value(part, r, c),
                kernels::matrix_value(whole, offset.row + r, offset.col + c))
          << what << " row " << r << " column " << c;
    }
  }
}

TEST(Weights, TwoRanksTogetherHoldWhatOneRankHolds) {
  for (const std::string name : {"tiny-a", "tiny-b", "tiny-c"}) {
    LoadedModel model(name);
    const Weights whole = model.load({});
    const Weights first = model.load(rank_of_two(0));
    const Weights second = model.load(rank_of_two(1));
    EXPECT_LT(first.host_bytes(), whole.host_bytes());
    for (size_t l = 0; l < whole.layers.size(); ++l) {
      const auto& w = whole.layers[l].attention;
      const auto& a = first.layers[l].attention;
      const auto& b = second.layers[l].attention;
      const std::string where = name + " layer " + std::to_string(l);
      ASSERT_EQ(a.wq_b.rows + b.wq_b.rows, w.wq_b.rows) << where;
      expect_part(w.wq_b, a.wq_b, {}, where + " wq_b rank 0");
      expect_part(w.wq_b, b.wq_b, {a.wq_b.rows, 0}, where + " wq_b rank 1");
      expect_part(w.wo_a, b.wo_a, {a.wo_a.rows, 0}, where + " wo_a rank 1");
      ASSERT_EQ(a.wo_b.cols + b.wo_b.cols, w.wo_b.cols) << where;
      expect_part(w.wo_b, a.wo_b, {}, where + " wo_b rank 0");
      expect_part(w.wo_b, b.wo_b, {0, a.wo_b.cols}, where + " wo_b rank 1");
      const int64_t heads = a.wq_b.rows / model.config.head_dim;
      EXPECT_EQ(b.attn_sink[0], w.attn_sink[heads]) << where;
      expect_part(w.wq_a, b.wq_a, {}, where + " wq_a is replicated");
    }
  }
}

TEST(Weights, ARankHoldsItsExpertsOnly) {
  LoadedModel model("tiny-a");
  const Weights whole = model.load({});
  const Weights second = model.load(rank_of_two(1));
  const Range mine = shard_range(model.config.num_experts(0), 1, {1, 2});
  for (int64_t e = 0; e < model.config.num_experts(0); ++e) {
    const auto& expert = second.layers[0].experts[static_cast<size_t>(e)];
    const bool is_mine = e >= mine.begin && e < mine.end;
    EXPECT_EQ(expert.w1.data != nullptr, is_mine) << "expert " << e;
    if (is_mine) expect_part(whole.layers[0].experts[static_cast<size_t>(e)].w2, expert.w2, {}, "w2");
  }
}

/// The rule of convert for dense weights, written again with plain arithmetic: per 32 x 32 block the smallest
/// power of two with amax / scale <= 448.
int smallest_exponent(float amax) {
  int exponent = -100;
  while (std::ldexp(448.0, exponent) < static_cast<double>(amax)) ++exponent;
  return exponent;
}

/// Nearest E4M3 value of x / 2^exponent times 2^exponent, ties to the even code, by trying all codes.
float nearest_e4m3(float x, int exponent) {
  double best_distance = 1e300;
  uint8_t best = 0;
  for (int code = 0; code < 0x7F; ++code) {
    const double value =
        std::ldexp(static_cast<double>(num::e4m3_decode(static_cast<uint8_t>(code))), exponent);
    const double distance = std::abs(value - std::abs(static_cast<double>(x)));
    if (distance < best_distance || (distance == best_distance && code % 2 == 0)) {
      best_distance = distance;
      best = static_cast<uint8_t>(code);
    }
  }
  const auto value = static_cast<float>(std::ldexp(static_cast<double>(num::e4m3_decode(best)), exponent));
  return std::signbit(x) ? -value : value;
}

TEST(Weights, AnFp8HeadIsTheBf16HeadRoundedPerBlockToTheSmallestScaleThatDoesNotSaturate) {
  for (const std::string name : {"tiny-a", "tiny-c"}) {
    LoadedModel model(name);
    WeightOptions options;
    options.head = HeadFormat::fp8;
    const Weights plain_weights = model.load({});
    const Weights fp8_weights = model.load(options);
    const kernels::Matrix& whole = plain_weights.head;
    const kernels::Matrix& head = fp8_weights.head;
    ASSERT_EQ(head.format, kernels::WeightFormat::fp8_block32);
    ASSERT_EQ(head.rows, whole.rows);
    ASSERT_EQ(head.cols, whole.cols);
    for (int64_t row = 0; row < head.rows; row += 32) {
      for (int64_t col = 0; col < head.cols; col += 32) {
        const int64_t row_end = std::min(row + 32, head.rows), col_end = std::min(col + 32, head.cols);
        float amax = 0;
        for (int64_t r = row; r < row_end; ++r) {
          for (int64_t c = col; c < col_end; ++c) {
            amax = std::max(amax, std::abs(kernels::matrix_value(whole, r, c)));
          }
        }
        const int exponent = smallest_exponent(amax);
        for (int64_t r = row; r < row_end; ++r) {
          for (int64_t c = col; c < col_end; ++c) {
            ASSERT_EQ(kernels::matrix_value(head, r, c),
                      nearest_e4m3(kernels::matrix_value(whole, r, c), exponent))
                << name << " row " << r << " column " << c;
          }
        }
      }
    }
  }
}

TEST(Weights, AnFp8HeadTakesHalfTheMemoryAndChangesNothingElse) {
  LoadedModel model("tiny-a");
  WeightOptions options;
  options.head = HeadFormat::fp8;
  const Weights plain = model.load({});
  const Weights small = model.load(options);
  const auto bytes = [&](kernels::WeightFormat format) {
    return kernels::packed_data_bytes(format, plain.head.rows, plain.head.cols) +
           kernels::packed_scale_bytes(format, plain.head.rows, plain.head.cols);
  };
  const int64_t saved = bytes(kernels::WeightFormat::bf16) - bytes(kernels::WeightFormat::fp8_block32);
  EXPECT_NEAR(static_cast<double>(plain.host_bytes() - small.host_bytes()), static_cast<double>(saved), 64);
  EXPECT_LT(bytes(kernels::WeightFormat::fp8_block32) * 100, bytes(kernels::WeightFormat::bf16) * 51);
  expect_part(plain.layers[0].attention.wq_a, small.layers[0].attention.wq_a, {}, "wq_a");
  EXPECT_EQ(std::memcmp(plain.embed, small.embed,
                        static_cast<size_t>(model.config.vocab_size * model.config.hidden_size * 2)),
            0);
}

TEST(Weights, TwoRanksCutAnFp8HeadIntoTheSameBlocks) {
  LoadedModel model("tiny-b");
  WeightOptions whole_options;
  whole_options.head = HeadFormat::fp8;
  WeightOptions first_options = rank_of_two(0), second_options = rank_of_two(1);
  first_options.head = second_options.head = HeadFormat::fp8;
  const Weights whole = model.load(whole_options);
  const Weights first = model.load(first_options);
  const Weights second = model.load(second_options);
  ASSERT_EQ(first.head.rows + second.head.rows, whole.head.rows);
  expect_part(whole.head, first.head, {}, "head rank 0");
  expect_part(whole.head, second.head, {first.head.rows, 0}, "head rank 1");
}

TEST(Weights, TablesOnDiskTakeNoMemory) {
  LoadedModel model("tiny-a");
  WeightOptions options;
  options.engram_on_disk = true;
  const Weights on_disk = model.load(options);
  const Weights in_memory = model.load({});
  EXPECT_LT(on_disk.host_bytes(), in_memory.host_bytes());
  EXPECT_EQ(on_disk.layers[1].engram->table.memory(), tensor::MemoryKind::disk);
  EXPECT_EQ(in_memory.layers[1].engram->table.memory(), tensor::MemoryKind::host);
}

TEST(Weights, LoadingReportsAllBytesOnce) {
  LoadedModel model("tiny-c");
  ThreadPool pool(2);
  int64_t last = 0, total = 0, calls = 0;
  auto weights = load_weights(*model.source, model.config, {}, pool, [&](int64_t done, int64_t all) {
    EXPECT_GT(done, last);
    last = done;
    total = all;
    ++calls;
  });
  ASSERT_TRUE(weights.ok());
  EXPECT_EQ(last, total);
  EXPECT_GT(calls, 10);
}

}  // namespace
}  // namespace rorqual::model
