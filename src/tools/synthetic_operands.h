// SPDX-License-Identifier: Apache-2.0
// Operands of the release's shapes with random finite values, for measures of single stages. Nothing here is
// a model: only shapes, formats and where the bytes lie matter.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "base/result.h"
#include "base/thread_pool.h"
#include "kernels/kernels.h"
#include "model/config.h"
#include "tensor/buffer.h"

namespace rorqual::tools {

/// Small and reproducible; not for statistics.
class FastRandom {
 public:
  explicit FastRandom(uint64_t seed) : state_(seed * 0x9E3779B97F4A7C15U + 0x632BE59BD9B4E019U) {}

  uint64_t next() {
    state_ ^= state_ << 13;
    state_ ^= state_ >> 7;
    state_ ^= state_ << 17;
    return state_;
  }

  /// In [0, bound).
  int64_t below(int64_t bound) { return static_cast<int64_t>(next() % static_cast<uint64_t>(bound)); }

  /// Uniform in [-1, 1).
  float real() { return static_cast<float>(static_cast<int64_t>(next() >> 40)) * 0x1p-23F - 1.0F; }

  void fill(std::vector<float>& values) {
    for (float& value : values) value = real();
  }

 private:
  uint64_t state_;
};

/// Equal matrices in panel form, one behind the other.
class MatrixSet {
 public:
  MatrixSet() = default;
  MatrixSet(kernels::WeightFormat format, int64_t rows, int64_t cols, int64_t count);

  int64_t count() const { return count_; }

  int64_t rows() const { return rows_; }

  int64_t cols() const { return cols_; }

  /// Data and scales of one, as kernels read them.
  int64_t matrix_bytes() const { return data_bytes_ + scale_bytes_; }

  int64_t total_bytes() const { return count_ * matrix_bytes(); }

  /// Multiplications and additions with one row.
  double operations() const { return 2.0 * static_cast<double>(rows_) * static_cast<double>(cols_); }

  /// Fills all of it. Errors: out_of_memory.
  Status allocate(ThreadPool& pool, uint64_t seed);

  kernels::Matrix at(int64_t index) const;

 private:
  kernels::WeightFormat format_ = kernels::WeightFormat::f32;
  int64_t rows_ = 0, cols_ = 0, count_ = 0;
  int64_t data_bytes_ = 0, scale_bytes_ = 0;
  tensor::Buffer data_, scales_;
};

/// How many sets of `bytes` each it takes so that none stays in a cache until its turn comes again.
int64_t copies_beyond_caches(int64_t bytes);

/// A sublayer boundary with everything on: post, mixes, collapse, norm.
class BoundaryOperands {
 public:
  explicit BoundaryOperands(const model::Config& config) : config_(config) {}

  void prepare(int64_t rows, FastRandom& random);

  /// `hyper` must live as long as the arguments.
  kernels::BoundaryArgs args(kernels::HyperWeights& hyper, const kernels::Matrix& fn);

 private:
  const model::Config& config_;
  int64_t rows_ = 1;
  std::vector<float> streams_, y_, pre_, post_, comb_, next_pre_, next_post_, next_comb_, norm_, x_, base_,
      scale_;
};

/// One sequence of some rows after a context of entries, with caches of random records.
class AttentionOperands {
 public:
  AttentionOperands(const model::Config& config, int64_t max_context, int64_t max_rows)
      : config_(config), max_context_(max_context), max_rows_(max_rows) {}

  /// What allocate() will take, and prepare() with max_rows after it.
  int64_t memory_bytes(kernels::Numerics numerics) const;

  /// Errors: out_of_memory.
  Status allocate(ThreadPool& pool, kernels::Numerics numerics);

  /// Rows [context, context + rows). context + rows <= max_context + max_rows.
  void prepare(int64_t rows, int64_t context, FastRandom& random);

  /// Entries that a row selects: index_topk, or fewer after a short context.
  int64_t num_selected() const { return num_selected_; }

  /// Different entries that the rows together select.
  int64_t distinct_selected() const;

  const kernels::CacheFormat& format() const { return format_; }

  kernels::AttentionShape shape() const;
  kernels::AttendArgs attend_args(bool with_selected);
  kernels::IndexArgs index_args(const kernels::IndexWeights& weights);
  kernels::AttentionInputArgs input_args(const kernels::AttentionWeights& weights);
  kernels::AttentionOutputArgs output_args(const kernels::AttentionWeights& weights);

 private:
  int64_t num_entries() const { return max_context_ + max_rows_; }

  kernels::CacheFormat cache_format(kernels::Numerics numerics) const {
    return {.numerics = numerics, .head_dim = config_.head_dim, .index_dim = config_.index_head_dim};
  }

  const model::Config& config_;
  int64_t max_context_, max_rows_, rows_ = 1, num_selected_ = 0;
  kernels::CacheFormat format_;
  tensor::Buffer window_, records_, kv_, index_;
  std::vector<std::byte*> kv_pages_, index_pages_, window_pages_;
  std::vector<int32_t> token_ids_, sequence_of_row_, selected_, selected_count_, indexed_, indexed_count_;
  std::vector<int64_t> positions_;
  std::vector<uint8_t> is_image_;
  std::vector<kernels::SequenceRows> sequences_;
  std::vector<kernels::WindowCache> windows_;
  std::vector<kernels::CompressedCache> caches_;
  std::vector<float> q_, out_, cos_, sin_, sink_, qr_, x_, y_;
  kernels::StepPlan plan_;
};

}  // namespace rorqual::tools
