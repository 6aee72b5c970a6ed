// SPDX-License-Identifier: Apache-2.0
#include "tools/kl_report.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>

#include "base/file.h"
#include "kl/compare.h"
#include "kl/dump.h"
#include "kl/full_logits.h"
#include "kl/kl_report.h"
#include "kl/run_record.h"
#include "report/table.h"
#include "tools/build_info.h"
#include "tools/embedded_model.h"
#include "tools/kl_files.h"
#include "tools/text_input.h"

namespace rorqual::tools {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kMaxCorpus_bytes = int64_t{1} << 30;

struct Capture {
  std::string path;
  kl::Dump dump;
};

/// What one argument names: captures, one per corpus.
struct CaptureSet {
  std::string argument;
  std::vector<Capture> captures;

  const Capture* find(const std::string& corpus) const {
    const auto found = std::find_if(captures.begin(), captures.end(), [&](const Capture& capture) {
      return capture.dump.info.corpus == corpus;
    });
    return found == captures.end() ? nullptr : &*found;
  }
};

/// Captures in a folder, sorted; of x.npz and x.safetensors only the latter, which holds more.
Result<std::vector<std::string>> captures_in(const std::string& folder) {
  std::set<std::string> paths;
  std::error_code error;
  for (fs::directory_iterator entry(folder, error), end; !error && entry != end; entry.increment(error)) {
    const auto extension = entry->path().extension();
    if (extension == ".npz" || extension == ".safetensors") paths.insert(entry->path().string());
  }
  if (error) return Error(Code::io, fmt::format("cannot list folder '{}': {}", folder, error.message()));
  std::vector<std::string> kept;
  for (const auto& path : paths) {
    const fs::path name(path);
    const bool has_better = name.extension() == ".npz" &&
                            paths.contains(fs::path(name).replace_extension(".safetensors").string());
    if (!has_better) kept.push_back(path);
  }
  if (!kept.empty()) return kept;
  return Error(Code::not_found, fmt::format("folder '{}' has no captures (.npz, .safetensors)", folder),
               "write captures there with `rorqual kl capture`");
}

Result<CaptureSet> read_set(const std::string& argument) {
  CaptureSet set{argument, {}};
  std::vector<std::string> paths = {argument};
  if (is_directory(argument)) {
    RORQUAL_TRY_ASSIGN(paths, captures_in(argument));
  }
  for (const auto& path : paths) {
    RORQUAL_TRY_ASSIGN(kl::Dump dump, kl::read_dump(path));
    if (const auto* other = set.find(dump.info.corpus)) {
      return Error(
          Code::invalid_argument,
          fmt::format("'{}' and '{}' are both captures of corpus '{}'", other->path, path, dump.info.corpus),
          "keep one capture per corpus in a folder, or name the file");
    }
    set.captures.push_back({path, std::move(dump)});
  }
  return set;
}

/// "runs/fp8/" and "runs/fp8.npz" give "fp8".
std::string label_of(const std::string& argument) {
  fs::path path = fs::path(argument).lexically_normal();
  if (path.filename().empty()) path = path.parent_path();
  const auto name = is_directory(argument) ? path.filename() : path.stem();
  return name.empty() || name == "." ? argument : name.string();
}

Result<std::vector<std::string>> labels_of(const KlReportOptions& options) {
  if (!options.labels.empty() && options.labels.size() != options.candidates.size()) {
    return Error(
        Code::invalid_argument,
        fmt::format("got {} labels for {} candidates", options.labels.size(), options.candidates.size()),
        "give --label once per candidate, in their order");
  }
  auto labels = options.labels;
  if (labels.empty()) {
    for (const auto& candidate : options.candidates) labels.push_back(label_of(candidate));
  }
  const std::set<std::string> different(labels.begin(), labels.end());
  return different.size() == labels.size() ? labels : options.candidates;
}

/// Corpora that all sides have, the known ones first in their usual order. Quiet: the others are not named.
std::vector<std::string> shared_corpora(const CaptureSet& reference,
                                        const std::vector<CaptureSet>& candidates, bool is_quiet) {
  std::vector<std::string> names;
  for (const auto& capture : reference.captures) {
    const auto& corpus = capture.dump.info.corpus;
    const auto missing = std::find_if(candidates.begin(), candidates.end(),
                                      [&](const CaptureSet& set) { return set.find(corpus) == nullptr; });
    if (missing == candidates.end()) {
      names.push_back(corpus);
    } else if (!is_quiet) {
      fmt::print(stderr, "warning: corpus '{}' is left out: '{}' has no capture of it\n", corpus,
                 missing->argument);
    }
  }
  const auto rank = [](const std::string& name) {
    constexpr std::array<std::string_view, 4> kOrder = {"neutral", "code", "agentic", "panel"};
    return std::find(kOrder.begin(), kOrder.end(), name) - kOrder.begin();
  };
  std::sort(names.begin(), names.end(), [&](const std::string& a, const std::string& b) {
    return std::pair(rank(a), a) < std::pair(rank(b), b);
  });
  return names;
}

/// How a capture was made, field by field, in the order of the report's head.
using Facts = std::vector<std::pair<std::string, std::string>>;

Facts facts_of(const kl::Dump& dump, const kl::RunRecord& record) {
  const auto on_off = [](bool on) { return on ? "on" : "off"; };
  return {{"model", dump.info.model},
          {"model SHA-256", record.model_sha256},
          {"program", record.version.empty() ? std::string()
                                             : fmt::format("rorqual {} ({})", record.version, record.commit)},
          {"engine", record.engine},
          {"numerics", record.numerics},
          {"kernels", record.kernels},
          {"lossy switches", record.switches.empty() ? "none" : record.switches},
          {"machine", record.machine},
          {"threads", std::to_string(record.threads)},
          {"streams", std::to_string(record.streams)},
          {"speculation", on_off(record.speculation)},
          {"prefix cache", on_off(record.prefix_cache)},
          {"captured on", record.started_at.substr(0, 10)}};
}

/// The facts of all captures of a set; values that differ between its corpora stand side by side.
Result<Facts> facts_of(const CaptureSet& set) {
  Facts all;
  for (const auto& capture : set.captures) {
    auto record = kl::read_run_record(capture.path);
    if (!record.ok() && record.error().code() != Code::not_found) return std::move(record).error();
    const auto facts = record.ok() ? facts_of(capture.dump, *record)
                                   : Facts{{"model", capture.dump.info.model}, {"run record", "none"}};
    for (const auto& [name, value] : facts) {
      const auto same =
          std::find_if(all.begin(), all.end(), [&, &n = name](const auto& fact) { return fact.first == n; });
      if (value.empty()) continue;
      if (same == all.end()) {
        all.emplace_back(name, value);
      } else if (same->second.find(value) == std::string::npos) {
        same->second += " | " + value;
      }
    }
  }
  return all;
}

std::string joined(const Facts& facts, const Facts& without) {
  std::string text;
  for (const auto& fact : facts) {
    if (std::find(without.begin(), without.end(), fact) != without.end()) continue;
    text += fmt::format("{}{} {}", text.empty() ? "" : ", ", fact.first, fact.second);
  }
  return text;
}

Result<std::optional<text::Tokenizer>> tokenizer_for(const std::string& choice, const kl::DumpInfo& info) {
  const bool is_automatic = choice.empty();
  if (choice == "none" || (is_automatic && info.model != kEmbeddedModelName))
    return std::optional<text::Tokenizer>();
  auto tokenizer = load_tokenizer(choice == "embedded" ? std::string() : choice);
  if (!tokenizer.ok()) return std::move(tokenizer).error();
  if (tokenizer->vocab_size() > info.vocab_size) {
    if (is_automatic) return std::optional<text::Tokenizer>();
    return Error(Code::invalid_argument,
                 fmt::format("tokenizer '{}' has {} tokens, the captures' vocabulary has {}", choice,
                             tokenizer->vocab_size(), info.vocab_size),
                 "give the tokenizer.json of the model that was captured, or --tokenizer none");
  }
  return std::optional<text::Tokenizer>(*std::move(tokenizer));
}

kl::IdSet id_set_of(const std::string& name) {
  if (name == "full") return kl::IdSet::full;
  return name == "candidate" ? kl::IdSet::candidate_top_k : kl::IdSet::both_top_k;
}

/// Full logits of a dump where the id set needs them.
Result<std::unique_ptr<kl::LogitRows>> logits_for(const kl::Dump& dump, bool needed) {
  if (!needed || dump.logits_path.empty()) return std::unique_ptr<kl::LogitRows>();
  return kl::open_logits(dump);
}

/// Window ids for captures that lack them, from the texts given: matched by name, a text's is its stem.
Status add_windows(const std::vector<std::string>& paths, const text::Tokenizer* tokenizer,
                   CaptureSet& reference) {
  for (const auto& path : paths) {
    const bool is_panel = fs::path(path).extension() == ".json";
    const auto name = is_panel ? std::string("panel") : fs::path(path).stem().string();
    const auto capture = std::find_if(reference.captures.begin(), reference.captures.end(),
                                      [&](const Capture& c) { return c.dump.info.corpus == name; });
    if (capture == reference.captures.end()) {
      return Error(Code::invalid_argument, fmt::format("--corpus '{}': '{}' has no capture of corpus '{}'",
                                                       path, reference.argument, name));
    }
    auto& dump = capture->dump;
    if (is_panel) {
      RORQUAL_TRY_ASSIGN(const auto corpus, kl::read_panel(path));
      RORQUAL_TRY(kl::add_window_ids(dump, corpus));
      continue;
    }
    if (tokenizer == nullptr) {
      return Error(Code::invalid_argument, fmt::format("--corpus '{}' needs a tokenizer", path),
                   "name the captured model's with --tokenizer");
    }
    RORQUAL_TRY_ASSIGN(const auto text, read_text_file(path, kMaxCorpus_bytes));
    RORQUAL_TRY_ASSIGN(const auto corpus,
                       kl::cut_windows(*tokenizer, name, text,
                                       {.context = dump.info.context, .max_windows = dump.info.num_windows}));
    RORQUAL_TRY(kl::add_window_ids(dump, corpus));
  }
  return Ok();
}

/// Compares every candidate with the reference, all on the same ids.
class CorpusComparer {
 public:
  CorpusComparer(kl::IdSet id_set, const kl::Dump& reference, std::vector<const kl::Dump*> candidates)
      : id_set_(id_set), reference_(reference), candidates_(std::move(candidates)) {}

