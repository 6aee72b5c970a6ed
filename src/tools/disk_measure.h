// SPDX-License-Identifier: Apache-2.0
// How fast a disk is read: long stretches, as when a model is loaded, and single pages, as Engram rows are
// fetched. Medians of five samples.
#pragma once

#include <string>

#include "base/result.h"
#include "base/thread_pool.h"
#include "plan/machine.h"

namespace rorqual::tools {

struct DiskMeasure {
  std::string path;       // file that was read
  bool direct = false;    // past the page cache (O_DIRECT); else the file's pages were dropped first
  bool is_model = false;  // a file of the model, not a temporary one
  plan::Rate sequential;  // bytes per second, blocks of 4 MiB, four in flight
  plan::Rate random;      // reads of 4 KiB per second, one in flight per thread of the pool
};

/// Reads the largest file of `path` (a model's folder or a file), or, if `path` is empty, a temporary file of
/// 256 MiB in the working folder, which is gone afterwards. Takes about two seconds. Errors: not_found, io.
Result<DiskMeasure> measure_disk(ThreadPool& pool, const std::string& path);

}  // namespace rorqual::tools
