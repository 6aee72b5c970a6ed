// SPDX-License-Identifier: Apache-2.0
// Engram's compressed ids: equal folded text, equal id; new ids in order of first appearance. Tokens that are
// no whole characters keep their own spelling as key.
#include "text/token_map.h"

#include <string>
#include <string_view>
#include <unordered_map>

#include "text/unicode.h"
#include "text/utf8.h"

namespace rorqual::text {

namespace {

constexpr std::string_view kKeptSpace = "\uE000";  // the normaliser's private stand-in for a lone space

bool is_ascii_space(char c) {
  return c == ' ' || c == '\t' || c == '\r' || c == '\n';
}

std::string collapse_spaces(std::string_view text) {
  std::string out;
  for (size_t i = 0; i < text.size(); ++i) {
    if (!is_ascii_space(text[i])) {
      out += text[i];
    } else if (i == 0 || !is_ascii_space(text[i - 1])) {
      out += ' ';
    }
  }
  return out;
}

std::string_view strip_spaces(std::string_view text) {
  size_t begin = text.size();
  size_t end = 0;
  for (size_t pos = 0; pos < text.size();) {
    const Utf8Char c = decode_utf8(text, pos);
    if (char_class(c.code_point) != CharClass::space) {
      if (begin > pos) begin = pos;
      end = pos + c.length;
    }
    pos += c.length;
  }
  return end > begin ? text.substr(begin, end - begin) : std::string_view();
}

/// A lone space stays; the stand-in becomes a space wherever it comes from.
std::string normalise(std::string_view text) {
  const std::string collapsed = collapse_spaces(fold_text(text));
  if (collapsed == " ") return collapsed;
  std::string_view rest = strip_spaces(collapsed);
  std::string out;
  for (size_t pos = rest.find(kKeptSpace); pos != std::string_view::npos; pos = rest.find(kKeptSpace)) {
    out.append(rest.substr(0, pos)).append(" ");
    rest.remove_prefix(pos + kKeptSpace.size());
  }
  return out.append(rest);
}

std::string key_of(const Tokenizer& tokenizer, int32_t id) {
  const std::string text = tokenizer.decode(std::span(&id, 1), false);
  if (text.find("\uFFFD") != std::string::npos) return std::string(tokenizer.token_string(id));
  std::string normal = normalise(text);
  return normal.empty() ? text : normal;
}

}  // namespace

TokenMap engram_token_map(const Tokenizer& tokenizer) {
  TokenMap map;
  std::unordered_map<std::string, int32_t> ids;
  map.compressed.reserve(static_cast<size_t>(tokenizer.vocab_size()));
  for (int32_t id = 0; id < tokenizer.vocab_size(); ++id) {
    const auto next = static_cast<int32_t>(ids.size());
    map.compressed.push_back(ids.emplace(key_of(tokenizer, id), next).first->second);
  }
  map.num_compressed = static_cast<int32_t>(ids.size());
  return map;
}

}  // namespace rorqual::text
