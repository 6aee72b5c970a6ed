// SPDX-License-Identifier: Apache-2.0
// Files that may be hostile: only regular files are opened (never a FIFO or device, and never blocking),
// sizes are known before reading, reads are exact. Written files get their final name only when they are
// complete. No memory mapping: a file that shrinks while in use must be an error, not SIGBUS.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "base/result.h"

namespace rorqual {

/// Owned read-only descriptor of a regular file. Any thread may read.
class File {
 public:
  File() = default;
  File(File&& other) noexcept;
  File& operator=(File&& other) noexcept;
  ~File();

  /// Errors: not_found; invalid_argument when it is not a regular file; io. Follows symbolic links (see
  /// real_path).
  static Result<File> open(const std::string& path);

  const std::string& path() const { return path_; }

  /// Size when it was opened.
  int64_t size_bytes() const { return size_bytes_; }

  /// Fills dst from `offset`. A file that ends earlier is corrupt_data with the place and the missing bytes.
  Status read(int64_t offset, std::span<std::byte> dst) const;

  /// Where the opened file really lies, links resolved.
  Result<std::string> real_path() const;

 private:
  int fd_ = -1;
  int64_t size_bytes_ = 0;
  std::string path_;
};

/// A file under construction: "<path>.tmp-<pid>-<n>" until commit() has synced it to disk and renamed it.
/// Destroyed without commit, it leaves nothing behind.
class AtomicFile {
 public:
  AtomicFile(AtomicFile&& other) noexcept;
  AtomicFile& operator=(AtomicFile&& other) = delete;
  ~AtomicFile();

  static Result<AtomicFile> create(const std::string& path);

  /// Appends all bytes; errors (io) name the path, the position and the reason (disk full, ...).
  Status append(std::span<const std::byte> bytes);

  /// Syncs, renames to the final path (replacing what was there) and syncs the folder.
  Status commit();

  int64_t size_bytes() const { return size_bytes_; }

 private:
  AtomicFile(int fd, std::string path, std::string temporary_path);

  int fd_ = -1;
  int64_t size_bytes_ = 0;
  std::string path_, temporary_path_;
};

/// Whole file as a string. corrupt_data when it is larger than max_bytes (checked before reading).
Result<std::string> read_text_file(const std::string& path, int64_t max_bytes);

/// Replaces `path` with `text` in one step: readers see the old or the new content, never a part.
Status write_text_file(const std::string& path, std::string_view text);

bool is_directory(const std::string& path);

/// Absolute path with links resolved; errors as File::open.
Result<std::string> resolve_path(const std::string& path);

}  // namespace rorqual
