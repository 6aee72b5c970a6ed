// SPDX-License-Identifier: Apache-2.0
// Stop strings in a text stream: holds back what may still become a match, never more. One automaton for all
// strings, so the cost per character does not depend on their number.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace rorqual::text {

/// One thread. Feed pieces with push(); after is_matched() everything further is dropped.
class StopMatcher {
 public:
  /// Empty strings are ignored. Among matches the one that ends first wins; then the earlier one in the list.
  explicit StopMatcher(const std::vector<std::string>& stops);

  /// While set, strings that end are not matches; what comes later of one that is half there still counts.
  void set_ignoring(bool is_ignoring) { is_ignoring_ = is_ignoring; }

  /// Text that can no longer belong to a match. The match itself is never given out.
  std::string push(std::string_view text);

  /// What is held back (a partial match at the end of the output). Empty after a match.
  std::string flush();

  bool is_matched() const { return matched_ >= 0; }

  /// The string that matched, as given; only after is_matched().
  const std::string& matched() const { return stops_[static_cast<size_t>(matched_)]; }

  /// No strings: nothing ever matches.
  bool is_empty() const { return nodes_.size() <= 1; }

  /// For callers that keep the text themselves: takes one byte, returns how many bytes at the end of the text
  /// may still become a match; after a match, the length of the match.
  size_t step(char byte);

 private:
  struct Node {
    std::vector<std::pair<char, int32_t>> next;
    int32_t fail = 0;
    int32_t depth = 0;
    int32_t output = -1;  // best stop that ends here: index in the list
  };

  int32_t child(int32_t node, char byte) const;
  void add(std::string_view stop, int32_t index);
  void link();

  std::vector<std::string> stops_;
  std::vector<Node> nodes_;
  std::string held_;
  int32_t state_ = 0;
  int32_t matched_ = -1;
  bool is_ignoring_ = false;
};

}  // namespace rorqual::text
