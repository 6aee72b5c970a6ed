// SPDX-License-Identifier: Apache-2.0
#include "kernels/matrix.h"

#include <emmintrin.h>

#include <algorithm>
#include <cstring>

#include "base/check.h"
#include "kernels/panel.h"
#include "num/formats.h"

namespace rorqual::kernels {
namespace {

// When may a block scale 2^s be applied to the block's sum instead of to its operands, and give the same
// bits? When no operand, product or partial sum leaves the normal range of F32 in either form. Activations in
// front of scaled weights are E4M3 values times 2^n with n >= -22 (the quantiser's floor), so they are
// multiples of 2^-31; E4M3 weights are multiples of 2^-9 (E2M1: 2^-1). Every sum of products is then a
// multiple of 2^(-40+s) scaled and of 2^-40 unscaled: nothing can fall below 2^-126 while s >= -86. Above:
// with |x| < 2^64, a sum of 32 products is less than 2^(5 + 64 + 9) = 2^78 unscaled, and scaled stays below
// 2^128 while s <= 49. Blocks of zeros do not count: they contribute +0 in both forms, and their scales are
// often extreme.
constexpr int kMinNarrowScale = 127 - 86;
constexpr int kMaxNarrowScale = 127 + 49;

bool is_wide(uint8_t scale) {
  return scale < kMinNarrowScale || scale > kMaxNarrowScale;
}

int64_t divide_up(int64_t a, int64_t b) {
  return (a + b - 1) / b;
}

/// What one call of pack_matrix works on.
struct PackJob {
  int64_t rows, cols, num_blocks;
  const std::byte* src;
  const uint8_t* src_scales;
  std::byte* dst;
  uint8_t* dst_scales;
  bool wide = false;

  int64_t panel_rows(int64_t panel) const { return std::min(kPanelRows, rows - panel * kPanelRows); }

  int64_t block_cols(int64_t block) const { return std::min(kBlockCols, cols - block * kBlockCols); }

