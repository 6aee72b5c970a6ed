// SPDX-License-Identifier: Apache-2.0
// Whole safetensors files: whatever the header says, accepted tensors lie inside the file and do not overlap.
#include <algorithm>
#include <cstdint>
#include <cstdlib>

#include "format/safetensors.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace rorqual::format;
  const auto bytes = std::as_bytes(std::span(data, size));
  const auto file_bytes = static_cast<int64_t>(size);
  const auto length = safetensors_header_bytes(bytes.first(std::min<size_t>(8, size)), file_bytes);
  if (!length.ok()) return 0;
  const std::string_view json(reinterpret_cast<const char*>(data) + 8, static_cast<size_t>(*length));
  const auto header = parse_safetensors_header(json, file_bytes, EmptyTensors::refused);
  if (!header.ok()) return 0;
  int64_t total = 8 + *length;
  for (const TensorInfo& tensor : header->tensors) {
    if (tensor.file_offset < 8 + *length || tensor.size_bytes <= 0) std::abort();
    if (tensor.file_offset > file_bytes - tensor.size_bytes) std::abort();
    total += tensor.size_bytes;
  }
  if (total != file_bytes) std::abort();
  return 0;
}
