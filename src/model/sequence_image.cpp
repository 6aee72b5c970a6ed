// SPDX-License-Identifier: Apache-2.0
// Images of sequences: all that a continuation needs in one run of bytes, for preemption by swapping.
#include <cstring>

#include "base/check.h"
#include "model/cache.h"

namespace rorqual::model {
namespace {

constexpr uint64_t kMagic = 0x31474D4951455352U;  // of this form; images never outlive the process

}  // namespace

/// Numbers first, then history, open rows, blocks and windows; of pages the bytes in use only.
struct SequenceState::Image {
  uint64_t magic = kMagic;
  int64_t length = 0, least_length = 0, opened_length = 0, opened_entries = 0, trim_rows = 0;
  int64_t history = 0, blocks = 0;             // how many
  int64_t windows_begin = 0, windows_end = 0;  // page numbers

  /// Calls f(bytes, size) for everything after the numbers, in order. `S`: SequenceState or const.
  template <class S, class F>
  void visit(S& state, const F& f) const;
};

template <class S, class F>
void SequenceState::Image::visit(S& state, const F& f) const {
  const CacheLayout& layout = state.layout_;
  const auto bytes_of = [](auto& items) { return static_cast<int64_t>(items.size() * sizeof(items[0])); };
  f(state.window_begin_.data(), bytes_of(state.window_begin_));
  f(state.window_end_.data(), bytes_of(state.window_end_));
  f(state.history_.data(), bytes_of(state.history_));
  f(state.pending_.data(), layout.pending_floats * 4);
  const int64_t entries_end = std::max(length, opened_entries);
  for (int64_t b = 0; b < blocks; ++b) {
    const int64_t tokens = std::min(kPageTokens, entries_end - b * kPageTokens);
    for (size_t s = 0; s < layout.sources.size(); ++s) {
      const int64_t entries = tokens / layout.sources[s].ratio;
      f(state.kv_pages_[s][static_cast<size_t>(b)], entries * layout.format.compressed_bytes());
      f(state.index_pages_[s][static_cast<size_t>(b)], entries * layout.format.index_bytes());
    }
  }
  const int64_t record = layout.format.window_bytes();
  for (int64_t page = windows_begin; page < windows_end; ++page) {
    std::byte* data = state.window_pages_[static_cast<size_t>(page)];
    RORQUAL_CHECK(data != nullptr);
    const int64_t first = std::max<int64_t>(0, least_length - layout.window - page * kPageTokens);
    const int64_t last = std::min(kPageTokens, length - page * kPageTokens);
    for (int64_t l = 0; l < layout.num_windows; ++l) {
      f(data + l * layout.window_layer_bytes() + first * record, std::max<int64_t>(0, last - first) * record);
    }
  }
}

SequenceState::Image SequenceState::describe() const {
  Image image;
  image.length = length_;
  image.least_length = least_length_;
  image.opened_length = opened_length_;
  image.opened_entries = opened_entries_;
  image.trim_rows = trim_rows_;
  image.history = static_cast<int64_t>(history_.size());
  image.blocks = pages_for(entries_end());
  // Without gaps: what only targets needed is left out, and there are none between the pages of the window.
  image.windows_end = pages_for(length_);
  image.windows_begin =
      std::min(image.windows_end, std::max<int64_t>(0, least_length_ - layout_.window) / kPageTokens);
  while (image.windows_begin < image.windows_end &&
         page_at(PageKind::window, image.windows_begin) == kNoPage) {
    ++image.windows_begin;
  }
  return image;
}

int64_t SequenceState::image_bytes() const {
  auto total = static_cast<int64_t>(sizeof(Image));
  describe().visit(*this, [&](const void* /*bytes*/, int64_t size) { total += size; });
  return total;
}

void SequenceState::save_image(std::span<std::byte> image) const {
  RORQUAL_CHECK(static_cast<int64_t>(image.size()) == image_bytes());
  const Image numbers = describe();
  std::memcpy(image.data(), &numbers, sizeof numbers);
  std::byte* to = image.data() + sizeof numbers;
  numbers.visit(*this, [&](const void* bytes, int64_t size) {
    if (size > 0) std::memcpy(to, bytes, static_cast<size_t>(size));
    to += size;
  });
}

bool SequenceState::load_image(std::span<const std::byte> image) {
  Image numbers;
  RORQUAL_CHECK(length_ == 0 && blocks_.empty() && image.size() >= sizeof numbers);
  std::memcpy(&numbers, image.data(), sizeof numbers);
  RORQUAL_CHECK_NOTE(numbers.magic == kMagic, "not an image of a sequence");
  if (!reserve(numbers.blocks * kPageTokens)) return false;
  window_pages_.resize(static_cast<size_t>(numbers.windows_end), nullptr);
  windows_.resize(static_cast<size_t>(numbers.windows_end), kNoPage);
  for (int64_t page = numbers.windows_begin; page < numbers.windows_end; ++page) {
    const std::optional<PageId> id = pools_.claim_window();
    if (!id) {
      truncate(0);
      return false;
    }
    set_window(page, *id);
  }
  windows_begin_ = numbers.windows_begin;
  length_ = numbers.length;
  least_length_ = numbers.least_length;
  opened_length_ = numbers.opened_length;
  opened_entries_ = numbers.opened_entries;
  trim_rows_ = numbers.trim_rows;
  history_.resize(static_cast<size_t>(numbers.history));
  const std::byte* from = image.data() + sizeof numbers;
  numbers.visit(*this, [&](void* bytes, int64_t size) {
    if (size > 0) std::memcpy(bytes, from, static_cast<size_t>(size));
    from += size;
  });
  RORQUAL_CHECK(from == image.data() + image.size());
  return true;
}

}  // namespace rorqual::model
