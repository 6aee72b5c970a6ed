// SPDX-License-Identifier: Apache-2.0
#include "cli/commands.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <set>
#include <string>

#include "base/check.h"

namespace rorqual::cli {
namespace {

std::vector<CommandSpec> make_commands() {
  std::vector<CommandSpec> all;
  for (auto make : {serve_command,       chat_command,          convert_command,       inspect_command,
                    tokenize_command,    render_command,        parse_command,         check_command,
                    kl_corpus_command,   kl_capture_command,    kl_panel_command,      kl_agree_command,
                    kl_compare_command,  kl_gate_command,       kl_table_command,      kl_report_command,
                    plan_command,        bench_context_command, bench_latency_command, bench_serve_command,
                    bench_agent_command, bench_op_command,      bench_compare_command, doctor_command,
                    completion_command,  version_command}) {
    all.push_back(make());
  }
  for (auto& command : all) {
    for (auto& option : shared_options()) command.options.push_back(option);
    RORQUAL_CHECK(table_fault(command).empty());
  }
  return all;
}

}  // namespace

const OptionSpec* CommandSpec::find(std::string_view option_name) const {
  const auto found = std::find_if(options.begin(), options.end(),
                                  [&](const OptionSpec& option) { return option.name == option_name; });
  return found == options.end() ? nullptr : &*found;
}

const std::vector<CommandSpec>& commands() {
  static const std::vector<CommandSpec> kCommands = make_commands();
  return kCommands;
}

const CommandSpec* find_command(std::string_view name) {
  const auto& all = commands();
  const auto found =
      std::find_if(all.begin(), all.end(), [&](const CommandSpec& command) { return command.name == name; });
  return found == all.end() ? nullptr : &*found;
}

std::string_view first_word(std::string_view command_name) {
  return command_name.substr(0, command_name.find(' '));
}

bool is_command_group(std::string_view word) {
  const auto& all = commands();
  return std::any_of(all.begin(), all.end(), [&](const CommandSpec& command) {
    return command.name.size() > word.size() && first_word(command.name) == word;
  });
}

std::string environment_name(std::string_view option_name) {
  std::string name = "RORQUAL_";
  for (const char c : option_name) {
    name += c == '-' ? '_' : static_cast<char>(std::toupper(static_cast<unsigned char>(c)));
  }
  return name;
}

const std::vector<ExtraVariable>& extra_variables() {
  static const std::vector<ExtraVariable> kVariables = {
      {"RORQUAL_CPU_ISA", "kernel tier: ref, avx2 (default: the best that this CPU runs)"},
      {"NO_COLOR", "if set, no colours in logs"},
  };
  return kVariables;
}

std::vector<OptionSpec> shared_options() {
  return {
      {.name = "config",
       .kind = OptionKind::path,
       .group = "general",
       .help = "read options from a flat YAML or JSON file",
       .value_name = "FILE"},
      {.name = "print-config",
       .kind = OptionKind::flag,
       .group = "general",
       .help = "print every option with its value and origin, and do nothing else"},
      {.name = "json",
       .kind = OptionKind::flag,
       .group = "general",
       .help = "print the result, or the error, as one JSON object"},
  };
}

std::string table_fault(const CommandSpec& command) {
  std::set<std::string_view> names;
  for (const auto& option : command.options) {
    if (!names.insert(option.name).second)
      return fmt::format("{} --{} appears twice", command.name, option.name);
    if (option.help.empty()) return fmt::format("{} --{} has no help", command.name, option.name);
    const bool takes_value = option.kind != OptionKind::flag;
    if (takes_value == option.value_name.empty())
      return fmt::format("{} --{}: value name", command.name, option.name);
    if (option.kind == OptionKind::choice && option.choices.empty())
      return fmt::format("--{}: choices", option.name);
    if (!option.is_positional && option.group.empty()) return fmt::format("--{}: group", option.name);
  }
  return {};
}

}  // namespace rorqual::cli
