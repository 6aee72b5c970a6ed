// SPDX-License-Identifier: Apache-2.0
// Sets of characters.
#include "grammar/code_points.h"

#include <algorithm>

namespace rorqual::grammar {

namespace {

constexpr char32_t kLast = 0x10FFFF, kFirstSurrogate = 0xD800, kLastSurrogate = 0xDFFF;

}  // namespace

CodePoints CodePoints::any_of(std::string_view ascii) {
  CodePoints set;
  for (const char c : ascii) {
    const auto code_point = static_cast<char32_t>(static_cast<unsigned char>(c));
    set.add(code_point, code_point);
  }
  return set;
}

CodePoints CodePoints::all() {
  CodePoints set(0, kFirstSurrogate - 1);
  set.add(kLastSurrogate + 1, kLast);
  return set;
}

void CodePoints::add(char32_t first, char32_t last) {
  std::vector<Range> merged;
  Range range{first, last};
  for (const Range& old : ranges_) {
    if (old.last + 1 < range.first || range.last + 1 < old.first) {
      merged.push_back(old);
    } else {
      range = {std::min(range.first, old.first), std::max(range.last, old.last)};
    }
  }
  merged.push_back(range);
  std::sort(merged.begin(), merged.end(), [](const Range& a, const Range& b) { return a.first < b.first; });
  ranges_ = std::move(merged);
}

void CodePoints::add(const CodePoints& other) {
  for (const Range& range : other.ranges_) add(range.first, range.last);
}

CodePoints CodePoints::complement() const {
  CodePoints gaps;
  char32_t next = 0;
  for (const Range& range : ranges_) {
    if (range.first > next) gaps.add(next, range.first - 1);
    next = range.last + 1;
  }
  if (next <= kLast) gaps.add(next, kLast);
  return gaps.intersection(all());
}

CodePoints CodePoints::intersection(const CodePoints& other) const {
  CodePoints out;
  for (const Range& a : ranges_) {
    for (const Range& b : other.ranges_) {
      const char32_t first = std::max(a.first, b.first), last = std::min(a.last, b.last);
      if (first <= last) out.add(first, last);
    }
  }
  return out;
}

bool CodePoints::contains(char32_t code_point) const {
  return std::any_of(ranges_.begin(), ranges_.end(),
                     [&](const Range& r) { return r.first <= code_point && code_point <= r.last; });
}

}  // namespace rorqual::grammar
