// SPDX-License-Identifier: Apache-2.0
// The header of numpy's array format (.npy, versions 1 to 3): little-endian plain types in C order.
// Structured and object types are refused; nothing is ever unpickled. docs/fidelity.md#dumps.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace rorqual::kl {

inline constexpr int64_t kMaxNpyHeader_bytes = 1 << 16;
inline constexpr size_t kNpyPreamble_bytes = 12;  // enough to know the header's length in every version

/// One array: `dtype` as numpy spells it ("<i4", "<f4", "<U93", "|S80"), data behind `data_offset` bytes.
struct NpyHeader {
  std::string dtype;
  int64_t item_bytes = 0;
  std::vector<int64_t> shape;
  int64_t data_offset = 0;
  int64_t data_bytes = 0;

  int64_t num_items() const { return item_bytes == 0 ? 0 : data_bytes / item_bytes; }
};

/// Bytes of magic, version, length and header text together, from the first kNpyPreamble_bytes of a file.
/// Errors (corrupt_data) do not name the file.
Result<int64_t> npy_data_offset(std::span<const std::byte> preamble);

/// Parses the whole header (data_offset bytes) of an array file of `total_bytes` bytes; the data must fill
/// the rest exactly. Errors: corrupt_data; unsupported (type, order). They do not name the file.
Result<NpyHeader> parse_npy_header(std::span<const std::byte> header, int64_t total_bytes);

/// A version 1 header as numpy writes it: padded to a multiple of 64 bytes.
std::string make_npy_header(std::string_view dtype, std::span<const int64_t> shape);

/// "[49152, 512]".
std::string shape_text(std::span<const int64_t> shape);

}  // namespace rorqual::kl