  bool is_whole(int64_t panel, int64_t block) const {
    return panel_rows(panel) == kPanelRows && block_cols(block) == kBlockCols;
  }
};

/// 16 rows of 16 bytes -> 16 columns of 16 bytes: four rounds of a perfect shuffle.
void transpose_bytes(const uint8_t* src, int64_t src_stride, uint8_t* dst) {
  __m128i rows[kPanelRows];
  for (int64_t r = 0; r < kPanelRows; ++r) {
    rows[r] = _mm_loadu_si128(reinterpret_cast<const __m128i*>(src + r * src_stride));
  }
  for (int round = 0; round < 4; ++round) {
    __m128i next[kPanelRows];
    for (int i = 0; i < 8; ++i) {
      next[2 * i] = _mm_unpacklo_epi8(rows[i], rows[i + 8]);
      next[2 * i + 1] = _mm_unpackhi_epi8(rows[i], rows[i + 8]);
    }
    std::copy_n(next, kPanelRows, rows);
  }
  for (int64_t k = 0; k < kPanelRows; ++k) _mm_storeu_si128(reinterpret_cast<__m128i*>(dst) + k, rows[k]);
}

/// 16 rows of `words` 4-byte words (a multiple of 4) -> words rows of 16.
void transpose_words(const std::byte* src, int64_t src_stride, int64_t words, std::byte* dst) {
  for (int64_t r = 0; r < kPanelRows; r += 4) {
    for (int64_t k = 0; k < words; k += 4) {
      __m128 rows[4];
      for (int64_t i = 0; i < 4; ++i) {
        rows[i] = _mm_loadu_ps(reinterpret_cast<const float*>(src + (r + i) * src_stride + k * 4));
      }
      _MM_TRANSPOSE4_PS(rows[0], rows[1], rows[2], rows[3]);
      for (int64_t i = 0; i < 4; ++i) {
        _mm_storeu_ps(reinterpret_cast<float*>(dst + ((k + i) * kPanelRows + r) * 4), rows[i]);
      }
    }
  }
}

/// f32 [k][row].
void pack_block_f32(const PackJob& job, int64_t panel, int64_t block, std::byte* out) {
  const std::byte* src = job.src + (panel * kPanelRows * job.cols + block * kBlockCols) * 4;
  if (job.is_whole(panel, block)) return transpose_words(src, job.cols * 4, kBlockCols, out);
  for (int64_t r = 0; r < job.panel_rows(panel); ++r) {
    for (int64_t k = 0; k < job.block_cols(block); ++k) {
      std::memcpy(out + (k * kPanelRows + r) * 4, src + (r * job.cols + k) * 4, 4);
    }
  }
}

/// bf16 [k/2][row]{even, odd}.
void pack_block_bf16(const PackJob& job, int64_t panel, int64_t block, std::byte* out) {
  const std::byte* src = job.src + (panel * kPanelRows * job.cols + block * kBlockCols) * 2;
  if (job.is_whole(panel, block)) return transpose_words(src, job.cols * 2, kBlockCols / 2, out);
  for (int64_t r = 0; r < job.panel_rows(panel); ++r) {
    for (int64_t k = 0; k < job.block_cols(block); ++k) {
      std::memcpy(out + ((k / 2 * kPanelRows + r) * 2 + k % 2) * 2, src + (r * job.cols + k) * 2, 2);
    }
  }
}

/// Some code has a magnitude that is not zero / is NaN (E4M3).
bool any_nonzero(const uint8_t* codes, int64_t count, uint8_t magnitude_mask) {
  uint32_t magnitudes = 0;
  for (int64_t i = 0; i < count; ++i) magnitudes |= codes[i] & magnitude_mask;
  return magnitudes != 0;
}

bool any_nan(const uint8_t* codes, int64_t count) {
  const __m128i nan = _mm_set1_epi8(0x7f);
  __m128i found = _mm_setzero_si128();
  for (int64_t i = 0; i < count; i += 16) {
    const __m128i v = _mm_loadu_si128(reinterpret_cast<const __m128i*>(codes + i));
    found = _mm_or_si128(found, _mm_cmpeq_epi8(_mm_and_si128(v, nan), nan));
  }
  return _mm_movemask_epi8(found) != 0;
}

/// E4M3 [k][row]; one scale a block.
void pack_block_fp8(PackJob& job, int64_t panel, int64_t block, std::byte* out_bytes) {
  auto* out = reinterpret_cast<uint8_t*>(out_bytes);
  const auto* src =
      reinterpret_cast<const uint8_t*>(job.src) + panel * kPanelRows * job.cols + block * kBlockCols;
  if (job.is_whole(panel, block)) {
    transpose_bytes(src, job.cols, out);
    transpose_bytes(src + kPanelRows, job.cols, out + kPanelRows * kPanelRows);
  } else {
    for (int64_t r = 0; r < job.panel_rows(panel); ++r) {
      for (int64_t k = 0; k < job.block_cols(block); ++k) out[k * kPanelRows + r] = src[r * job.cols + k];
    }
  }
  const uint8_t scale = job.src_scales[panel * kPanelRows / kBlockCols * job.num_blocks + block];
  job.dst_scales[panel * job.num_blocks + block] = scale;
  // NaN codes and NaN scales also take the careful path: fast decoders do not know them.
  constexpr int64_t kCodes = kPanelRows * kBlockCols;
  job.wide |= scale == 255 || any_nan(out, kCodes) || (is_wide(scale) && any_nonzero(out, kCodes, 0x7f));
}

/// E2M1 [k/2][row], even k in the low nibble; a scale per row.
void pack_block_mxfp4(PackJob& job, int64_t panel, int64_t block, std::byte* out_bytes) {
  auto* out = reinterpret_cast<uint8_t*>(out_bytes);
  const int64_t row_bytes = divide_up(job.cols, 2);
  const auto* src =
      reinterpret_cast<const uint8_t*>(job.src) + panel * kPanelRows * row_bytes + block * kBlockCols / 2;
  const int64_t width = job.block_cols(block);
  if (job.is_whole(panel, block)) {
    transpose_bytes(src, row_bytes, out);
  } else {
    for (int64_t r = 0; r < job.panel_rows(panel); ++r) {
      for (int64_t k = 0; k < width; k += 2) {
        const uint8_t byte = src[r * row_bytes + k / 2];
        out[k / 2 * kPanelRows + r] = k + 1 < width ? byte : byte & 15u;
      }
    }
  }
  uint8_t* scales = job.dst_scales + (panel * job.num_blocks + block) * kPanelRows;
  std::fill_n(scales, kPanelRows, uint8_t{127});
  for (int64_t r = 0; r < job.panel_rows(panel); ++r) {
    scales[r] = job.src_scales[(panel * kPanelRows + r) * job.num_blocks + block];
    job.wide |= scales[r] == 255 ||
                (is_wide(scales[r]) && any_nonzero(src + r * row_bytes, width / 2, 0x77)) ||
                (is_wide(scales[r]) && width % 2 != 0 && (src[r * row_bytes + width / 2] & 7u) != 0);
  }
}

/// Element (column k, row r) of a block, without its scale.
float decode_element(WeightFormat format, const std::byte* block, int64_t k, int64_t r) {
  const auto* bytes = reinterpret_cast<const uint8_t*>(block);
  switch (format) {
    case WeightFormat::f32: {
      float value = 0;
      std::memcpy(&value, block + (k * kPanelRows + r) * 4, 4);
      return value;
    }
    case WeightFormat::bf16: {
      uint16_t code = 0;
      std::memcpy(&code, block + ((k / 2 * kPanelRows + r) * 2 + k % 2) * 2, 2);
      return num::bf16_decode(code);
    }
    case WeightFormat::fp8_block32:
      return num::e4m3_decode(bytes[k * kPanelRows + r]);
    case WeightFormat::mxfp4: {
      const uint8_t byte = bytes[k / 2 * kPanelRows + r];
      return num::e2m1_decode(k % 2 == 0 ? num::e2m1_low(byte) : num::e2m1_high(byte));
    }
  }
  return 0;
}

float apply_scale(float value, uint8_t scale) {
  return scale == 255 ? num::e8m0_decode(scale) : num::scale_pow2(value, num::e8m0_exponent(scale));
}

}  // namespace

int64_t packed_data_bytes(WeightFormat format, int64_t rows, int64_t cols) {
  return divide_up(rows, kPanelRows) * divide_up(cols, kBlockCols) * block_bytes(format);
}

int64_t packed_scale_bytes(WeightFormat format, int64_t rows, int64_t cols) {
  return divide_up(rows, kPanelRows) * divide_up(cols, kBlockCols) * block_scale_bytes(format);
}

int64_t source_row_bytes(WeightFormat format, int64_t cols) {
  switch (format) {
    case WeightFormat::f32:
      return cols * 4;
    case WeightFormat::bf16:
      return cols * 2;
    case WeightFormat::fp8_block32:
      return cols;
    case WeightFormat::mxfp4:
      return divide_up(cols, 2);
  }
  return 0;
}

Matrix pack_matrix(WeightFormat format, int64_t rows, int64_t cols, const std::byte* src,
                   const uint8_t* src_scales, std::byte* dst, uint8_t* dst_scales) {
  RORQUAL_CHECK(rows >= 0 && cols >= 0);
  PackJob job{rows, cols, divide_up(cols, kBlockCols), src, src_scales, dst, dst_scales};
  const int64_t bytes = block_bytes(format);
  for (int64_t panel = 0; panel < divide_up(rows, kPanelRows); ++panel) {
    for (int64_t block = 0; block < job.num_blocks; ++block) {
      std::byte* out = dst + (panel * job.num_blocks + block) * bytes;
      if (!job.is_whole(panel, block)) std::memset(out, 0, static_cast<size_t>(bytes));
      switch (format) {
        case WeightFormat::f32:
          pack_block_f32(job, panel, block, out);
          break;
        case WeightFormat::bf16:
          pack_block_bf16(job, panel, block, out);
          break;
        case WeightFormat::fp8_block32:
          pack_block_fp8(job, panel, block, out);
          break;
        case WeightFormat::mxfp4:
          pack_block_mxfp4(job, panel, block, out);
          break;
      }
    }
  }
  const bool has_scales = block_scale_bytes(format) > 0;
  return {.format = format,
          .wide_scales = job.wide,
          .rows = rows,
          .cols = cols,
          .data = dst,
          .scales = has_scales ? dst_scales : nullptr};
}

void decode_block(const Matrix& matrix, int64_t panel, int64_t block, float* values) {
  const std::byte* data = block_data(matrix, panel, block);
  for (int64_t k = 0; k < kBlockCols; ++k) {
    for (int64_t r = 0; r < kPanelRows; ++r) {
      values[k * kPanelRows + r] = decode_element(matrix.format, data, k, r);
    }
  }
}

void decode_block_scaled(const Matrix& matrix, int64_t panel, int64_t block, float* values) {
  decode_block(matrix, panel, block, values);
  if (matrix.scales == nullptr) return;
  const uint8_t* scales = block_scales(matrix, panel, block);
  for (int64_t r = 0; r < kPanelRows; ++r) {
    const uint8_t scale = scales[matrix.format == WeightFormat::mxfp4 ? r : 0];
    for (int64_t k = 0; k < kBlockCols; ++k) {
      float& value = values[k * kPanelRows + r];
      value = apply_scale(value, scale);
    }
  }
}

float matrix_value(const Matrix& matrix, int64_t row, int64_t col) {
  RORQUAL_CHECK(row >= 0 && row < matrix.rows && col >= 0 && col < matrix.cols);
  const int64_t panel = row / kPanelRows;
  const int64_t block = col / kBlockCols;
  const float value =
      decode_element(matrix.format, block_data(matrix, panel, block), col % kBlockCols, row % kPanelRows);
  if (matrix.scales == nullptr) return value;
  const uint8_t* scales = block_scales(matrix, panel, block);
  return apply_scale(value, scales[matrix.format == WeightFormat::mxfp4 ? row % kPanelRows : 0]);
}

}  // namespace rorqual::kernels
