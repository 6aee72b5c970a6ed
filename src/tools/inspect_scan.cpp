// SPDX-License-Identifier: Apache-2.0
// Reads every byte of a tensor once: counts of values that must not occur, and a hash.
#include <algorithm>
#include <cstring>
#include <vector>

#include "base/sha256.h"
#include "tools/inspect.h"

namespace rorqual::tools {
namespace {

using tensor::DType;

int64_t count_bytes(std::span<const std::byte> bytes, uint8_t mask, uint8_t wanted) {
  int64_t count = 0;
  for (const std::byte byte : bytes) count += (static_cast<uint8_t>(byte) & mask) == wanted ? 1 : 0;
  return count;
}

/// Words whose exponent bits are all ones: infinities and NaNs.
template <class Word>
int64_t count_exponent_ones(std::span<const std::byte> bytes, Word exponent_mask) {
  int64_t count = 0;
  for (size_t at = 0; at + sizeof(Word) <= bytes.size(); at += sizeof(Word)) {
    Word word = 0;
    std::memcpy(&word, bytes.data() + at, sizeof word);
    count += (word & exponent_mask) == exponent_mask ? 1 : 0;
  }
  return count;
}

int64_t count_not_finite(DType dtype, std::span<const std::byte> bytes) {
  switch (dtype) {
    case DType::f32:
      return count_exponent_ones<uint32_t>(bytes, 0x7f800000);
    case DType::f16:
      return count_exponent_ones<uint16_t>(bytes, 0x7c00);
    case DType::bf16:
      return count_exponent_ones<uint16_t>(bytes, 0x7f80);
    case DType::f8_e4m3:
      return count_bytes(bytes, 0x7f, 0x7f);
    case DType::f8_e5m2:
      return count_bytes(bytes, 0x7c, 0x7c);
    case DType::f8_e8m0:
      return count_bytes(bytes, 0xff, 0xff);
    case DType::i8:
    case DType::u8:
    case DType::i16:
    case DType::i32:
    case DType::i64:
    case DType::boolean:
      return 0;
  }
  return 0;
}

}  // namespace

Result<TensorScan> scan_tensor(const format::TensorSource& source, const format::TensorInfo& tensor) {
  constexpr int64_t kPiece_bytes = int64_t{1} << 20;  // a multiple of every element size
  TensorScan scan;
  Sha256 hash;
  std::vector<std::byte> buffer(static_cast<size_t>(std::min(kPiece_bytes, tensor.size_bytes)));
  for (int64_t offset = 0; offset < tensor.size_bytes; offset += kPiece_bytes) {
    const auto piece =
        std::span(buffer).first(static_cast<size_t>(std::min(kPiece_bytes, tensor.size_bytes - offset)));
    RORQUAL_TRY(source.read(tensor, offset, piece));
    hash.update(piece);
    scan.not_finite += count_not_finite(tensor.dtype, piece);
    if (tensor.dtype == DType::f8_e8m0) scan.zero_scales += count_bytes(piece, 0xff, 0);
  }
  scan.sha256 = hash.hex();
  return scan;
}

}  // namespace rorqual::tools
