// SPDX-License-Identifier: Apache-2.0
// A set of Unicode scalar values: sorted ranges that neither touch nor overlap.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

namespace rorqual::grammar {

class CodePoints {
 public:
  struct Range {
    char32_t first = 0, last = 0;  // both included
  };

  CodePoints() = default;

  CodePoints(char32_t first, char32_t last) { add(first, last); }

  /// Every character of `ascii`.
  static CodePoints any_of(std::string_view ascii);

  /// Everything but surrogates, which no valid text has.
  static CodePoints all();

  void add(char32_t first, char32_t last);
  void add(const CodePoints& other);

  /// Scalar values that are not in it.
  CodePoints complement() const;

  /// Those of `this` that are in `other` too.
  CodePoints intersection(const CodePoints& other) const;

  bool contains(char32_t code_point) const;

  bool empty() const { return ranges_.empty(); }

  const std::vector<Range>& ranges() const { return ranges_; }

 private:
  std::vector<Range> ranges_;
};

}  // namespace rorqual::grammar
