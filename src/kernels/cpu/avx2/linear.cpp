// SPDX-License-Identifier: Apache-2.0
// Matrix products over panels. Lanes are output rows, so no lane ever meets another and the order of
// summation is that of the scalar law: per 32-wide block a chain over even and one over odd columns. One or
// two rows of x decode weights in registers; more rows decode a block to F32 once, in L1, and share it.
#include <immintrin.h>

#include <cstdint>

#include "kernels/cpu/avx2/math_avx2.h"
#include "kernels/cpu/avx2/operators_avx2.h"
#include "kernels/panel.h"

namespace rorqual::kernels::avx2 {
namespace {

constexpr int64_t kRowTile = 48;           // rows that share one decoded block: x and sums stay in L1
constexpr int kGroupRows = 6;              // rows of one register tile: 12 chains, 2 weights, 1 broadcast
constexpr int kDirectChains = 2;           // rows times blocks that are in flight without a decoded copy
constexpr int64_t kPrefetch_bytes = 4096;  // ahead in the weight stream: +70 % read bandwidth where measured
constexpr int64_t kCacheLine_bytes = 64;
constexpr int kPairs = static_cast<int>(kBlockCols / 2);

/// Weights of two neighbouring columns for the 16 rows of a panel.
struct ColumnPair {
  __m256 even[2], odd[2];
};

struct FormatF32 {
  static constexpr WeightFormat kFormat = WeightFormat::f32;
  static constexpr bool kInterleaved = false;

  static ColumnPair load(const std::byte* block, int pair) {
    const auto* p = reinterpret_cast<const float*>(block) + pair * 32;
    return {{_mm256_load_ps(p), _mm256_load_ps(p + 8)}, {_mm256_load_ps(p + 16), _mm256_load_ps(p + 24)}};
  }
};

struct FormatBf16 {
  static constexpr WeightFormat kFormat = WeightFormat::bf16;
  static constexpr bool kInterleaved = false;

  static __m256 low(__m256i words) { return _mm256_castsi256_ps(_mm256_slli_epi32(words, 16)); }

  static __m256 high(__m256i words) {
    return _mm256_castsi256_ps(_mm256_and_si256(words, set8_bits(0xffff0000u)));
  }

  static ColumnPair load(const std::byte* block, int pair) {
    const auto* p = reinterpret_cast<const __m256i*>(block) + pair * 2;
    const __m256i a = _mm256_load_si256(p);
    const __m256i b = _mm256_load_si256(p + 1);
    return {{low(a), low(b)}, {high(a), high(b)}};
  }
};

struct FormatFp8 {
  static constexpr WeightFormat kFormat = WeightFormat::fp8_block32;
  static constexpr bool kInterleaved = false;

  /// E4M3 bits moved into an FP16 are the value times 2^-8, subnormals included; the conversion ignores DAZ.
  static void column(const std::byte* p, __m256* out) {
    const __m128i bytes = _mm_load_si128(reinterpret_cast<const __m128i*>(p));
    const __m256i halves = _mm256_and_si256(_mm256_slli_epi16(_mm256_cvtepi8_epi16(bytes), 7),
                                            _mm256_set1_epi16(static_cast<short>(0xbfff)));
    const __m256 unit = set8(256.0f);
    out[0] = _mm256_mul_ps(_mm256_cvtph_ps(_mm256_castsi256_si128(halves)), unit);
    out[1] = _mm256_mul_ps(_mm256_cvtph_ps(_mm256_extracti128_si256(halves, 1)), unit);
  }

  static ColumnPair load(const std::byte* block, int pair) {
    ColumnPair result;
    column(block + pair * 32, result.even);
    column(block + pair * 32 + 16, result.odd);
    return result;
  }
};

struct FormatMxfp4 {
  static constexpr WeightFormat kFormat = WeightFormat::mxfp4;
  static constexpr bool kInterleaved = true;

