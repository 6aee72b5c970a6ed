// SPDX-License-Identifier: Apache-2.0
// The memory of all pages: one pool of blocks, one of window pages, each page counted by its holders. Any
// free page serves any sequence, so nothing fragments. docs/model.md#cache.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "base/result.h"
#include "model/pages.h"
#include "tensor/buffer.h"

namespace rorqual::model {

/// Pages of each kind, and bytes of one.
struct PoolSizes {
  std::array<int64_t, kPageKinds> pages{}, page_bytes{};
  /// Window pages that running sequences may claim at any time (claim_window); other holders get only what
  /// this leaves.
  int64_t promised_windows = 0;
};

/// Any thread. Memory is reserved as address space; a page that was never written costs nothing.
class PagePools final : public PageStore {
 public:
  /// Errors: out_of_memory.
  static Result<std::unique_ptr<PagePools>> create(const PoolSizes& sizes);

  int64_t page_tokens() const override { return kPageTokens; }

  int64_t page_bytes(PageKind kind) const override { return sizes_.page_bytes[index(kind)]; }

  int64_t pages_total(PageKind kind) const override { return sizes_.pages[index(kind)]; }

  int64_t pages_free(PageKind kind) const override;

  /// Window pages: none either when the free ones are promised to running sequences.
  std::optional<PageId> allocate(PageKind kind) override;
  void retain(PageKind kind, PageId page) override;
  void release(PageKind kind, PageId page) override;
  void read(PageKind kind, PageId page, std::span<std::byte> out) const override;
  void write(PageKind kind, PageId page, std::span<const std::byte> content) override;

  /// For sequences: a window page out of the promise. None only while pages beyond the promise are held by
  /// sequences that can drop them (SequenceState::drop_extra_windows).
  std::optional<PageId> claim_window();

  /// Moves `count` pages held by sequences into (positive) or out of what the promise counts as claimed.
  void count_claimed(int64_t count);

  int64_t holders(PageKind kind, PageId page) const override;

  /// First byte, 64-byte aligned.
  std::byte* data(PageKind kind, PageId page) {
    return pools_[index(kind)].memory.data() + offset(kind, page);
  }

 private:
  struct Pool {
    tensor::Buffer memory;
    std::vector<PageId> free;      // the last one is the next to be given
    std::vector<int32_t> holders;  // [pages]
  };

  explicit PagePools(const PoolSizes& sizes) : sizes_(sizes) {}

  static size_t index(PageKind kind) { return static_cast<size_t>(kind); }

  int64_t offset(PageKind kind, PageId page) const { return page * sizes_.page_bytes[index(kind)]; }

  PageId take(PageKind kind);

  PoolSizes sizes_;
  mutable std::mutex mutex_;
  std::array<Pool, kPageKinds> pools_;
  int64_t claimed_ = 0;  // window pages of the promise that sequences hold
};

}  // namespace rorqual::model
