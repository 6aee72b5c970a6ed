// SPDX-License-Identifier: Apache-2.0
// A disk tier in memory for tests and simulations, with failures on demand.
#pragma once

#include <algorithm>
#include <functional>
#include <map>
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
    for (const auto& [key, page] : pages_) {
      if (page.parent != parent || static_cast<int64_t>(result.size()) == max_count) continue;
      result.push_back({.key = key, .parent = parent, .tokens = page.tokens, .block = {}, .window = {}});
    }
    return result;
  }

  Result<DiskPage> read(const PageKey& key) override {
    const auto found = pages_.find(key);
    if (found == pages_.end()) return Error(Code::not_found, "no page of that key");
    if (is_damaged && is_damaged(key)) {
      pages_.erase(found);
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
    const auto [place, is_new] = pages_.try_emplace(page.key, page);
    if (!is_new && place->second.window.empty()) place->second = std::move(page);
    return true;
  }

  void flush() override {}

  DiskTierStats stats() const override {
    DiskTierStats now = stats_;
    now.pages = static_cast<int64_t>(pages_.size());
    for (const auto& [key, page] : pages_) now.bytes += bytes_of(page);
    return now;
  }

  /// Forgets a page, as eviction does.
  void erase(const PageKey& key) { pages_.erase(key); }

 private:
  static int64_t bytes_of(const DiskPage& page) {
    return static_cast<int64_t>(page.block.size() + page.window.size());
  }

  std::map<PageKey, DiskPage> pages_;
  DiskTierStats stats_;
};

}  // namespace rorqual::prefix
