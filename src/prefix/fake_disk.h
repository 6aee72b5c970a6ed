// SPDX-License-Identifier: Apache-2.0
// A disk tier in memory for tests and simulations, with failures on demand.
#pragma once

#include <algorithm>
#include <functional>
#include <map>
#include <set>
#include <utility>

#include "prefix/disk_tier.h"

namespace rorqual::prefix {

/// One thread.
class FakeDisk final : public DiskTier {
 public:
  /// Asked before each read; true = the page turns out to be damaged. Null = never.
  std::function<bool(const PageKey&)> is_damaged;
  /// Asked before each write; true = dropped. Null = never.
  std::function<bool(const DiskPage&)> is_full;
  /// Calls of `children`, and the most that one asked for.
  mutable int64_t num_lists = 0, most_listed = 0;

  Entry find(const PageKey& key) const override {
    const auto found = pages_.find(key);
    if (found == pages_.end()) return {};
    return {.is_found = true, .has_window = !found->second.window.empty()};
  }

  size_t touch(std::span<const PageKey> keys) override {
    size_t index = 0;
    while (index < keys.size() && pages_.contains(keys[index])) ++index;
    return index;
  }

  std::vector<DiskPage> children(const PageKey& parent, int64_t max_count) const override {
    ++num_lists;
    most_listed = std::max(most_listed, max_count);
    std::vector<DiskPage> result;
    const PageKey lowest = {};
    for (auto child = children_.lower_bound({parent, lowest}); child != children_.end(); ++child) {
      if (child->first != parent || static_cast<int64_t>(result.size()) >= max_count) break;
      const DiskPage& page = pages_.at(child->second);
      result.push_back({.key = page.key, .parent = parent, .tokens = page.tokens, .block = {}, .window = {}});
    }
    return result;
  }

  Result<DiskPage> read(const PageKey& key) override {
    const auto found = pages_.find(key);
    if (found == pages_.end()) return Error(Code::not_found, "no page of that key");
    if (is_damaged && is_damaged(key)) {
      erase(key);
      ++stats_.damaged_pages;
      return Error(Code::corrupt_data, "the page is damaged");
    }
    ++stats_.read_pages;
    stats_.read_bytes += bytes_of(found->second);
    return found->second;
  }

  bool write(DiskPage page) override {
    if (is_full && is_full(page)) {
      ++stats_.dropped_pages;
      return false;
    }
    ++stats_.written_pages;
    stats_.written_bytes += bytes_of(page);
    const auto old = pages_.find(page.key);
    if (old != pages_.end() && !old->second.window.empty()) return true;
    erase(page.key);
    children_.insert({page.parent, page.key});
    bytes_ += bytes_of(page);
    pages_.emplace(page.key, std::move(page));
    return true;
  }

  void flush() override {}

  DiskTierStats stats() const override {
    DiskTierStats now = stats_;
    now.pages = static_cast<int64_t>(pages_.size());
    now.bytes = bytes_;
    return now;
  }

  /// Forgets a page, as eviction does.
  void erase(const PageKey& key) {
    const auto found = pages_.find(key);
    if (found == pages_.end()) return;
    children_.erase({found->second.parent, key});
    bytes_ -= bytes_of(found->second);
    pages_.erase(found);
  }

 private:
  static int64_t bytes_of(const DiskPage& page) {
    return static_cast<int64_t>(page.block.size() + page.window.size());
  }

  // It forgets nothing by itself: neither lists nor figures may walk over all pages, or long histories take
  // quadratic time.
  std::map<PageKey, DiskPage> pages_;
  std::set<std::pair<PageKey, PageKey>> children_;  // parent, page
  int64_t bytes_ = 0;
  DiskTierStats stats_;
};

}  // namespace rorqual::prefix
