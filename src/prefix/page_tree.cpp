// SPDX-License-Identifier: Apache-2.0
#include "prefix/page_tree.h"

#include <algorithm>
#include <iterator>

#include "base/check.h"

namespace rorqual::prefix {

using model::kNoPage;
using model::PageKind;

namespace {

int64_t common_run(std::span<const int32_t> a, std::span<const int32_t> b) {
  const size_t limit = std::min(a.size(), b.size());
  size_t count = 0;
  while (count < limit && a[count] == b[count]) ++count;
  return static_cast<int64_t>(count);
}

}  // namespace

bool PageTree::ByTokens::operator()(NodeIndex a, NodeIndex b) const {
  const Node &x = tree->node(a), &y = tree->node(b);
  if (x.parent != y.parent) return x.parent < y.parent;
  const auto order = std::lexicographical_compare_three_way(tree->tokens(a).begin(), tree->tokens(a).end(),
                                                            tree->tokens(b).begin(), tree->tokens(b).end());
  return order != 0 ? order < 0 : x.key < y.key;
}

bool PageTree::ByTokens::operator()(NodeIndex a, const Probe& b) const {
  const NodeIndex parent = tree->node(a).parent;
  if (parent != b.parent) return parent < b.parent;
  const auto tokens = tree->tokens(a);
  return std::lexicographical_compare(tokens.begin(), tokens.end(), b.tokens.begin(), b.tokens.end());
}

bool PageTree::ByTokens::operator()(const Probe& a, NodeIndex b) const {
  const NodeIndex parent = tree->node(b).parent;
  if (parent != a.parent) return a.parent < parent;
  const auto tokens = tree->tokens(b);
  return std::lexicographical_compare(a.tokens.begin(), a.tokens.end(), tokens.begin(), tokens.end());
}

PageTree::PageTree(model::PageStore& pages, const PageTreeOptions& options)
    : pages_(pages),
      options_(options),
      page_tokens_(static_cast<size_t>(pages.page_tokens())),
      children_(ByTokens{this}) {}

PageTree::~PageTree() {
  for (const NodeIndex index : children_) {
    const Node& n = node(index);
    pages_.release(PageKind::block, n.block);
    if (n.window != kNoPage) pages_.release(PageKind::window, n.window);
  }
}

NodeIndex PageTree::find(const PageKey& key) const {
  const auto found = by_key_.find(key);
  return found == by_key_.end() ? kNoNode : found->second;
}

std::span<const int32_t> PageTree::tokens(NodeIndex index) const {
  return std::span(tokens_).subspan(static_cast<size_t>(index) * page_tokens_, page_tokens_);
}

bool PageTree::is_page(NodeIndex index, NodeIndex parent, std::span<const int32_t> tokens) const {
  const Node& n = node(index);
  return !n.is_root && n.parent == parent && std::ranges::equal(this->tokens(index), tokens);
}

NodeIndex PageTree::new_node(const PageKey& key, NodeIndex parent) {
  NodeIndex index = kNoNode;
  if (free_nodes_.empty()) {
    index = static_cast<NodeIndex>(nodes_.size());
    nodes_.emplace_back();
    tokens_.resize(tokens_.size() + page_tokens_);
  } else {
    index = free_nodes_.back();
    free_nodes_.pop_back();
    at(index) = Node{};
  }
  at(index).key = key;
  at(index).parent = parent;
  const bool is_new = by_key_.emplace(key, index).second;
  RORQUAL_CHECK_NOTE(is_new, "a key that is there already");
  return index;
}

void PageTree::free_node(NodeIndex index) {
  by_key_.erase(node(index).key);
  free_nodes_.push_back(index);
}

NodeIndex PageTree::add_root(const PageKey& key) {
  const NodeIndex found = find(key);
  if (found != kNoNode) return found;
  const NodeIndex index = new_node(key, kNoNode);
  at(index).is_root = true;
  return index;
}

NodeIndex PageTree::add(const PageKey& key, NodeIndex parent, std::span<const int32_t> tokens,
                        model::PageId block) {
  RORQUAL_CHECK(tokens.size() == page_tokens_);
  pin(parent);
  while (figures_.blocks >= options_.max_blocks && !leaves_.empty()) evict(leaves_.begin()->second);
  NodeIndex index = kNoNode;
  if (figures_.blocks < options_.max_blocks) {
    index = new_node(key, parent);
    std::ranges::copy(tokens, tokens_.begin() + static_cast<int64_t>(index) * pages_.page_tokens());
    ++at(parent).children;
    Node& n = at(index);
    n.block = block;
    pages_.retain(PageKind::block, block);
    ++figures_.blocks;
    children_.insert(index);
    n.used = ++clock_;
    leaves_.emplace(n.used, index);
    ghosts_.erase(key);
  }
  unpin(parent);
  return index;
}

bool PageTree::add_window(NodeIndex index, model::PageId window, int64_t bonus) {
  RORQUAL_CHECK(at(index).window == kNoPage && !at(index).is_root);
  if (bonus > 0) ++window_clock_;
  const int64_t score = window_clock_ + bonus;
  while (figures_.windows >= options_.max_windows && !window_order_.empty() &&
         window_order_.begin()->first < score) {
    evict_window(window_order_.begin()->second);
  }
  if (figures_.windows >= options_.max_windows) return false;
  Node& n = at(index);
  n.window = window;
  n.window_bonus = bonus;
  n.window_score = score;
  pages_.retain(PageKind::window, window);
  ++figures_.windows;
  window_order_.emplace(score, index);
  return true;
}

void PageTree::touch(NodeIndex index) {
  Node& n = at(index);
  const bool is_listed = is_evictable(n);
  if (is_listed) leaves_.erase({n.used, index});
  n.used = ++clock_;
  if (is_listed) leaves_.emplace(n.used, index);
}

void PageTree::touch_window(NodeIndex index) {
  Node& n = at(index);
  const bool is_listed = is_window_evictable(n);
  if (is_listed) window_order_.erase({n.window_score, index});
  n.window_score = ++window_clock_ + n.window_bonus;
  if (is_listed) window_order_.emplace(n.window_score, index);
}

void PageTree::pin(NodeIndex index) {
  Node& n = at(index);
  if (is_evictable(n)) leaves_.erase({n.used, index});
  ++n.pins;
}

void PageTree::unpin(NodeIndex index) {
  Node& n = at(index);
  RORQUAL_CHECK(n.pins > 0);
  --n.pins;
  if (is_evictable(n)) leaves_.emplace(n.used, index);
  if (n.is_root && n.children == 0 && n.pins == 0) free_node(index);
}

void PageTree::pin_window(NodeIndex index) {
  Node& n = at(index);
  if (is_window_evictable(n)) window_order_.erase({n.window_score, index});
  ++n.window_pins;
}

void PageTree::unpin_window(NodeIndex index) {
  Node& n = at(index);
  RORQUAL_CHECK(n.window_pins > 0);
  --n.window_pins;
  if (is_window_evictable(n)) window_order_.emplace(n.window_score, index);
}

void PageTree::evict(NodeIndex index) {
  if (node(index).window != kNoPage) evict_window(index);
  Node& n = at(index);
  leaves_.erase({n.used, index});
  children_.erase(index);
  pages_.release(PageKind::block, n.block);
  --figures_.blocks;
  ++figures_.evicted_blocks;
  add_ghost(n.key);
  const NodeIndex parent_index = n.parent;
  free_node(index);
  Node& parent = at(parent_index);
  --parent.children;
  if (is_evictable(parent)) leaves_.emplace(parent.used, parent_index);
  if (parent.is_root && parent.children == 0 && parent.pins == 0) free_node(parent_index);
}

void PageTree::evict_window(NodeIndex index) {
  Node& n = at(index);
  RORQUAL_CHECK(n.window_pins == 0);
  window_order_.erase({n.window_score, index});
  pages_.release(PageKind::window, n.window);
  n.window = kNoPage;
  --figures_.windows;
  ++figures_.evicted_windows;
}

bool PageTree::make_room(PageKind kind, int64_t count) {
  return kind == PageKind::block ? make_block_room(count) : make_window_room(count);
}

// A page that a running sequence holds too would free nothing, so it stays at first, and so do all before it:
// most often the sequence holds those as well. When the parent of what left is older than the next leaf, it
// is looked at first.
bool PageTree::make_block_room(int64_t count) {
  auto next = leaves_.begin();
  while (pages_.pages_free(PageKind::block) < count) {
    if (next == leaves_.end()) return make_room_behind_shared(count);
    const NodeIndex index = next->second;
    ++next;
    if (pages_.holders(PageKind::block, node(index).block) != 1) continue;
    const NodeIndex parent = node(index).parent;
    evict(index);
    const auto exposed = leaves_.find({node(parent).used, parent});
    if (exposed != leaves_.end() && (next == leaves_.end() || *exposed < *next)) next = exposed;
  }
  return true;
}

// A sequence that computed its prefix itself holds copies of pages that were kept already, and the kept ones
// lie behind later pages of the sequence that the tree took: those leave too.
bool PageTree::make_room_behind_shared(int64_t count) {
  const std::vector<std::pair<uint64_t, NodeIndex>> leaves(leaves_.begin(), leaves_.end());
  for (const auto& [used, leaf] : leaves) {
    int64_t num_before = 0;  // pages from the leaf on, up to the last one that is held here alone
    int64_t depth = 0;
    for (NodeIndex at = leaf; !node(at).is_root && node(at).pins == 0; at = node(at).parent) {
      if (at != leaf && node(at).children != 1) break;
      ++depth;
      if (pages_.holders(PageKind::block, node(at).block) == 1) num_before = depth;
    }
    for (NodeIndex at = leaf; num_before > 0 && pages_.pages_free(PageKind::block) < count; --num_before) {
      const NodeIndex parent = node(at).parent;
      evict(at);
      at = parent;
    }
    if (pages_.pages_free(PageKind::block) >= count) return true;
  }
  return false;
}

bool PageTree::make_window_room(int64_t count) {
  auto next = window_order_.begin();
  while (pages_.pages_free(PageKind::window) < count) {
    if (next == window_order_.end()) return false;
    const NodeIndex index = next->second;
    ++next;
    if (pages_.holders(PageKind::window, node(index).window) == 1) evict_window(index);
  }
  return true;
}

void PageTree::add_ghost(const PageKey& key) {
  if (options_.max_ghosts <= 0) return;
  ghosts_[key] = ++ghost_clock_;
  ghost_order_.emplace_back(key, ghost_clock_);
  const auto limit = static_cast<size_t>(options_.max_ghosts);
  while (ghosts_.size() > limit || ghost_order_.size() > 2 * limit) {
    const auto& [oldest, time] = ghost_order_.front();
    const auto found = ghosts_.find(oldest);
    if (found != ghosts_.end() && found->second == time) ghosts_.erase(found);
    ghost_order_.pop_front();
  }
}

PageTree::Similar PageTree::most_similar(NodeIndex parent, std::span<const int32_t> tokens) const {
  Similar best;
  const auto consider = [&](NodeIndex index) {
    if (node(index).parent != parent) return;
    const int64_t common = common_run(this->tokens(index), tokens);
    if (best.node == kNoNode || common > best.common_tokens ||
        (common == best.common_tokens && node(index).used > node(best.node).used)) {
      best = {.common_tokens = common, .node = index};
    }
  };
  // In lexicographic order the longest common beginning is with a neighbour.
  const auto after = children_.lower_bound(Probe{.parent = parent, .tokens = tokens});
  if (after != children_.end()) consider(*after);
  if (after != children_.begin()) consider(*std::prev(after));
  return best;
}

}  // namespace rorqual::prefix