  Result<kl::ReportCorpus> compare_all(const kl::Dump* floor) {
    RORQUAL_TRY_ASSIGN(reference_logits_, logits_for(reference_, id_set_ != kl::IdSet::both_top_k));
    kl::ReportCorpus corpus;
    corpus.reference = &reference_;
    if (candidates_.size() == 1) {
      RORQUAL_TRY_ASSIGN(auto logits, logits_for(*candidates_[0], id_set_ == kl::IdSet::full));
      RORQUAL_TRY_ASSIGN(auto comparison,
                         kl::compare(reference_, *candidates_[0], options({}, logits.get())));
      corpus.candidates.push_back({candidates_[0], std::move(comparison)});
    } else {
      RORQUAL_TRY(compare_pairs(corpus));
    }
    if (floor != nullptr) {
      RORQUAL_TRY_ASSIGN(auto logits, logits_for(*floor, id_set_ == kl::IdSet::full));
      RORQUAL_TRY_ASSIGN(auto comparison, kl::compare(reference_, *floor, options({}, logits.get())));
      corpus.floor = std::move(comparison.summary);
    }
    return corpus;
  }

 private:
  kl::CompareOptions options(std::vector<const kl::Dump*> also, const kl::LogitRows* logits) const {
    kl::CompareOptions options;
    options.id_set = id_set_;
    options.also = std::move(also);
    options.reference_logits = reference_logits_.get();
    options.candidate_logits = logits;
    return options;
  }

