// SPDX-License-Identifier: Apache-2.0
#include "prefix/prefix_cache.h"

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "prefix/hit_state.h"
#include "prefix/miss_explainer.h"
#include "prefix/page_tree.h"

namespace rorqual::prefix {

using model::kNoPage;
using model::PageId;
using model::PageKind;

namespace {

// Pages in memory but not on disk that one lookup writes again, so that a chain never stays broken.
constexpr int64_t kMaxRepairs = 32;

// Pages of one lookup that may fail to come from disk before the rest is given up: a disk that never delivers
// holds a request up for so long.
constexpr int64_t kMaxFailures = 16;

PageTreeOptions tree_options(const model::PageStore& pages, const PrefixCacheOptions& options) {
  const int64_t half = std::max<int64_t>(0, options.max_bytes / 2);
  return {.max_blocks = half / std::max<int64_t>(1, pages.page_bytes(PageKind::block)),
          .max_windows = half / std::max<int64_t>(1, pages.page_bytes(PageKind::window)),
          .max_ghosts = options.max_ghosts};
}

}  // namespace

PrefixCache::PrefixCache(model::PageStore& pages, PrefixCacheOptions options)
    : pages_(pages),
      options_(std::move(options)),
      tree_(std::make_unique<PageTree>(pages, tree_options(pages, options_))) {
  RORQUAL_CHECK(options_.window_pages > 0);
}

PrefixCache::~PrefixCache() {
  if (options_.disk) options_.disk->flush();
}

PrefixHit PrefixCache::find(const Query& query) {
  PrefixHit hit;
  if (is_off()) return hit;
  hit.state_ = std::make_unique<PrefixHit::State>(*tree_, pages_);
  PrefixHit::State& state = *hit.state_;
  state.page_tokens = pages_.page_tokens();
  state.root = query.root;
  state.trim_rows = query.trim_rows;
  const int64_t whole_pages =
      std::clamp<int64_t>(query.limit / state.page_tokens, 0, static_cast<int64_t>(query.keys.size()));
  const auto page = static_cast<size_t>(state.page_tokens);

  NodeIndex parent = tree_->find(query.root);
  int64_t found = 0;
  for (; found < whole_pages && parent != kNoNode; ++found) {
    const auto at = static_cast<size_t>(found);
    const NodeIndex node = tree_->find(query.keys[at]);
    if (node == kNoNode) break;
    if (!tree_->is_page(node, parent, query.tokens.subspan(at * page, page))) {
      ++stats_.mismatches;
      break;
    }
    pages_.retain(PageKind::block, tree_->node(node).block);
    tree_->touch(node);
    state.push(node, tree_->node(node).block);
    parent = node;
  }
  state.in_memory = found;
  if (options_.disk) {
    while (found < whole_pages && options_.disk->find(query.keys[static_cast<size_t>(found)]).is_found)
      ++found;
  }
  state.found = state.found_first = found;
  const auto keys = query.keys.first(static_cast<size_t>(found));
  state.keys.assign(keys.begin(), keys.end());
  const auto begin = static_cast<size_t>(state.in_memory) * page, end = static_cast<size_t>(found) * page;
  state.tokens.assign(query.tokens.begin() + static_cast<ptrdiff_t>(begin),
                      query.tokens.begin() + static_cast<ptrdiff_t>(end));
  if (options_.disk) repair_disk(state);
  plan(state);
  update_figures();
  return hit;
}

// The deepest page end before which all windows are there, in memory or on disk. Not looked for where a
// replay would be cheaper.
int64_t PrefixCache::windowed_depth(PrefixHit::State& hit) const {
  const auto has_window = [&](int64_t index) {
    if (hit.windows.contains(index)) return true;
    const NodeIndex node = hit.node_of(index);
    if (node != kNoNode && tree_->node(node).window != kNoPage) return true;
    if (!options_.disk || !hit.may_read) return false;
    const auto [known, is_new] = hit.disk_windows.try_emplace(index, false);
    if (is_new) known->second = options_.disk->find(hit.keys[static_cast<size_t>(index)]).has_window;
    return known->second;
  };
  int64_t run = 0;
  for (int64_t index = hit.found - 1; index >= 0; --index) {
    run = has_window(index) ? run + 1 : 0;
    if (run == options_.window_pages) return index + run;
    const bool is_replay_cheaper =
        options_.replay_rows > 0 && (hit.found - index - run) * hit.page_tokens > options_.replay_cost;
    if (is_replay_cheaper) return 0;
  }
  return run;  // of the prompt's begin on
}

// Where to continue, as far as is known: rows that are computed again decide.
void PrefixCache::plan(PrefixHit::State& hit) const {
  const int64_t reusable = hit.found * hit.page_tokens;
  int64_t first_window = hit.found;
  hit.target = hit.found;
  hit.replayed = 0;
  if (hit.trim_rows > 0) {
    hit.replayed = std::min(hit.trim_rows, reusable);
  } else if (hit.found > 0) {
    const int64_t depth = windowed_depth(hit);
    const int64_t restart_cost = (hit.found - depth) * hit.page_tokens;
    const bool replays = options_.replay_rows > 0 && restart_cost > std::min(options_.replay_cost, reusable);
    if (replays) {
      hit.replayed = std::min(options_.replay_rows, reusable);
    } else {
      hit.target = depth;
      first_window = std::max<int64_t>(0, depth - options_.window_pages);
    }
  }
  const bool needs_windows = hit.replayed == 0;
  const auto is_needed = [&](int64_t index) {
    return needs_windows && index >= first_window && index < hit.target;
  };
  for (auto held = hit.windows.begin(); held != hit.windows.end();) {
    const int64_t index = (held++)->first;
    if (!is_needed(index)) hit.drop_window(index);
  }
  for (int64_t index = first_window; is_needed(index); ++index) {
    const NodeIndex node = hit.node_of(index);
    if (hit.windows.contains(index) || node == kNoNode || tree_->node(node).window == kNoPage) continue;
    pages_.retain(PageKind::window, tree_->node(node).window);
    hit.hold_window(index, tree_->node(node).window);
  }
}

// The next page of which something must be read from disk, or -1.
int64_t PrefixCache::missing_page(const PrefixHit::State& hit) const {
  if (hit.held() < hit.target) return hit.held();
  if (hit.replayed > 0) return -1;
  for (int64_t i = std::max<int64_t>(0, hit.target - options_.window_pages); i < hit.target; ++i) {
    if (!hit.windows.contains(i)) return i;
  }
  return -1;
}

bool PrefixCache::fetch(PrefixHit& hit, int64_t& budget) {
  if (!hit.state_) return true;
  PrefixHit::State& state = *hit.state_;
  int64_t index = missing_page(state);
  while (index >= 0 && budget > 0 && state.num_failures < kMaxFailures) {
    budget = std::max<int64_t>(0, budget - read_page(state, index));
    index = missing_page(state);
  }
  update_figures();
  return index < 0 || state.num_failures >= kMaxFailures;
}

// Brings in what is missing of a page; plans again when it is not to be had. The bytes that this took from
// the disk; a failure costs as many as a block.
int64_t PrefixCache::read_page(PrefixHit::State& hit, int64_t index) {
  const auto at = static_cast<size_t>(index);
  const bool is_block = index == hit.held();
  const PageKey parent = index == 0 ? hit.root : hit.keys[at - 1];
  if (is_block) {  // another request may have computed it meanwhile
    const NodeIndex node = tree_->find(hit.keys[at]);
    const NodeIndex parent_node = index == 0 ? tree_->find(hit.root) : hit.node_of(index - 1);
    if (node != kNoNode && parent_node != kNoNode &&
        tree_->is_page(node, parent_node, hit.tokens_of(index))) {
      pages_.retain(PageKind::block, tree_->node(node).block);
      tree_->touch(node);
      hit.push(node, tree_->node(node).block);
      plan(hit);
      return 0;
    }
  }
  const auto give_up = [&] {
    ++hit.num_failures;
    if (is_block) hit.found = index;
    hit.disk_windows[index] = false;
    plan(hit);
    return pages_.page_bytes(PageKind::block);
  };
  Result<DiskPage> page = options_.disk->read(hit.keys[at]);
  const bool is_readable =
      page.ok() && std::cmp_equal(page->block.size(), pages_.page_bytes(PageKind::block)) &&
      (page->window.empty() || std::cmp_equal(page->window.size(), pages_.page_bytes(PageKind::window)));
  const bool is_same = is_readable && page->parent == parent && page->key == hit.keys[at] &&
                       std::ranges::equal(page->tokens, hit.tokens_of(index));
  if (!is_same) {
    if (is_readable && !hit.tokens_of(index).empty()) ++stats_.mismatches;
    hit.had_error = hit.had_error || !is_readable;
    return give_up();
  }
  if (is_block) {
    const PageId block = take_page(PageKind::block, page->block);
    if (block == kNoPage) {
      hit.had_no_room = true;
      return give_up();
    }
    keep_block(hit, block);
  }
  const bool is_wanted = hit.replayed == 0 && index >= hit.target - options_.window_pages;
  if (is_wanted && !hit.windows.contains(index)) {
    const PageId window = page->window.empty() ? kNoPage : take_page(PageKind::window, page->window);
    if (window == kNoPage) {
      hit.disk_windows[index] = false;
      plan(hit);
    } else {
      keep_window(hit, index, window);
    }
  }
  return static_cast<int64_t>(page->block.size() + page->window.size());
}

// A fresh page with that content, held once; others leave for it. kNoPage: no room.
PageId PrefixCache::take_page(PageKind kind, std::span<const std::byte> content) {
  std::optional<PageId> page = pages_.allocate(kind);
  while (!page && tree_->make_room(kind, pages_.pages_free(kind) + 1)) page = pages_.allocate(kind);
  if (!page) return kNoPage;
  pages_.write(kind, *page, content);
  return *page;
}

// Gives the tree a block that was read, if it has room beside what this hit holds; else the hit alone holds
// it.
void PrefixCache::keep_block(PrefixHit::State& hit, PageId block) {
  const int64_t index = hit.held();
  NodeIndex node = kNoNode;
  if (static_cast<int64_t>(hit.nodes.size()) == index) {
    const PageKey& key = hit.keys[static_cast<size_t>(index)];
    if (tree_->find(key) == kNoNode) {
      const NodeIndex parent = index == 0 ? tree_->add_root(hit.root) : hit.nodes.back();
      node = tree_->add(key, parent, hit.tokens_of(index), block);
    }
  }
  hit.read_blocks.push_back(index);
  hit.push(node, block);
}

void PrefixCache::keep_window(PrefixHit::State& hit, int64_t index, PageId window) {
  const NodeIndex node = hit.node_of(index);
  if (node != kNoNode && tree_->node(node).window == kNoPage) {
    tree_->add_window(node, window, window_bonus(WindowUse::prompt_end));
  }
  hit.hold_window(index, window);
}

void PrefixCache::finish(const Query& query, PrefixHit& hit) {
  if (!hit.state_) return;
  PrefixHit::State& state = *hit.state_;
  if (missing_page(state) >= 0) {  // the caller does not wait for the rest
    state.may_read = false;
    state.disk_windows.clear();
    state.found = std::min(state.found, state.held());
    plan(state);
  }
  RORQUAL_CHECK(missing_page(state) < 0);
  state.end = {.page_tokens = state.page_tokens,
               .found = state.found,
               .found_first = state.found_first,
               .used = state.target,
               .had_disk_error = state.had_error,
               .had_no_room = state.had_no_room,
               .sibling = {}};
  // Now, because room for the request itself may be made of the page that it is to be compared with.
  const NodeIndex last = state.found == 0 ? tree_->find(state.root) : state.node_of(state.found - 1);
  note_tree(query, *tree_, last, state.end);

  state.shrink(state.target);
  for (const auto& [index, window] : state.windows) {
    state.window_list.push_back(window);
    const NodeIndex node = state.node_of(index);
    if (node != kNoNode && tree_->node(node).window == window) tree_->touch_window(node);
  }
}

MissReport PrefixCache::explain(const Query& query, const PrefixHit& hit) const {
  MissReport report;
  report.reason = MissReason::off;
  if (!hit.state_) return report;
  RORQUAL_CHECK_NOTE(hit.state_->end.page_tokens > 0, "a hit that is not finished");
  return explain_miss(query, hit.state_->end, options_.disk.get());
}

void PrefixCache::offer(const Offer& offer) {
  if (is_off()) return;
  RORQUAL_CHECK(offer.block != kNoPage && std::cmp_equal(offer.tokens.size(), pages_.page_tokens()));
  NodeIndex parent = tree_->find(offer.parent);
  NodeIndex node = tree_->find(offer.key);
  if (node != kNoNode && (parent == kNoNode || !tree_->is_page(node, parent, offer.tokens))) {
    ++stats_.mismatches;
    return;
  }
  if (node != kNoNode) {
    tree_->touch(node);
  } else {
    if (is_root(offer.parent)) parent = tree_->add_root(offer.parent);
    if (parent != kNoNode) node = tree_->add(offer.key, parent, offer.tokens, offer.block);
  }
  if (node != kNoNode && offer.window != kNoPage) {
    if (tree_->node(node).window == kNoPage) {
      tree_->add_window(node, offer.window, window_bonus(offer.window_use));
    } else {
      tree_->touch_window(node);
    }
  }
  if (options_.disk) write_to_disk(offer);
  update_figures();
}

// A prompt longer than the memory for it goes to disk whole: the parent may be there only.
void PrefixCache::write_to_disk(const Offer& offer) {
  const DiskTier::Entry entry = options_.disk->find(offer.key);
  if (entry.is_found && (entry.has_window || offer.window == kNoPage)) return;
  const bool has_parent = is_root(offer.parent) || options_.disk->find(offer.parent).is_found;
  if (!has_parent) return;
  DiskPage page{.key = offer.key,
                .parent = offer.parent,
                .tokens = {offer.tokens.begin(), offer.tokens.end()},
                .block = {},
                .window = {}};
  page.block.resize(static_cast<size_t>(pages_.page_bytes(PageKind::block)));
  pages_.read(PageKind::block, offer.block, page.block);
  if (offer.window != kNoPage) {
    page.window.resize(static_cast<size_t>(pages_.page_bytes(PageKind::window)));
    pages_.read(PageKind::window, offer.window, page.window);
  }
  options_.disk->write(std::move(page));
}

// Tells the disk what is used though it was not read, and writes again what it has lost.
void PrefixCache::repair_disk(const PrefixHit::State& hit) {
  const auto in_memory = std::span(hit.keys).first(static_cast<size_t>(hit.in_memory));
  size_t index = options_.disk->touch(in_memory);
  for (int64_t repairs = 0; repairs < kMaxRepairs && index < in_memory.size(); ++index) {
    const NodeIndex node = hit.node_of(static_cast<int64_t>(index));
    if (options_.disk->find(in_memory[index]).is_found) continue;
    const PageTree::Node& n = tree_->node(node);
    write_to_disk({.key = n.key,
                   .parent = tree_->node(n.parent).key,
                   .tokens = tree_->tokens(node),
                   .block = n.block,
                   .window = n.window});
    ++repairs;
  }
}

bool PrefixCache::make_room(PageKind kind, int64_t count) {
  const bool has_room = pages_.pages_free(kind) >= count || tree_->make_room(kind, count);
  update_figures();
  return has_room;
}

// In windows offered or used since: how much longer than others of the same age one stays.
int64_t PrefixCache::window_bonus(WindowUse use) const {
  const int64_t kept = options_.max_bytes / 2 / std::max<int64_t>(1, pages_.page_bytes(PageKind::window));
  const int64_t step = std::max(2 * options_.window_pages + 2, kept / 4);
  return static_cast<int64_t>(use) * step;
}

void PrefixCache::update_figures() {
  const PageTree::Figures& now = tree_->figures();
  stats_.blocks = now.blocks;
  stats_.windows = now.windows;
  stats_.bytes =
      now.blocks * pages_.page_bytes(PageKind::block) + now.windows * pages_.page_bytes(PageKind::window);
  stats_.evicted_blocks = now.evicted_blocks;
  stats_.evicted_windows = now.evicted_windows;
}

std::vector<int64_t> window_targets(int64_t prompt_tokens, std::span<const int64_t> breakpoints,
                                    int64_t interval, int64_t page_tokens) {
  std::vector<int64_t> targets;
  const auto add = [&](int64_t position) {
    const int64_t target = std::min(position, prompt_tokens) / page_tokens * page_tokens;
    if (target > 0) targets.push_back(target);
  };
  add(prompt_tokens);
  add(prompt_tokens / page_tokens * page_tokens - page_tokens);
  for (const int64_t position : breakpoints) add(position);
  for (int64_t position = interval; interval > 0 && position <= prompt_tokens; position += interval) {
    add(position);
  }
  std::ranges::sort(targets);
  targets.erase(std::unique(targets.begin(), targets.end()), targets.end());
  return targets;
}

}  // namespace rorqual::prefix
