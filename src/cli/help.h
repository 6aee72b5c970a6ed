// SPDX-License-Identifier: Apache-2.0
// Help texts and docs/cli.md, written from the option tables.
#pragma once

#include <string>
#include <string_view>

#include "base/result.h"
#include "cli/option.h"

namespace rorqual::cli {

/// `rorqual --help`: commands, general rules, exit codes.
std::string program_help();

/// `rorqual GROUP --help`: the commands of two words that begin with `group`.
std::string group_help(std::string_view group);

/// `rorqual COMMAND --help[=topic]`. Topic: empty = the common options, "all", a group, an option, or any
/// word to search for. Errors: not_found when nothing matches.
Result<std::string> command_help(const CommandSpec& command, std::string_view topic);

/// docs/cli.md.
std::string reference_markdown();

/// docs/switches.md, from model/switches.h.
std::string switches_markdown();

}  // namespace rorqual::cli
