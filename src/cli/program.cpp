// SPDX-License-Identifier: Apache-2.0
#include "cli/program.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <nlohmann/json.hpp>
#include <optional>

#include "cli/help.h"
#include "cli/nearest.h"
#include "tools/build_info.h"

extern "C" char** environ;

namespace rorqual::cli {
namespace {

constexpr std::string_view kVariablePrefix = "RORQUAL_";

void print(const std::string& text) {
  std::fwrite(text.data(), 1, text.size(), stdout);
}

int fail(const Error& error, const std::string& param, bool as_json) {
  std::fflush(stdout);
  const auto text = error_text(error, param, as_json);
  std::fwrite(text.data(), 1, text.size(), stderr);
  return exit_code(error.code());
}

/// The topic of --help, --help=topic or -h before "--"; nothing if help is not asked for.
std::optional<std::string> help_topic(const std::vector<std::string>& arguments) {
  for (const auto& argument : arguments) {
    if (argument == "--") break;
    if (argument == "--help" || argument == "-h") return std::string();
    if (argument.rfind("--help=", 0) == 0) return argument.substr(7);
  }
  return std::nullopt;
}

bool wants_json(const std::vector<std::string>& arguments, const Environment& environment) {
  const auto variable = environment.find("RORQUAL_JSON");
  if (variable != environment.end() && parse_switch(variable->second).value_or(false)) return true;
  const auto end = std::find(arguments.begin(), arguments.end(), "--");
  return std::find(arguments.begin(), end, "--json") != end;
}

int run_command(const CommandSpec& command, const std::vector<std::string>& arguments,
                const Environment& environment) {
  const bool as_json = wants_json(arguments, environment);
  if (const auto topic = help_topic(arguments)) {
    auto text = command_help(command, *topic);
    if (!text.ok()) return fail(text.error(), {}, as_json);
    print(*text);
    return 0;
  }
  std::string offending;
  auto resolution = resolve(command, arguments, environment, offending);
  if (!resolution.ok()) return fail(resolution.error(), offending, as_json);
  for (const auto& warning : resolution->warnings) fmt::print(stderr, "warning: {}\n", warning);
  const auto& values = resolution->values;
  if (values.flag("print-config")) {
    print(print_config(values, values.flag("json")));
    return 0;
  }
  const auto status = command.run(values);
  return status.ok() ? 0 : fail(status.error(), {}, values.flag("json"));
}

/// "kl" with its second word; alone or with --help it lists what the group has.
int run_group(const std::string& group, const std::vector<std::string>& arguments,
              const Environment& environment) {
  const std::string second = arguments.empty() ? std::string() : arguments.front();
  if (const auto* command = find_command(group + " " + second)) {
    return run_command(*command, {arguments.begin() + 1, arguments.end()}, environment);
  }
  if (second == "-h" || second == "--help") {
    print(group_help(group));
    return 0;
  }
  std::vector<std::string> names;
  for (const auto& command : commands()) {
    if (command.name.rfind(group + " ", 0) == 0) names.emplace_back(command.name.substr(group.size() + 1));
  }
  const auto what = second.empty() ? fmt::format("'rorqual {}' needs a second word", group)
                                   : fmt::format("unknown command '{} {}'{}", group, second,
                                                 did_you_mean(nearest(second, names)));
  return fail(Error(Code::invalid_argument, what,
                    fmt::format("one of: {}; `rorqual {} --help`", fmt::join(names, ", "), group)),
              {}, wants_json(arguments, environment));
}

/// Output that did not reach its target is an error, except when the reader closed the pipe on purpose.
int finish(int code) {
  errno = 0;
  if (std::fflush(stdout) == 0 && std::ferror(stdout) == 0) return code;
  if (errno == EPIPE || errno == 0 || code != 0) return code;
  return fail(Error(Code::io, fmt::format("cannot write to standard output: {}", std::strerror(errno))), {},
              false);
}

}  // namespace

std::string error_text(const Error& error, const std::string& param, bool as_json) {
  if (as_json) {
    const auto text_or_null = [](const std::string& text) {
      return text.empty() ? nlohmann::ordered_json(nullptr) : nlohmann::ordered_json(text);
    };
    const nlohmann::ordered_json document = {{"error",
                                              {{"code", code_name(error.code())},
                                               {"message", error.message()},
                                               {"hint", text_or_null(error.hint())},
                                               {"param", text_or_null(param)},
                                               {"exit", exit_code(error.code())}}}};
    return document.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + "\n";
  }
  std::string text = fmt::format("error: {}\n", error.message());
  if (!error.hint().empty()) text += fmt::format("  hint: {}\n", error.hint());
  return text;
}

Status check_cpu(bool has_avx2, bool has_fma, bool has_f16c, std::string_view forced_isa) {
  if ((has_avx2 && has_fma && has_f16c) || forced_isa == "ref") return Ok();
  std::string missing;
  for (const auto& [has, name] : {std::pair{has_avx2, "AVX2"}, {has_fma, "FMA"}, {has_f16c, "F16C"}}) {
    if (!has) missing += fmt::format("{}{}", missing.empty() ? "" : ", ", name);
  }
  return Error(Code::unsupported, fmt::format("this CPU lacks {}, which the kernels need", missing),
               "use a CPU from 2015 or later, or set RORQUAL_CPU_ISA=ref for the slow scalar kernels");
}

void hide_keys(int num_arguments, char** arguments) {
  bool is_value = false;
  for (int i = 1; i < num_arguments; ++i) {
    std::string_view text = arguments[i];
    const size_t equals = text.find('=');
    const bool is_key = text.starts_with("--") && is_secret_option(text.substr(2, equals - 2));
    if (is_value || (is_key && equals != std::string_view::npos)) {
      std::fill(arguments[i] + (is_value ? 0 : equals + 1), arguments[i] + text.size(), '*');
      is_value = false;
    } else {
      is_value = is_key;
    }
  }
}

Environment process_environment() {
  Environment found;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const std::string_view text = *entry;
    const auto equals = text.find('=');
    if (equals == std::string_view::npos || text.rfind(kVariablePrefix, 0) != 0) continue;
    found.emplace(text.substr(0, equals), text.substr(equals + 1));
  }
  return found;
}

