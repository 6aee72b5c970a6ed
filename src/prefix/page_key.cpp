// SPDX-License-Identifier: Apache-2.0
// Hashing of page names. Every field has a fixed width or its length before it, so that different inputs
// never give the same bytes. Root keys and pages with images use SHA-256, because tenants choose salts and
// images freely and tokens alone would not tell them apart; pages of plain text use XXH3, since their tokens
// are compared wherever a key is looked up.
#include "prefix/page_key.h"

#include <xxhash.h>

#include <algorithm>

#include "base/check.h"
#include "base/sha256.h"

namespace rorqual::prefix {

namespace {

// First eight bytes of every hashed text: what it names, so that a root never equals a page.
constexpr uint64_t kRootTag = 0x31746f6f722d7172;   // "rq-root1"
constexpr uint64_t kPageTag = 0x31656761702d7172;   // "rq-page1"
constexpr uint64_t kImageTag = 0x31676d69702d7172;  // "rq-pimg1"

void append_u64(std::vector<std::byte>& out, uint64_t value) {
  for (int i = 0; i < 8; ++i) out.push_back(static_cast<std::byte>(value >> (8 * i)));
}

void append_u32(std::vector<std::byte>& out, uint32_t value) {
  for (int i = 0; i < 4; ++i) out.push_back(static_cast<std::byte>(value >> (8 * i)));
}

void append_bytes(std::vector<std::byte>& out, std::span<const std::byte> bytes) {
  out.insert(out.end(), bytes.begin(), bytes.end());
}

void append_text(std::vector<std::byte>& out, std::string_view text) {
  append_u64(out, text.size());
  append_bytes(out, std::as_bytes(std::span(text)));
}

uint64_t hex_value(std::string_view digits) {
  uint64_t value = 0;
  for (const char c : digits) value = value * 16 + static_cast<uint64_t>(c <= '9' ? c - '0' : c - 'a' + 10);
  return value;
}

PageKey sha256_key(std::span<const std::byte> bytes) {
  const std::string hex = sha256_hex(bytes);
  return {.low = hex_value(std::string_view(hex).substr(16, 16)),
          .high = hex_value(std::string_view(hex).substr(0, 16))};
}

PageKey xxh3_key(std::span<const std::byte> bytes) {
  const XXH128_hash_t hash = XXH3_128bits(bytes.data(), bytes.size());
  return {.low = hash.low64, .high = hash.high64};
}

// Keys of consecutive pages; keeps its buffer and its place in the list of images.
class PageHasher {
 public:
  PageHasher(const PrefixInput& input, int64_t page_tokens) : input_(input), page_tokens_(page_tokens) {
    RORQUAL_CHECK(page_tokens > 0);
  }

  // `begin` never goes back.
  PageKey key(const PageKey& parent, int64_t begin) {
    const int64_t end = begin + page_tokens_;
    RORQUAL_CHECK(begin >= 0 && end <= static_cast<int64_t>(input_.tokens.size()));
    const auto images = input_.images;
    while (image_ < images.size() && images[image_].end <= begin) ++image_;
    const bool has_image = image_ < images.size() && images[image_].begin < end;

    buffer_.clear();
    append_u64(buffer_, has_image ? kImageTag : kPageTag);
    append_u64(buffer_, parent.low);
    append_u64(buffer_, parent.high);
    append_u64(buffer_, static_cast<uint64_t>(page_tokens_));
    for (const int32_t token :
         input_.tokens.subspan(static_cast<size_t>(begin), static_cast<size_t>(page_tokens_))) {
      append_u32(buffer_, static_cast<uint32_t>(token));
    }
    for (size_t i = image_; i < images.size() && images[i].begin < end; ++i) {
      append_u64(buffer_, static_cast<uint64_t>(begin - images[i].begin));
      append_u64(buffer_, static_cast<uint64_t>(images[i].end - images[i].begin));
      append_bytes(buffer_, std::as_bytes(std::span(images[i].digest)));
    }
    PageKey result = has_image ? sha256_key(buffer_) : xxh3_key(buffer_);
    result.high &= ~uint64_t{1};
    return result;
  }

 private:
  const PrefixInput& input_;
  const int64_t page_tokens_;
  size_t image_ = 0;
  std::vector<std::byte> buffer_;
};

}  // namespace

PageKey root_key(std::string_view model_identity, std::string_view salt) {
  std::vector<std::byte> bytes;
  append_u64(bytes, kRootTag);
  append_text(bytes, model_identity);
  append_text(bytes, salt);
  PageKey key = sha256_key(bytes);
  key.high |= 1;
  return key;
}

std::vector<PageKey> page_keys(const PageKey& root, const PrefixInput& input, int64_t page_tokens,
                               int64_t count, std::vector<PageKey> known) {
  PageHasher hasher(input, page_tokens);
  if (known.empty()) known.reserve(static_cast<size_t>(std::max<int64_t>(count, 0)));
  for (auto i = static_cast<int64_t>(known.size()); i < count; ++i) {
    const PageKey key = hasher.key(known.empty() ? root : known.back(), i * page_tokens);
    known.push_back(key);
  }
  return known;
}

std::string to_hex(const PageKey& key) {
  static constexpr std::string_view kDigits = "0123456789abcdef";
  std::string text;
  text.reserve(32);
  for (const uint64_t part : {key.high, key.low}) {
    for (int shift = 60; shift >= 0; shift -= 4) text.push_back(kDigits[(part >> shift) & 15]);
  }
  return text;
}

}  // namespace rorqual::prefix
