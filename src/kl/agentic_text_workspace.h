// SPDX-License-Identifier: Apache-2.0
// A few source files that a scripted agent lists, reads, searches and edits: the true results of its tools.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "kl/corpus_build.h"

namespace rorqual::kl {

struct Hit {
  size_t line = 0;  // counted from 1
  std::string text;
};

/// A definition: "def parse(text):" is named "parse".
struct Definition {
  size_t line = 0;
  std::string name, text;
};

/// One file as lines. One thread.
class WorkFile {
 public:
  explicit WorkFile(const SourceFile& source);

  const std::string& path() const { return path_; }

  std::string_view language() const { return language_; }

  const std::vector<std::string>& lines() const { return lines_; }

  /// Of the text with line ends.
  int64_t size_bytes() const;

  /// Lines that hold `needle`.
  std::vector<Hit> find(std::string_view needle) const;

  /// By the usual words of the language at the start of a line; never complete, never wrong lines.
  std::vector<Definition> definitions() const;

  /// Lines of imports, includes and the like.
  std::vector<Hit> imports() const;

  /// 1-based number of the longest line.
  size_t longest_line() const;
  size_t blank_lines() const;

  /// Replaces every occurrence; the number of them.
  int64_t replace(std::string_view old_text, std::string_view new_text);
  void insert_before(size_t line, std::string text);

 private:
  std::string path_;
  std::string_view language_;
  std::vector<std::string> lines_;
};

/// An identifier that is used at least twice in the file, or empty; `pick` chooses among them.
std::string frequent_identifier(const WorkFile& file, uint64_t pick);

/// "# text", "// text" and so on.
std::string comment_line(std::string_view language, std::string_view text);

}  // namespace rorqual::kl