  /// All shuffles stay within 128-bit lanes but the first: lane 0 holds rows 0..7, lane 1 rows 8..15, in each
  /// the even column's nibbles, then the odd one's. Two byte tables give the halves of BF16 values, whose
  /// widening leaves rows 0..3 and 8..11 in the first vector.
  static ColumnPair load(const std::byte* block, int pair) {
    const __m256i high_bytes = _mm256_broadcastsi128_si256(
        _mm_setr_epi8(0x00, 0x3f, 0x3f, 0x3f, 0x40, 0x40, 0x40, 0x40, char(0x80), char(0xbf), char(0xbf),
                      char(0xbf), char(0xc0), char(0xc0), char(0xc0), char(0xc0)));
    const __m256i low_bytes = _mm256_broadcastsi128_si256(
        _mm_setr_epi8(0, 0, char(0x80), char(0xc0), 0, 0x40, char(0x80), char(0xc0), 0, 0, char(0x80),
                      char(0xc0), 0, 0x40, char(0x80), char(0xc0)));
    const __m128i bytes = _mm_load_si128(reinterpret_cast<const __m128i*>(block) + pair);
    const __m256i twice = _mm256_permute4x64_epi64(_mm256_castsi128_si256(bytes), 0x50);
    const __m256i nibbles =
        _mm256_and_si256(_mm256_srlv_epi64(twice, _mm256_setr_epi64x(0, 4, 0, 4)), _mm256_set1_epi8(15));
    const __m256i low = _mm256_shuffle_epi8(low_bytes, nibbles);
    const __m256i high = _mm256_shuffle_epi8(high_bytes, nibbles);
    const __m256i even = _mm256_unpacklo_epi8(low, high);
    const __m256i odd = _mm256_unpackhi_epi8(low, high);
    return {{widen_low(even), widen_high(even)}, {widen_low(odd), widen_high(odd)}};
  }

  static __m256 widen_low(__m256i bf16) {
    return _mm256_castsi256_ps(_mm256_unpacklo_epi16(_mm256_setzero_si256(), bf16));
  }

  static __m256 widen_high(__m256i bf16) {
    return _mm256_castsi256_ps(_mm256_unpackhi_epi16(_mm256_setzero_si256(), bf16));
  }
};

/// Two vectors of 16 rows in order <-> with the middle quarters swapped, as FormatMxfp4 leaves them.
struct RowPair {
  __m256 first, second;
};

RowPair swap_quarters(__m256 first, __m256 second) {
  return {_mm256_permute2f128_ps(first, second, 0x20), _mm256_permute2f128_ps(first, second, 0x31)};
}

/// What block sums are multiplied with; the power of two is exact. Byte 0 only occurs on blocks of zeros.
struct BlockScale {
  __m256 lanes[2];
};

template <class Format>
BlockScale load_scale(const uint8_t* scales) {
  if constexpr (Format::kFormat == WeightFormat::mxfp4) {
    const __m256i a = _mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(scales)));
    const __m256i b = _mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(scales + 8)));
    const RowPair rows = swap_quarters(_mm256_castsi256_ps(_mm256_slli_epi32(a, 23)),
                                       _mm256_castsi256_ps(_mm256_slli_epi32(b, 23)));
    return {{rows.first, rows.second}};
  } else {
    const __m256 all = _mm256_castsi256_ps(set8_bits(static_cast<uint32_t>(scales[0]) << 23));
    return {{all, all}};
  }
}

template <class Format>
constexpr bool has_scale() {
  return block_scale_bytes(Format::kFormat) > 0;
}

template <bool kScaled>
__m256 add_sum(__m256 acc, __m256 sum, __m256 scale) {
  if constexpr (kScaled) return _mm256_fmadd_ps(sum, scale, acc);
  return _mm256_add_ps(acc, sum);
}

template <class Format>
void prefetch_block(const std::byte* block) {
  for (int64_t line = 0; line < block_bytes(Format::kFormat); line += kCacheLine_bytes) {
    _mm_prefetch(reinterpret_cast<const char*>(block) + kPrefetch_bytes + line, _MM_HINT_T0);
  }
}

