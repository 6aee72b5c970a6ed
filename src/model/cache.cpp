// SPDX-License-Identifier: Apache-2.0
#include "model/cache.h"

#include <algorithm>
#include <optional>

#include "base/check.h"

namespace rorqual::model {
namespace {

int64_t align_up(int64_t value, int64_t multiple) {
  return (value + multiple - 1) / multiple * multiple;
}

}  // namespace

CacheLayout make_cache_layout(const Config& config, kernels::Numerics numerics, bool with_drafts) {
  CacheLayout layout;
  layout.format = {numerics, config.head_dim, config.index_head_dim};
  layout.num_windows = config.num_hidden_layers + (with_drafts ? config.num_stages() : 0);
  layout.window = config.sliding_window;
  // An open row must survive the verification of `slack` later positions (docs/model.md#cache).
  layout.pending_slots = layout.slack + 2;
  layout.source_of_layer.assign(static_cast<size_t>(config.num_hidden_layers), -1);
  for (const int64_t layer : config.kv_source_layer_ids) {
    CacheLayout::Source source;
    source.layer = layer;
    source.ratio = config.ratio(layer);
    source.entries_per_block = kPageTokens / source.ratio;
    source.kv_offset = layout.block_bytes;
    source.index_offset =
        align_up(source.kv_offset + source.entries_per_block * layout.format.compressed_bytes(), 64);
    layout.block_bytes =
        align_up(source.index_offset + source.entries_per_block * layout.format.index_bytes(), 64);
    if (source.ratio > 1) {
      source.pending_offset = layout.pending_floats;
      layout.pending_floats += layout.pending_slots * 2 * config.head_dim;
    }
    layout.sources.push_back(source);
  }
  for (int64_t l = 0; l < config.num_hidden_layers; ++l) {
    if (config.ratio(l) == 0) continue;
    const int64_t wanted = config.kv_source_of(l);
    for (size_t s = 0; s < layout.sources.size(); ++s) {
      if (layout.sources[s].layer == wanted)
        layout.source_of_layer[static_cast<size_t>(l)] = static_cast<int32_t>(s);
    }
  }
  return layout;
}

int64_t CacheLayout::running_blocks(int64_t kv_cache_bytes, int64_t max_model_len,
                                    int64_t max_sequences) const {
  if (kv_cache_bytes > 0 && block_bytes > 0) return std::max<int64_t>(kv_cache_bytes / block_bytes, 1);
  return pages_for(max_model_len) * max_sequences;
}

int64_t CacheLayout::promised_windows(int64_t max_sequences, int64_t max_step_rows) const {
  // During a step a sequence holds the pages of the W + slack positions before its rows and those of the last
  // W + slack with them. Up to `spare` rows always fit into the pages of one sequence at rest; each 64 rows
  // more take another one.
  const int64_t pages = pages_per_sequence();
  const int64_t spare = (pages - 1) * kPageTokens + 1 - (window + slack);
  return max_sequences * pages + std::min(max_sequences * pages, max_step_rows / (spare + 1));
}

// ------------------------------------------------------------------------------------------------ a sequence
Result<std::unique_ptr<SequenceState>> SequenceState::create(const CacheLayout& layout, PagePools& pools) {
  std::unique_ptr<SequenceState> state(new SequenceState(layout, pools));
  RORQUAL_TRY_ASSIGN(state->pending_, tensor::Buffer::allocate(layout.pending_floats * 4));
  state->kv_pages_.resize(layout.sources.size());
  state->index_pages_.resize(layout.sources.size());
  state->window_begin_.assign(static_cast<size_t>(layout.num_windows), 0);
  state->window_end_ = state->window_begin_;
  return state;
}

SequenceState::~SequenceState() {
  least_length_ = 0;
  truncate(0);
}

void SequenceState::restore(const SequenceStart& start) {
  RORQUAL_CHECK(length_ == 0 && blocks_.empty());
  const auto num_blocks = static_cast<int64_t>(start.blocks.size());
  opened_entries_ = num_blocks * kPageTokens;
  RORQUAL_CHECK(start.length >= 0 && start.length <= opened_entries_);
  RORQUAL_CHECK(static_cast<int64_t>(start.tokens.size()) == opened_entries_);
  for (const PageId page : start.blocks) {
    pools_.retain(PageKind::block, page);
    add_block(page);
  }
  length_ = least_length_ = opened_length_ = start.length;
  trim_rows_ = start.trim_rows;
  int64_t window_begin = length_;
  if (!start.windows.empty()) {
    const auto given = static_cast<int64_t>(start.windows.size());
    const int64_t end = length_ / kPageTokens, needed = std::min(layout_.window_pages(), end);
    RORQUAL_CHECK(length_ == opened_entries_ && given >= needed && given <= end);
    for (int64_t page = end - needed; page < end; ++page) {
      const PageId id = start.windows[static_cast<size_t>(page - (end - given))];
      pools_.retain(PageKind::window, id);
      set_window(page, id);
    }
    pools_.count_claimed(needed);
    window_begin = std::max<int64_t>(0, length_ - layout_.window);
    windows_begin_ = end - needed;
  }
  window_begin_.assign(window_begin_.size(), window_begin);
  window_end_.assign(window_end_.size(), length_);
}

// ------------------------------------------------------------------------------------------------ blocks
void SequenceState::add_block(PageId page) {
  std::byte* data = pools_.data(PageKind::block, page);
  blocks_.push_back(page);
  for (size_t s = 0; s < layout_.sources.size(); ++s) {
    kv_pages_[s].push_back(data + layout_.sources[s].kv_offset);
    index_pages_[s].push_back(data + layout_.sources[s].index_offset);
  }
}

void SequenceState::drop_blocks(int64_t keep) {
  while (static_cast<int64_t>(blocks_.size()) > keep) {
    pools_.release(PageKind::block, blocks_.back());
    blocks_.pop_back();
    for (size_t s = 0; s < layout_.sources.size(); ++s) {
      kv_pages_[s].pop_back();
      index_pages_[s].pop_back();
    }
  }
}

bool SequenceState::reserve(int64_t num_tokens) {
  const int64_t before = static_cast<int64_t>(blocks_.size()), wanted = pages_for(num_tokens);
  for (int64_t i = before; i < wanted; ++i) {
    const std::optional<PageId> page = pools_.allocate(PageKind::block);
    if (!page) {
      drop_blocks(before);
      return false;
    }
    add_block(*page);
  }
  return true;
}

void SequenceState::truncate(int64_t length) {
  RORQUAL_CHECK(length <= length_ && (length == 0 || length >= least_length_));
  if (length == 0) opened_entries_ = opened_length_ = least_length_ = 0;
  drop_blocks(std::max(pages_for(length), pages_for(opened_entries_)));
  for (auto page = static_cast<int64_t>(windows_.size()); page-- > pages_for(length);) drop_window(page);
  if (length == 0) windows_begin_ = 0;
  if (static_cast<int64_t>(history_.size()) > length) history_.resize(static_cast<size_t>(length));
  length_ = length;
  for (size_t l = 0; l < window_end_.size(); ++l) {
    window_end_[l] = std::min(window_end_[l], length);
    window_begin_[l] = std::min(window_begin_[l], length);
  }
}

// ------------------------------------------------------------------------------------------------ windows
void SequenceState::set_window(int64_t index, PageId page) {
  if (static_cast<int64_t>(windows_.size()) <= index) {
    windows_.resize(static_cast<size_t>(index + 1), kNoPage);
    window_pages_.resize(static_cast<size_t>(index + 1), nullptr);
  }
  RORQUAL_CHECK(windows_[static_cast<size_t>(index)] == kNoPage);
  windows_[static_cast<size_t>(index)] = page;
  window_pages_[static_cast<size_t>(index)] = pools_.data(PageKind::window, page);
  windows_begin_ = std::min(windows_begin_, index);
}

void SequenceState::drop_window(int64_t index) {
  PageId& page = windows_[static_cast<size_t>(index)];
  if (page == kNoPage) return;
  if (is_extra(index)) {
    std::erase(extra_windows_, index);
  } else {
    pools_.count_claimed(-1);
  }
  pools_.release(PageKind::window, page);
  page = kNoPage;
  window_pages_[static_cast<size_t>(index)] = nullptr;
}

bool SequenceState::is_extra(int64_t index) const {
  return std::binary_search(extra_windows_.begin(), extra_windows_.end(), index);
}

void SequenceState::drop_extra_windows() {
  while (!extra_windows_.empty()) drop_window(extra_windows_.back());
}

bool SequenceState::is_writable() const {
  const auto index = static_cast<size_t>(length_ / kPageTokens);
  if (index < windows_.size() && windows_[index] != kNoPage &&
      pools_.holders(PageKind::window, windows_[index]) > 1) {
    return false;
  }
  return length_ < opened_entries_ || index >= blocks_.size() ||
         pools_.holders(PageKind::block, blocks_[index]) == 1;
}

bool SequenceState::begin_step(int64_t num_tokens) {
  drop_extra_windows();
  for (int64_t& end : window_end_) end = std::min(end, length_);
  const int64_t end = length_ + num_tokens;
  const int64_t first = std::max(length_, first_kept(end)) / kPageTokens;
  window_pages_.resize(std::max(window_pages_.size(), static_cast<size_t>(pages_for(end))), nullptr);
  windows_.resize(window_pages_.size(), kNoPage);
  for (int64_t page = first; page < pages_for(end); ++page) {
    if (windows_[static_cast<size_t>(page)] != kNoPage) continue;
    const std::optional<PageId> id = pools_.claim_window();
    if (!id) return false;
    set_window(page, *id);
  }
  return true;
}

void SequenceState::claim_targets(int64_t num_tokens, std::span<const int64_t> targets) {
  const int64_t end = length_ + num_tokens;
  for (auto target = targets.rbegin(); target != targets.rend(); ++target) {
    if (*target <= length_ || *target > end) continue;
    const int64_t first = std::max(length_, *target - layout_.window) / kPageTokens;
    for (int64_t page = first; page < pages_for(*target); ++page) {
      if (windows_[static_cast<size_t>(page)] != kNoPage) continue;
      const std::optional<PageId> id = pools_.allocate(PageKind::window);
      if (!id) return;
      set_window(page, *id);
      extra_windows_.insert(std::lower_bound(extra_windows_.begin(), extra_windows_.end(), page), page);
    }
  }
}

void SequenceState::end_step(int64_t num_tokens, std::span<const int64_t> targets) {
  const int64_t start = length_;
  length_ += num_tokens;
  least_length_ = std::max(opened_length_, length_ - layout_.slack);
  const int64_t kept = first_kept(length_) / kPageTokens;
  const auto is_of_target = [&](int64_t page) {
    return std::any_of(targets.begin(), targets.end(), [&](int64_t target) {
      return target > start && target <= length_ && page < pages_for(target) &&
             (page + 1) * kPageTokens > target - layout_.window;
    });
  };
  for (int64_t page = windows_begin_; page < kept; ++page) {
    if (windows_[static_cast<size_t>(page)] == kNoPage || is_extra(page)) continue;
    if (is_of_target(page)) {
      extra_windows_.insert(std::lower_bound(extra_windows_.begin(), extra_windows_.end(), page), page);
      pools_.count_claimed(-1);
    } else {
      drop_window(page);
    }
  }
  windows_begin_ = extra_windows_.empty() ? kept : std::min(kept, extra_windows_.front());
}

void SequenceState::add_window(int64_t layer, int64_t begin, int64_t end) {
  const auto at = static_cast<size_t>(layer);
  if (begin >= end) return;
  if (begin > window_end_[at] || begin < window_begin_[at]) window_begin_[at] = begin;
  window_end_[at] = end;
}

kernels::WindowCache SequenceState::window(int64_t layer) const {
  RORQUAL_CHECK(layer >= 0 && layer < layout_.num_windows);
  return {window_pages_.data(), layer * layout_.window_layer_bytes()};
}

kernels::CompressedCache SequenceState::compressed(int64_t source) const {
  const CacheLayout::Source& s = layout_.sources[static_cast<size_t>(source)];
  kernels::CompressedCache cache;
  cache.page_entries = s.entries_per_block;
  cache.kv_pages = kv_pages_[static_cast<size_t>(source)].data();
  cache.index_pages = index_pages_[static_cast<size_t>(source)].data();
  if (s.pending_offset >= 0) {
    cache.pending = reinterpret_cast<float*>(const_cast<std::byte*>(pending_.data())) + s.pending_offset;
    cache.pending_slots = layout_.pending_slots;
  }
  return cache;
}

PageId SequenceState::page_at(PageKind kind, int64_t index) const {
  const std::vector<PageId>& pages = kind == PageKind::block ? blocks_ : windows_;
  if (index < 0 || index >= static_cast<int64_t>(pages.size())) return kNoPage;
  return pages[static_cast<size_t>(index)];
}

}  // namespace rorqual::model
