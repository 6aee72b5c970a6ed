// SPDX-License-Identifier: Apache-2.0
#include "cli/resolve.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>

#include "cli/config_file.h"
#include "cli/nearest.h"
#include "cli/parse.h"

namespace rorqual::cli {
namespace {

std::vector<std::string> split_choices(std::string_view choices) {
  std::vector<std::string> words;
  while (!choices.empty()) {
    const auto bar = std::min(choices.find('|'), choices.size());
    words.emplace_back(choices.substr(0, bar));
    choices.remove_prefix(std::min(bar + 1, choices.size()));
  }
  return words;
}

std::string expected_text(const OptionSpec& option) {
  const auto words = split_choices(option.choices);
  std::string text;
  switch (option.kind) {
    case OptionKind::flag:
      return "on or off";
    case OptionKind::choice:
      return fmt::format("one of {}", fmt::join(words, ", "));
    case OptionKind::integer:
      text = "an integer";
      break;
    case OptionKind::size:
      text = "an integer such as 131072, 128K or 1M";
      break;
    case OptionKind::real:
      text = "a number";
      break;
    default:
      return "a value";
  }
  const bool has_min = option.min > -std::numeric_limits<double>::infinity();
  const bool has_max = option.max < std::numeric_limits<double>::infinity();
  if (has_min && has_max) {
    text += fmt::format(" from {} to {}", option.min, option.max);
  } else if (has_min) {
    text += fmt::format(" of at least {}", option.min);
  }
  if (!words.empty()) text += fmt::format(", or {}", fmt::join(words, ", "));
  return text;
}

/// Checks one item and brings flags into the form on/off. False if it does not fit the option.
bool accept(const OptionSpec& option, std::string& item) {
  const auto words = split_choices(option.choices);
  const bool is_word = std::find(words.begin(), words.end(), item) != words.end();
  if (option.kind == OptionKind::text || option.kind == OptionKind::path) return true;
  if (option.kind == OptionKind::flag) {
    const auto value = parse_switch(item);
    if (value) item = *value ? "on" : "off";
    return value.has_value();
  }
  if (is_word || option.kind == OptionKind::choice) return is_word;
  double number = 0;
  if (option.kind == OptionKind::real) {
    const auto value = parse_real(item);
    if (!value) return false;
    number = *value;
  } else {
    const auto value = option.kind == OptionKind::size ? parse_size(item) : parse_integer(item);
    if (!value) return false;
    number = static_cast<double>(*value);
  }
  return number >= option.min && number <= option.max;
}

class Resolver {
 public:
  Resolver(const CommandSpec& command, const Environment& environment, std::string& offending)
      : command_(command), environment_(environment), offending_(offending), out_{Values(command), {}} {}

  Result<Resolution> run(const std::vector<std::string>& arguments) {
    RORQUAL_TRY_ASSIGN(const auto raw, parse_arguments(command_, arguments, offending_));
    for (const auto& option : command_.options) {
      if (!option.default_value.empty()) {
        out_.values.set(option.name, {{std::string(option.default_value)}, Origin::built_in});
      }
    }
    RORQUAL_TRY(from_config(raw));
    RORQUAL_TRY(from_environment());
    for (const auto& [name, items] : raw.items) {
      if (!items.empty()) RORQUAL_TRY(set(name, items, Origin::command_line, {}));
    }
    for (const auto& option : command_.options) {
      if (option.is_required && !out_.values.has(option.name)) return missing(option);
    }
    return std::move(out_);
  }

 private:
  Error missing(const OptionSpec& option) {
    offending_ = option.name;
    const auto what = option.is_positional ? fmt::format("missing argument {}", option.value_name)
                                           : fmt::format("missing option --{}", option.name);
    return {Code::invalid_argument, fmt::format("{}: {}", what, option.help), std::string(command_.example)};
  }

  Status set(std::string_view name, std::vector<std::string> items, Origin origin, const std::string& where) {
    const auto* option = command_.find(name);
    if (items.size() > 1 && !option->is_list) {
      offending_ = name;
      return Error(Code::invalid_argument,
                   fmt::format("--{}{}: got {} values, expected one", name, where, items.size()));
    }
    for (auto& item : items) {
      if (accept(*option, item)) continue;
      offending_ = name;
      const auto label = option->is_positional ? std::string(option->value_name) : fmt::format("--{}", name);
      std::string message =
          fmt::format("{}{}: got '{}', expected {}", label, where, item, expected_text(*option));
      if (option->kind == OptionKind::choice)
        message += did_you_mean(nearest(item, split_choices(option->choices)));
      return Error(Code::invalid_argument, message, fmt::format("rorqual {} --help={}", command_.name, name));
    }
    out_.values.set(name, {std::move(items), origin});
    return Ok();
  }

  Status from_config(const RawArguments& raw) {
    if (command_.find("config") == nullptr) return Ok();
    std::string path;
    if (const auto found = environment_.find("RORQUAL_CONFIG"); found != environment_.end())
      path = found->second;
    if (const auto found = raw.items.find("config"); found != raw.items.end()) path = found->second.front();
    if (path.empty()) return Ok();
    RORQUAL_TRY_ASSIGN(const auto entries, read_config_file(path));
    for (const auto& entry : entries) {
      const auto* option = command_.find(entry.name);
      if (option == nullptr) {
        if (is_option_of_another_command(entry.name)) continue;
        return unknown_entry(path, entry);
      }
      if (entry.items.empty() || option->name == "config") continue;
      const auto where =
          entry.line > 0 ? fmt::format(" in {}:{}", path, entry.line) : fmt::format(" in {}", path);
      RORQUAL_TRY(set(entry.name, entry.items, Origin::config_file, where));
    }
    return Ok();
  }

