// SPDX-License-Identifier: Apache-2.0
// Reads safetensors files whose author is not trusted: every length and offset is checked against the real
// file before it is used for anything. What is accepted and refused: docs/formats.md#safetensors.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/result.h"
#include "format/tensor_source.h"

namespace rorqual::format {

inline constexpr int64_t kMaxHeader_bytes = 100'000'000;  // the format's own limit
inline constexpr int64_t kMaxTensors = 1 << 20;  // per file; the released model has 96,085 in 48 files
inline constexpr size_t kMaxTensorName_bytes = 512;
inline constexpr size_t kMaxTensorRank = 8;
inline constexpr std::string_view kIndexFileName = "model.safetensors.index.json";
inline constexpr std::string_view kSingleFileName = "model.safetensors";

/// Not empty, at most kMaxTensorName_bytes, no control characters.
bool is_valid_tensor_name(std::string_view name);

/// Tensors of zero elements: an error in a checkpoint, allowed in files of test vectors.
enum class EmptyTensors : uint8_t { refused, allowed };

struct SafetensorsHeader {
  std::vector<TensorInfo> tensors;  // sorted by name; file_offset counts from the start of the file
  std::vector<std::pair<std::string, std::string>> metadata;  // "__metadata__", in file order
};

/// Length of the JSON header, from the first bytes of a file of `file_bytes` bytes (`prefix`: its first 8
/// bytes, or all of a shorter file). Errors (corrupt_data) do not name the file; callers add it.
Result<int64_t> safetensors_header_bytes(std::span<const std::byte> prefix, int64_t file_bytes);

/// Parses and checks a header: `json` is the header text, file_bytes the size of the whole file. Data ranges
/// must tile the data section exactly: no overlap, no hole, nothing behind the last one.
Result<SafetensorsHeader> parse_safetensors_header(std::string_view json, int64_t file_bytes,
                                                   EmptyTensors empty);

/// One safetensors file as a source, with its metadata; for fixtures and single files.
class SafetensorsFile : public TensorSource {
 public:
  /// Value of a "__metadata__" key, or empty.
  virtual std::string_view metadata(std::string_view key) const = 0;
};

Result<std::unique_ptr<SafetensorsFile>> open_safetensors(const std::string& path,
                                                          EmptyTensors empty = EmptyTensors::allowed);

/// All bytes of the tensor `name`. Errors: not_found names tensor and source.
Result<std::vector<std::byte>> read_tensor(const TensorSource& source, std::string_view name);

}  // namespace rorqual::format