/// Writes the sums of one row of x for one panel; rows beyond the matrix are not written.
template <bool kInterleaved>
void write_row(const LinearTile& tile, int64_t panel, int64_t row, __m256 low, __m256 high) {
  if constexpr (kInterleaved) {
    const RowPair rows = swap_quarters(low, high);
    low = rows.first;
    high = rows.second;
  }
  if (tile.round_bf16) {
    low = round_bf16_8(low);
    high = round_bf16_8(high);
  }
  const int64_t first = panel * kPanelRows;
  const int64_t count = tile.weight->rows - first;
  float* y = tile.y + row * tile.y_stride + first;
  if (count >= kPanelRows) {
    _mm256_storeu_ps(y, low);
    _mm256_storeu_ps(y + 8, high);
    return;
  }
  _mm256_maskstore_ps(y, first_lanes(count < 8 ? count : 8), low);
  if (count > 8) _mm256_maskstore_ps(y + 8, first_lanes(count - 8), high);
}

/// Sums of kBlocks neighbouring blocks for kRows rows of x, weights decoded in registers. Several blocks or
/// rows at a time because one row of one block has too few chains to hide the latency of an FMA.
template <class Format, int kRows, int kBlocks>
void direct_sums(const std::byte* data, const float* x, int64_t x_stride, __m256 (*sums)[2]) {
  constexpr int kChains = kRows * kBlocks;
  __m256 even[kDirectChains][2], odd[kDirectChains][2];
#pragma GCC unroll 2
  for (int c = 0; c < kChains; ++c) even[c][0] = even[c][1] = odd[c][0] = odd[c][1] = _mm256_setzero_ps();
  for (int pair = 0; pair < kPairs; ++pair) {
#pragma GCC unroll 2
    for (int b = 0; b < kBlocks; ++b) {
      const ColumnPair w = Format::load(data + b * block_bytes(Format::kFormat), pair);
#pragma GCC unroll 2
      for (int r = 0; r < kRows; ++r) {
        const int c = b * kRows + r;
        const float* value = x + r * x_stride + b * kBlockCols + 2 * pair;
        const __m256 x_even = _mm256_broadcast_ss(value);
        const __m256 x_odd = _mm256_broadcast_ss(value + 1);
        even[c][0] = _mm256_fmadd_ps(x_even, w.even[0], even[c][0]);
        even[c][1] = _mm256_fmadd_ps(x_even, w.even[1], even[c][1]);
        odd[c][0] = _mm256_fmadd_ps(x_odd, w.odd[0], odd[c][0]);
        odd[c][1] = _mm256_fmadd_ps(x_odd, w.odd[1], odd[c][1]);
      }
    }
  }
#pragma GCC unroll 2
  for (int c = 0; c < kChains; ++c) {
    sums[c][0] = _mm256_add_ps(even[c][0], odd[c][0]);
    sums[c][1] = _mm256_add_ps(even[c][1], odd[c][1]);
  }
}

/// acc += sums of kBlocks blocks, in order, with their scales.
template <class Format, int kRows, int kBlocks>
void direct_blocks(const std::byte* data, const uint8_t* scales, const float* x, int64_t x_stride,
                   __m256 (*acc)[2]) {
  constexpr bool kScaled = has_scale<Format>();
  __m256 sums[kDirectChains][2];
  direct_sums<Format, kRows, kBlocks>(data, x, x_stride, sums);
#pragma GCC unroll 2
  for (int b = 0; b < kBlocks; ++b) {
    BlockScale scale = {};
    if constexpr (kScaled) scale = load_scale<Format>(scales + b * block_scale_bytes(Format::kFormat));
#pragma GCC unroll 2
    for (int r = 0; r < kRows; ++r) {
      acc[r][0] = add_sum<kScaled>(acc[r][0], sums[b * kRows + r][0], scale.lanes[0]);
      acc[r][1] = add_sum<kScaled>(acc[r][1], sums[b * kRows + r][1], scale.lanes[1]);
    }
  }
}

