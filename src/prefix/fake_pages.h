// SPDX-License-Identifier: Apache-2.0
// A page store for tests and simulations: real bytes, exact counts, any page size. Every misuse ends the
// program: pages that nobody holds are not read, written, retained or released.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <mutex>
#include <optional>
#include <span>
#include <vector>

#include "base/check.h"
#include "model/pages.h"

namespace rorqual::prefix {

struct FakePagesOptions {
  int64_t page_tokens = 4;
  int64_t blocks = 64, windows = 64;  // of each kind in all
  int64_t block_bytes = 16, window_bytes = 32;
};

/// Any thread. Content of a fresh page is a fixed pattern, never that of its last use.
class FakePages final : public model::PageStore {
 public:
  explicit FakePages(const FakePagesOptions& options = {}) : page_tokens_(options.page_tokens) {
    RORQUAL_CHECK(page_tokens_ > 0 && page_tokens_ % 2 == 0);
    init(model::PageKind::block, options.blocks, options.block_bytes);
    init(model::PageKind::window, options.windows, options.window_bytes);
  }

  int64_t page_tokens() const override { return page_tokens_; }

  int64_t page_bytes(model::PageKind kind) const override { return pool(kind).page_bytes; }

  int64_t pages_total(model::PageKind kind) const override {
    return static_cast<int64_t>(pool(kind).holders.size());
  }

  int64_t pages_free(model::PageKind kind) const override {
    const std::lock_guard lock(mutex_);
    return static_cast<int64_t>(pool(kind).free.size());
  }

  std::optional<model::PageId> allocate(model::PageKind kind) override {
    const std::lock_guard lock(mutex_);
    Pool& p = pool(kind);
    if (p.free.empty()) return std::nullopt;
    const model::PageId page = p.free.back();
    p.free.pop_back();
    p.holders[static_cast<size_t>(page)] = 1;
    p.content[static_cast<size_t>(page)].assign(static_cast<size_t>(p.page_bytes), kFreshByte);
    return page;
  }

  void retain(model::PageKind kind, model::PageId page) override {
    const std::lock_guard lock(mutex_);
    ++held(kind, page);
  }

  void release(model::PageKind kind, model::PageId page) override {
    const std::lock_guard lock(mutex_);
    if (--held(kind, page) > 0) return;
    Pool& p = pool(kind);
    p.content[static_cast<size_t>(page)].clear();
    p.free.push_back(page);
  }

  int64_t holders(model::PageKind kind, model::PageId page) const override {
    const std::lock_guard lock(mutex_);
    return pool(kind).holders.at(static_cast<size_t>(page));
  }

  void read(model::PageKind kind, model::PageId page, std::span<std::byte> out) const override {
    const std::lock_guard lock(mutex_);
    const std::vector<std::byte>& content = content_of(kind, page);
    RORQUAL_CHECK(out.size() == content.size());
    std::copy(content.begin(), content.end(), out.begin());
  }

  void write(model::PageKind kind, model::PageId page, std::span<const std::byte> content) override {
    const std::lock_guard lock(mutex_);
    RORQUAL_CHECK(content.size() == content_of(kind, page).size());
    pool(kind).content[static_cast<size_t>(page)].assign(content.begin(), content.end());
  }

  /// Sum of the holders of all pages of the kind.
  int64_t holds(model::PageKind kind) const {
    const std::lock_guard lock(mutex_);
    int64_t sum = 0;
    for (const int32_t count : pool(kind).holders) sum += count;
    return sum;
  }

 private:
  static constexpr std::byte kFreshByte{0xee};

  struct Pool {
    int64_t page_bytes = 0;
    std::vector<int32_t> holders;
    std::vector<model::PageId> free;              // the last one is taken next
    std::vector<std::vector<std::byte>> content;  // empty while free
  };

  void init(model::PageKind kind, int64_t count, int64_t bytes) {
    Pool& p = pool(kind);
    p.page_bytes = bytes;
    p.holders.assign(static_cast<size_t>(count), 0);
    p.content.resize(static_cast<size_t>(count));
    for (int64_t i = count - 1; i >= 0; --i) p.free.push_back(static_cast<model::PageId>(i));
  }

  Pool& pool(model::PageKind kind) { return pools_[static_cast<size_t>(kind)]; }

  const Pool& pool(model::PageKind kind) const { return pools_[static_cast<size_t>(kind)]; }

  int32_t& held(model::PageKind kind, model::PageId page) {
    int32_t& count = pool(kind).holders.at(static_cast<size_t>(page));
    RORQUAL_CHECK_NOTE(count > 0, "a page that nobody holds");
    return count;
  }

  const std::vector<std::byte>& content_of(model::PageKind kind, model::PageId page) const {
    RORQUAL_CHECK_NOTE(pool(kind).holders.at(static_cast<size_t>(page)) > 0, "a page that nobody holds");
    return pool(kind).content[static_cast<size_t>(page)];
  }

  const int64_t page_tokens_;
  std::array<Pool, model::kPageKinds> pools_;
  mutable std::mutex mutex_;
};

}  // namespace rorqual::prefix
