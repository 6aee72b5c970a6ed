// SPDX-License-Identifier: Apache-2.0
// Encoding and decoding. Reading tokenizer.json is in tokenizer_json.cpp.
#include "text/tokenizer.h"

#include <algorithm>
#include <utility>

#include "text/pretokenizer.h"
#include "text/tokenizer_impl.h"
#include "text/utf8.h"

namespace rorqual::text {

namespace {

constexpr size_t kMaxPieceBytes = size_t{1} << 30;  // positions inside a piece are 32 bits wide

}  // namespace

Tokenizer::Tokenizer(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}

Tokenizer::Tokenizer(Tokenizer&&) noexcept = default;
Tokenizer& Tokenizer::operator=(Tokenizer&&) noexcept = default;
Tokenizer::~Tokenizer() = default;

void Tokenizer::Impl::encode_plain(std::string_view text, std::vector<int32_t>& ids) const {
  std::vector<std::string_view> pieces;
  split_pieces(text, pieces);
  BpeScratch scratch;
  for (const std::string_view piece : pieces) {
    if (ignore_merges) {
      const auto whole = by_bytes.find(std::string(piece));
      if (whole != by_bytes.end()) {
        ids.push_back(whole->second);
        continue;
      }
    }
    for (size_t begin = 0; begin < piece.size(); begin += kMaxPieceBytes) {
      bpe_encode(piece.substr(begin, kMaxPieceBytes), merges, byte_ids, scratch, ids);
    }
  }
}

void Tokenizer::Impl::encode_with(const SpellingTrie& trie, bool is_last_pass, std::string_view text,
                                  std::vector<int32_t>& ids) const {
  const auto encode_rest = [&](std::string_view rest) {
    if (rest.empty()) return;
    if (is_last_pass) {
      encode_plain(rest, ids);
    } else {
      encode_with(normalized, true, rest, ids);
    }
  };
  size_t begin = 0;
  while (!trie.is_empty()) {
    const SpellingTrie::Match match = trie.find(text, begin);
    if (match.id < 0) break;
    encode_rest(text.substr(begin, match.begin - begin));
    ids.push_back(match.id);
    begin = match.end;
  }
  encode_rest(text.substr(begin));
}

std::vector<int32_t> Tokenizer::encode(std::string_view text, EncodeMode mode) const {
  std::vector<int32_t> ids;
  append_ids(text, mode, ids);
  return ids;
}

void Tokenizer::append_ids(std::string_view text, EncodeMode mode, std::vector<int32_t>& ids) const {
  if (mode == EncodeMode::plain) {
    impl_->encode_plain(text, ids);
  } else {
    impl_->encode_with(impl_->verbatim, false, text, ids);
  }
}

std::string_view Tokenizer::token_bytes(int32_t id) const {
  return id >= 0 && id < vocab_size() ? std::string_view(impl_->tokens[static_cast<size_t>(id)].bytes)
                                      : std::string_view();
}

std::string_view Tokenizer::token_string(int32_t id) const {
  return id >= 0 && id < vocab_size() ? std::string_view(impl_->tokens[static_cast<size_t>(id)].spelling)
                                      : std::string_view();
}

std::string Tokenizer::decode(std::span<const int32_t> ids, bool skip_special) const {
  std::string bytes;
  for (const int32_t id : ids) {
    if (skip_special && is_special(id)) continue;
    bytes += token_bytes(id);
  }
  std::string out;
  out.reserve(bytes.size());
  drain_utf8(bytes, out, true);
  return out;
}

bool Tokenizer::is_added(int32_t id) const {
  return id >= 0 && id < vocab_size() && impl_->tokens[static_cast<size_t>(id)].is_added;
}

bool Tokenizer::is_special(int32_t id) const {
  return id >= 0 && id < vocab_size() && impl_->tokens[static_cast<size_t>(id)].is_special;
}

std::optional<int32_t> Tokenizer::added_token(std::string_view spelling) const {
  const auto it = impl_->added.find(std::string(spelling));
  if (it == impl_->added.end()) return std::nullopt;
  return it->second;
}

int32_t Tokenizer::vocab_size() const {
  return static_cast<int32_t>(impl_->tokens.size());
}

const std::string& Tokenizer::sha256() const {
  return impl_->sha256;
}

std::string Detokenizer::push(int32_t id) {
  if (skip_special_ && tokenizer_.is_special(id)) return {};
  pending_ += tokenizer_.token_bytes(id);
  std::string out;
  drain_utf8(pending_, out, false);
  return out;
}

std::string Detokenizer::flush() {
  std::string out;
  drain_utf8(pending_, out, true);
  return out;
}

}  // namespace rorqual::text