/// One panel times kRows rows of x.
template <class Format, int kRows>
void panel_direct(const LinearTile& tile, int64_t panel) {
  constexpr int kBlocks = kDirectChains / kRows;
  constexpr int64_t kBlockBytes = block_bytes(Format::kFormat);
  constexpr int64_t kScaleBytes = block_scale_bytes(Format::kFormat);
  const int64_t num_blocks = tile.weight->num_blocks();
  const std::byte* data = block_data(*tile.weight, panel, 0);
  const uint8_t* scales = has_scale<Format>() ? block_scales(*tile.weight, panel, 0) : nullptr;
  const float* x = tile.x;
  __m256 acc[kDirectChains][2] = {};
  int64_t block = 0;
  for (; block + kBlocks <= num_blocks; block += kBlocks) {
#pragma GCC unroll 2
    for (int b = 0; b < kBlocks; ++b) prefetch_block<Format>(data + b * kBlockBytes);
    direct_blocks<Format, kRows, kBlocks>(data, scales, x, tile.x_stride, acc);
    data += kBlocks * kBlockBytes;
    scales += kBlocks * kScaleBytes;
    x += kBlocks * kBlockCols;
  }
  if (block < num_blocks) direct_blocks<Format, kRows, 1>(data, scales, x, tile.x_stride, acc);
  for (int r = 0; r < kRows; ++r) write_row<Format::kInterleaved>(tile, panel, r, acc[r][0], acc[r][1]);
}

/// acc[kRows][16] += x[kRows][32] times a decoded block [32][16]. Even columns first, then odd ones: half the
/// chains in registers at a time.
template <bool kScaled, int kRows>
void group_block(const float* w, const float* x, int64_t x_stride, const BlockScale& scale, float* acc) {
  __m256 even[kGroupRows][2], odd[kGroupRows][2];
#pragma GCC unroll 6
  for (int r = 0; r < kRows; ++r) even[r][0] = even[r][1] = odd[r][0] = odd[r][1] = _mm256_setzero_ps();
  for (int k = 0; k < kBlockCols; k += 2) {
    const __m256 w0 = _mm256_load_ps(w + k * kPanelRows);
    const __m256 w1 = _mm256_load_ps(w + k * kPanelRows + 8);
#pragma GCC unroll 6
    for (int r = 0; r < kRows; ++r) {
      const __m256 value = _mm256_broadcast_ss(x + r * x_stride + k);
      even[r][0] = _mm256_fmadd_ps(value, w0, even[r][0]);
      even[r][1] = _mm256_fmadd_ps(value, w1, even[r][1]);
    }
  }
  for (int k = 1; k < kBlockCols; k += 2) {
    const __m256 w0 = _mm256_load_ps(w + k * kPanelRows);
    const __m256 w1 = _mm256_load_ps(w + k * kPanelRows + 8);
#pragma GCC unroll 6
    for (int r = 0; r < kRows; ++r) {
      const __m256 value = _mm256_broadcast_ss(x + r * x_stride + k);
      odd[r][0] = _mm256_fmadd_ps(value, w0, odd[r][0]);
      odd[r][1] = _mm256_fmadd_ps(value, w1, odd[r][1]);
    }
  }
#pragma GCC unroll 6
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 2
    for (int h = 0; h < 2; ++h) {
      float* a = acc + r * kPanelRows + h * 8;
      const __m256 sum = _mm256_add_ps(even[r][h], odd[r][h]);
      _mm256_store_ps(a, add_sum<kScaled>(_mm256_load_ps(a), sum, scale.lanes[h]));
    }
  }
}

/// All rows of a tile against one decoded block.
template <bool kScaled>
void rows_block(const float* w, const float* x, int64_t x_stride, int64_t count, const BlockScale& scale,
                float* acc) {
  while (count >= kGroupRows) {
    group_block<kScaled, kGroupRows>(w, x, x_stride, scale, acc);
    x += kGroupRows * x_stride;
    acc += kGroupRows * kPanelRows;
    count -= kGroupRows;
  }
  switch (count) {
    case 5:
      group_block<kScaled, 5>(w, x, x_stride, scale, acc);
      break;
    case 4:
      group_block<kScaled, 4>(w, x, x_stride, scale, acc);
      break;
    case 3:
      group_block<kScaled, 3>(w, x, x_stride, scale, acc);
      break;
    case 2:
      group_block<kScaled, 2>(w, x, x_stride, scale, acc);
      break;
    case 1:
      group_block<kScaled, 1>(w, x, x_stride, scale, acc);
      break;
    default:
      break;
  }
}

template <class Format>
void unpack_block(const std::byte* data, float* w) {
  for (int pair = 0; pair < kPairs; ++pair) {
    const ColumnPair columns = Format::load(data, pair);
    float* out = w + pair * 2 * kPanelRows;
    _mm256_store_ps(out, columns.even[0]);
    _mm256_store_ps(out + 8, columns.even[1]);
    _mm256_store_ps(out + 16, columns.odd[0]);
    _mm256_store_ps(out + 24, columns.odd[1]);
  }
}

