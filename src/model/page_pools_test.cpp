// SPDX-License-Identifier: Apache-2.0
#include "model/page_pools.h"

#include <gtest/gtest.h>

#include <map>
#include <random>

namespace rorqual::model {
namespace {

constexpr uint32_t kSeed = 20261130;

std::unique_ptr<PagePools> make_pools(int64_t blocks, int64_t windows, int64_t promised) {
  PoolSizes sizes;
  sizes.pages = {blocks, windows};
  sizes.page_bytes = {192, 320};
  sizes.promised_windows = promised;
  auto pools = PagePools::create(sizes);
  EXPECT_TRUE(pools.ok());
  return *std::move(pools);
}

TEST(PagePools, CountPagesExactlyInRandomHistories) {
  for (uint32_t seed = kSeed; seed < kSeed + 20; ++seed) {
    std::mt19937 random(seed);
    const auto pools = make_pools(9, 5, 0);
    for (const PageKind kind : {PageKind::block, PageKind::window}) {
      std::map<PageId, int64_t> held;
      for (int step = 0; step < 500; ++step) {
        const auto action = random() % 3;
        if (action == 0 || held.empty()) {
          const auto page = pools->allocate(kind);
          const bool was_full = static_cast<int64_t>(held.size()) == pools->pages_total(kind);
          ASSERT_EQ(page.has_value(), !was_full) << "seed " << seed;
          if (!page) continue;
          ASSERT_FALSE(held.contains(*page)) << "page " << *page << " was given twice, seed " << seed;
          held[*page] = 1;
        } else {
          auto chosen = std::next(held.begin(), static_cast<int64_t>(random() % held.size()));
          if (action == 1) {
            pools->retain(kind, chosen->first);
            ++chosen->second;
          } else {
            pools->release(kind, chosen->first);
            if (--chosen->second == 0) held.erase(chosen);
          }
        }
        ASSERT_EQ(pools->pages_free(kind) + static_cast<int64_t>(held.size()), pools->pages_total(kind))
            << "seed " << seed;
        for (const auto& [page, holders] : held) ASSERT_EQ(pools->holders(kind, page), holders);
      }
      for (const auto& [page, holders] : held) {
        for (int64_t i = 0; i < holders; ++i) pools->release(kind, page);
      }
      EXPECT_EQ(pools->pages_free(kind), pools->pages_total(kind));
    }
  }
}

TEST(PagePools, KeepTheContentOfEachPageApart) {
  const auto pools = make_pools(4, 3, 0);
  for (const PageKind kind : {PageKind::block, PageKind::window}) {
    std::vector<PageId> pages;
    while (const auto page = pools->allocate(kind)) {
      pages.push_back(*page);
      EXPECT_EQ(reinterpret_cast<uintptr_t>(pools->data(kind, *page)) % 64, 0u);
      const std::vector<std::byte> content(static_cast<size_t>(pools->page_bytes(kind)),
                                           static_cast<std::byte>(10 + *page));
      pools->write(kind, *page, content);
    }
    for (const PageId page : pages) {
      std::vector<std::byte> content(static_cast<size_t>(pools->page_bytes(kind)));
      pools->read(kind, page, content);
      for (const std::byte b : content) ASSERT_EQ(b, static_cast<std::byte>(10 + page));
    }
  }
}

TEST(PagePools, KeepPromisedWindowsForRunningSequences) {
  const auto pools = make_pools(1, 5, 3);
  EXPECT_TRUE(pools->allocate(PageKind::window));
  EXPECT_TRUE(pools->allocate(PageKind::window));
  EXPECT_FALSE(pools->allocate(PageKind::window)) << "three are promised";
  const auto claimed = pools->claim_window();
  ASSERT_TRUE(claimed);
  EXPECT_FALSE(pools->allocate(PageKind::window)) << "two are promised still";
  EXPECT_TRUE(pools->claim_window());
  EXPECT_TRUE(pools->claim_window());
  EXPECT_FALSE(pools->claim_window()) << "the pool is empty";
  pools->release(PageKind::window, *claimed);
  pools->count_claimed(-1);
  EXPECT_EQ(pools->pages_free(PageKind::window), 1);
  EXPECT_FALSE(pools->allocate(PageKind::window)) << "the page that came back is promised again";
}

TEST(PagePoolsDeathTest, ReleasingAPageTwiceOrHoldingAFreeOneIsAProgrammerError) {
  const auto pools = make_pools(2, 2, 0);
  const auto page = pools->allocate(PageKind::block);
  ASSERT_TRUE(page);
  pools->release(PageKind::block, *page);
  EXPECT_DEATH(pools->release(PageKind::block, *page), "more often than it was held");
  EXPECT_DEATH(pools->retain(PageKind::block, *page), "nobody holds");
  EXPECT_DEATH(pools->release(PageKind::block, 2), "pages_total");
}

}  // namespace
}  // namespace rorqual::model