int run_program(const std::vector<std::string>& arguments, const Environment& environment) {
  if (arguments.empty()) {
    const auto text = program_help();
    std::fwrite(text.data(), 1, text.size(), stderr);
    return exit_code(Code::invalid_argument);
  }
  const auto& first = arguments.front();
  if (first == "--help=markdown") {
    print(reference_markdown());
    return finish(0);
  }
  if (first == "--help=switches") {
    print(switches_markdown());
    return finish(0);
  }
  if (first == "help" && arguments.size() > 1) {
    std::vector<std::string> spelled_out(arguments.begin() + 1, arguments.end());
    spelled_out.emplace_back("--help");
    return run_program(spelled_out, environment);
  }
  if (first == "-h" || first.rfind("--help", 0) == 0 || first == "help") {
    print(program_help());
    return finish(0);
  }
  std::vector<std::string> rest(arguments.begin() + 1, arguments.end());
  if (first == "-V" || first == "--version")
    return finish(run_command(*find_command("version"), rest, environment));
  if (const auto* command = find_command(first)) return finish(run_command(*command, rest, environment));
  if (is_command_group(first)) return finish(run_group(first, rest, environment));
  std::vector<std::string> names;
  for (const auto& command : commands()) names.emplace_back(first_word(command.name));
  const Error unknown(Code::invalid_argument,
                      fmt::format("unknown command '{}'{}", first, did_you_mean(nearest(first, names))),
                      "rorqual --help lists the commands");
  return fail(unknown, {}, wants_json(rest, environment));
}

}  // namespace rorqual::cli
