// SPDX-License-Identifier: Apache-2.0
// Shell completion scripts, written from the option tables.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "cli/option.h"

namespace rorqual::cli {

/// Script for "bash", "zsh" or "fish". Errors: invalid_argument.
Result<std::string> completion_script(std::string_view shell,
                                      const std::vector<CommandSpec>& all = commands());

}  // namespace rorqual::cli
