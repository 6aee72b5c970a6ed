// SPDX-License-Identifier: Apache-2.0
// Where weights come from: named tensors with dtype, shape and bytes. Implemented by checkpoints on disk, by
// the model embedded in the program, and by the synthetic generator. Nothing here knows what a tensor means.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "tensor/dtype.h"

namespace rorqual::format {

struct TensorInfo {
  std::string name;
  tensor::DType dtype = tensor::DType::f32;
  std::vector<int64_t> shape;
  int64_t size_bytes = 0;
  std::string file;         // file that holds it, for messages; empty when there is none
  int64_t file_offset = 0;  // first byte in that file
};

/// Any thread after construction.
class TensorSource {
 public:
  virtual ~TensorSource() = default;

  /// All tensors, sorted by name.
  virtual const std::vector<TensorInfo>& tensors() const = 0;

  /// Null if there is no tensor of that name.
  const TensorInfo* find(std::string_view name) const;

  /// Copies bytes [offset, offset + dst.size()) of the tensor's data. Errors: io, corrupt_data.
  virtual Status read(const TensorInfo& tensor, int64_t offset, std::span<std::byte> dst) const = 0;

  /// Side files of the model folder ("config.json", "tokenizer.json"). not_found if absent.
  virtual Result<std::string> read_text(std::string_view file_name) const = 0;

  /// The path or name to show to users.
  virtual std::string name() const = 0;
};

/// Opens MODEL: a directory in the official format. Validates every header (spec: docs/errors.md#checkpoint)
/// and the index before any weight is read. Errors name file, tensor, got and expected.
Result<std::unique_ptr<TensorSource>> open_checkpoint(const std::string& directory);

/// The same over files in memory (name, bytes), which must outlive the source: the embedded model.
struct MemoryFile {
  std::string name;
  std::span<const std::byte> bytes;
};

Result<std::unique_ptr<TensorSource>> open_checkpoint_in_memory(std::string name,
                                                                std::vector<MemoryFile> files);

}  // namespace rorqual::format
