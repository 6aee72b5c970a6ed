// SPDX-License-Identifier: Apache-2.0
// What a prefix hit holds and knows, from `find` to the opening of its sequence. Private to the prefix cache.
#pragma once

#include <cstdint>
#include <map>
#include <vector>

#include "model/pages.h"
#include "prefix/miss_explainer.h"
#include "prefix/page_key.h"
#include "prefix/page_tree.h"
#include "prefix/prefix_cache.h"

namespace rorqual::prefix {

/// Page numbers count from the prompt's begin. Pages [0, found) can be reused as far as is known: those with
/// a block in `blocks` are held, the others are on disk.
struct PrefixHit::State {
  State(PageTree& tree_, model::PageStore& pages_) : tree(tree_), pages(pages_) {}

  ~State();
  State(const State&) = delete;
  State& operator=(const State&) = delete;

  int64_t held() const { return static_cast<int64_t>(blocks.size()); }

  /// Node of a page, kNoNode if the tree does not keep it.
  NodeIndex node_of(int64_t index) const {
    return index < static_cast<int64_t>(nodes.size()) ? nodes[static_cast<size_t>(index)] : kNoNode;
  }

  std::span<const int32_t> tokens_of(int64_t index) const;

  /// One holder more or less of the window page of `index`.
  void hold_window(int64_t index, model::PageId page);
  void drop_window(int64_t index);

  /// Takes the next page's node and block (held by the hit from now on).
  void push(NodeIndex node, model::PageId block);

  /// Lets go of all pages from `count` on.
  void shrink(int64_t count);

  PageTree& tree;
  model::PageStore& pages;
  int64_t page_tokens = 0;

  PageKey root;
  std::vector<PageKey> keys;    // [found at first]
  std::vector<int32_t> tokens;  // of pages [in_memory, found at first)
  int64_t in_memory = 0;        // pages that `find` saw there
  int64_t found = 0;
  int64_t found_first = 0;   // before errors
  bool had_error = false;    // of the disk
  bool had_no_room = false;  // for a page from disk
  int64_t num_failures = 0;  // pages that seemed to be on disk and were not to be had
  bool may_read = true;      // false: what is not held now is not there

  std::vector<model::PageId> blocks;
  std::vector<NodeIndex> nodes;              // of the first blocks: those that the tree keeps
  std::map<int64_t, model::PageId> windows;  // held, by page
  std::map<int64_t, NodeIndex> window_pins;  // of them those that the tree keeps
  std::map<int64_t, bool> disk_windows;      // what is known of windows on disk

  std::vector<int64_t> read_blocks;  // pages whose block came from disk, ascending

  int64_t trim_rows = 0;  // of the query
  int64_t target = 0;     // pages that will be reused
  int64_t replayed = 0;   // rows
  std::vector<model::PageId> window_list;
  LookupEnd end;  // once it is finished
};

}  // namespace rorqual::prefix
