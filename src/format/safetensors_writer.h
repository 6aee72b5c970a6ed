// SPDX-License-Identifier: Apache-2.0
// Writes safetensors files as a stream: all names, types and shapes first, then the bytes of one tensor after
// the other. A file gets its name only when it is complete. docs/formats.md#safetensors.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/file.h"
#include "base/result.h"
#include "tensor/dtype.h"

namespace rorqual::format {

struct TensorDeclaration {
  std::string name;
  tensor::DType dtype = tensor::DType::f32;
  std::vector<int64_t> shape;
};

using Metadata = std::vector<std::pair<std::string, std::string>>;

/// One file. One thread. create, then the bytes of every tensor in declared order, then finish. Destroyed
/// before finish, it leaves no file behind.
class SafetensorsWriter {
 public:
  /// Errors: invalid_argument for names that are empty, too long, not UTF-8 or double and for impossible
  /// shapes; io.
  static Result<SafetensorsWriter> create(const std::string& path, std::vector<TensorDeclaration> tensors,
                                          const Metadata& metadata = {{"format", "pt"}});

  /// Next bytes of the data section; may be any part of a tensor. Writing past the declared end is a
  /// programmer error.
  Status append(std::span<const std::byte> bytes);

  /// All bytes of the next tensor, which must be `name` and have exactly this size (programmer errors
  /// otherwise).
  Status append_tensor(std::string_view name, std::span<const std::byte> bytes);

  /// Syncs and renames. All declared bytes must have been appended.
  Status finish();

  /// Size of the whole file, known from the start.
  int64_t file_bytes() const { return file_bytes_; }

 private:
  SafetensorsWriter(AtomicFile file, std::vector<TensorDeclaration> tensors);

  AtomicFile file_;
  std::vector<TensorDeclaration> tensors_;
  std::vector<int64_t> data_ends_;  // per tensor, from the start of the data section
  size_t current_ = 0;
  int64_t written_bytes_ = 0;
  int64_t data_bytes_ = 0;
  int64_t file_bytes_ = 0;
};

/// What one shard of a checkpoint holds, for the index.
struct ShardContents {
  std::string file_name;
  std::vector<TensorDeclaration> tensors;
};

/// Writes `directory`/model.safetensors.index.json for these shards (weight_map and metadata.total_size).
Status write_shard_index(const std::string& directory, std::span<const ShardContents> shards);

/// "model-00002-of-00048.safetensors" for shard 2 of 48 (counted from 1).
std::string shard_file_name(int64_t shard, int64_t num_shards);

}  // namespace rorqual::format
