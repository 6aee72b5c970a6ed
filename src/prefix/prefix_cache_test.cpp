// SPDX-License-Identifier: Apache-2.0
#include "prefix/prefix_cache.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <random>

#include "prefix/fake_disk.h"
#include "prefix/fake_requests.h"

namespace rorqual::prefix {
namespace {

using model::PageKind;
using testing::ElementsAre;

constexpr int64_t kPage = 4;

std::vector<int32_t> text(int64_t count, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::vector<int32_t> tokens(static_cast<size_t>(count));
  for (auto& token : tokens) token = static_cast<int32_t>(random() % 100000);
  return tokens;
}

std::vector<int32_t> operator+(std::vector<int32_t> a, const std::vector<int32_t>& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

// A cache over pages of four tokens that needs two window pages; a replay costs 10 rows of 14.
struct Shape {
  FakePagesOptions pages{
      .page_tokens = kPage, .blocks = 400, .windows = 100, .block_bytes = 48, .window_bytes = 80};
  int64_t max_bytes = 2 * 80 * 1000;
  int64_t window_pages = 2, replay_rows = 14, replay_cost = 10;
  std::shared_ptr<DiskTier> disk = nullptr;
  int64_t max_ghosts = 1000;
};

struct World {
  explicit World(const Shape& shape = {})
      : pages(shape.pages),
        cache(pages, {.model_identity = "model",
                      .max_bytes = shape.max_bytes,
                      .window_pages = shape.window_pages,
                      .replay_rows = shape.replay_rows,
                      .replay_cost = shape.replay_cost,
                      .max_ghosts = shape.max_ghosts,
                      .disk = shape.disk}),
        requests(pages, cache, shape.window_pages) {}

  FakeOutcome run(std::vector<int32_t> prompt, std::vector<int32_t> reply = {}) {
    return requests.run({.prompt = std::move(prompt), .reply = std::move(reply)});
  }

  // Nobody but the cache holds pages, and each of its pages once.
  void expect_conserved() const {
    const PrefixCacheStats& stats = cache.stats();
    EXPECT_EQ(pages.holds(PageKind::block), stats.blocks);
    EXPECT_EQ(pages.holds(PageKind::window), stats.windows);
    EXPECT_EQ(pages.pages_total(PageKind::block) - pages.pages_free(PageKind::block), stats.blocks);
  }

  FakePages pages;
  PrefixCache cache;
  FakeRequests requests;
};

TEST(PrefixCache, ReusesFromOnePageOnAndAlwaysLeavesATokenToCompute) {
  for (int64_t size = 1; size <= 5 * kPage + 1; ++size) {
    World world;
    const auto prompt = text(size, 1);
    EXPECT_EQ(world.run(prompt).cached, 0);
    const FakeOutcome again = world.run(prompt);
    EXPECT_EQ(again.cached, (size - 1) / kPage * kPage) << size;
    EXPECT_EQ(again.miss.reason, size <= kPage ? MissReason::too_short : MissReason::none);
    EXPECT_EQ(again.replayed, 0);
    world.expect_conserved();
  }
}

TEST(PrefixCache, AConversationFindsItsWholePastEachTurn) {
  World world;
  std::vector<int32_t> history = text(37, 1);
  int64_t kept = 0;
  for (uint64_t turn = 0; turn < 8; ++turn) {
    const auto reply = text(11, 100 + turn);
    const FakeOutcome outcome = world.run(history, reply);
    EXPECT_EQ(outcome.cached, kept / kPage * kPage) << turn;
    kept = static_cast<int64_t>(history.size() + reply.size());
    history = history + reply + text(9, 200 + turn);
  }
  world.expect_conserved();
}

TEST(PrefixCache, DroppedReasoningStillFindsThePromptsEnd) {
  World world;
  std::vector<int32_t> history = text(41, 1);
  int64_t prompt_end = 0;
  for (uint64_t turn = 0; turn < 6; ++turn) {
    const FakeOutcome outcome = world.run(history, text(30, 300 + turn) + text(5, 400 + turn));
    EXPECT_EQ(outcome.cached, prompt_end / kPage * kPage) << turn;
    EXPECT_EQ(outcome.replayed, 0);
    prompt_end = static_cast<int64_t>(history.size());
    history = history + text(5, 400 + turn) + text(8, 500 + turn);
  }
}

TEST(PrefixCache, TheReplysWindowsDoNotDriveOutThePromptsInTheSmallestBudget) {
  Shape shape;
  shape.window_pages = 1;
  shape.replay_rows = shape.replay_cost = 0;  // windows or nothing
  shape.pages.block_bytes = 1;
  shape.max_bytes = 2 * 80 * 2;  // two windows, those before the last two page ends
  World world(shape);
  std::vector<int32_t> history = text(41, 1);
  int64_t prompt_end = 0;
  for (uint64_t turn = 0; turn < 4; ++turn) {
    EXPECT_EQ(world.run(history, text(25, 300 + turn)).cached, prompt_end / kPage * kPage) << turn;
    prompt_end = static_cast<int64_t>(history.size());
    history = history + text(12, 500 + turn);
  }
  EXPECT_EQ(world.cache.stats().windows, 2);
}

TEST(PrefixCache, SaltsShareNothing) {
  World world;
  const auto prompt = text(30, 1);
  world.run(prompt);
  EXPECT_EQ(world.requests.run({.prompt = prompt, .salt = "b"}).cached, 0);
  EXPECT_EQ(world.requests.run({.prompt = prompt, .salt = "b"}).cached, 28);
  EXPECT_EQ(world.run(prompt).cached, 28);
}

TEST(PrefixCache, WithoutWindowsReplaysWhereThatCostsLessThanARestart) {
  World world;
  const auto prompt = text(10 * kPage + 1, 1);
  world.requests.run({.prompt = prompt, .keeps_windows = false});
  const FakeOutcome replay = world.run(prompt);
  EXPECT_EQ(replay.cached, 10 * kPage);
  EXPECT_EQ(replay.replayed, 14);
  EXPECT_EQ(replay.miss.reason, MissReason::none);

  // Two pages past a snapshot: restarting there costs 8 rows, a replay 10.
  World near;
  near.requests.run({.prompt = text(8 * kPage, 2)});
  const auto longer = text(8 * kPage, 2) + text(2 * kPage + 1, 3);
  near.requests.run({.prompt = longer, .keeps_windows = false});
  const FakeOutcome restart = near.run(longer);
  EXPECT_EQ(restart.cached, 8 * kPage);
  EXPECT_EQ(restart.replayed, 0);
  EXPECT_EQ(restart.miss.reason, MissReason::windows_missing);
  EXPECT_EQ(restart.miss.position, 8 * kPage);
  EXPECT_EQ(restart.miss.common_tokens, 10 * kPage);

  // Three pages: 12 rows, so the replay is taken.
  World far;
  far.requests.run({.prompt = text(8 * kPage, 2)});
  const auto longest = text(8 * kPage, 2) + text(3 * kPage + 1, 3);
  far.requests.run({.prompt = longest, .keeps_windows = false});
  EXPECT_EQ(far.run(longest).replayed, 14);
}

TEST(PrefixCache, AReplayReachesTheBeginningOfAShortPrompt) {
  Shape shape;
  shape.replay_rows = 100;
  shape.replay_cost = 3;
  World world(shape);
  const auto prompt = text(5 * kPage + 1, 1);
  world.requests.run({.prompt = prompt, .keeps_windows = false});
  const FakeOutcome outcome = world.run(prompt);
  EXPECT_EQ(outcome.cached, 5 * kPage);
  EXPECT_EQ(outcome.replayed, 5 * kPage);
}

TEST(PrefixCache, TrimTakesBlocksAndReplaysSoManyRows) {
  World world;
  const auto prompt = text(10 * kPage + 1, 1);
  world.run(prompt);
  for (const int64_t rows : {1, 7, 1000}) {
    const FakeOutcome outcome = world.requests.run({.prompt = prompt, .trim_rows = rows});
    EXPECT_EQ(outcome.cached, 10 * kPage);
    EXPECT_EQ(outcome.replayed, std::min<int64_t>(rows, 10 * kPage));
  }
}

TEST(PrefixCache, BlocksLeaveLeafFirstOldestFirst) {
  Shape shape;
  shape.max_bytes = 2 * 48 * 20;  // 20 blocks
  World world(shape);
  const auto a = text(8 * kPage + 1, 1), b = text(8 * kPage + 1, 2), c = text(10 * kPage + 1, 3);
  world.run(a);
  world.run(b);
  world.run(a);  // b is now the older one
  world.run(c);
  EXPECT_EQ(world.cache.stats().blocks, 20);
  EXPECT_EQ(world.cache.stats().evicted_blocks, 6);
  EXPECT_EQ(world.run(a).cached, 8 * kPage);
  const FakeOutcome back = world.run(b);
  EXPECT_EQ(back.miss.reason, MissReason::evicted);
  EXPECT_LE(back.miss.position, 2 * kPage);
  world.expect_conserved();
}

TEST(PrefixCache, AlternatingConversationsKeepTheBeginningOfTheOneThatIsAdmitted) {
  Shape shape;
  shape.max_bytes = 2 * 48 * 15;  // one and a half
  World world(shape);
  const auto a = text(10 * kPage + 1, 1), b = text(10 * kPage + 1, 2);
  world.run(a);
  world.run(b);
  for (int i = 0; i < 6; ++i) EXPECT_GT(world.run(i % 2 == 0 ? a : b).cached, 0) << i;
}

TEST(PrefixCache, PagesOfAHitStayUntilItEnds) {
  Shape shape;
  shape.max_bytes = 2 * 48 * 10;
  World world(shape);
  const auto a = text(8 * kPage + 1, 1);
  world.run(a);
  const PageKey root = root_key("model", "");
  const auto keys = page_keys(root, {.tokens = a}, kPage, 8);
  {
    PrefixHit hit = world.cache.find({.tokens = a, .keys = keys, .root = root, .limit = 8 * kPage});
    world.run(text(20 * kPage, 2));
    world.cache.make_room(PageKind::block, 400);
    world.cache.make_room(PageKind::window, 100);
    EXPECT_EQ(world.cache.stats().blocks, 8);
    int64_t budget = 1;
    EXPECT_TRUE(world.cache.fetch(hit, budget));
    world.cache.finish({.tokens = a, .keys = keys, .root = root, .limit = 8 * kPage}, hit);
    EXPECT_EQ(hit.cached_tokens(), 8 * kPage);
    world.requests.check_hit(hit, keys);
  }
  EXPECT_TRUE(world.cache.make_room(PageKind::block, 400));
  EXPECT_TRUE(world.cache.make_room(PageKind::window, 100));
  EXPECT_EQ(world.cache.stats().bytes, 0);
  world.expect_conserved();
}

TEST(PrefixCache, MakeRoomSparesPagesThatSequencesHold) {
  World world;
  const auto a = text(8 * kPage + 1, 1);
  world.run(a);
  world.run(text(8 * kPage + 1, 2));
  const PageKey root = root_key("model", "");
  const auto keys = page_keys(root, {.tokens = a}, kPage, 8);
  std::vector<model::PageId> sequence;
  {
    PrefixHit hit = world.cache.find({.tokens = a, .keys = keys, .root = root, .limit = 8 * kPage});
    sequence.assign(hit.blocks().begin(), hit.blocks().end());
    for (const auto id : sequence) world.pages.retain(PageKind::block, id);
  }
  EXPECT_FALSE(world.cache.make_room(PageKind::block, 393));
  EXPECT_EQ(world.cache.stats().blocks, 8);
  EXPECT_TRUE(world.cache.make_room(PageKind::block, 392));
  for (const auto id : sequence) world.pages.release(PageKind::block, id);
  EXPECT_EQ(world.run(a).cached, 8 * kPage);
  world.expect_conserved();
}

TEST(PrefixCache, APageWithoutItsParentIsNotKept) {
  World world;
  const auto tokens = text(2 * kPage, 1);
  const PageKey root = root_key("model", "");
  const auto keys = page_keys(root, {.tokens = tokens}, kPage, 2);
  const auto block = *world.pages.allocate(PageKind::block);
  world.cache.offer(
      {.key = keys[1], .parent = keys[0], .tokens = std::span(tokens).subspan(kPage), .block = block});
  EXPECT_EQ(world.cache.stats().blocks, 0);
  world.pages.release(PageKind::block, block);
  world.expect_conserved();
}

TEST(PrefixCache, EqualKeysOfOtherTokensAreNeverServed) {
  World world;
  const auto a = text(3 * kPage + 1, 1), b = text(3 * kPage + 1, 2);
  world.run(a);
  const PageKey root = root_key("model", "");
  const auto keys = page_keys(root, {.tokens = a}, kPage, 3);
  const PrefixCache::Query query{.tokens = b, .keys = keys, .root = root, .limit = 3 * kPage};
  PrefixHit hit = world.cache.find(query);
  int64_t budget = 1;
  EXPECT_TRUE(world.cache.fetch(hit, budget));
  world.cache.finish(query, hit);
  EXPECT_EQ(hit.cached_tokens(), 0);
  EXPECT_EQ(world.cache.stats().mismatches, 1);
  const auto block = *world.pages.allocate(PageKind::block);
  world.cache.offer({.key = keys[0], .parent = root, .tokens = std::span(b).first(kPage), .block = block});
  EXPECT_EQ(world.cache.stats().mismatches, 2);
  EXPECT_EQ(world.pages.holders(PageKind::block, block), 1);
  world.pages.release(PageKind::block, block);
}

TEST(PrefixCache, OffKeepsNothingAndSaysSo) {
  Shape shape;
  shape.max_bytes = 0;
  World world(shape);
  const auto a = text(8 * kPage + 1, 1);
  world.run(a);
  const FakeOutcome outcome = world.run(a);
  EXPECT_EQ(outcome.cached, 0);
  EXPECT_EQ(outcome.miss.reason, MissReason::off);
  world.expect_conserved();
}

TEST(PrefixCache, ALaterWindowIsAddedToAKeptPage) {
  World world;
  const auto a = text(4 * kPage + 1, 1);
  world.requests.run({.prompt = a, .keeps_windows = false});
  EXPECT_EQ(world.cache.stats().windows, 0);
  world.run(a);  // a replay of 14 rows would cost 10 of 16
  const PageKey root = root_key("model", "");
  const auto keys = page_keys(root, {.tokens = a}, kPage, 4);
  for (size_t i = 0; i < 4; ++i) {
    const auto block = *world.pages.allocate(PageKind::block),
               window = *world.pages.allocate(PageKind::window);
    world.pages.write(PageKind::window, window, page_content(keys[i], PageKind::window, 80));
    world.cache.offer({.key = keys[i],
                       .parent = i == 0 ? root : keys[i - 1],
                       .tokens = std::span(a).subspan(i * kPage, kPage),
                       .block = block,
                       .window = window});
    EXPECT_EQ(world.pages.holders(PageKind::block, block), 1) << "the kept block stays";
    EXPECT_EQ(world.pages.holders(PageKind::window, window), 2);
    world.pages.release(PageKind::block, block);
    world.pages.release(PageKind::window, window);
  }
  const FakeOutcome outcome = world.run(a);
  EXPECT_EQ(outcome.cached, 4 * kPage);
  EXPECT_EQ(outcome.replayed, 0);
}

TEST(PrefixCache, IntervalWindowsLeaveBeforeThoseOfPromptEnds) {
  Shape shape;
  shape.max_bytes = 2 * 80 * 12;  // twelve windows
  shape.pages.block_bytes = 1;
  shape.replay_rows = shape.replay_cost = 0;
  World world(shape);
  const auto a = text(20 * kPage + 1, 1), b = text(60 * kPage + 1, 2);
  world.run(a);
  world.requests.run({.prompt = b, .interval = 2 * kPage});
  EXPECT_EQ(world.run(a).cached, 20 * kPage) << "the other prompt's end survived a long prompt's snapshots";
}

TEST(PrefixCache, FetchesFromDiskInParts) {
  const auto disk = std::make_shared<FakeDisk>();
  Shape shape;
  shape.disk = disk;
  const auto a = text(10 * kPage + 1, 1);
  {
    World world(shape);
    world.run(a);
  }
  World world(shape);
  FakeRequest request{.prompt = a, .fetch_bytes = 1};
  const FakeOutcome outcome = world.requests.run(request);
  EXPECT_EQ(outcome.cached, 10 * kPage);
  EXPECT_EQ(outcome.disk, 10 * kPage);
  EXPECT_EQ(outcome.replayed, 0);
  EXPECT_EQ(outcome.fetches, 9) << "one page a call";
  const FakeOutcome again = world.requests.run(request);
  EXPECT_EQ(again.cached, 10 * kPage);
  EXPECT_EQ(again.disk, 0);
  EXPECT_EQ(disk->stats().read_pages, 10);
  world.expect_conserved();
}

TEST(PrefixCache, FetchingLowersTheBudgetByWhatItRead) {
  const auto disk = std::make_shared<FakeDisk>();
  Shape shape;
  shape.disk = disk;
  const auto a = text(10 * kPage + 1, 1);
  World(shape).run(a);
  World world(shape);
  const PageKey root = root_key("model", "");
  const auto keys = page_keys(root, {.tokens = a}, kPage, 10);
  PrefixHit hit = world.cache.find({.tokens = a, .keys = keys, .root = root, .limit = 10 * kPage});
  int64_t budget = 0;
  EXPECT_FALSE(world.cache.fetch(hit, budget));
  EXPECT_EQ(disk->stats().read_pages, 0) << "no budget, no read";
  budget = 3 * 48 - 1;
  EXPECT_FALSE(world.cache.fetch(hit, budget));
  EXPECT_EQ(disk->stats().read_bytes, 3 * 48);
  EXPECT_EQ(budget, 0);
  budget = 10000;
  EXPECT_TRUE(world.cache.fetch(hit, budget));
  EXPECT_EQ(10000 - budget, disk->stats().read_bytes - 3 * 48);
  EXPECT_EQ(disk->stats().read_pages, 10);
}

TEST(PrefixCache, ADiskThatNeverDeliversIsGivenUp) {
  const auto disk = std::make_shared<FakeDisk>();
  Shape shape;
  shape.disk = disk;
  shape.replay_rows = shape.replay_cost = 0;  // windows or nothing
  World world(shape);
  const auto a = text(40 * kPage + 1, 1);
  world.requests.run({.prompt = a, .interval = kPage});
  EXPECT_TRUE(world.cache.make_room(PageKind::window, 100));
  disk->is_damaged = [](const PageKey&) { return true; };
  const FakeOutcome outcome = world.run(a);
  EXPECT_EQ(outcome.cached, 0);
  EXPECT_EQ(outcome.miss.reason, MissReason::disk_error);
  EXPECT_EQ(disk->stats().damaged_pages, 16);
  world.expect_conserved();
}

TEST(PrefixCache, ARequestThatDoesNotWaitForTheDiskUsesWhatIsThere) {
  const auto disk = std::make_shared<FakeDisk>();
  Shape shape;
  shape.disk = disk;
  const auto a = text(10 * kPage + 1, 1);
  World(shape).run(a);
  World world(shape);
  FakeRequest request{.prompt = a, .fetch_bytes = 1, .max_fetches = 5};
  const FakeOutcome outcome = world.requests.run(request);
  EXPECT_EQ(outcome.cached, 5 * kPage);
  EXPECT_EQ(outcome.replayed, 14);
  world.expect_conserved();
}

TEST(PrefixCache, AHitLongerThanTheBudgetIsHeldByTheRequestAlone) {
  const auto disk = std::make_shared<FakeDisk>();
  Shape shape;
  shape.disk = disk;
  const auto a = text(30 * kPage + 1, 1);
  World(shape).run(a);
  shape.max_bytes = 2 * 80 * 8;
  World world(shape);
  const FakeOutcome outcome = world.run(a);
  EXPECT_EQ(outcome.cached, 30 * kPage);
  EXPECT_EQ(outcome.disk, 30 * kPage);
  EXPECT_EQ(world.cache.stats().blocks, 2 * 80 * 8 / 2 / 48);
  world.expect_conserved();
}

TEST(PrefixCache, WindowsThatLeftMemoryComeBackFromDisk) {
  const auto disk = std::make_shared<FakeDisk>();
  Shape shape;
  shape.disk = disk;
  World world(shape);
  const auto a = text(10 * kPage + 1, 1);
  world.run(a);
  EXPECT_TRUE(world.cache.make_room(PageKind::window, 100));
  const FakeOutcome outcome = world.run(a);
  EXPECT_EQ(outcome.cached, 10 * kPage);
  EXPECT_EQ(outcome.replayed, 0);
  EXPECT_EQ(outcome.disk, 0) << "the blocks were in memory";
  EXPECT_EQ(disk->stats().read_pages, 2);
}

TEST(PrefixCache, PagesThatTheDiskLostAreWrittenAgainWhenTheyAreUsed) {
  const auto disk = std::make_shared<FakeDisk>();
  Shape shape;
  shape.disk = disk;
  const auto a = text(10 * kPage + 1, 1);
  const auto keys = page_keys(root_key("model", ""), {.tokens = a}, kPage, 10);
  {
    World world(shape);
    world.run(a);
    disk->erase(keys[3]);
    disk->erase(keys[7]);
    world.run(a);
  }
  World world(shape);
  EXPECT_EQ(world.run(a).cached, 10 * kPage);
}

TEST(PrefixCache, OneMillionTokensAreLookedUpInMilliseconds) {
  Shape shape;
  shape.pages = {.page_tokens = 64, .blocks = 16400, .windows = 600, .block_bytes = 8, .window_bytes = 8};
  shape.max_bytes = int64_t{1} << 30;
  World world(shape);
  const auto a = text(1 << 20, 1);
  world.requests.run({.prompt = a, .interval = 4096});
  const PageKey root = root_key("model", "");
  const auto keys = page_keys(root, {.tokens = a}, 64, 16384);
  const PrefixCache::Query query{.tokens = a, .keys = keys, .root = root, .limit = (1 << 20) - 1};
  const auto begin = std::chrono::steady_clock::now();
  PrefixHit hit = world.cache.find(query);
  int64_t budget = 1;
  EXPECT_TRUE(world.cache.fetch(hit, budget));
  world.cache.finish(query, hit);
  const double ms =
      std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - begin).count();
  EXPECT_EQ(hit.cached_tokens(), (1 << 20) - 64);
  RecordProperty("lookup_us", static_cast<int>(ms * 1000));
  std::printf("lookup of 16,383 pages: %.2f ms\n", ms);
  EXPECT_LT(ms, 500) << "far from what anything but a linear lookup takes";
}

TEST(PrefixCache, WindowTargetsAreTheEndsThatLaterPromptsContinueFrom) {
  EXPECT_THAT(window_targets(3, {}, 0, 4), ElementsAre());
  EXPECT_THAT(window_targets(4, {}, 0, 4), ElementsAre(4));
  EXPECT_THAT(window_targets(23, {}, 0, 4), ElementsAre(16, 20));
  EXPECT_THAT(window_targets(24, {}, 8, 4), ElementsAre(8, 16, 20, 24));
  const std::vector<int64_t> breakpoints{3, 5, 12, 1000};
  EXPECT_THAT(window_targets(41, breakpoints, 0, 4), ElementsAre(4, 12, 36, 40));
}

}  // namespace
}  // namespace rorqual::prefix
