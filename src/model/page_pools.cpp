// SPDX-License-Identifier: Apache-2.0
#include "model/page_pools.h"

#include <cstring>

#include "base/check.h"

namespace rorqual::model {

Result<std::unique_ptr<PagePools>> PagePools::create(const PoolSizes& sizes) {
  std::unique_ptr<PagePools> pools(new PagePools(sizes));
  for (size_t kind = 0; kind < kPageKinds; ++kind) {
    Pool& pool = pools->pools_[kind];
    const int64_t count = sizes.pages[kind];
    RORQUAL_TRY_ASSIGN(pool.memory, tensor::Buffer::allocate(sizes.page_bytes[kind] * count));
    pool.holders.assign(static_cast<size_t>(count), 0);
    pool.free.reserve(static_cast<size_t>(count));
    for (int64_t i = count; i-- > 0;) pool.free.push_back(static_cast<PageId>(i));
  }
  return pools;
}

int64_t PagePools::pages_free(PageKind kind) const {
  const std::lock_guard lock(mutex_);
  return static_cast<int64_t>(pools_[index(kind)].free.size());
}

PageId PagePools::take(PageKind kind) {
  Pool& pool = pools_[index(kind)];
  const PageId page = pool.free.back();
  pool.free.pop_back();
  pool.holders[static_cast<size_t>(page)] = 1;
  return page;
}

std::optional<PageId> PagePools::allocate(PageKind kind) {
  const std::lock_guard lock(mutex_);
  const auto free = static_cast<int64_t>(pools_[index(kind)].free.size());
  const int64_t promised = kind == PageKind::window ? sizes_.promised_windows - claimed_ : 0;
  if (free == 0 || free <= promised) return std::nullopt;
  return take(kind);
}

std::optional<PageId> PagePools::claim_window() {
  const std::lock_guard lock(mutex_);
  if (pools_[index(PageKind::window)].free.empty()) return std::nullopt;
  ++claimed_;
  return take(PageKind::window);
}

void PagePools::count_claimed(int64_t count) {
  const std::lock_guard lock(mutex_);
  claimed_ += count;
  RORQUAL_CHECK(claimed_ >= 0);
}

void PagePools::retain(PageKind kind, PageId page) {
  const std::lock_guard lock(mutex_);
  RORQUAL_CHECK(page >= 0 && page < pages_total(kind));
  int32_t& holders = pools_[index(kind)].holders[static_cast<size_t>(page)];
  RORQUAL_CHECK_NOTE(holders > 0, "a page that nobody holds cannot be retained");
  ++holders;
}

void PagePools::release(PageKind kind, PageId page) {
  const std::lock_guard lock(mutex_);
  RORQUAL_CHECK(page >= 0 && page < pages_total(kind));
  Pool& pool = pools_[index(kind)];
  int32_t& holders = pool.holders[static_cast<size_t>(page)];
  RORQUAL_CHECK_NOTE(holders > 0, "a page was released more often than it was held");
  if (--holders == 0) pool.free.push_back(page);
}

int64_t PagePools::holders(PageKind kind, PageId page) const {
  const std::lock_guard lock(mutex_);
  RORQUAL_CHECK(page >= 0 && page < pages_total(kind));
  return pools_[index(kind)].holders[static_cast<size_t>(page)];
}

void PagePools::read(PageKind kind, PageId page, std::span<std::byte> out) const {
  RORQUAL_CHECK(holders(kind, page) > 0 && static_cast<int64_t>(out.size()) == page_bytes(kind));
  std::memcpy(out.data(), pools_[index(kind)].memory.data() + offset(kind, page), out.size());
}

void PagePools::write(PageKind kind, PageId page, std::span<const std::byte> content) {
  RORQUAL_CHECK(holders(kind, page) > 0 && static_cast<int64_t>(content.size()) == page_bytes(kind));
  std::memcpy(data(kind, page), content.data(), content.size());
}

}  // namespace rorqual::model
