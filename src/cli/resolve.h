// SPDX-License-Identifier: Apache-2.0
// Command line > environment > config file > built-in default: one checked value per option, with its origin.
#pragma once

#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "cli/values.h"

namespace rorqual::cli {

/// RORQUAL_* variables of the process, or of a test.
using Environment = std::map<std::string, std::string, std::less<>>;

struct Resolution {
  Values values;
  std::vector<std::string> warnings;  // unknown RORQUAL_* variables
};

/// Options whose values must not appear in logs, banners and lists of processes.
bool is_secret_option(std::string_view name);

/// Errors (invalid_argument) name option, got, expected and, unless it is the command line, where the value
/// came from. `offending` gets the option's name, if there is one.
Result<Resolution> resolve(const CommandSpec& command, const std::vector<std::string>& arguments,
                           const Environment& environment, std::string& offending);

/// What --print-config shows: `name: value   # origin` lines, or one JSON object.
std::string print_config(const Values& values, bool as_json);

/// "port=8001 max-num-seqs=4": the options that are not at their default, for the banner. Keys are left out.
std::string non_default_options(const Values& values);

}  // namespace rorqual::cli
