// SPDX-License-Identifier: Apache-2.0
#include "tools/synthetic_operands.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <set>

#include "base/check.h"
#include "base/cpu_info.h"

namespace rorqual::tools {
namespace {

constexpr int64_t kFillBytes = 1 << 20;
constexpr int64_t kPageEntries = 64;
constexpr int64_t kWindowPages = 4;  // the newest positions of any context; older ones are never looked at

size_t size(int64_t count) {
  return static_cast<size_t>(count);
}

/// Eight bytes of random weights: finite values of both signs and of different magnitudes in each format.
uint64_t weight_word(kernels::WeightFormat format, uint64_t random) {
  switch (format) {
    case kernels::WeightFormat::f32:
      return (random & 0x807FFFFF807FFFFFU) | 0x3C0000003C000000U;
    case kernels::WeightFormat::bf16:
      return (random & 0x807F807F807F807FU) | 0x3C003C003C003C00U;
    case kernels::WeightFormat::fp8_block32:
      return random & 0xB7B7B7B7B7B7B7B7U;  // E4M3 without its largest exponents, NaN among them
    case kernels::WeightFormat::mxfp4:
      return random;
  }
  return 0;
}

/// Calls word(random) for each eight bytes of the buffer, in parallel; the rest stays zero.
template <class Word>
void fill(ThreadPool& pool, tensor::Buffer& buffer, uint64_t seed, const Word& word) {
  std::byte* data = buffer.data();
  const int64_t bytes = buffer.size_bytes();
  pool.parallel_for((bytes + kFillBytes - 1) / kFillBytes, [&](int64_t part, int) {
    FastRandom random(seed * 1'000'003 + static_cast<uint64_t>(part));
    const int64_t end = std::min(bytes, (part + 1) * kFillBytes);
    for (int64_t at = part * kFillBytes; at + 8 <= end; at += 8) {
      const uint64_t value = word(random.next());
      std::memcpy(data + at, &value, 8);
    }
  });
}

/// E8M0 scales 2^-9 to 2^-6.
uint64_t scale_word(uint64_t random) {
  return (random & 0x0303030303030303U) + 0x7676767676767676U;
}

/// Cache records: codes first, then scales. exact: F32 values.
struct RecordForm {
  int64_t bytes = 0, code_bytes = 0;
  uint8_t code_mask = 0xFF;  // of random codes that are finite
  uint8_t scale = 0;         // about one
};

void fill_records(ThreadPool& pool, tensor::Buffer& buffer, bool exact, const RecordForm& form) {
  if (exact) {
    fill(pool, buffer, 11, [](uint64_t random) { return weight_word(kernels::WeightFormat::f32, random); });
    return;
  }
  const uint64_t mask = uint64_t{form.code_mask} * 0x0101010101010101U;
  fill(pool, buffer, 11, [&](uint64_t random) { return random & mask; });
  std::byte* data = buffer.data();
  const int64_t count = buffer.size_bytes() / form.bytes;
  constexpr int64_t kRecords = 4096;
  pool.parallel_for((count + kRecords - 1) / kRecords, [&](int64_t part, int) {
    for (int64_t i = part * kRecords; i < std::min(count, (part + 1) * kRecords); ++i) {
      std::memset(data + i * form.bytes + form.code_bytes, form.scale, size(form.bytes - form.code_bytes));
    }
  });
}

}  // namespace

// ------------------------------------------------------------------------------------------------ matrices
MatrixSet::MatrixSet(kernels::WeightFormat format, int64_t rows, int64_t cols, int64_t count)
    : format_(format),
      rows_(rows),
      cols_(cols),
      count_(count),
      data_bytes_(kernels::packed_data_bytes(format, rows, cols)),
      scale_bytes_(kernels::packed_scale_bytes(format, rows, cols)) {}

Status MatrixSet::allocate(ThreadPool& pool, uint64_t seed) {
  RORQUAL_TRY_ASSIGN(data_, tensor::Buffer::allocate(count_ * data_bytes_));
  RORQUAL_TRY_ASSIGN(scales_, tensor::Buffer::allocate(count_ * scale_bytes_));
  fill(pool, data_, seed, [format = format_](uint64_t random) { return weight_word(format, random); });
  fill(pool, scales_, seed + 1, scale_word);
  return Ok();
}

kernels::Matrix MatrixSet::at(int64_t index) const {
  RORQUAL_CHECK(index >= 0 && index < count_);
  return {.format = format_,
          .rows = rows_,
          .cols = cols_,
          .data = data_.data() + index * data_bytes_,
          .scales = scale_bytes_ == 0
                        ? nullptr
                        : reinterpret_cast<const uint8_t*>(scales_.data()) + index * scale_bytes_};
}

int64_t copies_beyond_caches(int64_t bytes) {
  constexpr int64_t kUnknownCache = int64_t{32} << 20;
  const int64_t cache = std::max(cpu_info().l3_bytes, kUnknownCache);
  return std::max<int64_t>(1, (2 * cache + bytes - 1) / bytes);
}

// ------------------------------------------------------------------------------------------------ boundary
void BoundaryOperands::prepare(int64_t rows, FastRandom& random) {
  rows_ = rows;
  const int64_t d = config_.hidden_size, n = config_.hc_mult;
  streams_.resize(size(rows * n * d));
  y_.resize(size(rows * d));
  pre_.resize(size(rows * n));
  post_.resize(size(rows * n));
  comb_.resize(size(rows * n * n));
  for (auto* values : {&streams_, &y_, &pre_, &post_, &comb_}) random.fill(*values);
  next_pre_ = pre_, next_post_ = post_, next_comb_ = comb_;
  norm_.assign(size(d), 1.0F);
  x_.assign(size(rows * d), 0.0F);
  base_.assign(size((2 + n) * n), 0.0F);
  scale_.assign(3, 1.0F);
}

kernels::BoundaryArgs BoundaryOperands::args(kernels::HyperWeights& hyper, const kernels::Matrix& fn) {
  hyper = {.fn = fn, .base = base_.data(), .scale = scale_.data()};
  kernels::BoundaryArgs args;
  args.num_rows = rows_;
  args.d_model = config_.hidden_size;
  args.num_streams = config_.hc_mult;
  args.norm_eps = args.hc_eps = 1e-6F;
  args.sinkhorn_iters = static_cast<int>(config_.hc_sinkhorn_iters);
  args.streams = streams_.data();
  args.y = y_.data();
  args.post = post_.data();
  args.comb = comb_.data();
  args.hyper = &hyper;
  args.next_pre = next_pre_.data();
  args.next_post = next_post_.data();
  args.next_comb = next_comb_.data();
  args.pre_mix = pre_.data();
  args.norm_weight = norm_.data();
  args.x = x_.data();
  return args;
}

// ------------------------------------------------------------------------------------------------ attention
int64_t AttentionOperands::memory_bytes(kernels::Numerics numerics) const {
  const kernels::CacheFormat format = cache_format(numerics);
  const int64_t caches = (num_entries() + kPageEntries) * (format.compressed_bytes() + format.index_bytes());
  const int64_t row_floats = 2 * config_.num_attention_heads * config_.head_dim + config_.q_lora_rank +
                             2 * config_.hidden_size + 3 * config_.index_topk;
  return caches + max_rows_ * (format.window_bytes() + 4 * row_floats);
}

Status AttentionOperands::allocate(ThreadPool& pool, kernels::Numerics numerics) {
  format_ = cache_format(numerics);
  const int64_t num_pages = num_entries() / kPageEntries + 1;
  const int64_t window_page_bytes = kernels::kWindowPageTokens * format_.window_bytes();
  RORQUAL_TRY_ASSIGN(window_, tensor::Buffer::allocate(kWindowPages * window_page_bytes));
  for (int64_t page = 0; page <= num_entries() / kernels::kWindowPageTokens; ++page) {
    window_pages_.push_back(window_.data() + page % kWindowPages * window_page_bytes);
  }
  RORQUAL_TRY_ASSIGN(records_, tensor::Buffer::allocate(max_rows_ * format_.window_bytes()));
  RORQUAL_TRY_ASSIGN(kv_, tensor::Buffer::allocate(num_pages * kPageEntries * format_.compressed_bytes()));
  RORQUAL_TRY_ASSIGN(index_, tensor::Buffer::allocate(num_pages * kPageEntries * format_.index_bytes()));
  for (int64_t page = 0; page < num_pages; ++page) {
    kv_pages_.push_back(kv_.data() + page * kPageEntries * format_.compressed_bytes());
    index_pages_.push_back(index_.data() + page * kPageEntries * format_.index_bytes());
  }
  constexpr uint8_t kOneE8M0 = 127, kOneE4M3 = 0x38;
  const bool exact = numerics == kernels::Numerics::exact;
  const RecordForm window{format_.window_bytes(), config_.head_dim, 0xB7, kOneE8M0};
  fill_records(pool, window_, exact, window);
  fill_records(pool, records_, exact, window);
  fill_records(pool, kv_, exact, {format_.compressed_bytes(), config_.head_dim / 2, 0xFF, kOneE4M3});
  fill_records(pool, index_, exact, {format_.index_bytes(), config_.index_head_dim / 2, 0xFF, kOneE8M0});
  windows_ = {{.pages = window_pages_.data()}};
  caches_ = {
      {.page_entries = kPageEntries, .kv_pages = kv_pages_.data(), .index_pages = index_pages_.data()}};
  return Ok();
}

void AttentionOperands::prepare(int64_t rows, int64_t context, FastRandom& random) {
  RORQUAL_CHECK(rows <= max_rows_ && context + rows <= num_entries());
  rows_ = rows;
  token_ids_.assign(size(rows), 0);
  is_image_.assign(size(rows), 0);
  sequence_of_row_.assign(size(rows), 0);
  positions_.resize(size(rows));
  for (int64_t i = 0; i < rows; ++i) positions_[size(i)] = context + i;
  sequences_ = {
      {.row_begin = 0, .row_count = static_cast<int32_t>(rows), .start = context, .window_begin = 0}};
  plan_ = {.num_rows = static_cast<int32_t>(rows),
           .token_ids = token_ids_,
           .positions = positions_,
           .is_image = is_image_,
           .sequence_of_row = sequence_of_row_,
           .sequences = sequences_};
  q_.resize(size(rows * config_.num_attention_heads * config_.head_dim));
  qr_.resize(size(rows * config_.q_lora_rank));
  x_.resize(size(rows * config_.hidden_size));
  for (auto* values : {&q_, &qr_, &x_}) random.fill(*values);
  out_.resize(q_.size());
  y_.resize(x_.size());
  cos_.assign(size(rows * config_.qk_rope_head_dim / 2), 0.8F);
  sin_.assign(cos_.size(), 0.6F);
  sink_.assign(size(config_.num_attention_heads), 0.0F);
  // Ascending and different: one entry of each of as many equal parts of the context.
  num_selected_ = std::min(config_.index_topk, context);
  selected_.assign(size(rows * config_.index_topk), -1);
  for (int64_t row = 0; row < rows; ++row) {
    for (int64_t i = 0; i < num_selected_; ++i) {
      const int64_t begin = context * i / num_selected_, end = context * (i + 1) / num_selected_;
      selected_[size(row * config_.index_topk + i)] = static_cast<int32_t>(begin + random.below(end - begin));
    }
  }
  selected_count_.assign(size(rows), static_cast<int32_t>(num_selected_));
  indexed_.resize(selected_.size());
  indexed_count_.resize(size(rows));
}

int64_t AttentionOperands::distinct_selected() const {
  std::set<int32_t> entries;
  for (const int32_t entry : selected_) {
    if (entry >= 0) entries.insert(entry);
  }
  return static_cast<int64_t>(entries.size());
}

kernels::AttentionShape AttentionOperands::shape() const {
  return {.d_model = config_.hidden_size,
          .num_heads = config_.num_attention_heads,
          .head_dim = config_.head_dim,
          .rope_dim = config_.qk_rope_head_dim,
          .q_lora_rank = config_.q_lora_rank,
          .o_groups = config_.o_groups,
          .o_lora_rank = config_.o_lora_rank,
          .window = config_.sliding_window,
          .norm_eps = 1e-6F};
}

kernels::AttendArgs AttentionOperands::attend_args(bool with_selected) {
  kernels::AttendArgs args;
  args.plan = &plan_;
  args.shape = shape();
  args.format = format_;
  args.attn_sink = sink_.data();
  args.q = q_.data();
  args.window_records = records_.data();
  args.windows = windows_;
  args.angles = {cos_.data(), sin_.data()};
  args.out = out_.data();
  if (with_selected) {
    args.compressed = caches_;
    args.selected = selected_.data();
    args.selected_count = selected_count_.data();
    args.selected_stride = config_.index_topk;
  }
  return args;
}

kernels::IndexArgs AttentionOperands::index_args(const kernels::IndexWeights& weights) {
  kernels::IndexArgs args;
  args.plan = &plan_;
  args.shape = shape();
  args.format = format_;
  args.num_index_heads = config_.index_n_heads;
  args.index_topk = config_.index_topk;
  args.weights = &weights;
  args.angles = {cos_.data(), sin_.data()};
  args.x = x_.data();
  args.qr = qr_.data();
  args.caches = caches_;
  args.selected = indexed_.data();
  args.selected_count = indexed_count_.data();
  return args;
}

kernels::AttentionInputArgs AttentionOperands::input_args(const kernels::AttentionWeights& weights) {
  kernels::AttentionInputArgs args;
  args.num_rows = rows_;
  args.shape = shape();
  args.weights = &weights;
  args.x = x_.data();
  args.angles = {cos_.data(), sin_.data()};
  args.qr = qr_.data();
  args.q = q_.data();
  args.window_records = records_.data();
  return args;
}

kernels::AttentionOutputArgs AttentionOperands::output_args(const kernels::AttentionWeights& weights) {
  kernels::AttentionOutputArgs args;
  args.num_rows = rows_;
  args.shape = shape();
  args.weights = &weights;
  args.attended = q_.data();
  args.y = y_.data();
  return args;
}

}  // namespace rorqual::tools
