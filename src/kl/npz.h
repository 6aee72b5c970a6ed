// SPDX-License-Identifier: Apache-2.0
// numpy's archives (.npz): zip files of .npy members. Reads stored and deflated ones of any size, written by
// anyone; writes stored ones with fixed times, so that equal arrays are equal files. docs/fidelity.md#dumps.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "kl/npy.h"

namespace rorqual::kl {

/// An array of an archive: its header and where it lies.
struct NpzArray {
  std::string name;  // without ".npy"
  NpyHeader header;
  uint64_t index = 0;
};

/// Owned, read-only. Any thread; reads take turns.
class NpzFile {
 public:
  /// Errors: not_found, io, corrupt_data (no zip file, too many members).
  static Result<std::unique_ptr<NpzFile>> open(const std::string& path);
  ~NpzFile();

  const std::string& path() const;

  /// Names of all arrays, sorted.
  const std::vector<std::string>& names() const;

  bool has(std::string_view name) const;

  /// Reads the header of `name`. Sizes that the compressed bytes cannot hold are refused here, before
  /// anything is allocated. Errors: not_found, corrupt_data, unsupported.
  Result<NpzArray> find(std::string_view name) const;

  /// Copies data bytes [offset, offset + dst.size()) of `array`; ascending offsets are cheap. The last byte
  /// of an array also verifies its checksum.
  Status read(const NpzArray& array, int64_t offset, std::span<std::byte> dst) const;

 private:
  struct State;
  explicit NpzFile(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

/// An array to write; `bytes` is its data in C order.
struct NpzMember {
  std::string name;
  std::string dtype;
  std::vector<int64_t> shape;
  std::span<const std::byte> bytes;
};

/// Temp file + rename. Errors: io.
Status write_npz(const std::string& path, std::span<const NpzMember> members);

}  // namespace rorqual::kl
