// SPDX-License-Identifier: Apache-2.0
// Finished windows of a running capture on disk, one file each, so that a killed run loses one window only.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "base/result.h"
#include "kl/dump.h"

namespace rorqual::kl {

/// A folder: "identity.txt" says what is captured, "window-00003.safetensors" holds window 3's rows. Files
/// get their name when they are complete. One thread.
class CaptureParts {
 public:
  /// Makes or takes over `path`. Where the folder holds windows of another identity: invalid_argument, or
  /// with `discards` it is emptied. Errors: io, also while another capture writes there.
  static Result<CaptureParts> open(std::string path, const std::string& identity, bool discards);

  /// Fills the rows of `window` in `dump`, whose arrays have their final size. False when there is no such
  /// part. A damaged part counts as none.
  bool load(int64_t window, Dump& dump) const;
  Status store(int64_t window, const Dump& dump) const;

 private:
  CaptureParts(std::string path, std::shared_ptr<const int> lock)
      : path_(std::move(path)), lock_(std::move(lock)) {}

  std::string file(int64_t window) const;

  std::string path_;
  std::shared_ptr<const int> lock_;  // of the folder; a killed process gives it back
};

/// Removes the folder of parts once the dump is written. Only files that a capture makes are deleted.
void remove_parts(const std::string& path);

}  // namespace rorqual::kl
