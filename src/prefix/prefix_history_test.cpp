// SPDX-License-Identifier: Apache-2.0
// Random histories of the prefix cache: many requests at once, small budgets, a disk that fails. After every
// step pages are conserved, and a hit never holds another page's content.
#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <string>

#include "prefix/fake_disk.h"
#include "prefix/fake_requests.h"

namespace rorqual::prefix {
namespace {

using model::PageId;
using model::PageKind;

constexpr int64_t kPage = 4;
constexpr int64_t kWindowPages = 2;

// Prompts that share beginnings: at each fork one of three ways.
std::vector<int32_t> branching_text(std::mt19937_64& random, int64_t max_tokens) {
  std::vector<int32_t> tokens;
  const auto size = static_cast<int64_t>(random() % static_cast<uint64_t>(max_tokens)) + 1;
  int32_t way = 0;
  while (static_cast<int64_t>(tokens.size()) < size) {
    if (tokens.size() % 7 == 0)
      way = (way * 3 + static_cast<int32_t>(random() % 5 == 0 ? random() % 3 : 0)) % 1000003;
    tokens.push_back(way % 1000 * 100 + static_cast<int32_t>(tokens.size() % 100));
  }
  return tokens;
}

// A request somewhere between its lookup and its end.
struct Running {
  std::vector<int32_t> tokens;
  PageKey root;
  std::vector<PageKey> keys;
  PrefixHit hit;
  bool is_opened = false;
  std::vector<PageId> blocks;  // once opened

  PrefixCache::Query query() const {
    return {.tokens = tokens, .keys = keys, .root = root, .limit = static_cast<int64_t>(tokens.size()) - 1};
  }
};

class PrefixHistory : public testing::TestWithParam<bool> {
 protected:
  PrefixHistory()
      : seed_(std::random_device{}()),
        random_(seed_),
        disk_(GetParam() ? std::make_shared<FakeDisk>() : nullptr),
        pages_({.page_tokens = kPage, .blocks = 300, .windows = 120, .block_bytes = 32, .window_bytes = 32}),
        cache_(pages_, {.model_identity = "model",
                        .max_bytes = 2 * 32 * 90,
                        .window_pages = kWindowPages,
                        .replay_rows = 20,
                        .replay_cost = 13,
                        .max_ghosts = 20,
                        .disk = disk_}),
        requests_(pages_, cache_, kWindowPages) {
    if (!disk_) return;
    disk_->is_damaged = [this](const PageKey&) { return random_() % 50 == 0; };
    disk_->is_full = [this](const DiskPage&) { return random_() % 20 == 0; };
  }

  bool chance(uint64_t one_of) { return random_() % one_of == 0; }

  void look_up() {
    Running request;
    request.tokens = branching_text(random_, 120);
    request.root = root_key("model", chance(6) ? "salt" : "");
    request.keys = page_keys(request.root, {.tokens = request.tokens}, kPage,
                             static_cast<int64_t>(request.tokens.size()) / kPage);
    request.hit = cache_.find(request.query());
    running_.push_back(std::move(request));
  }

  // Decides, checks the hit, takes its pages and new ones, and offers all.
  void open(Running& request) {
    cache_.finish(request.query(), request.hit);
    const MissReport miss = cache_.explain(request.query(), request.hit);
    hit_tokens_ += request.hit.cached_tokens();
    disk_hit_tokens_ += request.hit.disk_tokens();
    requests_.check_hit(request.hit, request.keys);
    const int64_t cached = request.hit.cached_tokens();
    ASSERT_LT(cached, static_cast<int64_t>(request.tokens.size()));
    ASSERT_GE(request.hit.resume_position(), 0);
    ASSERT_GE(miss.common_tokens, cached);
    request.blocks.assign(request.hit.blocks().begin(), request.hit.blocks().end());
    for (const PageId page : request.blocks) pages_.retain(PageKind::block, page);
    request.hit = PrefixHit();
    request.is_opened = true;
    for (size_t i = request.blocks.size(); i < request.keys.size(); ++i) {
      const PageId block = take(PageKind::block, request.keys[i]);
      if (block == model::kNoPage) return;
      request.blocks.push_back(block);
      const PageId window = chance(3) ? take(PageKind::window, request.keys[i]) : model::kNoPage;
      cache_.offer({.key = request.keys[i],
                    .parent = i == 0 ? request.root : request.keys[i - 1],
                    .tokens = std::span(request.tokens).subspan(i * kPage, kPage),
                    .block = block,
                    .window = window,
                    .window_use = static_cast<PrefixCache::WindowUse>(random_() % 3)});
      if (window != model::kNoPage) pages_.release(PageKind::window, window);
    }
  }

  PageId take(PageKind kind, const PageKey& key) {
    if (pages_.pages_free(kind) == 0 && !cache_.make_room(kind, 1)) return model::kNoPage;
    const PageId page = *pages_.allocate(kind);
    pages_.write(kind, page, page_content(key, kind, 32));
    return page;
  }

