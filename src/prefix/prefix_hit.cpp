// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "prefix/hit_state.h"
#include "prefix/prefix_cache.h"

namespace rorqual::prefix {

using model::PageKind;

PrefixHit::State::~State() {
  while (!windows.empty()) drop_window(windows.begin()->first);
  shrink(0);
}

std::span<const int32_t> PrefixHit::State::tokens_of(int64_t index) const {
  if (index >= in_memory) {
    return std::span(tokens).subspan(static_cast<size_t>((index - in_memory) * page_tokens),
                                     static_cast<size_t>(page_tokens));
  }
  const NodeIndex node = node_of(index);
  return node == kNoNode ? std::span<const int32_t>() : tree.tokens(node);
}

void PrefixHit::State::hold_window(int64_t index, model::PageId page) {
  windows.emplace(index, page);
  const NodeIndex node = node_of(index);
  if (node != kNoNode && tree.node(node).window == page) {
    tree.pin_window(node);
    window_pins.emplace(index, node);
  }
}

void PrefixHit::State::drop_window(int64_t index) {
  const auto pin = window_pins.find(index);
  if (pin != window_pins.end()) {
    tree.unpin_window(pin->second);
    window_pins.erase(pin);
  }
  const auto held_window = windows.find(index);
  pages.release(PageKind::window, held_window->second);
  windows.erase(held_window);
}

void PrefixHit::State::push(NodeIndex node, model::PageId block) {
  if (node != kNoNode) {
    tree.pin(node);
    if (!nodes.empty()) tree.unpin(nodes.back());
    nodes.push_back(node);
  }
  blocks.push_back(block);
}

void PrefixHit::State::shrink(int64_t count) {
  const auto size = static_cast<size_t>(count);
  while (blocks.size() > size) {
    pages.release(PageKind::block, blocks.back());
    blocks.pop_back();
  }
  if (nodes.size() <= size) return;
  const NodeIndex pinned = nodes.back();
  nodes.resize(size);
  if (!nodes.empty()) tree.pin(nodes.back());
  tree.unpin(pinned);
}

PrefixHit::PrefixHit() = default;
PrefixHit::PrefixHit(PrefixHit&&) noexcept = default;
PrefixHit& PrefixHit::operator=(PrefixHit&&) noexcept = default;
PrefixHit::~PrefixHit() = default;

std::span<const model::PageId> PrefixHit::blocks() const {
  return state_ ? std::span<const model::PageId>(state_->blocks) : std::span<const model::PageId>();
}

std::span<const model::PageId> PrefixHit::windows() const {
  return state_ ? std::span<const model::PageId>(state_->window_list) : std::span<const model::PageId>();
}

int64_t PrefixHit::cached_tokens() const {
  return state_ ? state_->target * state_->page_tokens : 0;
}

int64_t PrefixHit::replayed_tokens() const {
  return state_ ? state_->replayed : 0;
}

int64_t PrefixHit::resume_position() const {
  return cached_tokens() - replayed_tokens();
}

int64_t PrefixHit::disk_tokens() const {
  if (!state_) return 0;
  const auto used = std::ranges::lower_bound(state_->read_blocks, state_->target);
  return (used - state_->read_blocks.begin()) * state_->page_tokens;
}

}  // namespace rorqual::prefix
