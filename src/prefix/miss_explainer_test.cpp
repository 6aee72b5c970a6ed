// SPDX-License-Identifier: Apache-2.0
// Staged misses: each case makes one cause and expects it to be named, with the place and the tokens.
#include "prefix/miss_explainer.h"

#include <gtest/gtest.h>

#include <random>
#include <set>
#include <string>

#include "prefix/fake_disk.h"
#include "prefix/fake_requests.h"

namespace rorqual::prefix {
namespace {

using model::PageKind;

constexpr int64_t kPage = 16;

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

std::vector<int32_t> with(std::vector<int32_t> tokens, int64_t position, int32_t token) {
  tokens[static_cast<size_t>(position)] = token;
  return tokens;
}

// Pages of 16 tokens, windows of two, a replay of 40 rows costs 24.
class StagedMiss : public testing::Test {
 protected:
  StagedMiss() { restart(); }

  // A new process over the same disk.
  void restart(int64_t max_bytes = int64_t{1} << 20) {
    requests_.reset();
    cache_.reset();
    pages_ = std::make_unique<FakePages>(FakePagesOptions{
        .page_tokens = kPage, .blocks = 500, .windows = 200, .block_bytes = 48, .window_bytes = 64});
    cache_ = std::make_unique<PrefixCache>(*pages_, PrefixCacheOptions{.model_identity = "model",
                                                                       .max_bytes = max_bytes,
                                                                       .window_pages = 2,
                                                                       .replay_rows = 40,
                                                                       .replay_cost = 24,
                                                                       .max_ghosts = 100,
                                                                       .disk = disk_});
    requests_ = std::make_unique<FakeRequests>(*pages_, *cache_, 2);
  }

  void use_disk() {
    disk_ = std::make_shared<FakeDisk>();
    restart();
  }

  FakeOutcome run(const std::vector<int32_t>& prompt, const std::vector<int32_t>& reply = {}) {
    return requests_->run({.prompt = prompt, .reply = reply});
  }

  static void expect(const MissReport& miss, MissReason reason, int64_t position, int64_t common) {
    EXPECT_EQ(miss_reason_name(miss.reason), miss_reason_name(reason));
    EXPECT_EQ(miss.position, position);
    EXPECT_EQ(miss.common_tokens, common);
    const bool has_tokens = reason == MissReason::tokens_differ;
    if (reason != MissReason::first_seen) {
      EXPECT_EQ(miss.token.has_value(), has_tokens);
      EXPECT_EQ(miss.kept_token.has_value(), has_tokens);
    }
  }

  static void expect_differs(const MissReport& miss, int64_t position, int32_t token, int32_t kept) {
    expect(miss, MissReason::tokens_differ, position, position);
    EXPECT_EQ(miss.token, token);
    EXPECT_EQ(miss.kept_token, kept);
  }

  // Of a prompt without images, for the steps of a lookup one by one.
  struct Lookup {
    explicit Lookup(std::vector<int32_t> tokens)
        : prompt(std::move(tokens)),
          keys(page_keys(root_key("model", ""), {.tokens = prompt}, kPage,
                         static_cast<int64_t>(prompt.size()) / kPage)),
          query{.tokens = prompt,
                .keys = keys,
                .root = root_key("model", ""),
                .limit = static_cast<int64_t>(prompt.size()) - 1} {}

    std::vector<int32_t> prompt;
    std::vector<PageKey> keys;
    PrefixCache::Query query;
  };

  PrefixHit look_up(const PrefixCache::Query& query) {
    PrefixHit hit = cache_->find(query);
    int64_t budget = 1 << 20;
    EXPECT_TRUE(cache_->fetch(hit, budget));
    cache_->finish(query, hit);
    return hit;
  }

  static ImageSpan image(int64_t begin, int64_t end, uint8_t fill) {
    ImageSpan span{.begin = begin, .end = end};
    span.digest.fill(fill);
    return span;
  }

