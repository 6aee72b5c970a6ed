// SPDX-License-Identifier: Apache-2.0
#include "tools/kl_corpus.h"

#include <fmt/format.h>

#include <array>
#include <cstdio>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <string_view>

#include "base/file.h"
#include "kl/corpus_build.h"
#include "tools/kl_files.h"
#include "tools/text_input.h"

namespace rorqual::tools {
namespace {

using Json = nlohmann::ordered_json;

constexpr int64_t kWindowTokens = 4095;  // of a window of 4,096, whose first token is the begin of sentence

struct TokenCount {
  std::string tokenizer;
  int64_t tokens = 0;
  std::map<std::string_view, int64_t> by_language;
  std::map<kl::Script, int64_t> by_script;

  int64_t windows() const { return tokens / kWindowTokens; }
};

Result<TokenCount> count_tokens(const kl::BuiltCorpus& corpus, const std::string& path) {
  RORQUAL_TRY_ASSIGN(const auto tokenizer, load_tokenizer(path));
  TokenCount count{.tokenizer = path.empty() ? "embedded" : path, .by_language = {}, .by_script = {}};
  // The text is one piece for captures; a few tokens at the seams between documents differ from these sums.
  count.tokens = static_cast<int64_t>(tokenizer.encode(corpus.text, text::EncodeMode::with_added).size());
  for (const auto& document : corpus.documents) {
    const auto text =
        std::string_view(corpus.text)
            .substr(static_cast<size_t>(document.begin), static_cast<size_t>(document.end - document.begin));
    const auto tokens = static_cast<int64_t>(tokenizer.encode(text, text::EncodeMode::with_added).size());
    count.by_language[document.language] += tokens;
    count.by_script[document.script] += tokens;
  }
  return count;
}

std::string verdict(const kl::BuiltCorpus& corpus) {
  if (!corpus.is_recorded_size) return "not compared (another size than the recorded one)";
  if (corpus.is_as_recorded) return "as recorded";
  std::string differing;
  for (const auto& use : corpus.packages) {
    if (!use.is_as_recorded) differing += fmt::format("{}{}", differing.empty() ? "" : ", ", use.package);
  }
  if (differing.empty()) return "DIFFERS from the recorded text, although every package gave the same";
  return fmt::format("DIFFERS from the recorded text; other contents in: {}", differing);
}

Json to_json(const kl::BuiltCorpus& corpus, const std::vector<TokenCount>& counts, const std::string& out) {
  Json document = {{"schema", "rorqual.kl.corpus/1"},
                   {"corpus", kl::corpus_kind_name(corpus.kind)},
                   {"file", out.empty() ? Json() : Json(out)},
                   {"bytes", corpus.text.size()},
                   {"documents", corpus.documents.size()},
                   {"sha256", corpus.sha256},
                   {"as_recorded", corpus.is_recorded_size ? Json(corpus.is_as_recorded) : Json()}};
  for (const auto& count : counts) {
    Json entry = {
        {"tokenizer", count.tokenizer}, {"tokens", count.tokens}, {"windows_4096", count.windows()}};
    for (const auto& [language, tokens] : count.by_language)
      entry["by_language"][std::string(language)] = tokens;
    for (const auto& [script, tokens] : count.by_script) {
      entry["by_script"][std::string(kl::script_name(script))] = tokens;
    }
    document["tokens"].push_back(std::move(entry));
  }
  for (const auto& use : corpus.packages) {
    const auto* package = kl::find_corpus_package(use.package);
    document["packages"].push_back({{"package", use.package},
                                    {"recorded_version", package->version},
                                    {"licence", package->licence},
                                    {"bytes", use.bytes},
                                    {"sha256", use.sha256},
                                    {"as_recorded", use.is_as_recorded}});
  }
  return document;
}

void print_summary(const kl::BuiltCorpus& corpus, const std::vector<TokenCount>& counts,
                   const std::string& out) {
  fmt::print("corpus     {}: {} bytes, {} documents\n", kl::corpus_kind_name(corpus.kind), corpus.text.size(),
             corpus.documents.size());
  fmt::print("sha256     {}\nverdict    {}\n", corpus.sha256, verdict(corpus));
  for (const auto& count : counts) {
    fmt::print("tokens     {} ({} windows of 4096), tokenizer {}\n", count.tokens, count.windows(),
               count.tokenizer);
    const bool by_script = corpus.kind == kl::CorpusKind::neutral;
    const auto share = [&](std::string_view name, int64_t tokens) {
      fmt::print("  {:<12} {:5.1f} %\n", name,
                 100.0 * static_cast<double>(tokens) / static_cast<double>(count.tokens));
    };
    if (by_script) {
      for (const auto& [script, tokens] : count.by_script) share(kl::script_name(script), tokens);
    } else {
      for (const auto& [language, tokens] : count.by_language) share(language, tokens);
    }
  }
  if (!out.empty()) fmt::print("written    {}\n", out);
}

/// The kinds that use a package.
std::string kinds_of(std::string_view package) {
  std::string kinds;
  for (const auto kind : {kl::CorpusKind::neutral, kl::CorpusKind::code}) {
    for (const auto& part : kl::corpus_parts(kind)) {
      if (part.package != package) continue;
      kinds = kind == kl::CorpusKind::neutral ? "neutral" : "code agentic";
    }
  }
  return kinds;
}

void print_list(const KlCorpusOptions& options) {
  Json rows = Json::array();
  for (const auto& package : kl::corpus_packages()) {
    const auto kinds = kinds_of(package.name);
    if (!options.kind.empty() && kinds.find(options.kind) == std::string::npos) continue;
    if (options.as_json) {
      rows.push_back({{"package", package.name},
                      {"version", package.version},
                      {"licence", package.licence},
                      {"corpora", kinds}});
    } else {
      fmt::print("{:<32} {:<46} {:<20} {}\n", package.name, package.version, package.licence, kinds);
    }
  }
  if (options.as_json) {
    fmt::print("{}\n", Json({{"schema", "rorqual.kl.corpus/1"}, {"packages", std::move(rows)}}).dump());
  }
}

}  // namespace

Status run_kl_corpus(const KlCorpusOptions& options) {
  const auto kind = kl::corpus_kind_from_name(options.kind);
  if (!options.kind.empty() && !kind) {
    return Error(Code::invalid_argument, fmt::format("'{}' is no corpus", options.kind),
                 "one of neutral, code, agentic");
  }
  if (options.list) {
    print_list(options);
    return Ok();
  }
  if (!kind) {
    return Error(Code::invalid_argument, "no corpus was named",
                 "rorqual kl corpus neutral --out neutral.txt (or code, agentic; --list shows the packages)");
  }
  if (!is_directory(options.root)) {
    std::error_code ignored;
    const bool is_there = std::filesystem::exists(options.root, ignored);
    return Error(is_there ? Code::invalid_argument : Code::not_found,
                 fmt::format("--root '{}': {}", options.root,
                             is_there ? "it is a file, expected a folder" : "no such folder"),
                 "fill one with scripts/corpus_packages FOLDER");
  }
  if (!options.out.empty()) RORQUAL_TRY(check_output("--out", options.out));
  RORQUAL_TRY_ASSIGN(const auto corpus,
                     kl::build_corpus(*kind, {.root = options.root, .bytes = options.bytes}));
  std::vector<TokenCount> counts;
  std::vector<std::string> paths = {""};
  paths.insert(paths.end(), options.tokenizers.begin(), options.tokenizers.end());
  for (const auto& path : paths) {
    RORQUAL_TRY_ASSIGN(auto count, count_tokens(corpus, path));
    counts.push_back(std::move(count));
  }
  if (!options.out.empty()) RORQUAL_TRY(write_text_file(options.out, corpus.text));
  if (options.as_json) {
    fmt::print("{}\n", to_json(corpus, counts, options.out).dump());
  } else {
    print_summary(corpus, counts, options.out);
  }
  return Ok();
}

}  // namespace rorqual::tools
