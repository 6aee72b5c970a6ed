// SPDX-License-Identifier: Apache-2.0
// Why a lookup ended where it did: compares the first page that was not found with what is kept in its place.
#pragma once

#include <cstdint>
#include <optional>

#include "prefix/disk_tier.h"
#include "prefix/miss.h"
#include "prefix/page_tree.h"
#include "prefix/prefix_cache.h"

namespace rorqual::prefix {

/// Records on disk that one explanation reads the tokens of, two small reads each.
inline constexpr int64_t kMaxDiskSiblings = 16;

/// The kept page in the place of the first page that was not found which begins most like it.
struct Sibling {
  bool is_found = false;
  int64_t common_tokens = 0;
  std::optional<int32_t> next_token;  // of the kept page after the common ones
};

/// How a lookup ended, in pages, and what memory had in the place where it did.
struct LookupEnd {
  int64_t page_tokens = 0;
  int64_t found = 0;        // pages that are kept and readable
  int64_t found_first = 0;  // pages that seemed to be
  int64_t used = 0;         // pages that are reused
  bool had_disk_error = false;
  bool had_no_room = false;
  bool was_evicted = false;  // the first page that was not found
  Sibling sibling;           // in memory; only if found == found_first
};

/// Completes `end` with what the tree knows of the first page that was not found. `last_node`: of the page
/// before it (the root for the first); none: not in memory.
void note_tree(const PrefixCache::Query& query, const PageTree& tree, NodeIndex last_node, LookupEnd& end);

/// The report of one lookup. `disk` may be null. Reads at most kMaxDiskSiblings records, and none where
/// memory had the most similar page that there can be.
MissReport explain_miss(const PrefixCache::Query& query, const LookupEnd& end, const DiskTier* disk);

}  // namespace rorqual::prefix
