// SPDX-License-Identifier: Apache-2.0
// What the corpora are made of: Debian 12 packages, the files inside them, how text is taken out of each and
// how much. Tables only; corpus_build.h does the work. docs/fidelity.md#corpora.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string_view>

namespace rorqual::kl {

enum class CorpusKind : uint8_t { neutral, code, agentic };

std::string_view corpus_kind_name(CorpusKind kind);
std::optional<CorpusKind> corpus_kind_from_name(std::string_view name);

/// Writing systems that the neutral corpus is checked against and the reports count.
enum class Script : uint8_t {
  latin,
  cyrillic,
  greek,
  han,
  kana,
  hangul,
  arabic,
  hebrew,
  devanagari,
  bengali,
  gujarati,
  tamil,
  telugu,
  kannada,
  thai,
  khmer,
  myanmar,
  georgian,
  armenian,
  other,  // digits, punctuation, symbols and everything not listed
};

inline constexpr int kScriptCount = static_cast<int>(Script::other) + 1;

std::string_view script_name(Script script);

/// By ranges of code points; `other` for whatever is no letter of a listed script.
Script script_of(char32_t code_point);

struct CorpusPackage {
  std::string_view name, version;  // version: the one the recorded hashes were made with
  std::string_view licence;        // of the files that are used
};

enum class ExtractKind : uint8_t {
  mallard,  // GNOME help pages (XML): titles and paragraphs
  html,     // paragraphs of a manual
  catalog,  // compiled translations (.mo): long messages
  source,   // program text without its leading comment
};

/// Files of one package that give one language.
struct CorpusPart {
  std::string_view package;
  std::string_view language;  // "de", "zh_CN", "C++", …
  Script script = Script::latin;
  ExtractKind extract = ExtractKind::source;
  std::string_view path;    // below the root: one file, or a folder (with everything below it)
  std::string_view suffix;  // of the files in a folder
  int64_t bytes = 0;        // of text in the recorded size of the corpus
};

/// Every package of all three corpora, each once.
std::span<const CorpusPackage> corpus_packages();

/// Null for a package that is not in the table.
const CorpusPackage* find_corpus_package(std::string_view name);

/// neutral or code; the agentic corpus works on the files of code.
std::span<const CorpusPart> corpus_parts(CorpusKind kind);

/// Bytes of text when the caller does not say: enough for 24 windows of 4,096 tokens with the release's
/// tokenizer.
int64_t corpus_default_bytes(CorpusKind kind);

/// SHA-256 of the text of default size; and of what one package gave to it (agentic: of the files used).
/// Empty = not recorded.
std::string_view recorded_corpus_sha256(CorpusKind kind);
std::string_view recorded_package_sha256(CorpusKind kind, std::string_view package);

}  // namespace rorqual::kl
