// SPDX-License-Identifier: Apache-2.0
// Cache memory in pages of 64 tokens (simulations use smaller ones), shared by sequences and by the prefix
// cache. A page is written by one sequence and never changes once its 64 tokens are in; it returns to the
// pool when nobody holds it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

namespace rorqual::model {

/// Tokens of one page, of either kind.
inline constexpr int64_t kPageTokens = 64;

/// Index into the pool of its kind; kNoPage = not held.
using PageId = int32_t;
inline constexpr PageId kNoPage = -1;

/// What a page holds of its 64 tokens.
///   block    compressed KV and index keys of all KV sources: a function of the token prefix, kept for every
///            token of a sequence
///   window   window KV of all layers and draft stages: 25 times larger, kept where a continuation may start
enum class PageKind : uint8_t { block, window };
inline constexpr int kPageKinds = 2;

/// Any thread. Counts are exact at all times: pages_free + pages held at least once = pages_total.
class PageStore {
 public:
  virtual ~PageStore() = default;

  virtual int64_t page_tokens() const = 0;  // of either kind; even, so that no page ends in an open group
  virtual int64_t page_bytes(PageKind kind) const = 0;
  virtual int64_t pages_total(PageKind kind) const = 0;
  virtual int64_t pages_free(PageKind kind) const = 0;

  /// A page held once, content undefined; none when the pool is empty.
  virtual std::optional<PageId> allocate(PageKind kind) = 0;

  /// One holder more, one less. The last release returns the page.
  virtual void retain(PageKind kind, PageId page) = 0;
  virtual void release(PageKind kind, PageId page) = 0;

  /// How many hold the page now; 0 = free.
  virtual int64_t holders(PageKind kind, PageId page) const = 0;

  /// Content of a held page, [page_bytes]. read: while nobody writes it (complete pages never change).
  virtual void read(PageKind kind, PageId page, std::span<std::byte> out) const = 0;
  virtual void write(PageKind kind, PageId page, std::span<const std::byte> content) = 0;
};

}  // namespace rorqual::model
