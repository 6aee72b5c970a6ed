// SPDX-License-Identifier: Apache-2.0
// --config FILE: a flat subset of YAML (`option-name: value`, lists as `[a, b]` or `- a` lines, # comments)
// or one JSON object. No nesting, no anchors, no multi-line text.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace rorqual::cli {

struct ConfigEntry {
  std::string name;  // underscores turned into dashes
  std::vector<std::string> items;
  int line = 0;  // 0 for JSON
};

/// Entries in file order. Errors (invalid_argument) name line, got and expected.
Result<std::vector<ConfigEntry>> parse_config_text(std::string_view text);

/// Reads and parses `path`. Errors also: not_found, io.
Result<std::vector<ConfigEntry>> read_config_file(const std::string& path);

}  // namespace rorqual::cli
