// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>

#include "base/file.h"
#include "kl/dump.h"
#include "kl/gate.h"
#include "kl/kl_table.h"
#include "kl/run_record.h"
#include "report/table.h"
#include "tools/kl_compare.h"
#include "tools/kl_records.h"

namespace rorqual::tools {
namespace {

using Json = nlohmann::ordered_json;

constexpr int64_t kMaxNumbers_bytes = 1 << 20;

struct GateRun {
  std::string name;  // of the change; empty = not given
  std::vector<kl::GateCorpus> corpora;
  std::vector<std::string> notes;
  kl::Verdict verdict = kl::Verdict::undecided;
};

// ---- from captures ----

using Paths = std::map<std::string, std::string>;  // corpus -> file

/// Which file holds which corpus.
Result<Paths> by_corpus(const std::vector<std::string>& paths, std::string_view side) {
  Paths out;
  for (const auto& path : paths) {
    RORQUAL_TRY_ASSIGN(const auto files, kl::find_dumps(path));
    for (const auto& file : files) {
      RORQUAL_TRY_ASSIGN(const kl::Dump dump, kl::read_dump(file));
      const auto [known, is_new] = out.emplace(dump.info.corpus, file);
      if (!is_new) {
        return Error(
            Code::invalid_argument,
            fmt::format("{} has corpus '{}' twice: {} and {}", side, dump.info.corpus, known->second, file),
            "give one capture per corpus");
      }
    }
  }
  return out;
}

Error no_capture(std::string_view side, const std::string& corpus) {
  return Error(Code::invalid_argument, fmt::format("{} has no capture of corpus '{}'", side, corpus),
               "every run needs every corpus that one of them has");
}

/// A second run of the old side, where there is one, covers it: a corpus that it lacks would pass unrepeated.
Status check_second_run(const Paths& old_side, const Paths& old_again) {
  if (old_again.empty()) return Ok();
  for (const auto& [corpus, path] : old_again) {
    if (!old_side.contains(corpus)) return no_capture("--old", corpus);
  }
  for (const auto& [corpus, path] : old_side) {
    if (!old_again.contains(corpus)) return no_capture("--old-again", corpus);
  }
  return Ok();
}

/// Checks that the records make a pair; true if the old side is known to differ from run to run.
Result<bool> check_records(const std::string& old_path, const std::string& new_path,
                           const KlGateOptions& options, std::vector<std::string>& notes) {
  RORQUAL_TRY_ASSIGN(const auto old_record, read_checked_record(old_path));
  RORQUAL_TRY_ASSIGN(const auto new_record, read_checked_record(new_path));
  if (!old_record || !new_record) {
    const std::string& missing = old_record ? new_path : old_path;
    if (!options.force_pair) {
      return Error(Code::invalid_argument,
                   fmt::format("{} has no run record, so nothing says that the two are a pair", missing),
                   "kl capture writes FILE.run.json; --force-pair goes on without");
    }
    const std::string note = "no run record: the pair is taken on trust";
    if (std::find(notes.begin(), notes.end(), note) == notes.end()) notes.push_back(note);
    return false;
  }
  const auto pair = kl::check_pair(*old_record, *new_record);
  if (!pair.ok()) {
    if (!options.force_pair) return pair.error();
    notes.push_back("forced: " + pair.error().message());
  }
  const std::string changed = kl::changes(*old_record, *new_record);
  const std::string note =
      "change: " + (changed.empty() ? std::string("none that the run records know") : changed);
  if (std::find(notes.begin(), notes.end(), note) == notes.end()) notes.push_back(note);
  return old_record->commit.empty();  // another engine: nothing promises that it repeats itself
}

Status gate_corpus(const std::array<const std::string*, 4>& paths, const kl::GateLimits& limits,
                   const KlGateOptions& options, GateRun& run) {
  const auto& [reference_path, old_path, new_path, again_path] = paths;
  RORQUAL_TRY_ASSIGN(const bool is_nondeterministic, check_records(*old_path, *new_path, options, run.notes));
  RORQUAL_TRY_ASSIGN(const kl::Dump reference, kl::read_dump(*reference_path));
  RORQUAL_TRY_ASSIGN(const kl::Dump old_side, kl::read_dump(*old_path));
  RORQUAL_TRY_ASSIGN(const kl::Dump new_side, kl::read_dump(*new_path));
  std::optional<kl::Dump> again;
  if (again_path != nullptr) {
    std::vector<std::string> unused;
    RORQUAL_TRY(check_records(*old_path, *again_path, options, unused));
    RORQUAL_TRY_ASSIGN(again, kl::read_dump(*again_path));
  }
  auto numbers = kl::measure({&reference, &old_side, &new_side, again ? &*again : nullptr});
  if (!numbers.ok()) return std::move(numbers).error().at(reference.info.corpus);
  numbers->old_is_nondeterministic = is_nondeterministic;
  run.corpora.push_back(kl::judge(*numbers, limits));
  return Ok();
}

Result<GateRun> gate_captures(const KlGateOptions& options, const kl::GateLimits& limits) {
  RORQUAL_TRY_ASSIGN(const Paths references, by_corpus(options.references, "--reference"));
  RORQUAL_TRY_ASSIGN(const Paths old_side, by_corpus(options.old_side, "--old"));
  RORQUAL_TRY_ASSIGN(const Paths new_side, by_corpus(options.new_side, "--new"));
  RORQUAL_TRY_ASSIGN(const Paths old_again, by_corpus(options.old_again, "--old-again"));
  GateRun run;
  for (const auto& [corpus, path] : new_side) {
    if (!old_side.contains(corpus)) return no_capture("--old", corpus);
  }
  RORQUAL_TRY(check_second_run(old_side, old_again));
  for (const auto& [corpus, path] : old_side) {
    if (!new_side.contains(corpus)) return no_capture("--new", corpus);
    const auto reference = references.find(corpus);
    if (reference == references.end()) return no_capture("--reference", corpus);
    const auto again = old_again.find(corpus);
    RORQUAL_TRY(gate_corpus({&reference->second, &path, &new_side.at(corpus),
                             again == old_again.end() ? nullptr : &again->second},
                            limits, options, run));
  }
  return run;
}

// ---- from numbers ----

Result<double> number_of(const Json& object, const char* key) {
  const auto found = object.find(key);
  if (found == object.end() || !found->is_number() || !(found->get<double>() >= 0))
    return Error(Code::corrupt_data, fmt::format("no number '{}' of at least 0", key));
  return found->get<double>();
}

Result<kl::GateNumbers> numbers_of(const Json& object) {
  kl::GateNumbers numbers;
  if (!object.is_object() || !object.contains("corpus") || !object.at("corpus").is_string())
    return Error(Code::corrupt_data, "a corpus without its name");
  numbers.corpus = object.at("corpus").get<std::string>();
  RORQUAL_TRY_ASSIGN(numbers.old_kl, number_of(object, "old"));
  if (object.contains("new")) {
    RORQUAL_TRY_ASSIGN(numbers.new_kl, number_of(object, "new"));
  } else if (object.contains("change") && object.at("change").is_number()) {
    const double change = object.at("change").get<double>();
    if (!(change >= -1))
      return Error(Code::corrupt_data, fmt::format("change is {}, expected -1 or more", change));
    numbers.new_kl = numbers.old_kl * (1 + change);
  } else {
    return Error(Code::corrupt_data, fmt::format("'{}' has neither 'new' nor 'change'", numbers.corpus));
  }
  if (object.contains("old_again")) {
    RORQUAL_TRY_ASSIGN(numbers.old_again_kl, number_of(object, "old_again"));
  }
  return numbers;
}

Result<GateRun> gate_numbers(const std::string& path, const kl::GateLimits& limits) {
  RORQUAL_TRY_ASSIGN(const std::string text, read_text_file(path, kMaxNumbers_bytes));
  const Json document = Json::parse(text, nullptr, false);
  const char* const hint = "{\"corpora\": [{\"corpus\": \"code\", \"old\": 0.0309, \"new\": 0.0311}]}";
  if (!document.is_object() || !document.contains("corpora") || !document.at("corpora").is_array())
    return Error(Code::corrupt_data, fmt::format("{}: not an object with a list 'corpora'", path), hint);
  GateRun run;
  if (document.contains("name") && document.at("name").is_string())
    run.name = document.at("name").get<std::string>();
  for (const auto& object : document.at("corpora")) {
    auto numbers = numbers_of(object);
    if (!numbers.ok())
      return Error(Code::corrupt_data, fmt::format("{}: {}", path, numbers.error().message()), hint);
    const auto is_same = [&](const kl::GateCorpus& known) { return known.numbers.corpus == numbers->corpus; };
    if (std::any_of(run.corpora.begin(), run.corpora.end(), is_same)) {
      return Error(Code::corrupt_data, fmt::format("{}: corpus '{}' is there twice", path, numbers->corpus),
                   "give each corpus once");
    }
    run.corpora.push_back(kl::judge(*numbers, limits));
  }
  return run;
}

// ---- the answer ----

Json tail_json(const std::optional<kl::Tail>& tail) {
  if (!tail) return nullptr;
  return {{"p95", tail->p95}, {"p99", tail->p99}, {"max", tail->max}};
}

Json gate_json(const GateRun& run) {
  Json corpora = Json::array();
  for (const auto& corpus : run.corpora) {
    const auto& numbers = corpus.numbers;
    Json item = {{"corpus", numbers.corpus},
                 {"verdict", kl::verdict_name(corpus.verdict)},
                 {"reason", corpus.reason},
                 {"old_kl", numbers.old_kl},
                 {"new_kl", numbers.new_kl},
                 {"limit", corpus.limit},
                 {"relative_change", corpus.relative_change}};
    item["relative_ci95"] = nullptr;
    if (numbers.relative_ci) item["relative_ci95"] = {numbers.relative_ci->low, numbers.relative_ci->high};
    item["old_again_kl"] = nullptr;
    if (numbers.old_again_kl) item["old_again_kl"] = *numbers.old_again_kl;
    item["old_tail"] = tail_json(numbers.old_tail);
    item["new_tail"] = tail_json(numbers.new_tail);
    corpora.push_back(std::move(item));
  }
  return {{"schema", "rorqual.kl.gate/1"},
          {"verdict", kl::verdict_name(run.verdict)},
          {"name", run.name},
          {"corpora", corpora},
          {"notes", run.notes}};
}

std::string change_text(const kl::GateCorpus& corpus) {
  if (!std::isfinite(corpus.relative_change)) return "from 0";
  std::string text = fmt::format("{:+.2f} %", 100 * corpus.relative_change);
  const auto& interval = corpus.numbers.relative_ci;
  if (interval && std::isfinite(interval->low) && std::isfinite(interval->high)) {
    text += fmt::format(" ({:+.2f} to {:+.2f})", 100 * corpus.numbers.relative_ci->low,
                        100 * corpus.numbers.relative_ci->high);
  }
  return text;
}

std::string gate_text(const GateRun& run) {
  report::Table table;
  table.header = {"corpus",    "old KL", "new KL", "limit", "change (95 %)",
                  "old again", "p95",    "p99",    "max",   "verdict"};
  table.align.assign(table.header.size(), report::Align::right);
  table.align.front() = table.align.back() = report::Align::left;
  const auto tails = [](const kl::GateNumbers& numbers, double kl::Tail::*field) {
    if (!numbers.old_tail || !numbers.new_tail) return std::string("-");
    return fmt::format("{:.4f} -> {:.4f}", (*numbers.old_tail).*field, (*numbers.new_tail).*field);
  };
  for (const auto& corpus : run.corpora) {
    const auto& numbers = corpus.numbers;
    table.rows.push_back({numbers.corpus, fmt::format("{:.5f}", numbers.old_kl),
                          fmt::format("{:.5f}", numbers.new_kl), fmt::format("{:.5f}", corpus.limit),
                          change_text(corpus),
                          numbers.old_again_kl ? fmt::format("{:.5f}", *numbers.old_again_kl) : "-",
                          tails(numbers, &kl::Tail::p95), tails(numbers, &kl::Tail::p99),
                          tails(numbers, &kl::Tail::max), std::string(kl::verdict_name(corpus.verdict))});
  }
  std::string text = run.name.empty() ? "" : run.name + "\n";
  for (const auto& note : run.notes) text += note + "\n";
  text += report::to_text(table);
  if (run.verdict == kl::Verdict::passed) text += "gate passed\n";
  return text;
}

/// One line: the corpora that decided, with reasons, and which passed.
Error gate_error(const GateRun& run) {
  std::string reasons, passed;
  for (const auto& corpus : run.corpora) {
    const std::string& name = corpus.numbers.corpus;
    if (corpus.verdict == kl::Verdict::passed) {
      passed += (passed.empty() ? "" : ", ") + name;
    } else {
      reasons += fmt::format("{}{} {}{}", reasons.empty() ? "" : "; ", name,
                             corpus.verdict == run.verdict ? "" : "undecided: ", corpus.reason);
    }
  }
  if (run.corpora.empty()) reasons = "no corpus was compared";
  if (!passed.empty()) reasons += "; passed: " + passed;
  return Error(Code::gate, fmt::format("gate {}: {}", kl::verdict_name(run.verdict), reasons),
               run.verdict == kl::Verdict::undecided
                   ? "repeat the old side until it agrees with itself: --old-again"
                   : "");
}

Status check_sides(const KlGateOptions& options) {
  if (!options.numbers.empty()) return Ok();
  if (options.references.empty() || options.old_side.empty() || options.new_side.empty()) {
    return Error(Code::invalid_argument, "kl gate needs --reference, --old and --new, or --numbers",
                 "rorqual kl gate --reference captures/exact --old captures/before --new captures/after");
  }
  return Ok();
}

}  // namespace

Status run_kl_gate(const KlGateOptions& options, std::string& out) {
  RORQUAL_TRY(check_sides(options));
  kl::GateLimits limits;
  limits.tail_relative = options.tail_percent / 100;
  limits.max_kl = options.max_kl;
  RORQUAL_TRY_ASSIGN(GateRun run, options.numbers.empty() ? gate_captures(options, limits)
                                                          : gate_numbers(options.numbers, limits));
  run.verdict = kl::worst(run.corpora);
  out = options.as_json ? dump_json(gate_json(run)) : gate_text(run);
  if (run.verdict != kl::Verdict::passed) return gate_error(run);
  return Ok();
}

}  // namespace rorqual::tools
