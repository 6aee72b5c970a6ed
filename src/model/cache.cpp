// SPDX-License-Identifier: Apache-2.0
#include "model/cache.h"

#include "base/check.h"

namespace rorqual::model {
namespace {

int64_t align_up(int64_t value, int64_t multiple) {
  return (value + multiple - 1) / multiple * multiple;
}

}  // namespace

CacheLayout make_cache_layout(const Config& config, kernels::Numerics numerics, bool with_drafts,
                              int64_t slack) {
  CacheLayout layout;
  layout.format = {numerics, config.head_dim, config.index_head_dim};
  layout.num_windows = config.num_hidden_layers + (with_drafts ? config.num_stages() : 0);
  layout.window_slots = config.sliding_window + slack;
  // An open row must survive the verification of `slack` later positions (docs/model.md#cache).
  layout.pending_slots = slack + 2;
  layout.source_of_layer.assign(static_cast<size_t>(config.num_hidden_layers), -1);
  for (const int64_t layer : config.kv_source_layer_ids) {
    CacheLayout::Source source;
    source.layer = layer;
    source.ratio = config.ratio(layer);
    source.entries_per_block = kBlockTokens / source.ratio;
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

Result<BlockPool> BlockPool::create(const CacheLayout& layout, int64_t num_blocks) {
  BlockPool pool;
  pool.block_bytes_ = layout.block_bytes;
  pool.blocks_total_ = num_blocks;
  RORQUAL_TRY_ASSIGN(pool.memory_, tensor::Buffer::allocate(layout.block_bytes * num_blocks));
  pool.free_.reserve(static_cast<size_t>(num_blocks));
  for (int64_t i = num_blocks; i-- > 0;) pool.free_.push_back(static_cast<int32_t>(i));
  return pool;
}

int32_t BlockPool::allocate() {
  RORQUAL_CHECK(!free_.empty());
  const int32_t index = free_.back();
  free_.pop_back();
  return index;
}

void BlockPool::release(int32_t index) {
  RORQUAL_CHECK(index >= 0 && index < blocks_total_);
  free_.push_back(index);
  RORQUAL_CHECK(blocks_free() <= blocks_total_);
}

Result<std::unique_ptr<SequenceState>> SequenceState::create(const CacheLayout& layout) {
  std::unique_ptr<SequenceState> state(new SequenceState(layout));
  RORQUAL_TRY_ASSIGN(state->windows_,
                     tensor::Buffer::allocate(layout.num_windows * layout.window_layer_bytes()));
  RORQUAL_TRY_ASSIGN(state->pending_, tensor::Buffer::allocate(layout.pending_floats * 4));
  state->kv_pages_.resize(layout.sources.size());
  state->index_pages_.resize(layout.sources.size());
  return state;
}

bool SequenceState::reserve(BlockPool& pool, int64_t num_tokens) {
  const int64_t wanted = (num_tokens + kBlockTokens - 1) / kBlockTokens;
  const int64_t missing = wanted - static_cast<int64_t>(blocks_.size());
  if (missing > pool.blocks_free()) return false;
  for (int64_t i = 0; i < missing; ++i) {
    const int32_t index = pool.allocate();
    blocks_.push_back(index);
    for (size_t s = 0; s < layout_.sources.size(); ++s) {
      kv_pages_[s].push_back(pool.block(index) + layout_.sources[s].kv_offset);
      index_pages_[s].push_back(pool.block(index) + layout_.sources[s].index_offset);
    }
  }
  return true;
}

void SequenceState::release(BlockPool& pool) {
  truncate(pool, 0);
}

void SequenceState::truncate(BlockPool& pool, int64_t length) {
  RORQUAL_CHECK(length >= 0 && length <= length_);
  const auto keep = static_cast<size_t>((length + kBlockTokens - 1) / kBlockTokens);
  while (blocks_.size() > keep) {
    pool.release(blocks_.back());
    blocks_.pop_back();
    for (size_t s = 0; s < layout_.sources.size(); ++s) {
      kv_pages_[s].pop_back();
      index_pages_[s].pop_back();
    }
  }
  if (static_cast<int64_t>(history_.size()) > length) history_.resize(static_cast<size_t>(length));
  length_ = length;
}

kernels::WindowCache SequenceState::window(int64_t layer) const {
  RORQUAL_CHECK(layer >= 0 && layer < layout_.num_windows);
  return {const_cast<std::byte*>(windows_.data()) + layer * layout_.window_layer_bytes(),
          layout_.window_slots};
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

}  // namespace rorqual::model