  std::shared_ptr<FakeDisk> disk_;
  std::unique_ptr<FakePages> pages_;
  std::unique_ptr<PrefixCache> cache_;
  std::unique_ptr<FakeRequests> requests_;
};

TEST_F(StagedMiss, NothingIsMissedWhenAllIsReused) {
  run(text(100, 1));
  expect(run(text(100, 1)).miss, MissReason::none, 96, 96);
}

TEST_F(StagedMiss, TheFirstPromptOfAll) {
  expect(run(text(100, 1)).miss, MissReason::first_seen, 0, 0);
}

TEST_F(StagedMiss, AnotherPromptThatSharesTheChatFormatOnly) {
  run(text(5, 9) + text(100, 1));
  const MissReport miss = run(text(5, 9) + text(100, 2)).miss;
  expect(miss, MissReason::first_seen, 5, 5);
  EXPECT_EQ(miss.token, text(100, 2)[0]);
  EXPECT_EQ(miss.kept_token, text(100, 1)[0]);
}

TEST_F(StagedMiss, ADateInTheFirstPage) {
  run(with(text(100, 1), 11, 7));
  expect_differs(run(with(text(100, 1), 11, 8)).miss, 11, 8, 7);
}

TEST_F(StagedMiss, ADateInALaterPage) {
  run(with(text(100, 1), 61, 7));
  expect_differs(run(with(text(100, 1), 61, 8)).miss, 61, 8, 7);
}

TEST_F(StagedMiss, ADifferenceAtAPagesFirstToken) {
  run(text(64, 1) + text(40, 2));
  expect_differs(run(text(64, 1) + text(40, 3)).miss, 64, text(40, 3)[0], text(40, 2)[0]);
}

TEST_F(StagedMiss, ADifferenceAtAPagesLastToken) {
  run(with(text(100, 1), 63, 7));
  expect_differs(run(with(text(100, 1), 63, 8)).miss, 63, 8, 7);
}

TEST_F(StagedMiss, AChangedTurnInTheMiddleOfAConversation) {
  run(text(200, 1), text(30, 2));
  expect_differs(run(with(text(200, 1), 130, 5) + text(30, 2) + text(20, 3)).miss, 130, 5, text(200, 1)[130]);
}

TEST_F(StagedMiss, ReasoningThatIsNotSentBack) {
  const auto prompt = text(100, 1), reasoning = text(40, 2), answer = text(20, 3);
  run(prompt, reasoning + answer);
  expect_differs(run(prompt + answer + text(30, 4)).miss, 100, answer[0], reasoning[0]);
}

TEST_F(StagedMiss, TheMostSimilarOfManyIsNamed) {
  for (int32_t i = 0; i < 30; ++i) run(with(with(text(100, 1), 70, 1000 + i), 78, 2000 + i));
  expect_differs(run(with(with(text(100, 1), 70, 1017), 78, 5)).miss, 78, 5, 2017);
}

TEST_F(StagedMiss, ATurnThatWasOnlyAddedTo) {
  run(text(100, 1));
  expect(run(text(100, 1) + text(60, 2)).miss, MissReason::extends, 96, 96);
}

TEST_F(StagedMiss, AnotherImage) {
  const auto prompt = text(100, 1);
  requests_->run({.prompt = prompt, .images = {image(50, 70, 1)}});
  const FakeOutcome outcome = requests_->run({.prompt = prompt, .images = {image(50, 70, 2)}});
  EXPECT_EQ(outcome.cached, 48);
  expect(outcome.miss, MissReason::image_differs, 48, 48);
}

TEST_F(StagedMiss, AnImageInPlaceOfTheSameTokens) {
  const auto prompt = text(100, 1);
  run(prompt);
  expect(requests_->run({.prompt = prompt, .images = {image(3, 20, 1)}}).miss, MissReason::image_differs, 0,
         0);
}

TEST_F(StagedMiss, AnotherSalt) {
  run(text(100, 1));
  expect(requests_->run({.prompt = text(100, 1), .salt = "tenant"}).miss, MissReason::first_seen, 0, 0);
}

TEST_F(StagedMiss, TooShortForAPage) {
  run(text(16, 1));
  expect(run(text(16, 1)).miss, MissReason::too_short, 0, 16);
  expect(run(text(3, 1)).miss, MissReason::too_short, 0, 3);
}

TEST_F(StagedMiss, LeftToMakeRoomWhole) {
  run(text(100, 1));
  EXPECT_TRUE(cache_->make_room(PageKind::block, 500));
  expect(run(text(100, 1)).miss, MissReason::evicted, 0, 0);
}

TEST_F(StagedMiss, LeftToMakeRoomInPart) {
  run(text(100, 1));
  EXPECT_TRUE(cache_->make_room(PageKind::block, 496));
  expect(run(text(100, 1)).miss, MissReason::evicted, 64, 64);
}

TEST_F(StagedMiss, LeftBecauseTheBudgetIsSmall) {
  restart(2 * 64 * 6);
  run(text(100, 1));
  for (uint64_t seed = 2; seed < 5; ++seed) run(text(100, seed));
  EXPECT_EQ(run(text(100, 1)).miss.reason, MissReason::evicted);
}

TEST_F(StagedMiss, WindowsThatLeft) {
  run(text(33, 1));
  EXPECT_TRUE(cache_->make_room(PageKind::window, 200));
  const FakeOutcome outcome = run(text(33, 1));
  EXPECT_EQ(outcome.replayed, 32) << "for 24 of the 32 rows";
  EXPECT_EQ(outcome.miss.reason, MissReason::none);
  restart();
  run(text(17, 1));
  EXPECT_TRUE(cache_->make_room(PageKind::window, 200));
  expect(run(text(17, 1)).miss, MissReason::windows_missing, 0, 16);
}

TEST_F(StagedMiss, WindowsThatLeftUnderAnAddedTurn) {
  run(text(17, 1));
  EXPECT_TRUE(cache_->make_room(PageKind::window, 200));
  expect(run(text(17, 1) + text(60, 2)).miss, MissReason::windows_missing, 0, 16);
}

TEST_F(StagedMiss, ADamagedPageOnDisk) {
  use_disk();
  const auto prompt = text(100, 1);
  run(prompt);
  restart();
  const auto keys = page_keys(root_key("model", ""), {.tokens = prompt}, kPage, 6);
  disk_->is_damaged = [&](const PageKey& key) { return key == keys[3]; };
  const FakeOutcome outcome = run(prompt);
  EXPECT_EQ(outcome.cached, 48);
  expect(outcome.miss, MissReason::disk_error, 48, 96);
}

TEST_F(StagedMiss, ADifferenceAfterARestart) {
  use_disk();
  run(with(text(100, 1), 61, 7));
  restart();
  expect_differs(run(with(text(100, 1), 61, 8)).miss, 61, 8, 7);
}

TEST_F(StagedMiss, ADifferenceInTheFirstPageAfterARestart) {
  use_disk();
  run(with(text(100, 1), 11, 7));
  restart();
  expect_differs(run(with(text(100, 1), 11, 8)).miss, 11, 8, 7);
}

TEST_F(StagedMiss, AnAddedTurnAfterARestart) {
  use_disk();
  run(text(100, 1));
  restart();
  expect(run(text(100, 1) + text(60, 2)).miss, MissReason::extends, 96, 96);
}

TEST_F(StagedMiss, NoRoomForWhatIsOnDisk) {
  use_disk();
  run(text(100, 1));
  restart();
  std::vector<model::PageId> taken;
  while (const auto page = pages_->allocate(PageKind::block)) taken.push_back(*page);
  for (int i = 0; i < 3; ++i) pages_->release(PageKind::block, taken[static_cast<size_t>(i)]);
  const Lookup lookup(text(100, 1));
  PrefixHit hit = look_up(lookup.query);
  expect(cache_->explain(lookup.query, hit), MissReason::evicted, 48, 96);
}

TEST_F(StagedMiss, Off) {
  restart(0);
  run(text(100, 1));
  expect(run(text(100, 1)).miss, MissReason::off, 0, 0);
}

TEST_F(StagedMiss, OnlyExplainingListsWhatIsOnDiskAndNotMuch) {
  use_disk();
  for (int32_t i = 0; i < 30; ++i) run(with(text(100, 1), 61, 1000 + i));
  restart();
  disk_->num_lists = 0;
  const Lookup lookup(with(text(100, 1), 61, 7));
  PrefixHit hit = look_up(lookup.query);
  EXPECT_EQ(disk_->num_lists, 0);
  EXPECT_EQ(hit.cached_tokens(), 48);
  const MissReport miss = cache_->explain(lookup.query, hit);
  EXPECT_EQ(miss.reason, MissReason::tokens_differ);
  EXPECT_EQ(miss.position, 61);
  EXPECT_EQ(disk_->num_lists, 1);
  EXPECT_EQ(disk_->most_listed, 16);
}

TEST_F(StagedMiss, ThePageThatWasComparedWithLeavesBeforeItIsExplained) {
  run(with(text(100, 1), 11, 7));
  const Lookup lookup(with(text(100, 1), 11, 8));
  PrefixHit hit = look_up(lookup.query);
  EXPECT_TRUE(cache_->make_room(PageKind::block, 500));
  expect_differs(cache_->explain(lookup.query, hit), 11, 8, 7);
}

TEST_F(StagedMiss, TheMissingPageComesBeforeItIsExplained) {
  for (const bool has_disk : {false, true}) {
    if (has_disk) use_disk();
    const Lookup lookup(text(100, 1));
    PrefixHit hit = look_up(lookup.query);
    run(text(100, 1));
    expect(cache_->explain(lookup.query, hit), MissReason::first_seen, 0, 0);
  }
}

TEST(MissReasons, HaveNamesOfTheirOwn) {
  std::set<std::string_view> names;
  for (int i = 0; i < kMissReasons; ++i) names.insert(miss_reason_name(static_cast<MissReason>(i)));
  EXPECT_EQ(names.size(), static_cast<size_t>(kMissReasons));
  EXPECT_EQ(miss_reason_name(MissReason::windows_missing), "windows_missing");
}

}  // namespace
}  // namespace rorqual::prefix
