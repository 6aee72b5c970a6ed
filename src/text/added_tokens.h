// SPDX-License-Identifier: Apache-2.0
// Finds spellings of added tokens in text: leftmost, then longest. A trie; cost per byte bounded by the
// longest spelling.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>
#include <utility>
#include <vector>

namespace rorqual::text {

class SpellingTrie {
 public:
  SpellingTrie() : nodes_(1) { root_.fill(-1); }

  void add(std::string_view spelling, int32_t id);

  bool is_empty() const { return nodes_.size() == 1; }

  struct Match {
    size_t begin = 0, end = 0;
    int32_t id = -1;  // -1: none
  };

  /// First match at or after `from`.
  Match find(std::string_view text, size_t from) const;

 private:
  struct Node {
    std::vector<std::pair<unsigned char, int32_t>> next;
    int32_t id = -1;
  };

  int32_t child(int32_t node, unsigned char byte) const;

  std::array<int32_t, 256> root_;
  std::vector<Node> nodes_;
};

}  // namespace rorqual::text
