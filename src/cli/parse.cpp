// SPDX-License-Identifier: Apache-2.0
// The only file that sees CLI11: it splits the command line, everything else is read from the option table.
#include "cli/parse.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>

#include "cli/nearest.h"

namespace rorqual::cli {
namespace {

std::string names_of(const OptionSpec& option) {
  if (option.is_positional) return std::string(option.name);
  std::string names = fmt::format("--{}", option.name);
  if (option.letter != 0) names += fmt::format(",-{}", option.letter);
  if (option.kind == OptionKind::flag) names += fmt::format(",!--no-{}", option.name);
  return names;
}

void declare(CLI::App& app, const OptionSpec& option, RawArguments& raw) {
  CLI::callback_t keep = [&option, &raw](const CLI::results_t& results) {
    raw.items[std::string(option.name)] = results;
    return true;
  };
  if (option.kind == OptionKind::flag) {
    app.add_flag_callback(names_of(option), [] {})->multi_option_policy(CLI::MultiOptionPolicy::TakeLast);
    return;
  }
  auto* added = app.add_option(names_of(option), keep);
  added->type_size(1);
  if (option.is_positional) {
    added->expected(option.is_list ? -1 : 1)->required(false);
  } else {
    added->expected(1);
  }
  added->multi_option_policy(option.is_list ? CLI::MultiOptionPolicy::TakeAll
                                            : CLI::MultiOptionPolicy::TakeLast);
}

Error unexpected(const CommandSpec& command, const std::string& argument, std::string& offending) {
  const std::string hint = fmt::format("rorqual {} --help", command.name);
  if (argument.size() < 2 || argument[0] != '-') {
    return {Code::invalid_argument,
            fmt::format("unexpected argument '{}' for 'rorqual {}'", argument, command.name), hint};
  }
  const auto name = argument.substr(0, argument.find('='));
  offending = name.substr(std::min(name.find_first_not_of('-'), name.size()));
  std::vector<std::string> names;
  for (const auto& option : command.options) {
    if (!option.is_positional) names.emplace_back(option.name);
  }
  return {Code::invalid_argument,
          fmt::format("unknown option '{}'{}", name, did_you_mean(nearest(offending, names), "--")), hint};
}

/// A value that is missing shows as the next option in its place, or as the end of the line.
const OptionSpec* option_without_value(const CommandSpec& command,
                                       const std::vector<std::string>& arguments) {
  for (size_t i = 0; i < arguments.size() && arguments[i] != "--"; ++i) {
    const auto& word = arguments[i];
    if (word.size() < 2 || word[0] != '-') continue;
    for (const auto& option : command.options) {
      const bool named =
          !option.is_positional && (word == fmt::format("--{}", option.name) ||
                                    (option.letter != 0 && word == fmt::format("-{}", option.letter)));
      if (!named || option.kind == OptionKind::flag) continue;
      const bool has_value = i + 1 < arguments.size();
      const bool looks_like_option =
          has_value && arguments[i + 1].rfind("--", 0) == 0 && option.kind != OptionKind::text;
      if (!has_value || looks_like_option) return &option;
      ++i;
      break;
    }
  }
  return nullptr;
}

}  // namespace

Result<RawArguments> parse_arguments(const CommandSpec& command, const std::vector<std::string>& arguments,
                                     std::string& offending) {
  if (const auto* option = option_without_value(command, arguments)) {
    offending = option->name;
    return Error(Code::invalid_argument,
                 fmt::format("option '--{}' needs a value: {}", option->name, option->help),
                 fmt::format("--{} {}", option->name, option->value_name));
  }
  RawArguments raw;
  CLI::App app;
  app.set_help_flag();
  app.allow_extras();
  for (const auto& option : command.options) declare(app, option, raw);
  try {
    app.parse(std::vector<std::string>(arguments.rbegin(), arguments.rend()));  // CLI11 takes them reversed
  } catch (const CLI::ParseError& error) {
    return Error(Code::invalid_argument, error.what(), fmt::format("rorqual {} --help", command.name));
  }
  for (const auto& option : command.options) {
    if (option.kind != OptionKind::flag) continue;
    const auto& results = app.get_option(fmt::format("--{}", option.name))->results();
    if (!results.empty()) raw.items[std::string(option.name)] = {results.back()};
  }
  const auto extras = app.remaining();
  for (const auto& extra : extras) {
    if (extra != "--") return unexpected(command, extra, offending);
  }
  return raw;
}

}  // namespace rorqual::cli
