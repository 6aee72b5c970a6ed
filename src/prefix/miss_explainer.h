// SPDX-License-Identifier: Apache-2.0
// Why a lookup ended where it did: compares the first page that was not found with what is kept in its place.
#pragma once

#include <cstdint>

#include "prefix/disk_tier.h"
#include "prefix/miss.h"
#include "prefix/page_tree.h"
#include "prefix/prefix_cache.h"

namespace rorqual::prefix {

/// How a lookup ended, in pages.
struct LookupEnd {
  int64_t page_tokens = 0;
  NodeIndex last_node = kNoNode;  // of page found - 1 (the root for 0); none: not in memory
  int64_t found = 0;              // pages that are kept and readable
  int64_t found_first = 0;        // pages that seemed to be
  int64_t used = 0;               // pages that are reused
  bool had_disk_error = false;
  bool had_no_room = false;
};

/// The report of one lookup. `disk` may be null.
MissReport explain_miss(const PrefixCache::Query& query, const LookupEnd& end, const PageTree& tree,
                        const DiskTier* disk);

}  // namespace rorqual::prefix
