// SPDX-License-Identifier: Apache-2.0
// Shell completion scripts, written from the option tables.
#pragma once

#include <string>
#include <string_view>

#include "base/result.h"

namespace rorqual::cli {

/// Script for "bash", "zsh" or "fish". Errors: invalid_argument.
Result<std::string> completion_script(std::string_view shell);

}  // namespace rorqual::cli
