// SPDX-License-Identifier: Apache-2.0
// The pages that the prefix cache keeps in memory: a tree by parent, a map by key, an order of leaving for
// each kind of page. Knows nothing of disks, prompts or where a request continues.
#pragma once

#include <cstdint>
#include <deque>
#include <set>
#include <span>
#include <unordered_map>
#include <utility>
#include <vector>

#include "model/pages.h"
#include "prefix/page_key.h"

namespace rorqual::prefix {

/// Index of a node of the tree; kNoNode = none. Valid while the page is kept.
using NodeIndex = int32_t;
inline constexpr NodeIndex kNoNode = -1;

struct PageTreeOptions {
  int64_t max_blocks = 0, max_windows = 0;  // kept at most
  int64_t max_ghosts = 0;
};

/// Blocks leave leaf first, the least recently used leaf of all; windows by a score (time of last use plus a
/// bonus). What is pinned stays. One thread. Every operation but `make_room` costs O(log pages) at most.
class PageTree {
 public:
  struct Node {
    PageKey key;
    NodeIndex parent = kNoNode;
    int32_t children = 0;
    int32_t pins = 0, window_pins = 0;
    model::PageId block = model::kNoPage, window = model::kNoPage;  // roots have none
    uint64_t used = 0;                                              // time of last use
    int64_t window_bonus = 0, window_score = 0;
    bool is_root = false;
  };

  struct Figures {
    int64_t blocks = 0, windows = 0;
    int64_t evicted_blocks = 0, evicted_windows = 0;
  };

  PageTree(model::PageStore& pages, const PageTreeOptions& options);
  ~PageTree();
  PageTree(const PageTree&) = delete;
  PageTree& operator=(const PageTree&) = delete;

  /// The node of a key (page or root), or none.
  NodeIndex find(const PageKey& key) const;

  /// The root of that key, made if it is missing. It goes when its last page goes.
  NodeIndex add_root(const PageKey& key);

  const Node& node(NodeIndex index) const { return nodes_[static_cast<size_t>(index)]; }

  std::span<const int32_t> tokens(NodeIndex index) const;

  /// Whether the node is the page of these tokens after that parent, and not another one of equal key.
  bool is_page(NodeIndex index, NodeIndex parent, std::span<const int32_t> tokens) const;

  /// Keeps a page after `parent` and retains its block; others leave for it. None when all that could leave
  /// is pinned or its own ancestors. The key must not be there yet.
  NodeIndex add(const PageKey& key, NodeIndex parent, std::span<const int32_t> tokens, model::PageId block);

  /// Keeps a window page with a page that has none and retains it. Worth is its time plus `bonus`: false
  /// when all kept ones are worth as much. Pages of no bonus do not make others older.
  bool add_window(NodeIndex index, model::PageId window, int64_t bonus);

  /// Marks as just used.
  void touch(NodeIndex index);
  void touch_window(NodeIndex index);

  /// A pinned page, and so all before it, does not leave; a pinned window likewise.
  void pin(NodeIndex index);
  void unpin(NodeIndex index);
  void pin_window(NodeIndex index);
  void unpin_window(NodeIndex index);

  /// Lets go of pages that nothing else holds until the store has `count` free ones. False: not enough.
  bool make_room(model::PageKind kind, int64_t count);

  /// Whether a page of this key left to make room, as far as is remembered.
  bool was_evicted(const PageKey& key) const { return ghosts_.contains(key); }

  struct Similar {
    int64_t common_tokens = 0;  // from the page's first token on
    NodeIndex node = kNoNode;   // none: no page follows the parent
  };

  /// Of the pages after `parent`, the one that begins most like `tokens` (a page or less).
  Similar most_similar(NodeIndex parent, std::span<const int32_t> tokens) const;

  const Figures& figures() const { return figures_; }

 private:
  // A place among the children of all nodes: by parent, then tokens.
  struct Probe {
    NodeIndex parent = kNoNode;
    std::span<const int32_t> tokens;
  };

  struct ByTokens {
    using is_transparent = void;
    const PageTree* tree;
    bool operator()(NodeIndex a, NodeIndex b) const;
    bool operator()(NodeIndex a, const Probe& b) const;
    bool operator()(const Probe& a, NodeIndex b) const;
  };

  Node& at(NodeIndex index) { return nodes_[static_cast<size_t>(index)]; }

  NodeIndex new_node(const PageKey& key, NodeIndex parent);
  void free_node(NodeIndex index);

  bool is_evictable(const Node& n) const { return !n.is_root && n.children == 0 && n.pins == 0; }

  bool is_window_evictable(const Node& n) const { return n.window != model::kNoPage && n.window_pins == 0; }

  void evict(NodeIndex index);
  void evict_window(NodeIndex index);
  bool make_block_room(int64_t count);
  bool make_room_behind_shared(int64_t count);
  bool make_window_room(int64_t count);
  void add_ghost(const PageKey& key);

  model::PageStore& pages_;
  const PageTreeOptions options_;
  const size_t page_tokens_;
  std::vector<Node> nodes_;
  std::vector<int32_t> tokens_;  // [nodes, page_tokens]
  std::vector<NodeIndex> free_nodes_;
  std::unordered_map<PageKey, NodeIndex, PageKeyHash> by_key_;
  std::set<NodeIndex, ByTokens> children_;
  std::set<std::pair<uint64_t, NodeIndex>> leaves_;       // evictable blocks, by time of last use
  std::set<std::pair<int64_t, NodeIndex>> window_order_;  // evictable windows, by score
  std::unordered_map<PageKey, uint64_t, PageKeyHash> ghosts_;
  std::deque<std::pair<PageKey, uint64_t>> ghost_order_;  // may hold entries that are ghosts no more
  uint64_t clock_ = 0, ghost_clock_ = 0;
  int64_t window_clock_ = 0;
  Figures figures_;
};

}  // namespace rorqual::prefix
