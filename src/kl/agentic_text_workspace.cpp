// SPDX-License-Identifier: Apache-2.0
#include "kl/agentic_text_workspace.h"

#include <algorithm>
#include <cctype>
#include <map>

namespace rorqual::kl {
namespace {

bool is_word(char c) {
  return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_';
}

std::string_view trimmed(std::string_view line) {
  const auto first = line.find_first_not_of(" \t");
  return first == std::string_view::npos ? std::string_view() : line.substr(first);
}

std::string_view leading_word(std::string_view text) {
  return text.substr(
      0, static_cast<size_t>(std::find_if(text.begin(), text.end(), [](char c) { return !is_word(c); }) -
                             text.begin()));
}

/// Words that open a definition; the name is the next word.
constexpr std::string_view kOpeners[] = {"def ",
                                         "class ",
                                         "fn ",
                                         "pub fn ",
                                         "func ",
                                         "function ",
                                         "sub ",
                                         "struct ",
                                         "pub struct ",
                                         "enum ",
                                         "trait ",
                                         "impl ",
                                         "module ",
                                         "proc ",
                                         "macro(",
                                         "function(",
                                         "(defun ",
                                         "(defmacro ",
                                         "type ",
                                         "export class ",
                                         "local function ",
                                         "CREATE FUNCTION ",
                                         "CREATE OR REPLACE FUNCTION ",
                                         "public function ",
                                         "private function ",
                                         "protected function ",
                                         "#define ",
                                         "package "};

constexpr std::string_view kImports[] = {"import ",  "from ",  "#include", "use ",       "require",
                                         "package ", "const ", "using ",   "namespace ", "local "};

}  // namespace

WorkFile::WorkFile(const SourceFile& source) : path_(source.path), language_(source.language) {
  std::string_view rest = source.text;
  while (!rest.empty()) {
    const auto end = std::min(rest.find('\n'), rest.size());
    lines_.emplace_back(rest.substr(0, end));
    rest.remove_prefix(std::min(end + 1, rest.size()));
  }
}

int64_t WorkFile::size_bytes() const {
  size_t sum = 0;
  for (const auto& line : lines_) sum += line.size() + 1;
  return static_cast<int64_t>(sum);
}

std::vector<Hit> WorkFile::find(std::string_view needle) const {
  std::vector<Hit> hits;
  for (size_t i = 0; i < lines_.size(); ++i) {
    if (lines_[i].find(needle) != std::string::npos) hits.push_back({i + 1, lines_[i]});
  }
  return hits;
}

std::vector<Definition> WorkFile::definitions() const {
  std::vector<Definition> found;
  for (size_t i = 0; i < lines_.size(); ++i) {
    const auto text = trimmed(lines_[i]);
    if (lines_[i].size() - text.size() > 4) continue;
    for (const auto opener : kOpeners) {
      if (!text.starts_with(opener)) continue;
      const auto name = leading_word(text.substr(opener.size()));
      if (name.size() >= 3) found.push_back({i + 1, std::string(name), lines_[i]});
      break;
    }
  }
  return found;
}

std::vector<Hit> WorkFile::imports() const {
  std::vector<Hit> found;
  for (size_t i = 0; i < lines_.size() && found.size() < 40; ++i) {
    for (const auto opener : kImports) {
      const bool is_assignment = opener == "const " || opener == "local ";
      if (!lines_[i].starts_with(opener)) continue;
      if (is_assignment && lines_[i].find("require") == std::string::npos) continue;
      found.push_back({i + 1, lines_[i]});
      break;
    }
  }
  return found;
}

size_t WorkFile::longest_line() const {
  const auto longest = std::max_element(lines_.begin(), lines_.end(),
                                        [](const auto& a, const auto& b) { return a.size() < b.size(); });
  return static_cast<size_t>(longest - lines_.begin()) + 1;
}

size_t WorkFile::blank_lines() const {
  return static_cast<size_t>(std::count_if(lines_.begin(), lines_.end(),
                                           [](const std::string& line) { return trimmed(line).empty(); }));
}

int64_t WorkFile::replace(std::string_view old_text, std::string_view new_text) {
  int64_t count = 0;
  for (auto& line : lines_) {
    for (auto at = line.find(old_text); at != std::string::npos;
         at = line.find(old_text, at + new_text.size())) {
      line.replace(at, old_text.size(), new_text);
      ++count;
    }
  }
  return count;
}

void WorkFile::insert_before(size_t line, std::string text) {
  lines_.insert(lines_.begin() + static_cast<int64_t>(std::min(line - 1, lines_.size())), std::move(text));
}

std::string frequent_identifier(const WorkFile& file, uint64_t pick) {
  std::map<std::string, int> counts;
  for (const auto& line : file.lines()) {
    for (size_t i = 0; i < line.size();) {
      const auto word = leading_word(std::string_view(line).substr(i));
      // Plain words are too common; parts joined by '_' or inner capitals are names that somebody chose.
      const bool is_name =
          word.size() >= 6 && word.size() <= 28 && std::isdigit(static_cast<unsigned char>(word[0])) == 0 &&
          (word.find('_', 1) != std::string_view::npos ||
           std::any_of(word.begin() + 1, word.end(),
                       [](char c) { return std::isupper(static_cast<unsigned char>(c)) != 0; }));
      if (is_name) ++counts[std::string(word)];
      i += std::max(word.size(), size_t{1});
    }
  }
  std::vector<std::string> names;
  for (const auto& [name, count] : counts) {
    if (count >= 2 && count <= 12) names.push_back(name);
  }
  return names.empty() ? std::string() : names[pick % names.size()];
}

std::string comment_line(std::string_view language, std::string_view text) {
  std::string_view mark = "// ";
  for (const std::string_view name : {"Python", "Perl", "shell", "Ruby", "Tcl", "CMake"}) {
    if (language == name) mark = "# ";
  }
  if (language == "SQL" || language == "Lua") mark = "-- ";
  if (language == "Lisp") mark = ";; ";
  return std::string(mark) + std::string(text);
}

}  // namespace rorqual::kl
