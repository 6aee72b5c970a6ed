// SPDX-License-Identifier: Apache-2.0
// Names that a mistyped word may have meant.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace rorqual::cli {

/// Up to three of `candidates` that are close to `word` (few edits, or one contains the other), best first.
std::vector<std::string> nearest(std::string_view word, const std::vector<std::string>& candidates);

/// "; did you mean '--a' or '--b'?" with `prefix` before each name; empty for no names.
std::string did_you_mean(const std::vector<std::string>& names, std::string_view prefix = {});

}  // namespace rorqual::cli
