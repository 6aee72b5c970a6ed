// SPDX-License-Identifier: Apache-2.0
#include "cli/nearest.h"

#include <algorithm>
#include <numeric>
#include <utility>

namespace rorqual::cli {
namespace {

/// Levenshtein distance; names are short, so one row of the table is enough.
size_t edits(std::string_view a, std::string_view b) {
  std::vector<size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), size_t{0});
  for (size_t i = 1; i <= a.size(); ++i) {
    size_t diagonal = row[0];
    row[0] = i;
    for (size_t j = 1; j <= b.size(); ++j) {
      const size_t above = row[j];
      row[j] = std::min({row[j] + 1, row[j - 1] + 1, diagonal + (a[i - 1] == b[j - 1] ? 0 : 1)});
      diagonal = above;
    }
  }
  return row[b.size()];
}

}  // namespace

std::vector<std::string> nearest(std::string_view word, const std::vector<std::string>& candidates) {
  constexpr size_t kMaxNames = 3;
  constexpr size_t kMaxWordBytes = 64;  // longer words are no typing errors, and the table grows with them
  if (word.empty() || word.size() > kMaxWordBytes) return {};
  std::vector<std::pair<size_t, std::string>> found;
  for (const auto& candidate : candidates) {
    const size_t distance = edits(word, candidate);
    const bool contains =
        word.size() >= 3 && (candidate.find(word) != std::string::npos ||
                             (candidate.size() >= 3 && word.find(candidate) != std::string_view::npos));
    const size_t limit = std::max<size_t>(2, word.size() / 4);
    if (distance <= limit) {
      found.emplace_back(distance, candidate);
    } else if (contains) {
      found.emplace_back(limit + distance, candidate);
    }
  }
  std::sort(found.begin(), found.end());
  std::vector<std::string> names;
  for (const auto& [distance, name] : found) {
    if (names.size() == kMaxNames || distance > found.front().first + 2) break;
    names.push_back(name);
  }
  return names;
}

std::string did_you_mean(const std::vector<std::string>& names, std::string_view prefix) {
  if (names.empty()) return {};
  std::string text = "; did you mean ";
  for (size_t i = 0; i < names.size(); ++i) {
    if (i > 0) text += i + 1 == names.size() ? " or " : ", ";
    text += "'";
    text += prefix;
    text += names[i] + "'";
  }
  return text + "?";
}

}  // namespace rorqual::cli