  /// One file may serve several commands.
  static bool is_option_of_another_command(std::string_view name) {
    const auto& all = commands();
    return std::any_of(all.begin(), all.end(),
                       [&](const auto& command) { return command.find(name) != nullptr; });
  }

  Error unknown_entry(const std::string& path, const ConfigEntry& entry) {
    offending_ = entry.name;
    std::vector<std::string> names;
    for (const auto& option : command_.options) names.emplace_back(option.name);
    const auto place = entry.line > 0 ? fmt::format("{}:{}", path, entry.line) : path;
    return {
        Code::invalid_argument,
        fmt::format("{}: unknown option '{}'{}", place, entry.name, did_you_mean(nearest(entry.name, names))),
        fmt::format("rorqual {} --help=all lists the options", command_.name)};
  }

  Status from_environment() {
    std::set<std::string> known;
    for (const auto& command : commands()) {
      for (const auto& option : command.options) known.insert(environment_name(option.name));
    }
    for (const auto& variable : extra_variables()) known.insert(std::string(variable.name));
    for (const auto& [name, text] : environment_) {
      if (known.count(name) != 0 || name.rfind("RORQUAL_TEST_", 0) == 0) continue;
      const auto names = nearest(name, {known.begin(), known.end()});
      out_.warnings.push_back(fmt::format("unknown environment variable '{}'{}", name, did_you_mean(names)));
    }
    for (const auto& option : command_.options) {
      const auto variable = environment_name(option.name);
      const auto found = environment_.find(variable);
      if (found == environment_.end() || found->second.empty()) continue;
      auto items = option.is_list ? split_list(found->second) : std::vector<std::string>{found->second};
      RORQUAL_TRY(
          set(option.name, std::move(items), Origin::environment, fmt::format(" (from {})", variable)));
    }
    return Ok();
  }

  static std::vector<std::string> split_list(std::string_view text) {
    std::vector<std::string> items;
    while (!text.empty()) {
      const auto comma = std::min(text.find(','), text.size());
      if (comma > 0) items.emplace_back(text.substr(0, comma));
      text.remove_prefix(std::min(comma + 1, text.size()));
    }
    return items;
  }

  const CommandSpec& command_;
  const Environment& environment_;
  std::string& offending_;
  Resolution out_;
};

/// A value as JSON: number, boolean, string, list or null by the option's kind.
nlohmann::ordered_json json_value(const OptionSpec& option, const Value& value) {
  const auto convert = [&](const std::string& item) -> nlohmann::ordered_json {
    if (option.kind == OptionKind::flag) return item == "on";
    if (option.kind == OptionKind::integer || option.kind == OptionKind::size) {
      if (const auto number = parse_size(item)) return *number;
    }
    if (option.kind == OptionKind::real) {
      if (const auto number = parse_real(item)) return *number;
    }
    return item;
  };
  if (option.is_list) {
    auto list = nlohmann::ordered_json::array();
    for (const auto& item : value.items) list.push_back(convert(item));
    return list;
  }
  if (value.items.empty()) return option.kind == OptionKind::flag ? nlohmann::ordered_json(false) : nullptr;
  return convert(value.items.front());
}

std::string hidden(const OptionSpec& option, const std::string& item) {
  return is_secret_option(option.name) ? "***" : item;
}

}  // namespace

bool is_secret_option(std::string_view name) {
  return name == "api-key" || name == "upstream-api-key";
}

Result<Resolution> resolve(const CommandSpec& command, const std::vector<std::string>& arguments,
                           const Environment& environment, std::string& offending) {
  return Resolver(command, environment, offending).run(arguments);
}

std::string print_config(const Values& values, bool as_json) {
  if (as_json) {
    nlohmann::ordered_json options;
    for (const auto& option : values.command().options) {
      auto value = values.at(option.name);
      for (auto& item : value.items) item = hidden(option, item);
      options[std::string(option.name)] = {{"value", json_value(option, value)},
                                           {"origin", origin_name(value.origin)}};
    }
    const nlohmann::ordered_json document = {
        {"schema", "rorqual.config/1"}, {"command", values.command().name}, {"options", options}};
    return document.dump(2) + "\n";
  }
  std::string out;
  for (const auto& option : values.command().options) {
    const auto& value = values.at(option.name);
    if (option.name == "print-config" || option.name == "config") continue;
    std::vector<std::string> quoted;
    for (const auto& item : value.items) quoted.push_back(nlohmann::json(hidden(option, item)).dump());
    const bool is_plain =
        !option.is_list && option.kind != OptionKind::text && option.kind != OptionKind::path;
    std::string text = option.kind == OptionKind::flag ? "off" : "";
    if (option.is_list) {
      text = fmt::format("[{}]", fmt::join(quoted, ", "));
    } else if (!value.items.empty()) {
      text = is_plain ? value.items.front() : quoted.front();
    }
    out += fmt::format("{:<48}  # {}\n", fmt::format("{}: {}", option.name, text), origin_name(value.origin));
  }
  return out;
}

std::string non_default_options(const Values& values) {
  std::vector<std::string> parts;
  for (const auto& option : values.command().options) {
    const auto& value = values.at(option.name);
    if (value.origin == Origin::built_in || option.is_positional) continue;
    std::vector<std::string> items;
    for (const auto& item : value.items) items.push_back(hidden(option, item));
    parts.push_back(fmt::format("{}={}", option.name, fmt::join(items, ",")));
  }
  return fmt::format("{}", fmt::join(parts, " "));
}

}  // namespace rorqual::cli
