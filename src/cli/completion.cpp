// SPDX-License-Identifier: Apache-2.0
#include "cli/completion.h"

#include <fmt/format.h>

#include <algorithm>

#include "cli/option.h"

namespace rorqual::cli {
namespace {

std::string spaced(std::string_view choices) {
  std::string words(choices);
  std::replace(words.begin(), words.end(), '|', ' ');
  return words;
}

/// Option names with dashes, and the --no- forms of flags that are on by default.
std::string option_words(const CommandSpec& command) {
  std::string words = "--help";
  for (const auto& option : command.options) {
    if (option.is_positional) continue;
    words += fmt::format(" --{}", option.name);
    if (option.kind == OptionKind::flag && option.default_value == "on")
      words += fmt::format(" --no-{}", option.name);
  }
  return words;
}

std::string command_words() {
  std::string words;
  for (const auto& command : commands()) words += fmt::format("{}{}", words.empty() ? "" : " ", command.name);
  return words;
}

/// One case per option that has a fixed set of values, shared by bash and zsh (which runs the bash function).
std::string bash_script() {
  std::string text = fmt::format(
      "# bash completion of rorqual; load with: source <(rorqual completion bash)\n"
      "_rorqual() {{\n"
      "  local current=${{COMP_WORDS[COMP_CWORD]}} previous=${{COMP_WORDS[COMP_CWORD-1]}} "
      "command=${{COMP_WORDS[1]}}\n"
      "  if [ \"$COMP_CWORD\" -eq 1 ]; then\n"
      "    COMPREPLY=($(compgen -W \"{} --help --version\" -- \"$current\")); return\n"
      "  fi\n"
      "  case \"$command $previous\" in\n",
      command_words());
  for (const auto& command : commands()) {
    for (const auto& option : command.options) {
      if (option.is_positional || option.choices.empty()) continue;
      text += fmt::format("    \"{} --{}\") COMPREPLY=($(compgen -W \"{}\" -- \"$current\")); return ;;\n",
                          command.name, option.name, spaced(option.choices));
    }
  }
  text += "  esac\n  if [[ $current == -* ]]; then\n    case \"$command\" in\n";
  for (const auto& command : commands()) {
    text += fmt::format("      {}) COMPREPLY=($(compgen -W \"{}\" -- \"$current\")) ;;\n", command.name,
                        option_words(command));
  }
  text += "    esac\n    return\n  fi\n  case \"$command\" in\n";
  for (const auto& command : commands()) {
    for (const auto& option : command.options) {
      if (!option.is_positional || option.choices.empty()) continue;
      text += fmt::format(
          "    {}) [ \"$COMP_CWORD\" -eq 2 ] && COMPREPLY=($(compgen -W \"{}\" -- \"$current\")) ;;\n",
          command.name, spaced(option.choices));
    }
  }
  return text + "  esac\n}\ncomplete -o default -F _rorqual rorqual\n";
}

std::string fish_quoted(std::string_view text) {
  std::string out = "'";
  for (const char c : text) {
    if (c == '\'' || c == '\\') out += '\\';
    out += c;
  }
  return out + "'";
}

std::string fish_script() {
  std::string text = "# fish completion of rorqual; load with: rorqual completion fish | source\n";
  for (const auto& command : commands()) {
    text += fmt::format("complete -c rorqual -n __fish_use_subcommand -a {} -d {}\n", command.name,
                        fish_quoted(command.summary));
  }
  for (const auto& command : commands()) {
    for (const auto& option : command.options) {
      const auto condition =
          fmt::format("complete -c rorqual -n '__fish_seen_subcommand_from {}'", command.name);
      if (option.is_positional) {
        if (!option.choices.empty())
          text += fmt::format("{} -a {}\n", condition, fish_quoted(spaced(option.choices)));
        continue;
      }
      text += fmt::format("{} -l {} -d {}", condition, option.name, fish_quoted(option.help));
      if (option.letter != 0) text += fmt::format(" -s {}", option.letter);
      if (option.kind != OptionKind::flag) text += " -r";
      if (!option.choices.empty()) text += fmt::format(" -f -a {}", fish_quoted(spaced(option.choices)));
      text += "\n";
    }
  }
  return text;
}

}  // namespace

Result<std::string> completion_script(std::string_view shell) {
  if (shell == "bash") return bash_script();
  if (shell == "zsh") {
    return "#compdef rorqual\n# load with: source <(rorqual completion zsh)\n"
           "autoload -U +X compinit && compinit\nautoload -U +X bashcompinit && bashcompinit\n" +
           bash_script();
  }
  if (shell == "fish") return fish_script();
  return Error(Code::invalid_argument,
               fmt::format("SHELL: got '{}', expected one of bash, zsh, fish", shell));
}

}  // namespace rorqual::cli
