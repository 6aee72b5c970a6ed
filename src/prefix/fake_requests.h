// SPDX-License-Identifier: Apache-2.0
// Requests without a model, for the tests of the prefix cache: does with pages what the runtime does, and
// checks that every page of a hit holds what a cold run would have put there.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "prefix/fake_pages.h"
#include "prefix/prefix_cache.h"

namespace rorqual::prefix {

struct FakeRequest {
  std::vector<int32_t> prompt;
  std::vector<int32_t> reply = {};
  std::string salt = {};
  std::vector<ImageSpan> images = {};
  std::vector<int64_t> breakpoints = {};
  int64_t interval = 0, trim_rows = 0;
  bool keeps_windows = true;
  int64_t fetch_bytes = int64_t{1} << 40;
  int64_t max_fetches = int64_t{1} << 40;
};

struct FakeOutcome {
  int64_t cached = 0, replayed = 0, disk = 0;
  int64_t fetches = 0;
  MissReport miss;
};

/// Content of a page: its key and kind, repeated.
inline std::vector<std::byte> page_content(const PageKey& key, model::PageKind kind, int64_t bytes) {
  std::vector<std::byte> content(static_cast<size_t>(bytes));
  for (size_t i = 0; i < content.size(); ++i) {
    const uint64_t word = i % 16 < 8 ? key.low : key.high;
    content[i] = static_cast<std::byte>((word >> (8 * (i % 8))) + 91 * static_cast<uint64_t>(kind) + i / 16);
  }
  return content;
}

class FakeRequests {
 public:
  FakeRequests(FakePages& pages, PrefixCache& cache, int64_t window_pages, std::string identity = "model")
      : pages_(pages), cache_(cache), window_pages_(window_pages), identity_(std::move(identity)) {}

  /// One request from lookup to end.
  FakeOutcome run(const FakeRequest& request) {
    FakeOutcome outcome;
    const int64_t page = pages_.page_tokens();
    std::vector<int32_t> tokens = request.prompt;
    tokens.insert(tokens.end(), request.reply.begin(), request.reply.end());
    const auto size = static_cast<int64_t>(tokens.size());
    const PageKey root = root_key(identity_, request.salt);
    const auto keys = page_keys(root, {.tokens = tokens, .images = request.images}, page, size / page);
    const auto prompt_size = static_cast<int64_t>(request.prompt.size());
    const PrefixCache::Query query{.tokens = request.prompt,
                                   .keys = std::span(keys).first(static_cast<size_t>(prompt_size / page)),
                                   .root = root,
                                   .limit = prompt_size - 1,
                                   .trim_rows = request.trim_rows};
    std::vector<model::PageId> blocks;
    std::map<int64_t, model::PageId> windows;
    {
      PrefixHit hit = cache_.find(query);
      for (int64_t budget = request.fetch_bytes;
           outcome.fetches < request.max_fetches && !cache_.fetch(hit, budget);
           budget = request.fetch_bytes) {
        ++outcome.fetches;
      }
      cache_.finish(query, hit);
      outcome.miss = cache_.explain(query, hit);
      outcome.cached = hit.cached_tokens();
      outcome.replayed = hit.replayed_tokens();
      outcome.disk = hit.disk_tokens();
      check_hit(hit, keys);
      blocks.assign(hit.blocks().begin(), hit.blocks().end());
      for (const model::PageId id : blocks) pages_.retain(model::PageKind::block, id);
    }
    for (int64_t i = outcome.cached / page; i < size / page; ++i) {
      blocks.push_back(take(model::PageKind::block, keys[static_cast<size_t>(i)]));
    }
    const auto wanted = wanted_windows(request, size);
    for (const auto& [index, use] : wanted) {
      if (index >= outcome.cached / page)
        windows[index] = take(model::PageKind::window, keys[static_cast<size_t>(index)]);
    }
    for (int64_t i = outcome.cached / page; i < size / page; ++i) {
      const auto at = static_cast<size_t>(i);
      PrefixCache::Offer offer{
          .key = keys[at],
          .parent = i == 0 ? root : keys[at - 1],
          .tokens = std::span(tokens).subspan(at * static_cast<size_t>(page), static_cast<size_t>(page)),
          .block = blocks[at]};
      if (windows.contains(i)) {
        offer.window = windows[i];
        offer.window_use = wanted.at(i);
      }
      cache_.offer(offer);
    }
    for (const model::PageId id : blocks) pages_.release(model::PageKind::block, id);
    for (const auto& [index, id] : windows) pages_.release(model::PageKind::window, id);
    return outcome;
  }

  /// Every page of the hit is what its place in the prompt demands.
  void check_hit(const PrefixHit& hit, std::span<const PageKey> keys) const {
    const int64_t page = pages_.page_tokens();
    ASSERT_EQ(hit.cached_tokens() % page, 0);
    const auto count = static_cast<size_t>(hit.cached_tokens() / page);
    ASSERT_EQ(hit.blocks().size(), count);
    for (size_t i = 0; i < count; ++i) check_page(model::PageKind::block, hit.blocks()[i], keys[i]);
    if (hit.replayed_tokens() > 0) {
      EXPECT_TRUE(hit.windows().empty());
      return;
    }
    const size_t needed = std::min(count, static_cast<size_t>(window_pages_));
    ASSERT_EQ(hit.windows().size(), needed);
    for (size_t i = 0; i < needed; ++i) {
      check_page(model::PageKind::window, hit.windows()[i], keys[count - needed + i]);
    }
  }

 private:
  model::PageId take(model::PageKind kind, const PageKey& key) {
    std::optional<model::PageId> page = pages_.allocate(kind);
    if (!page) {
      EXPECT_TRUE(cache_.make_room(kind, 1));
      page = pages_.allocate(kind);
    }
    RORQUAL_CHECK(page.has_value());
    pages_.write(kind, *page, page_content(key, kind, pages_.page_bytes(kind)));
    return *page;
  }

  // Pages whose windows are kept, by number.
  std::map<int64_t, PrefixCache::WindowUse> wanted_windows(const FakeRequest& request, int64_t size) const {
    std::map<int64_t, PrefixCache::WindowUse> wanted;
    if (!request.keeps_windows) return wanted;
    const int64_t page = pages_.page_tokens();
    const auto add = [&](std::span<const int64_t> targets, PrefixCache::WindowUse use) {
      for (const int64_t target : targets) {
        for (int64_t i = std::max<int64_t>(0, target / page - window_pages_); i < target / page; ++i) {
          wanted[i] = std::max(wanted[i], use);
        }
      }
    };
    const auto prompt_size = static_cast<int64_t>(request.prompt.size());
    add(window_targets(prompt_size, {}, request.interval, page), PrefixCache::WindowUse::interval);
    add(window_targets(size, {}, 0, page), PrefixCache::WindowUse::reply_end);
    add(window_targets(prompt_size, request.breakpoints, 0, page), PrefixCache::WindowUse::prompt_end);
    return wanted;
  }

  void check_page(model::PageKind kind, model::PageId page, const PageKey& key) const {
    std::vector<std::byte> content(static_cast<size_t>(pages_.page_bytes(kind)));
    pages_.read(kind, page, content);
    EXPECT_EQ(content, page_content(key, kind, pages_.page_bytes(kind))) << "another page's content";
  }

  FakePages& pages_;
  PrefixCache& cache_;
  const int64_t window_pages_;
  const std::string identity_;
};

}  // namespace rorqual::prefix