void clear_sums(float* acc, int64_t count) {
  for (int64_t i = 0; i < count * kPanelRows; i += 8) _mm256_store_ps(acc + i, _mm256_setzero_ps());
}

template <bool kInterleaved>
void write_rows(const LinearTile& tile, int64_t panel, int64_t row, int64_t count, const float* acc) {
  for (int64_t t = 0; t < count; ++t) {
    write_row<kInterleaved>(tile, panel, row + t, _mm256_load_ps(acc + t * kPanelRows),
                            _mm256_load_ps(acc + t * kPanelRows + 8));
  }
}

/// One panel times up to kRowTile rows, each block decoded once.
template <class Format>
void panel_shared(const LinearTile& tile, int64_t panel, int64_t row, int64_t count) {
  constexpr bool kScaled = has_scale<Format>();
  alignas(64) float acc[kRowTile * kPanelRows];
  alignas(64) float decoded[kBlockCols * kPanelRows];
  clear_sums(acc, count);
  const Matrix& weight = *tile.weight;
  for (int64_t block = 0; block < weight.num_blocks(); ++block) {
    const std::byte* data = block_data(weight, panel, block);
    prefetch_block<Format>(data);
    const float* w = decoded;
    if constexpr (Format::kFormat == WeightFormat::f32) {
      w = reinterpret_cast<const float*>(data);
    } else {
      unpack_block<Format>(data, decoded);
    }
    BlockScale scale = {};
    if constexpr (kScaled) scale = load_scale<Format>(block_scales(weight, panel, block));
    const float* x = tile.x + row * tile.x_stride + block * kBlockCols;
    rows_block<kScaled>(w, x, tile.x_stride, count, scale, acc);
  }
  write_rows<Format::kInterleaved>(tile, panel, row, count, acc);
}

/// The same with scaled operands, for matrices whose scales could leave the range of F32.
void panel_wide(const LinearTile& tile, int64_t panel, int64_t row, int64_t count) {
  alignas(64) float acc[kRowTile * kPanelRows];
  alignas(64) float decoded[kBlockCols * kPanelRows];
  clear_sums(acc, count);
  for (int64_t block = 0; block < tile.weight->num_blocks(); ++block) {
    decode_block_scaled(*tile.weight, panel, block, decoded);
    const float* x = tile.x + row * tile.x_stride + block * kBlockCols;
    rows_block<false>(decoded, x, tile.x_stride, count, {}, acc);
  }
  write_rows<false>(tile, panel, row, count, acc);
}

int64_t tile_rows(const LinearTile& tile, int64_t row) {
  const int64_t left = tile.num_rows - row;
  return left < kRowTile ? left : kRowTile;
}

template <class Format>
void linear_format(const LinearTile& tile) {
  for (int64_t panel = tile.panel_begin; panel < tile.panel_end; ++panel) {
    if (tile.num_rows == 1) {
      panel_direct<Format, 1>(tile, panel);
    } else if (tile.num_rows == 2) {
      panel_direct<Format, 2>(tile, panel);
    } else {
      for (int64_t row = 0; row < tile.num_rows; row += kRowTile) {
        panel_shared<Format>(tile, panel, row, tile_rows(tile, row));
      }
    }
  }
}

void linear_wide(const LinearTile& tile) {
  for (int64_t panel = tile.panel_begin; panel < tile.panel_end; ++panel) {
    for (int64_t row = 0; row < tile.num_rows; row += kRowTile) {
      panel_wide(tile, panel, row, tile_rows(tile, row));
    }
  }
}

}  // namespace

void linear(const LinearTile& tile) {
  if (tile.weight->wide_scales) return linear_wide(tile);
  switch (tile.weight->format) {
    case WeightFormat::f32:
      return linear_format<FormatF32>(tile);
    case WeightFormat::bf16:
      return linear_format<FormatBf16>(tile);
    case WeightFormat::fp8_block32:
      return linear_format<FormatFp8>(tile);
    case WeightFormat::mxfp4:
      return linear_format<FormatMxfp4>(tile);
  }
}

}  // namespace rorqual::kernels::avx2
