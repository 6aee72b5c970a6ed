// SPDX-License-Identifier: Apache-2.0
#include "model/cache.h"

#include <gtest/gtest.h>

#include "model/config.h"

namespace rorqual::model {
namespace {

TEST(CacheLayout, ReleaseNeeds890BytesPerTokenAnd528PerWindowEntry) {
  const CacheLayout layout = make_cache_layout(release_config(), kernels::Numerics::reference, true);
  EXPECT_EQ(layout.format.window_bytes(), 528);
  EXPECT_EQ(layout.format.compressed_bytes(), 288);
  EXPECT_EQ(layout.format.index_bytes(), 68);
  EXPECT_EQ(layout.sources.size(), 4u);
  EXPECT_EQ(layout.num_windows, 43);
  // 890 bytes a token, each plane of a block padded to 64 bytes.
  EXPECT_GE(layout.block_bytes, 890 * kPageTokens);
  EXPECT_LE(layout.block_bytes, 890 * kPageTokens + 8 * 64);
  EXPECT_EQ(layout.source_of_layer[1], -1);
  EXPECT_EQ(layout.source_of_layer[7], 0);
  EXPECT_EQ(layout.source_of_layer[13], 1);
  EXPECT_EQ(layout.source_of_layer[39], 3);
}

/// Pools of a layout with so many pages for running sequences, none for others.
std::unique_ptr<PagePools> pools_of(const CacheLayout& layout, int64_t blocks, int64_t windows) {
  PoolSizes sizes;
  sizes.pages = {blocks, windows};
  sizes.page_bytes = {layout.block_bytes, layout.window_page_bytes()};
  sizes.promised_windows = windows;
  auto pools = PagePools::create(sizes);
  EXPECT_TRUE(pools.ok());
  return *std::move(pools);
}

TEST(SequenceState, ReservesWholeBlocksAndGivesThemBack) {
  const CacheLayout layout = make_cache_layout(release_config(), kernels::Numerics::reference, false);
  const auto pools = pools_of(layout, 4, 8);
  const auto free = [&] { return pools->pages_free(PageKind::block); };
  auto state = SequenceState::create(layout, *pools);
  ASSERT_TRUE(state.ok());
  SequenceState& sequence = **state;
  EXPECT_TRUE(sequence.reserve(1));
  EXPECT_EQ(free(), 3);
  EXPECT_TRUE(sequence.reserve(kPageTokens));
  EXPECT_EQ(free(), 3);
  EXPECT_TRUE(sequence.reserve(3 * kPageTokens + 1));
  EXPECT_EQ(free(), 0);
  EXPECT_FALSE(sequence.reserve(4 * kPageTokens + 1)) << "the pool is exhausted";
  EXPECT_EQ(free(), 0) << "a failed reservation changes nothing";
  ASSERT_TRUE(sequence.begin_step(3 * kPageTokens + 1));
  sequence.end_step(3 * kPageTokens + 1, {});
  sequence.truncate(3 * kPageTokens - 1);
  EXPECT_EQ(free(), 1);
  EXPECT_EQ(sequence.length(), 3 * kPageTokens - 1);
  state->reset();
  EXPECT_EQ(free(), 4);
  EXPECT_EQ(pools->pages_free(PageKind::window), 8);
}

TEST(SequenceState, HoldsTheWindowsBeforeReachedTargetsUntilItsNextStep) {
  const CacheLayout layout = make_cache_layout(release_config(), kernels::Numerics::reference, false);
  const int64_t promised = layout.promised_windows(1, 512);
  PoolSizes sizes;
  sizes.pages = {16, promised + 3};
  sizes.page_bytes = {layout.block_bytes, layout.window_page_bytes()};
  sizes.promised_windows = promised;
  auto pools = PagePools::create(sizes);
  ASSERT_TRUE(pools.ok());
  auto state = SequenceState::create(layout, **pools);
  ASSERT_TRUE(state.ok());
  SequenceState& sequence = **state;
  const auto held = [&] {
    std::vector<int64_t> pages;
    for (int64_t page = 0; page < 20; ++page) {
      if (sequence.page_at(PageKind::window, page) != kNoPage) pages.push_back(page);
    }
    return pages;
  };
  const auto step = [&](int64_t count, const std::vector<int64_t>& targets) {
    ASSERT_TRUE(sequence.reserve(sequence.length() + count));
    ASSERT_TRUE(sequence.begin_step(count));
    sequence.claim_targets(count, targets);
    sequence.end_step(count, targets);
  };
  step(500, {256, 640});
  EXPECT_EQ(held(), (std::vector<int64_t>{2, 3, 5, 6, 7})) << "128 before 256; 136 before 500";
  EXPECT_EQ((*pools)->pages_free(PageKind::window), promised + 3 - 5);
  step(200, {640});
  EXPECT_EQ(held(), (std::vector<int64_t>{8, 9, 10})) << "the same pages serve 640 and 700";
  step(300, {768, 832, 896});
  EXPECT_EQ(held(), (std::vector<int64_t>{10, 11, 12, 13, 14, 15})) << "640 to 896; 136 before 1000";
  sequence.drop_extra_windows();
  EXPECT_EQ(held(), (std::vector<int64_t>{13, 14, 15}));
  step(1, {});
  EXPECT_EQ(held(), (std::vector<int64_t>{13, 14, 15}));
  state->reset();
  EXPECT_EQ((*pools)->pages_free(PageKind::window), promised + 3);
}

TEST(SequenceState, APromiseTakesBackWhatTargetsOfOthersHold) {
  const CacheLayout layout = make_cache_layout(release_config(), kernels::Numerics::reference, false);
  const int64_t promised = layout.promised_windows(2, 64);
  const auto pools = pools_of(layout, 64, promised);
  auto first = SequenceState::create(layout, *pools), second = SequenceState::create(layout, *pools);
  ASSERT_TRUE(first.ok() && second.ok());
  std::vector<PageId> taken;
  while (const auto page = pools->allocate(PageKind::window)) taken.push_back(*page);
  EXPECT_TRUE(taken.empty()) << "all is promised";
  for (int step = 0; step < 12; ++step) {
    for (SequenceState* sequence : {first->get(), second->get()}) {
      const std::vector<int64_t> targets = {sequence->length() + 1, sequence->length() + 64};
      ASSERT_TRUE(sequence->reserve(sequence->length() + 64));
      if (!sequence->begin_step(64)) {
        (*first)->drop_extra_windows();
        (*second)->drop_extra_windows();
        ASSERT_TRUE(sequence->begin_step(64));
      }
      sequence->claim_targets(64, targets);
      sequence->end_step(64, targets);
    }
  }
  EXPECT_FALSE(pools->allocate(PageKind::window));
}

TEST(SequenceState, PagesOfDifferentSourcesDoNotOverlap) {
  const CacheLayout layout = make_cache_layout(release_config(), kernels::Numerics::exact, false);
  const auto pools = pools_of(layout, 2, 0);
  auto state = SequenceState::create(layout, *pools);
  ASSERT_TRUE(state.ok());
  ASSERT_TRUE((*state)->reserve(2 * kPageTokens));
  std::vector<std::pair<const std::byte*, const std::byte*>> spans;
  for (int64_t s = 0; s < static_cast<int64_t>(layout.sources.size()); ++s) {
    const kernels::CompressedCache cache = (*state)->compressed(s);
    EXPECT_EQ(cache.page_entries * layout.sources[static_cast<size_t>(s)].ratio, kPageTokens);
    for (int block = 0; block < 2; ++block) {
      spans.emplace_back(cache.kv_pages[block],
                         cache.kv_pages[block] + cache.page_entries * layout.format.compressed_bytes());
      spans.emplace_back(cache.index_pages[block],
                         cache.index_pages[block] + cache.page_entries * layout.format.index_bytes());
    }
  }
  for (size_t i = 0; i < spans.size(); ++i) {
    for (size_t j = 0; j < i; ++j) {
      EXPECT_TRUE(spans[i].second <= spans[j].first || spans[j].second <= spans[i].first) << i << ' ' << j;
    }
  }
}

}  // namespace
}  // namespace rorqual::model
