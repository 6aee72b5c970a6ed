// SPDX-License-Identifier: Apache-2.0
// A readable run of bytes with a name, on disk or in memory, and a folder of them: what checkpoints are read
// from. Private to src/format.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "format/tensor_source.h"

namespace rorqual::format {

/// Any thread.
class ByteFile {
 public:
  virtual ~ByteFile() = default;
  virtual int64_t size_bytes() const = 0;
  virtual Status read(int64_t offset, std::span<std::byte> dst) const = 0;
};

class Folder {
 public:
  virtual ~Folder() = default;

  /// Path or name for messages.
  virtual std::string name() const = 0;

  /// True if something of that name is there, readable or not.
  virtual bool contains(std::string_view file_name) const = 0;

  /// Opens a direct member. Names with path parts and links that lead out of the folder are refused
  /// (corrupt_data).
  virtual Result<std::unique_ptr<ByteFile>> open(std::string_view file_name) const = 0;

  /// Names of the members, sorted; only for hints in messages.
  virtual std::vector<std::string> list() const = 0;
};

Result<std::unique_ptr<Folder>> open_disk_folder(const std::string& path);
std::unique_ptr<Folder> memory_folder(std::string name, std::vector<MemoryFile> files);
Result<std::unique_ptr<ByteFile>> open_disk_file(const std::string& path);

/// A plain file name: no separators, no "." or "..", no control characters, at most 255 bytes.
bool is_plain_file_name(std::string_view name);

/// Text from a file as it may stand in a message: short and without control characters, whatever the file
/// says.
std::string shown(std::string_view text);

Result<std::string> read_all_text(const ByteFile& file, int64_t max_bytes);

}  // namespace rorqual::format
