// SPDX-License-Identifier: Apache-2.0
#include "prefix/segment_index.h"

#include <algorithm>

#include "base/check.h"

namespace rorqual::prefix {

void SegmentIndex::set_used(uint64_t id, Segment& segment, uint64_t time) {
  if (segment.used == time && time != 0) return;
  order_.erase({segment.used, id});
  segment.used = time;
  order_.emplace(time, id);
}

void SegmentIndex::add_segment(uint64_t id, int64_t bytes, bool is_foreign) {
  const auto [place, is_new] = segments_.try_emplace(id);
  RORQUAL_CHECK(is_new);
  place->second.bytes = bytes;
  bytes_ += bytes;
  set_used(id, place->second, is_foreign ? 0 : ++clock_);
}

void SegmentIndex::set_segment_bytes(uint64_t id, int64_t bytes) {
  Segment& segment = segments_.at(id);
  bytes_ += bytes - segment.bytes;
  segment.bytes = bytes;
}

int64_t SegmentIndex::remove_segment(uint64_t id) {
  const auto found = segments_.find(id);
  RORQUAL_CHECK(found != segments_.end());
  int64_t count = 0;
  for (const PageKey& key : found->second.keys) {
    const auto page = pages_.find(key);
    if (page == pages_.end() || page->second.place.segment != id) continue;  // written again elsewhere
    by_parent_.erase({page->second.parent, page->second.added, key});
    pages_.erase(page);
    ++count;
  }
  bytes_ -= found->second.bytes;
  order_.erase({found->second.used, id});
  segments_.erase(found);
  return count;
}

std::optional<uint64_t> SegmentIndex::least_recently_used(uint64_t except) const {
  for (const auto& [time, id] : order_) {
    if (id != except) return id;
  }
  return std::nullopt;
}

void SegmentIndex::add_page(const PageKey& key, const PageKey& parent, const RecordPlace& place) {
  const auto [found, is_new] = pages_.try_emplace(key);
  Page& page = found->second;
  if (!is_new) {
    if (page.place.has_window && !place.has_window) return;
    by_parent_.erase({page.parent, page.added, key});
  }
  page = {.place = place, .parent = parent, .added = ++clock_, .is_used = false};
  by_parent_.emplace(parent, page.added, key);
  Segment& segment = segments_.at(place.segment);
  segment.keys.push_back(key);
  set_used(place.segment, segment, page.added);
}

const RecordPlace* SegmentIndex::find(const PageKey& key) const {
  const auto found = pages_.find(key);
  return found == pages_.end() ? nullptr : &found->second.place;
}

void SegmentIndex::forget(const PageKey& key, const RecordPlace& place) {
  const auto found = pages_.find(key);
  if (found == pages_.end() || found->second.place != place) return;
  by_parent_.erase({found->second.parent, found->second.added, key});
  pages_.erase(found);
}

bool SegmentIndex::use(const PageKey& key, uint64_t time) {
  const auto found = pages_.find(key);
  if (found == pages_.end()) return false;
  found->second.is_used = true;
  const uint64_t segment = found->second.place.segment;
  set_used(segment, segments_.at(segment), time);
  return true;
}

std::vector<SegmentIndex::KeptPage> SegmentIndex::pages_of(uint64_t segment) const {
  std::vector<KeptPage> kept;
  std::set<PageKey> seen;  // a page may lie there twice, without and with its window
  for (const PageKey& key : segments_.at(segment).keys) {
    const auto page = pages_.find(key);
    if (page == pages_.end() || page->second.place.segment != segment || !seen.insert(key).second) continue;
    kept.push_back({.key = key,
                    .parent = page->second.parent,
                    .place = page->second.place,
                    .is_used = page->second.is_used});
  }
  return kept;
}

std::vector<PageKey> SegmentIndex::children(const PageKey& parent, int64_t max_count) const {
  std::vector<PageKey> keys;
  auto place = by_parent_.lower_bound({parent, UINT64_MAX, PageKey{}});
  while (place != by_parent_.begin() && static_cast<int64_t>(keys.size()) < max_count) {
    --place;
    if (std::get<0>(*place) != parent) break;
    keys.push_back(std::get<2>(*place));
  }
  return keys;
}

}  // namespace rorqual::prefix
