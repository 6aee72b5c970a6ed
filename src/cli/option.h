// SPDX-License-Identifier: Apache-2.0
// The option tables: one description per option drives parsing, help, environment, config file, completion
// and docs/cli.md. No values here; those are in cli/values.h.
#pragma once

#include <cstdint>
#include <limits>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace rorqual::cli {

class Values;

/// flag: --x and --no-x. size: integer with 1k = 1000, 1K = 1024 and so on. choice: one of `choices`.
enum class OptionKind : uint8_t { flag, text, path, integer, size, real, choice };

struct OptionSpec {
  std::string_view name = {};  // without dashes, kebab case; positionals: lower case word
  OptionKind kind = OptionKind::text;
  std::string_view group = {};          // heading in the help
  std::string_view help = {};           // one line
  std::string_view value_name = {};     // "N"; empty for flags
  std::string_view default_value = {};  // as typed; empty = none. flags: "on" or empty
  std::string_view choices = {};        // "text|json"; beside numbers: words that are accepted as well
  double min = -std::numeric_limits<double>::infinity();
  double max = std::numeric_limits<double>::infinity();
  char letter = 0;             // short form
  bool is_common = false;      // shown by plain --help
  bool is_list = false;        // may be repeated; positionals: takes all remaining arguments
  bool is_positional = false;  // by place, not by name
  bool is_required = false;
};

struct CommandSpec {
  std::string_view name = {};         // "serve", or two words: "kl capture"
  std::string_view summary = {};      // one line for the list of commands
  std::string_view description = {};  // a few sentences for its own help
  std::string_view example = {};      // a full command line
  std::vector<OptionSpec> options = {};
  Status (*run)(const Values& values) = nullptr;

  /// Null if the command has no such option.
  const OptionSpec* find(std::string_view option_name) const;
};

/// All commands, in the order of the help.
const std::vector<CommandSpec>& commands();

/// Null if there is none of that name.
const CommandSpec* find_command(std::string_view name);

/// "kl" for "kl capture".
std::string_view first_word(std::string_view command_name);

/// Do commands of two words begin with it?
bool is_command_group(std::string_view word);

/// "RORQUAL_MAX_MODEL_LEN" for "max-model-len".
std::string environment_name(std::string_view option_name);

/// RORQUAL_* variables that are not options: name and one line on what they do.
struct ExtraVariable {
  std::string_view name, help;
};

const std::vector<ExtraVariable>& extra_variables();

}  // namespace rorqual::cli