  void end(size_t index) {
    for (const PageId page : running_[index].blocks) pages_.release(PageKind::block, page);
    running_.erase(running_.begin() + static_cast<ptrdiff_t>(index));
  }

  void step() {
    if (running_.empty() || chance(4)) look_up();
    const size_t index = random_() % running_.size();
    Running& request = running_[index];
    if (request.is_opened) {
      if (chance(2)) end(index);
    } else if (chance(2)) {
      auto budget = static_cast<int64_t>(random_() % 200);
      cache_.fetch(request.hit, budget);
      ASSERT_GE(budget, 0);
    } else if (chance(8)) {
      end(index);  // cancelled while it waited
    } else {
      open(request);
    }
    if (chance(40)) cache_.make_room(PageKind::window, static_cast<int64_t>(random_() % 130));
    if (chance(60)) cache_.make_room(PageKind::block, static_cast<int64_t>(random_() % 310));
  }

  void check() const {
    const PrefixCacheStats& stats = cache_.stats();
    int64_t blocks = stats.blocks;
    bool has_hits = false;
    for (const Running& request : running_) {
      blocks += static_cast<int64_t>(request.blocks.size() + request.hit.blocks().size());
      has_hits = has_hits || !request.is_opened;
    }
    ASSERT_EQ(pages_.holds(PageKind::block), blocks);
    ASSERT_GE(pages_.holds(PageKind::window), stats.windows);
    ASSERT_TRUE(has_hits || pages_.holds(PageKind::window) == stats.windows);
    ASSERT_LE(stats.blocks, 90);
    ASSERT_LE(stats.windows, 90);
    ASSERT_EQ(stats.mismatches, 0);
  }

  const uint64_t seed_;
  std::mt19937_64 random_;
  std::shared_ptr<FakeDisk> disk_;
  FakePages pages_;
  PrefixCache cache_;
  FakeRequests requests_;
  std::vector<Running> running_;
  int64_t hit_tokens_ = 0, disk_hit_tokens_ = 0;
};

TEST_P(PrefixHistory, ConservesPagesAndServesTheRightOnes) {
  SCOPED_TRACE("seed " + std::to_string(seed_));
  for (int i = 0; i < 6000 && !HasFailure(); ++i) {
    step();
    check();
  }
  EXPECT_GT(hit_tokens_, 1000);
  EXPECT_GT(cache_.stats().evicted_blocks, 50);
  EXPECT_TRUE(!disk_ || disk_hit_tokens_ > 200);
  while (!running_.empty()) end(0);
  EXPECT_TRUE(cache_.make_room(PageKind::block, 300));
  EXPECT_TRUE(cache_.make_room(PageKind::window, 120));
  check();
  EXPECT_EQ(pages_.pages_free(PageKind::block), 300);
  EXPECT_EQ(pages_.pages_free(PageKind::window), 120);
}

INSTANTIATE_TEST_SUITE_P(WithAndWithoutDisk, PrefixHistory, testing::Bool(),
                         [](const auto& test) { return test.param ? "Disk" : "Memory"; });

// With room for all, a lookup finds exactly the longest whole pages in common with any earlier prompt.
TEST(PrefixHistory, FindsTheLongestKeptPrefix) {
  const uint64_t seed = std::random_device{}();
  SCOPED_TRACE("seed " + std::to_string(seed));
  std::mt19937_64 random(seed);
  FakePages pages(
      {.page_tokens = kPage, .blocks = 20000, .windows = 20000, .block_bytes = 16, .window_bytes = 16});
  PrefixCache cache(pages, {.model_identity = "model",
                            .max_bytes = int64_t{1} << 30,
                            .window_pages = kWindowPages,
                            .replay_rows = 1,
                            .replay_cost = 0,
                            .disk = nullptr});
  FakeRequests requests(pages, cache, kWindowPages);
  std::vector<std::vector<int32_t>> earlier;
  for (int i = 0; i < 400; ++i) {
    const auto prompt = branching_text(random, 150);
    int64_t common = 0;
    for (const auto& old : earlier) {
      // Only whole pages of the earlier one are kept.
      const auto whole = static_cast<ptrdiff_t>(old.size()) / kPage * kPage;
      const auto [a, b] = std::mismatch(prompt.begin(), prompt.end(), old.begin(), old.begin() + whole);
      common = std::max<int64_t>(common, a - prompt.begin());
    }
    const FakeOutcome outcome = requests.run({.prompt = prompt});
    const auto limit = static_cast<int64_t>(prompt.size()) - 1;
    ASSERT_EQ(outcome.cached, std::min(common, limit) / kPage * kPage);
    ASSERT_EQ(outcome.miss.common_tokens, common) << miss_reason_name(outcome.miss.reason);
    earlier.push_back(prompt);
  }
}

}  // namespace
}  // namespace rorqual::prefix
