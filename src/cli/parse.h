// SPDX-License-Identifier: Apache-2.0
// Arguments -> raw option values, by CLI11. Knows names and counts only; kinds and ranges are
// cli/resolve.h's.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "base/result.h"
#include "cli/option.h"

namespace rorqual::cli {

struct RawArguments {
  std::map<std::string, std::vector<std::string>, std::less<>> items;  // only what was given
};

/// Errors (invalid_argument): unknown option (with the nearest names), missing value, superfluous argument.
/// `offending` gets the option's name, if there is one.
Result<RawArguments> parse_arguments(const CommandSpec& command, const std::vector<std::string>& arguments,
                                     std::string& offending);

}  // namespace rorqual::cli
