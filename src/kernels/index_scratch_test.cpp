// SPDX-License-Identifier: Apache-2.0
// Work memory of the index stage does not grow with rows x entries: long contexts are scored a few rows at a
// time, and those find what each row finds alone.
#include <gtest/gtest.h>

#include <random>
#include <vector>

#include "kernels/kernels.h"
#include "kernels/test_matrices.h"

namespace rorqual::kernels {
namespace {

constexpr int64_t kWidth = 32, kTopK = 16, kPage = 64;
constexpr int64_t kBudget = int64_t{72} << 20;

/// One sequence of `length` entries, whose last `rows` positions are asked for.
class LongContext {
 public:
  LongContext(int64_t length, int64_t rows) : random_(7) {
    for (const WeightFormat format : {WeightFormat::fp8_block32, WeightFormat::bf16}) {
      matrices_.emplace_back(random_, format, format == WeightFormat::bf16 ? 1 : kWidth, kWidth);
    }
    weights_ = {matrices_[0].view(), matrices_[1].view()};
    format_ = {Numerics::reference, kWidth, kWidth};
    keys_.resize(static_cast<size_t>((length + kPage) * format_.index_bytes()));
    for (std::byte& byte : keys_) byte = static_cast<std::byte>(random_());
    for (int64_t i = 0; i < length; ++i) {  // scales near 1
      keys_[static_cast<size_t>((i + 1) * format_.index_bytes() - 1)] =
          static_cast<std::byte>(120 + random_() % 8);
    }
    for (int64_t i = 0; i < length; i += kPage) {
      pages_.push_back(keys_.data() + i * format_.index_bytes());
    }
    std::normal_distribution<float> normal;
    for (int64_t i = 0; i < rows * kWidth; ++i) x_.push_back(normal(random_));
    for (int64_t i = 0; i < rows; ++i) positions_.push_back(length - rows + i);
    cos_.assign(static_cast<size_t>(rows), 1.0f);
    sin_.assign(static_cast<size_t>(rows), 0.0f);
  }

  /// Selections of rows [begin, end); `scratch` is what was reserved for them.
  std::vector<int32_t> select(int64_t begin, int64_t end, int64_t& scratch_bytes) {
    const auto at = static_cast<size_t>(begin), count = static_cast<size_t>(end - begin);
    const std::vector<int32_t> sequence(count, 0);
    const SequenceRows rows{0, static_cast<int32_t>(count), positions_[at], 0};
    StepPlan plan;
    plan.num_rows = static_cast<int32_t>(count);
    plan.positions = std::span(positions_).subspan(at, count);
    plan.sequence_of_row = sequence;
    plan.sequences = std::span(&rows, 1);
    CompressedCache cache;
    cache.page_entries = kPage;
    cache.index_pages = pages_.data();
    std::vector<int32_t> selected(count * kTopK), counts(count);
    IndexArgs args;
    args.plan = &plan;
    args.shape.rope_dim = 2;
    args.format = format_;
    args.num_index_heads = 1;
    args.index_topk = kTopK;
    args.weights = &weights_;
    args.angles = {cos_.data(), sin_.data()};
    args.x = x_.data() + at * kWidth;
    args.qr = args.x;
    args.caches = std::span(&cache, 1);
    args.selected = selected.data();
    args.selected_count = counts.data();
    ThreadPool pool(2);
    Scratch scratch;  // in one piece, as the plan reserves it
    EXPECT_TRUE(scratch.reserve(count > 1 ? kBudget : 0).ok());
    Context ctx{&pool, &scratch, Numerics::reference};
    select_kernels()->index_select(ctx, args);
    scratch_bytes = scratch.reserved_bytes();
    return selected;
  }

 private:
  std::mt19937 random_;
  std::vector<TestMatrix> matrices_;
  IndexWeights weights_;
  CacheFormat format_;
  std::vector<std::byte> keys_;
  std::vector<std::byte*> pages_;
  std::vector<float> x_, cos_, sin_;
  std::vector<int64_t> positions_;
};

TEST(IndexScratch, IsBoundedAndItsPiecesFindWhatEachRowFindsAlone) {
  constexpr int64_t kLength = 200'000, kRows = 200;  // scores of all rows at once: 160 MB
  LongContext context(kLength, kRows);
  int64_t bytes = 0;
  const std::vector<int32_t> all = context.select(0, kRows, bytes);
  EXPECT_EQ(bytes, kBudget) << "more than that was needed";
  for (const int64_t row : {int64_t{0}, int64_t{83}, int64_t{84}, kRows - 1}) {
    const std::vector<int32_t> alone = context.select(row, row + 1, bytes);
    const auto* begin = all.data() + row * kTopK;
    EXPECT_EQ(std::vector<int32_t>(begin, begin + kTopK), alone) << "row " << row;
    EXPECT_LE(bytes, int64_t{8} << 20);
  }
}

}  // namespace
}  // namespace rorqual::kernels