  Status compare_pairs(kl::ReportCorpus& corpus) {
    RORQUAL_TRY_ASSIGN(const auto first_logits, logits_for(*candidates_[0], id_set_ == kl::IdSet::full));
    corpus.candidates.resize(candidates_.size());
    for (size_t i = 1; i < candidates_.size(); ++i) {
      std::vector<const kl::Dump*> others;
      for (size_t j = 1; j < candidates_.size(); ++j) {
        if (j != i) others.push_back(candidates_[j]);
      }
      RORQUAL_TRY_ASSIGN(const auto logits, logits_for(*candidates_[i], id_set_ == kl::IdSet::full));
      auto compare_options = options(std::move(others), logits.get());
      compare_options.second_logits = first_logits.get();
      RORQUAL_TRY_ASSIGN(auto paired,
                         kl::compare_paired(reference_, *candidates_[i], *candidates_[0], compare_options));
      corpus.pairs.push_back({.candidate = i,
                              .mean_difference = paired.mean_difference,
                              .relative_change = paired.relative_change,
                              .probability_greater = paired.probability_a_greater,
                              .difference_ci = paired.difference_ci,
                              .relative_ci = paired.relative_ci});
      corpus.candidates[i] = {candidates_[i], std::move(paired.a)};
      if (i == 1) corpus.candidates[0] = {candidates_[0], std::move(paired.b)};
    }
    return Ok();
  }

