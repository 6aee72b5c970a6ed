// SPDX-License-Identifier: Apache-2.0
// Trie over the spellings of added tokens.
#include "text/added_tokens.h"

namespace rorqual::text {

int32_t SpellingTrie::child(int32_t node, unsigned char byte) const {
  if (node == 0) return root_[byte];
  for (const auto& [key, target] : nodes_[static_cast<size_t>(node)].next) {
    if (key == byte) return target;
  }
  return -1;
}

void SpellingTrie::add(std::string_view spelling, int32_t id) {
  int32_t node = 0;
  for (const char c : spelling) {
    const auto byte = static_cast<unsigned char>(c);
    int32_t target = child(node, byte);
    if (target < 0) {
      target = static_cast<int32_t>(nodes_.size());
      nodes_.emplace_back();
      if (node == 0) {
        root_[byte] = target;
      } else {
        nodes_[static_cast<size_t>(node)].next.emplace_back(byte, target);
      }
    }
    node = target;
  }
  nodes_[static_cast<size_t>(node)].id = id;
}

SpellingTrie::Match SpellingTrie::find(std::string_view text, size_t from) const {
  for (size_t begin = from; begin < text.size(); ++begin) {
    Match match;
    int32_t node = 0;
    for (size_t pos = begin; pos < text.size(); ++pos) {
      node = child(node, static_cast<unsigned char>(text[pos]));
      if (node < 0) break;
      const int32_t id = nodes_[static_cast<size_t>(node)].id;
      if (id >= 0) match = {begin, pos + 1, id};
    }
    if (match.id >= 0) return match;
  }
  return {};
}

}  // namespace rorqual::text
