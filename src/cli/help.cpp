// SPDX-License-Identifier: Apache-2.0
#include "cli/help.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cctype>
#include <limits>
#include <string>
#include <vector>

#include "cli/nearest.h"
#include "model/switches.h"
#include "tools/build_info.h"

namespace rorqual::cli {
namespace {

struct ExitCode {
  int code;
  std::string_view meaning;
};

constexpr ExitCode kExitCodes[] = {
    {0, "done"},
    {1, "a check or comparison failed"},
    {2, "usage: wrong option or value"},
    {3, "not found"},
    {4, "corrupt or contradicting data"},
    {5, "not supported by this build or machine"},
    {6, "not enough memory"},
    {7, "input/output, port or device"},
    {8, "server not reachable or not ready"},
    {9, "time limit"},
    {70, "internal error (a bug)"},
    {130, "interrupted (SIGINT); 143: terminated (SIGTERM)"},
};

std::string lower(std::string_view text) {
  std::string out(text);
  std::transform(out.begin(), out.end(), out.begin(),
                 [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  return out;
}

/// "--port PORT", "-p, --prompt TEXT", "MODEL".
std::string label(const OptionSpec& option) {
  if (option.is_positional) return std::string(option.value_name) + (option.is_list ? " …" : "");
  std::string text = option.letter != 0 ? fmt::format("-{}, --{}", option.letter, option.name)
                                        : fmt::format("--{}", option.name);
  if (option.kind == OptionKind::flag) {
    return option.default_value == "on" ? fmt::format("{} / --no-{}", text, option.name) : text;
  }
  return fmt::format("{} {}", text, option.value_name);
}

std::string range_text(const OptionSpec& option) {
  std::string text;
  const bool has_min = option.min > -std::numeric_limits<double>::infinity();
  const bool has_max = option.max < std::numeric_limits<double>::infinity();
  if (has_min && has_max) {
    text = fmt::format("{} to {}", option.min, option.max);
  } else if (has_min) {
    text = fmt::format("at least {}", option.min);
  }
  if (!option.choices.empty()) text += (text.empty() ? "" : ", or ") + std::string(option.choices);
  return text;
}

/// Characters, not bytes: the labels hold "…".
size_t width(std::string_view text) {
  return static_cast<size_t>(
      std::count_if(text.begin(), text.end(), [](char c) { return (c & 0xC0) != 0x80; }));
}

std::string row(const OptionSpec& option) {
  constexpr size_t kColumn = 34;
  auto text = "  " + label(option);
  const auto used = width(text);
  text += used + 2 <= kColumn ? std::string(kColumn - used, ' ') : "\n" + std::string(kColumn, ' ');
  text += option.help;
  if (!option.choices.empty() && option.kind == OptionKind::choice)
    text += fmt::format(" ({})", option.choices);
  if (!option.default_value.empty()) text += fmt::format(" [{}]", option.default_value);
  return text + "\n";
}

std::string details(const OptionSpec& option) {
  std::string text = fmt::format("{}\n  {}\n", label(option), option.help);
  if (!option.default_value.empty()) text += fmt::format("  default   {}\n", option.default_value);
  if (const auto range = range_text(option); !range.empty()) text += fmt::format("  values    {}\n", range);
  if (option.is_list) text += "  repeat    yes; lists in the environment are separated by commas\n";
  text += fmt::format("  variable  {}\n  config    {}: …\n", environment_name(option.name), option.name);
  return text;
}

std::vector<std::string_view> groups(const CommandSpec& command) {
  std::vector<std::string_view> names;
  for (const auto& option : command.options) {
    if (!option.is_positional && std::find(names.begin(), names.end(), option.group) == names.end()) {
      names.push_back(option.group);
    }
  }
  return names;
}

template <class Wanted>
std::string grouped_rows(const CommandSpec& command, const Wanted& wanted) {
  std::string text;
  for (const auto group : groups(command)) {
    std::string rows;
    for (const auto& option : command.options) {
      if (!option.is_positional && option.group == group && wanted(option)) rows += row(option);
    }
    if (!rows.empty()) text += fmt::format("\n{}\n{}", group, rows);
  }
  return text;
}

std::string usage_line(const CommandSpec& command) {
  std::string text = fmt::format("rorqual {}", command.name);
  for (const auto& option : command.options) {
    if (option.is_positional) {
      text += option.is_required ? " " + label(option) : fmt::format(" [{}]", label(option));
    }
  }
  return text + " [options]";
}

std::string heading(const CommandSpec& command) {
  std::string text = fmt::format("{}\n{}\n", usage_line(command), command.description);
  for (const auto& option : command.options) {
    if (option.is_positional) text += "\n" + row(option);
  }
  return text;
}

bool mentions(const OptionSpec& option, const std::string& word) {
  return lower(option.name).find(word) != std::string::npos ||
         lower(option.help).find(word) != std::string::npos ||
         lower(option.group).find(word) != std::string::npos;
}

std::string table_cell(std::string_view text) {
  std::string out;
  for (const char c : text) {
    if (c == '|') out += '\\';
    out += c;
  }
  return out;
}

std::string command_markdown(const CommandSpec& command) {
  std::string text =
      fmt::format("\n## rorqual {}\n`{}`\n\n{}\n", command.name, usage_line(command), command.description);
  if (!command.example.empty()) text += fmt::format("\nExample: `{}`\n", command.example);
  if (command.options.empty()) return text;
  text += "\n| option | meaning | default | values | variable |\n|---|---|---|---|---|\n";
  for (const auto& option : command.options) {
    const auto fallback =
        option.default_value.empty() ? std::string() : fmt::format("`{}`", option.default_value);
    text +=
        fmt::format("| `{}` | {} | {} | {} | `{}` |\n", table_cell(label(option)), table_cell(option.help),
                    fallback, table_cell(range_text(option)), environment_name(option.name));
  }
  return text;
}

}  // namespace

std::string program_help() {
  std::string text = fmt::format(
      "rorqual {}: serves, checks and inspects DeepSeek-V4.1-Flash on CPUs\n\nusage: rorqual COMMAND "
      "[options]\n\n",
      tools::build_info().version);
  for (const auto& command : commands()) text += fmt::format("  {:<14}{}\n", command.name, command.summary);
  text +=
      "\nrorqual COMMAND --help shows the common options, --help=all every one, --help=WORD searches;\n"
      "rorqual --help=switches lists what can change results.\n"
      "Every option can also stand in the environment (RORQUAL_MAX_MODEL_LEN=32K) or in a file (--config "
      "FILE);\n"
      "the command line wins over the environment, and that over the file.\n\nvariables\n";
  for (const auto& variable : extra_variables())
    text += fmt::format("  {:<20}{}\n", variable.name, variable.help);
  text += "\nexit codes\n";
  for (const auto& [code, meaning] : kExitCodes) text += fmt::format("  {:<5}{}\n", code, meaning);
  return text;
}

std::string group_help(std::string_view group) {
  std::string text = fmt::format("usage: rorqual {} COMMAND [options]\n\n", group);
  for (const auto& command : commands()) {
    if (command.name != group && first_word(command.name) == group)
      text += fmt::format("  {:<14}{}\n", command.name, command.summary);
  }
  return text + fmt::format("\nrorqual {} COMMAND --help shows the options of one.\n", group);
}

Result<std::string> command_help(const CommandSpec& command, std::string_view topic) {
  const auto example =
      command.example.empty() ? std::string() : fmt::format("\nexample\n  {}\n", command.example);
  if (topic.empty() || topic == "all") {
    const bool all = topic == "all";
    std::string text = heading(command);
    text += grouped_rows(command, [&](const OptionSpec& option) { return all || option.is_common; });
    text += example;
    const auto is_hidden = [](const OptionSpec& option) {
      return !option.is_common && !option.is_positional;
    };
    const auto hidden = std::count_if(command.options.begin(), command.options.end(), is_hidden);
    if (!all && hidden > 0)
      text += fmt::format("\n{} more options: rorqual {} --help=all\n", hidden, command.name);
    return text;
  }
  const auto word = lower(topic.substr(std::min(topic.find_first_not_of('-'), topic.size())));
  if (const auto* option = command.find(word)) return details(*option);
  for (const auto group : groups(command)) {
    if (lower(group) == word) {
      return grouped_rows(command, [&](const OptionSpec& option) { return option.group == group; }).substr(1);
    }
  }
  const auto found = grouped_rows(command, [&](const OptionSpec& option) { return mentions(option, word); });
  if (!found.empty()) return found.substr(1);
  std::vector<std::string> names;
  for (const auto& option : command.options) names.emplace_back(option.name);
  return Error(Code::not_found,
               fmt::format("no option of 'rorqual {}' matches '{}'{}", command.name, topic,
                           did_you_mean(nearest(word, names))),
               fmt::format("groups: {}", fmt::join(groups(command), ", ")));
}

std::string switches_markdown() {
  std::string text =
      "# Switches that change results\n"
      "Generated from the registry (`src/model/switches.cpp`) by `rorqual --help=switches`; a test compares "
      "this page "
      "with the program.\n\n"
      "Every option that can change what the model says is here. A lossy switch has a measured KL and a "
      "verdict "
      "of the gate of [fidelity.md](fidelity.md). As started, all are off; `--exact-switches` makes sure of "
      "it (an error beside one that is on). `--fast` turns those on that passed the gate; one that failed is "
      "on only where it is asked for by name. The switches that are on are shown at start, in `/version`, "
      "and in the record of every "
      "capture.\n\n"
      "## Lossy switches\n";
  for (const auto& spec : model::switch_registry()) {
    const auto& record = spec.record;
    text += fmt::format(
        "\n### --{0} {1}\n"
        "| | |\n|---|---|\n"
        "| default | `{2}` (no loss) |\n"
        "| gate | {3} |\n"
        "| in `--fast` | {7} |\n"
        "| changes | {4} |\n"
        "| known elsewhere as | {5} |\n"
        "| since | {6} |\n"
        "| turn it off | `--{0} {2}`, or `--exact-switches` |\n",
        spec.option, spec.choices, spec.exact_value, record.gate, spec.changes, spec.public_name, spec.since,
        spec.is_in_fast ? "yes" : "no");
    text += fmt::format("| speed | {} |\n| memory | {} |\n", record.speed, record.memory);
    text += fmt::format(
        "\n| mean KL to `exact`, without -> with it | neutral | code | agentic | panel "
        "|\n|---|---|---|---|---|\n| {} | {} | {} | {} "
        "| {} "
        "|\n",
        spec.lossy_value, record.kl_neutral, record.kl_code, record.kl_agentic, record.kl_panel);
  }
  text +=
      "\n## Options that are not lossy\n| option | default | what it changes | cost |\n|---|---|---|---|\n";
  for (const auto& option : model::neutral_options()) {
    text +=
        fmt::format("| `{}` | {} | {} | {} |\n", option.name, option.fallback, option.changes, option.cost);
  }
  return text;
}

std::string reference_markdown() {
  std::string text =
      "# Command line\nGenerated from the option tables by `rorqual --help=markdown`; a test compares this "
      "page with the "
      "program.\n\n"
      "- Options are written `--name value` or `--name=value`; flags have a `--no-` form.\n"
      "- Precedence: command line, then environment (`RORQUAL_<OPTION>`), then `--config FILE`, then the "
      "default. "
      "`--print-config` shows each value with its origin.\n"
      "- The config file is flat YAML (`option-name: value`, lists as `[a, b]` or `- a` lines) or one JSON "
      "object.\n"
      "- Sizes take suffixes: `1k` = 1000, `1K` = 1024, `25.6k` = 25600, likewise M, G, T.\n"
      "- An unknown option is an error (exit 2) that names the nearest ones; an unknown `RORQUAL_*` variable "
      "is a "
      "warning.\n"
      "- With `--json` results are one JSON object on standard output, and a failure is one on standard "
      "error: "
      "`{\"error\":{\"code\",\"message\",\"hint\",\"param\",\"exit\"}}`.\n"
      "\n| command | what it does |\n|---|---|\n";
  for (const auto& command : commands())
    text += fmt::format("| `{}` | {} |\n", command.name, command.summary);
  text += "\n| exit code | meaning |\n|---|---|\n";
  for (const auto& [code, meaning] : kExitCodes) text += fmt::format("| {} | {} |\n", code, meaning);
  text += "\n| variable | what it does |\n|---|---|\n";
  for (const auto& variable : extra_variables())
    text += fmt::format("| `{}` | {} |\n", variable.name, variable.help);
  for (const auto& command : commands()) text += command_markdown(command);
  return text;
}

}  // namespace rorqual::cli
