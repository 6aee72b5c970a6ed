// SPDX-License-Identifier: Apache-2.0
// What the disk tier knows of its files, in memory: where each page lies, which segments there are and which
// was used least recently. Does no input or output.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <tuple>
#include <unordered_map>
#include <vector>

#include "prefix/page_key.h"

namespace rorqual::prefix {

/// Where a record lies.
struct RecordPlace {
  uint64_t segment = 0;
  int64_t offset = 0, bytes = 0;
  bool has_window = false;
  bool operator==(const RecordPlace&) const = default;
};

/// One thread at a time.
class SegmentIndex {
 public:
  /// A file; one of another model holds no pages for us and is the first to go.
  void add_segment(uint64_t id, int64_t bytes, bool is_foreign);
  void set_segment_bytes(uint64_t id, int64_t bytes);

  /// Forgets the file and its pages; returns how many these were.
  int64_t remove_segment(uint64_t id);

  int64_t segment_bytes(uint64_t id) const { return segments_.at(id).bytes; }

  /// Greatest id so far, 0 = none.
  uint64_t last_segment() const { return segments_.empty() ? 0 : segments_.rbegin()->first; }

  /// Of all but `except`.
  std::optional<uint64_t> least_recently_used(uint64_t except) const;

  /// Takes a record; one that has a window is not replaced by one that has none.
  void add_page(const PageKey& key, const PageKey& parent, const RecordPlace& place);

  const RecordPlace* find(const PageKey& key) const;

  /// Forgets a page if it still lies there.
  void forget(const PageKey& key, const RecordPlace& place);

  /// A new time for `use`.
  uint64_t tick() { return ++clock_; }

  /// Marks a page, and its segment, as used at that time. False: not there.
  bool use(const PageKey& key, uint64_t time);

  struct KeptPage {
    PageKey key, parent;
    RecordPlace place;
    bool is_used = false;  // since it was written
  };

  /// Pages that lie in a segment, in the order in which they were written.
  std::vector<KeptPage> pages_of(uint64_t segment) const;

  /// The pages after `parent`, newest first, at most `max_count`.
  std::vector<PageKey> children(const PageKey& parent, int64_t max_count) const;

  int64_t pages() const { return static_cast<int64_t>(pages_.size()); }

  int64_t bytes() const { return bytes_; }

 private:
  struct Page {
    RecordPlace place;
    PageKey parent;
    uint64_t added = 0;
    bool is_used = false;
  };

  struct Segment {
    int64_t bytes = 0;
    uint64_t used = 0;  // time; 0 = of another model
    std::vector<PageKey> keys;
  };

  void set_used(uint64_t id, Segment& segment, uint64_t time);

  std::unordered_map<PageKey, Page, PageKeyHash> pages_;
  std::map<uint64_t, Segment> segments_;
  std::set<std::pair<uint64_t, uint64_t>> order_;               // segments by time of last use
  std::set<std::tuple<PageKey, uint64_t, PageKey>> by_parent_;  // parent, time added, page
  uint64_t clock_ = 0;
  int64_t bytes_ = 0;
};

}  // namespace rorqual::prefix
