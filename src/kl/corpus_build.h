// SPDX-License-Identifier: Apache-2.0
// Builds the texts that fidelity is measured on from packages of a bare Debian 12, the same bytes everywhere.
// docs/fidelity.md#corpora.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "kl/corpus_recipe.h"

namespace rorqual::kl {

struct CorpusBuildOptions {
  std::string root = "/";  // the packages' files are below it
  int64_t bytes = 0;       // of text, about; 0 = the recorded size
};

/// A piece in one language.
struct CorpusDocument {
  std::string_view language;
  Script script = Script::latin;
  int64_t begin = 0, end = 0;  // bytes of the text
};

struct CorpusPackageUse {
  std::string_view package;
  std::string sha256;          // of what it gave
  int64_t bytes = 0;           // likewise
  bool is_as_recorded = true;  // false: another version of the package; true also without a recorded hash
};

struct BuiltCorpus {
  CorpusKind kind = CorpusKind::neutral;
  std::string text = {};  // valid UTF-8
  std::string sha256 = {};
  bool is_recorded_size = false;  // only then hashes can be compared
  bool is_as_recorded = false;
  std::vector<CorpusDocument> documents = {};
  std::vector<CorpusPackageUse> packages = {};
};

/// A pure function of the packages' files, kind and size. Errors: not_found when files are missing, naming
/// the packages and the commands that get them; corrupt_data; invalid_argument when the sources hold less
/// than `bytes` (names the number that they hold).
Result<BuiltCorpus> build_corpus(CorpusKind kind, const CorpusBuildOptions& options);

/// A file of the code packages, cleaned.
struct SourceFile {
  std::string_view package, language;
  std::string path;  // below the folder that the recipe names
  std::string text;
};

/// The files that agents work on, package by package, paths ascending. Errors as build_corpus.
Result<std::vector<SourceFile>> corpus_source_files(const std::string& root);

/// A generator that is the same everywhere (splitmix64). One thread.
class CorpusRandom {
 public:
  explicit CorpusRandom(uint64_t seed) : state_(seed) {}

  uint64_t next() {
    state_ += 0x9E3779B97F4A7C15ULL;
    uint64_t z = state_;
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ULL;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBULL;
    return z ^ (z >> 31);
  }

  /// In [0, bound), bound > 0; the bias of the remainder does not matter here.
  size_t below(size_t bound) { return static_cast<size_t>(next() % bound); }

 private:
  uint64_t state_;
};

}  // namespace rorqual::kl
