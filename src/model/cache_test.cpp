// SPDX-License-Identifier: Apache-2.0
#include "model/cache.h"

#include <gtest/gtest.h>

#include "model/config.h"

namespace rorqual::model {
namespace {

TEST(CacheLayout, ReleaseNeeds890BytesPerTokenAnd528PerWindowEntry) {
  const CacheLayout layout = make_cache_layout(release_config(), kernels::Numerics::reference, true, 8);
  EXPECT_EQ(layout.format.window_bytes(), 528);
  EXPECT_EQ(layout.format.compressed_bytes(), 288);
  EXPECT_EQ(layout.format.index_bytes(), 68);
  EXPECT_EQ(layout.sources.size(), 4u);
  EXPECT_EQ(layout.num_windows, 43);
  // 890 bytes a token, each plane of a block padded to 64 bytes.
  EXPECT_GE(layout.block_bytes, 890 * kBlockTokens);
  EXPECT_LE(layout.block_bytes, 890 * kBlockTokens + 8 * 64);
  EXPECT_EQ(layout.source_of_layer[1], -1);
  EXPECT_EQ(layout.source_of_layer[7], 0);
  EXPECT_EQ(layout.source_of_layer[13], 1);
  EXPECT_EQ(layout.source_of_layer[39], 3);
}

TEST(SequenceState, ReservesWholeBlocksAndGivesThemBack) {
  const CacheLayout layout = make_cache_layout(release_config(), kernels::Numerics::reference, false, 8);
  auto pool = BlockPool::create(layout, 4);
  ASSERT_TRUE(pool.ok());
  auto state = SequenceState::create(layout);
  ASSERT_TRUE(state.ok());
  SequenceState& sequence = **state;
  EXPECT_TRUE(sequence.reserve(*pool, 1));
  EXPECT_EQ(pool->blocks_free(), 3);
  EXPECT_TRUE(sequence.reserve(*pool, kBlockTokens));
  EXPECT_EQ(pool->blocks_free(), 3);
  EXPECT_TRUE(sequence.reserve(*pool, 3 * kBlockTokens + 1));
  EXPECT_EQ(pool->blocks_free(), 0);
  EXPECT_FALSE(sequence.reserve(*pool, 4 * kBlockTokens + 1)) << "the pool is exhausted";
  EXPECT_EQ(pool->blocks_free(), 0) << "a failed reservation changes nothing";
  sequence.advance(3 * kBlockTokens + 1);
  sequence.truncate(*pool, kBlockTokens + 1);
  EXPECT_EQ(pool->blocks_free(), 2);
  EXPECT_EQ(sequence.length(), kBlockTokens + 1);
  sequence.release(*pool);
  EXPECT_EQ(pool->blocks_free(), 4);
}

TEST(SequenceState, PagesOfDifferentSourcesDoNotOverlap) {
  const CacheLayout layout = make_cache_layout(release_config(), kernels::Numerics::exact, false, 8);
  auto pool = BlockPool::create(layout, 2);
  ASSERT_TRUE(pool.ok());
  auto state = SequenceState::create(layout);
  ASSERT_TRUE(state.ok());
  ASSERT_TRUE((*state)->reserve(*pool, 2 * kBlockTokens));
  std::vector<std::pair<const std::byte*, const std::byte*>> spans;
  for (int64_t s = 0; s < static_cast<int64_t>(layout.sources.size()); ++s) {
    const kernels::CompressedCache cache = (*state)->compressed(s);
    EXPECT_EQ(cache.page_entries * layout.sources[static_cast<size_t>(s)].ratio, kBlockTokens);
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
