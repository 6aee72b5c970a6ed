// SPDX-License-Identifier: Apache-2.0
// Weight matrices in panel form, the only form that kernels read. Byte tables: docs/formats.md#panels.
//
// y = x · Wᵀ with W [rows, cols] ("out, in"). A panel is 16 consecutive rows; inside a panel the columns go
// in blocks of 32, ascending, so that a worker reads one contiguous stream. Rows are padded to 16 and columns
// to 32 with zeros.
//   f32         per block 32 x 16 floats: [k][row]
//   bf16        per block 16 x 16 pairs: [k/2][row]{even k, odd k}, 4 bytes a pair (the layout of VNNI and
//   AMX bf16) fp8_block32 per block 32 x 16 bytes: [k][row] E4M3; scales: E8M0 [panel][block], one byte (the
//   file has one scale
//               for 32 rows x 32 columns, so two neighbouring panels repeat it)
//   mxfp4       per block 16 x 16 bytes: [k/2][row], even k in the low nibble; scales: E8M0
//   [panel][block][row]
#pragma once

#include <cstddef>
#include <cstdint>

namespace rorqual::kernels {

inline constexpr int64_t kPanelRows = 16;
inline constexpr int64_t kBlockCols = 32;

enum class WeightFormat : uint8_t { f32, bf16, fp8_block32, mxfp4 };

/// View of a packed matrix; the owner keeps the bytes alive. Data 64-byte aligned.
struct Matrix {
  WeightFormat format = WeightFormat::f32;
  /// Some scale is so small or large that scaling a block sum could differ from scaling the operands (under-
  /// or overflow of F32): kernels then scale the operands, which is the definition (docs/numerics.md).
  bool wide_scales = false;
  int64_t rows = 0;
  int64_t cols = 0;
  const std::byte* data = nullptr;
  const uint8_t* scales = nullptr;  // null for f32 and bf16

  int64_t num_panels() const { return (rows + kPanelRows - 1) / kPanelRows; }

  int64_t num_blocks() const { return (cols + kBlockCols - 1) / kBlockCols; }
};

/// Bytes of the data and of the scales of a packed matrix (scales 0 for f32 and bf16).
int64_t packed_data_bytes(WeightFormat format, int64_t rows, int64_t cols);
int64_t packed_scale_bytes(WeightFormat format, int64_t rows, int64_t cols);

/// Bytes of one source row as the checkpoint stores it (mxfp4: two columns a byte).
int64_t source_row_bytes(WeightFormat format, int64_t cols);

/// Repacks checkpoint bytes into panels. `src` is row-major [rows, cols] in the format's element type;
/// `src_scales` is E8M0 [rows, ceil(cols/32)] for mxfp4 and [ceil(rows/32), ceil(cols/32)] for fp8_block32.
/// `dst` and `dst_scales` have the sizes above and are written completely. Sets wide_scales of the returned
/// view.
Matrix pack_matrix(WeightFormat format, int64_t rows, int64_t cols, const std::byte* src,
                   const uint8_t* src_scales, std::byte* dst, uint8_t* dst_scales);

/// Value of element (row, col) as F32, scale applied: the definition that tests and tools use.
float matrix_value(const Matrix& matrix, int64_t row, int64_t col);

}  // namespace rorqual::kernels
