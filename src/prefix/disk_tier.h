// SPDX-License-Identifier: Apache-2.0
// Pages of the prefix cache on disk: append-only segment files of checksummed records, one directory per
// model identity. Survives restart, kill -9 at any moment, damaged files and a full disk: what cannot be
// proved whole is not there.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/result.h"
#include "prefix/page_key.h"

namespace rorqual::prefix {

struct DiskTierOptions {
  std::string directory;                  // made if it is missing
  std::string model_identity;             // pages of another identity are not seen (and may be evicted)
  int64_t max_bytes = int64_t{16} << 30;  // of all files; the least recently used segments go first
  int64_t segment_bytes = int64_t{64} << 20;
  int64_t max_queued_bytes = int64_t{256} << 20;  // of pages waiting to be written; more are dropped
  int64_t retry_ms = 5000;  // after an error of the file system nothing is written for so long
  /// Told once when writing begins to fail, with what, where and why, and once (empty) when a page is written
  /// again. On the writing thread; for the log. Null = nobody.
  std::function<void(const std::string& error)> on_change = nullptr;
  /// pwrite(2), or what a test puts in its place.
  std::function<ssize_t(int fd, const void* bytes, size_t count, int64_t offset)> write_at = nullptr;
};

/// One page as it is stored. `window` may be empty.
struct DiskPage {
  PageKey key, parent;
  std::vector<int32_t> tokens;
  std::vector<std::byte> block, window;
};

struct DiskTierStats {
  int64_t pages = 0, bytes = 0;  // usable now, and size of all files
  int64_t written_pages = 0, written_bytes = 0, read_pages = 0, read_bytes = 0;
  int64_t dropped_pages = 0;  // not written: queue full, disk full or an error
  int64_t damaged_pages = 0;  // refused by checksum or form
  int64_t evicted_pages = 0;
  bool is_failing = false;  // after an error of the file system, until a later write succeeds
};

/// Any thread. One background thread writes. What was written survives the end of the process at any moment;
/// a loss of power may cost what was written since the last finished segment or `flush` (fdatasync at both).
class DiskTier {
 public:
  /// Opens or makes the directory and lists what is whole in it. Another process that uses the directory, a
  /// read-only or broken directory: unavailable or io with what to do; a server then runs without this tier.
  static Result<std::unique_ptr<DiskTier>> open(DiskTierOptions options);
  virtual ~DiskTier() = default;  // finishes queued writes

  /// What is known of a page without reading it.
  struct Entry {
    bool is_found = false;
    bool has_window = false;
  };

  virtual Entry find(const PageKey& key) const = 0;

  /// Marks pages as used, for the choice of what leaves. Returns the index of the first that is not there
  /// (keys.size() = all are).
  virtual size_t touch(std::span<const PageKey> /*keys*/) { return 0; }

  /// Pages that are kept after `parent`, the newest `max_count` of them, without their content: key, parent
  /// and tokens. To explain misses.
  virtual std::vector<DiskPage> children(const PageKey& /*parent*/, int64_t /*max_count*/) const {
    return {};
  }

  /// Reads and verifies by checksum; whether key, parent and tokens are the wanted ones is for the caller to
  /// compare. Errors: not_found, corrupt_data (the page is forgotten), io.
  virtual Result<DiskPage> read(const PageKey& key) = 0;

  /// Queues a page; returns at once. A page that is there already gains its window if it had none. False:
  /// dropped.
  virtual bool write(DiskPage page) = 0;

  /// Blocks until everything queued is on disk (or dropped).
  virtual void flush() = 0;

  virtual DiskTierStats stats() const = 0;
};

}  // namespace rorqual::prefix
