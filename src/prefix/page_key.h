// SPDX-License-Identifier: Apache-2.0
// Names of pages by content: a page's key is a hash of everything that its bytes depend on, which is the
// whole prefix up to its last token.
#pragma once

#include <array>
#include <compare>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace rorqual::prefix {

/// 128 bits, the lowest of `high` tells roots from pages. Collisions are made harmless by comparing tokens
/// too.
struct PageKey {
  uint64_t low = 0, high = 0;
  auto operator<=>(const PageKey&) const = default;
};

struct PageKeyHash {
  size_t operator()(const PageKey& key) const { return static_cast<size_t>(key.low); }
};

/// An image whose span covers tokens [begin, end) of a prompt, by the digest of its decoded content.
struct ImageSpan {
  int64_t begin = 0, end = 0;
  std::array<uint8_t, 32> digest{};
};

/// What a prefix is looked up by. Views stay valid for the call.
struct PrefixInput {
  std::span<const int32_t> tokens;
  std::span<const ImageSpan> images = {};  // ascending
};

/// Key of the empty prefix: the model's identity, numerics and page layout (`model_identity`), and the salt:
/// requests of different salts share nothing.
PageKey root_key(std::string_view model_identity, std::string_view salt);

inline bool is_root(const PageKey& key) {
  return (key.high & 1) != 0;
}

/// Keys of the first `count` whole pages of the input, or more if `known`, the keys of the first ones, has
/// more. A key is made of the one before it (the root for the first), the page's tokens, and for every image
/// that the page touches its digest and where in the span the page begins.
std::vector<PageKey> page_keys(const PageKey& root, const PrefixInput& input, int64_t page_tokens,
                               int64_t count, std::vector<PageKey> known = {});

/// 32 hexadecimal digits.
std::string to_hex(const PageKey& key);

}  // namespace rorqual::prefix
