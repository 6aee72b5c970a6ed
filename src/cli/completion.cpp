// SPDX-License-Identifier: Apache-2.0
#include "cli/completion.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

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

const CommandSpec* find_in(const std::vector<CommandSpec>& all, std::string_view name) {
  const auto found =
      std::find_if(all.begin(), all.end(), [&](const CommandSpec& command) { return command.name == name; });
  return found == all.end() ? nullptr : &*found;
}

/// "capture" of "kl capture"; empty for commands of one word.
std::string_view second_word(std::string_view command_name) {
  const auto blank = command_name.find(' ');
  return blank == std::string_view::npos ? std::string_view() : command_name.substr(blank + 1);
}

/// First words, each once, in the order of the commands.
std::vector<std::string_view> first_words(const std::vector<CommandSpec>& all) {
  std::vector<std::string_view> words;
  for (const auto& command : all) {
    const auto word = first_word(command.name);
    if (std::find(words.begin(), words.end(), word) == words.end()) words.push_back(word);
  }
  return words;
}

/// Second words of a group; empty if `word` is a command.
std::vector<std::string_view> second_words(const std::vector<CommandSpec>& all, std::string_view word) {
  std::vector<std::string_view> words;
  for (const auto& command : all) {
    if (first_word(command.name) == word && command.name != word) words.push_back(second_word(command.name));
  }
  return words;
}

/// The part of the bash script that finds the command: one or two words. `first` is the index of the first
/// argument. Readline takes "=" as a word of its own.
std::string bash_command_words(const std::vector<CommandSpec>& all) {
  std::string text = fmt::format(
      "  local current=${{COMP_WORDS[COMP_CWORD]}} previous=${{COMP_WORDS[COMP_CWORD-1]}} "
      "command=${{COMP_WORDS[1]}} first=2\n"
      "  if [ \"$current\" = = ]; then current=; "
      "elif [ \"$previous\" = = ]; then previous=${{COMP_WORDS[COMP_CWORD-2]}}; fi\n"
      "  if [ \"$COMP_CWORD\" -eq 1 ]; then\n"
      "    COMPREPLY=($(compgen -W \"{} --help --version\" -- \"$current\")); return\n"
      "  fi\n"
      "  case \"$command\" in\n",
      fmt::join(first_words(all), " "));
  for (const auto word : first_words(all)) {
    const auto seconds = second_words(all, word);
    if (seconds.empty()) continue;
    text += fmt::format(
        "    {})\n"
        "      if [ \"$COMP_CWORD\" -eq 2 ]; then\n"
        "        COMPREPLY=($(compgen -W \"{} --help\" -- \"$current\")); return\n"
        "      fi\n"
        "      command=\"$command ${{COMP_WORDS[2]}}\" first=3 ;;\n",
        word, fmt::join(seconds, " "));
  }
  return text + "  esac\n";
}

/// One case per option that has a fixed set of values, shared by bash and zsh (which runs the bash function).
std::string bash_script(const std::vector<CommandSpec>& all) {
  std::string text =
      "# bash completion of rorqual; load with: source <(rorqual completion bash)\n"
      "_rorqual() {\n" +
      bash_command_words(all) + "  case \"$command $previous\" in\n";
  for (const auto& command : all) {
    for (const auto& option : command.options) {
      if (option.is_positional || option.choices.empty()) continue;
      text += fmt::format("    \"{} --{}\") COMPREPLY=($(compgen -W \"{}\" -- \"$current\")); return ;;\n",
                          command.name, option.name, spaced(option.choices));
    }
  }
  text += "  esac\n  if [[ $current == -* ]]; then\n    case \"$command\" in\n";
  for (const auto& command : all) {
    text += fmt::format("      \"{}\") COMPREPLY=($(compgen -W \"{}\" -- \"$current\")) ;;\n", command.name,
                        option_words(command));
  }
  text += "    esac\n    return\n  fi\n  case \"$command\" in\n";
  for (const auto& command : all) {
    for (const auto& option : command.options) {
      if (!option.is_positional || option.choices.empty()) continue;
      text += fmt::format(
          "    \"{}\") [ \"$COMP_CWORD\" -eq \"$first\" ] && "
          "COMPREPLY=($(compgen -W \"{}\" -- \"$current\")) ;;\n",
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

/// Conditions by place, because a second word may be the name of another command ("bench serve").
constexpr std::string_view kFishConditions =
    "function __rorqual_words  # so many words are complete, the program's name included\n"
    "  test (count (commandline -opc)) -eq $argv[1]\n"
    "end\n"
    "function __rorqual_at  # the line begins with these words\n"
    "  set -l words (commandline -opc)\n"
    "  test (count $words) -gt (count $argv); or return 1\n"
    "  for i in (seq (count $argv))\n"
    "    test \"$words[$i + 1]\" = \"$argv[$i]\"; or return 1\n"
    "  end\n"
    "end\n";

std::string fish_commands(const std::vector<CommandSpec>& all) {
  std::string text;
  for (const auto word : first_words(all)) {
    const auto seconds = second_words(all, word);
    const auto* command = seconds.empty() ? find_in(all, word) : nullptr;
    const auto about =
        command != nullptr ? std::string(command->summary) : fmt::format("{}", fmt::join(seconds, ", "));
    text +=
        fmt::format("complete -c rorqual -n '__rorqual_words 1' -f -a {} -d {}\n", word, fish_quoted(about));
  }
  for (const auto& command : all) {
    const auto second = second_word(command.name);
    if (second.empty()) continue;
    text += fmt::format("complete -c rorqual -n '__rorqual_words 2; and __rorqual_at {}' -f -a {} -d {}\n",
                        first_word(command.name), second, fish_quoted(command.summary));
  }
  return text;
}

std::string fish_script(const std::vector<CommandSpec>& all) {
  std::string text = "# fish completion of rorqual; load with: rorqual completion fish | source\n";
  text += kFishConditions;
  text += fish_commands(all);
  for (const auto& command : all) {
    for (const auto& option : command.options) {
      const auto condition = fmt::format("complete -c rorqual -n '__rorqual_at {}'", command.name);
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

Result<std::string> completion_script(std::string_view shell, const std::vector<CommandSpec>& all) {
  if (shell == "bash") return bash_script(all);
  if (shell == "zsh") {
    return "#compdef rorqual\n# load with: source <(rorqual completion zsh)\n"
           "autoload -U +X compinit && compinit\nautoload -U +X bashcompinit && bashcompinit\n" +
           bash_script(all);
  }
  if (shell == "fish") return fish_script(all);
  return Error(Code::invalid_argument,
               fmt::format("SHELL: got '{}', expected one of bash, zsh, fish", shell));
}

}  // namespace rorqual::cli