  kl::IdSet id_set_;
  const kl::Dump& reference_;
  std::vector<const kl::Dump*> candidates_;
  std::unique_ptr<kl::LogitRows> reference_logits_;
};

struct Loaded {
  CaptureSet reference;
  std::vector<CaptureSet> candidates;
  std::optional<CaptureSet> floor;
};

Result<Loaded> load(const KlReportOptions& options) {
  Loaded loaded;
  RORQUAL_TRY_ASSIGN(loaded.reference, read_set(options.reference));
  for (const auto& candidate : options.candidates) {
    RORQUAL_TRY_ASSIGN(loaded.candidates.emplace_back(), read_set(candidate));
  }
  if (!options.floor.empty()) {
    RORQUAL_TRY_ASSIGN(loaded.floor, read_set(options.floor));
  }
  return loaded;
}

/// What all captures have in common once, then what each set has of its own.
Status add_facts(const Loaded& loaded, kl::ReportInput& input) {
  std::vector<std::pair<std::string, const CaptureSet*>> sets = {{"Reference", &loaded.reference}};
  for (size_t i = 0; i < loaded.candidates.size(); ++i)
    sets.emplace_back("Candidate " + input.labels[i], &loaded.candidates[i]);
  if (loaded.floor) sets.emplace_back("Noise floor", &*loaded.floor);
  std::vector<Facts> facts;
  for (const auto& set : sets) {
    RORQUAL_TRY_ASSIGN(facts.emplace_back(), facts_of(*set.second));
  }
  Facts common;
  for (const auto& fact : facts[0]) {
    const bool everywhere = std::all_of(facts.begin(), facts.end(), [&](const Facts& other) {
      return std::find(other.begin(), other.end(), fact) != other.end();
    });
    if (everywhere) common.push_back(fact);
  }
  const auto& build = build_info();
  input.facts.emplace_back("Report by",
                           fmt::format("rorqual {} ({}{})", build.version, build.commit.substr(0, 12),
                                       build.dirty ? ", changed" : ""));
  if (!common.empty()) input.facts.emplace_back("All captures", joined(common, {}));
  for (size_t i = 0; i < sets.size(); ++i) {
    const auto own = joined(facts[i], common);
    input.facts.emplace_back(sets[i].first, sets[i].second->argument + (own.empty() ? "" : " · " + own));
  }
  return Ok();
}

void print_result(const KlReportOptions& options, const kl::ReportInput& input) {
  if (options.as_json) {
    nlohmann::ordered_json json = {{"schema", "rorqual.kl.report.written/1"}, {"out", options.out}};
    json["corpora"] = nlohmann::ordered_json::array();
    for (const auto& corpus : input.corpora) {
      nlohmann::ordered_json row = {{"corpus", corpus.reference->info.corpus}};
      for (size_t i = 0; i < input.labels.size(); ++i) {
        const auto& summary = corpus.candidates[i].comparison.summary;
        row["candidates"].push_back(
            {{"name", input.labels[i]}, {"mean_kl", summary.mean_kl}, {"top1", summary.top1}});
      }
      json["corpora"].push_back(std::move(row));
    }
    fmt::print("{}\n", json.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace));
    return;
  }
  report::Table table{{"corpus", "candidate", "mean KL", "top-1"},
                      {report::Align::left, report::Align::left, report::Align::right, report::Align::right},
                      {}};
  for (const auto& corpus : input.corpora) {
    for (size_t i = 0; i < input.labels.size(); ++i) {
      const auto& summary = corpus.candidates[i].comparison.summary;
      table.rows.push_back({corpus.reference->info.corpus, input.labels[i],
                            fmt::format("{:.6g}", summary.mean_kl),
                            fmt::format("{:.2f} %", 100 * summary.top1)});
    }
  }
  fmt::print("{}wrote {}\n", report::to_text(table), options.out);
}

}  // namespace

Status run_kl_report(const KlReportOptions& options) {
  RORQUAL_TRY(check_output("--out", options.out));
  RORQUAL_TRY_ASSIGN(auto loaded, load(options));
  RORQUAL_TRY_ASSIGN(const auto tokenizer,
                     tokenizer_for(options.tokenizer, loaded.reference.captures[0].dump.info));
  RORQUAL_TRY(add_windows(options.corpora, tokenizer ? &*tokenizer : nullptr, loaded.reference));
  kl::ReportInput input;
  input.reference_label = label_of(options.reference);
  RORQUAL_TRY_ASSIGN(input.labels, labels_of(options));
  input.num_worst = options.num_worst;
  RORQUAL_TRY(add_facts(loaded, input));
  const auto corpora = shared_corpora(loaded.reference, loaded.candidates, options.as_json);
  if (corpora.empty()) {
    return Error(Code::invalid_argument,
                 fmt::format("no corpus of '{}' is in every candidate", options.reference),
                 "corpora are matched by the name in the captures");
  }
  for (const auto& name : corpora) {
    std::vector<const kl::Dump*> candidates;
    for (const auto& set : loaded.candidates) candidates.push_back(&set.find(name)->dump);
    const auto* floor = loaded.floor ? loaded.floor->find(name) : nullptr;
    CorpusComparer comparer(id_set_of(options.id_set), loaded.reference.find(name)->dump, candidates);
    auto corpus = comparer.compare_all(floor == nullptr ? nullptr : &floor->dump);
    if (!corpus.ok()) return std::move(corpus).error().at(fmt::format("corpus '{}'", name));
    input.corpora.push_back(*std::move(corpus));
  }
  if (tokenizer) input.tokenizer = &*tokenizer;
  RORQUAL_TRY(report::write_page(options.out, kl::kl_report(input)));
  print_result(options, input);
  return Ok();
}

}  // namespace rorqual::tools
