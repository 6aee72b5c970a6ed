// SPDX-License-Identifier: Apache-2.0
#include "tools/kl_compare.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <optional>

#include "kl/full_logits.h"
#include "kl/kl_table.h"
#include "kl/run_record.h"
#include "kl/token_class.h"
#include "report/table.h"
#include "tools/kl_records.h"
#include "tools/text_input.h"

namespace rorqual::tools {
namespace {

using Json = nlohmann::ordered_json;

struct Side {
  std::string path;
  kl::ExternalPanel capture;
  std::optional<kl::RunRecord> record;
};

Result<Side> read_side(const std::string& path, int64_t top_k, bool force) {
  Side side;
  side.path = path;
  RORQUAL_TRY_ASSIGN(side.capture, kl::read_capture_or_panel(path, top_k));
  RORQUAL_TRY_ASSIGN(side.record, read_checked_record(path));
  if (!force && side.record && (side.record->prefix_cache || side.record->speculation)) {
    return Error(Code::invalid_argument,
                 fmt::format("{}: captured with {} on", path,
                             side.record->prefix_cache ? "the prefix cache" : "speculation"),
                 "capture again with both off, or give --force");
  }
  return side;
}

Json interval_json(const kl::Interval& interval) {
  return Json::array({interval.low, interval.high});
}

Json summary_json(const kl::Summary& s) {
  return {{"mean_kl", s.mean_kl},
          {"mean_kl_ci95", interval_json(s.mean_kl_ci)},
          {"position_mean_kl", s.position_mean_kl},
          {"median", s.median},
          {"p90", s.p90},
          {"p95", s.p95},
          {"p99", s.p99},
          {"max", s.max},
          {"top1", s.top1},
          {"reference_perplexity", s.reference_perplexity},
          {"candidate_perplexity", s.candidate_perplexity},
          {"mean_abs_token_delta", s.mean_abs_token_delta},
          {"common_mass_median", s.common_mass_median},
          {"common_mass_p1", s.common_mass_p1},
          {"common_mass_min", s.common_mass_min},
          {"overshoot_reference", s.overshoot_reference},
          {"overshoot_candidate", s.overshoot_candidate},
          {"window_means", s.window_means}};
}

Json record_json(const std::optional<kl::RunRecord>& record) {
  if (!record) return nullptr;
  return {{"version", record->version},
          {"commit", record->commit},
          {"engine", record->engine},
          {"numerics", record->numerics},
          {"kernels", record->kernels},
          {"switches", record->switches},
          {"prompt_compat", record->prompt_compat},
          {"tokenizer_sha256", record->tokenizer_sha256},
          {"machine", record->machine},
          {"threads", record->threads},
          {"streams", record->streams},
          {"max_model_len", record->max_model_len},
          {"speculation", record->speculation},
          {"prefix_cache", record->prefix_cache},
          {"started_at", record->started_at},
          {"finished_at", record->finished_at},
          {"model_sha256", record->model_sha256},
          {"dump_sha256", record->dump_sha256}};
}

Json side_json(const Side& side) {
  return {{"path", side.path}, {"model", side.capture.dump.info.model}, {"run", record_json(side.record)}};
}

Json classes_json(const std::vector<kl::ClassRow>& classes) {
  Json list = Json::array();
  for (const auto& row : classes) {
    list.push_back({{"class", kl::token_class_name(row.token_class)},
                    {"positions", row.positions},
                    {"mean_kl", row.mean_kl},
                    {"top1", row.top1},
                    {"kl_share", row.kl_share}});
  }
  return list;
}

std::string nats(double value) {
  return fmt::format("{:.6f}", value);
}

std::string percent(double share) {
  return fmt::format("{:.2f} %", 100 * share);
}

std::string range(const kl::Interval& interval) {
  return fmt::format("{:.6f} to {:.6f}", interval.low, interval.high);
}

void add_summary_rows(const kl::Summary& s, report::Table& table) {
  table.rows.push_back({"mean KL, nats", nats(s.mean_kl)});
  table.rows.push_back({"95 % interval", range(s.mean_kl_ci)});
  table.rows.push_back({"median", nats(s.median)});
  table.rows.push_back({"p90", nats(s.p90)});
  table.rows.push_back({"p95", nats(s.p95)});
  table.rows.push_back({"p99", nats(s.p99)});
  table.rows.push_back({"max", nats(s.max)});
  table.rows.push_back({"top-1 agreement", percent(s.top1)});
  table.rows.push_back({"perplexity, reference", fmt::format("{:.4f}", s.reference_perplexity)});
  table.rows.push_back({"perplexity, candidate", fmt::format("{:.4f}", s.candidate_perplexity)});
  table.rows.push_back({"mean |token delta|", nats(s.mean_abs_token_delta)});
  table.rows.push_back({"common mass, median", fmt::format("{:.6f}", s.common_mass_median)});
  table.rows.push_back({"common mass, p1", fmt::format("{:.6f}", s.common_mass_p1)});
  table.rows.push_back({"common mass, min", fmt::format("{:.6f}", s.common_mass_min)});
  if (s.overshoot_reference > 0 || s.overshoot_candidate > 0) {
    table.rows.push_back(
        {"rows with mass above 1",
         fmt::format("{} reference, {} candidate", s.overshoot_reference, s.overshoot_candidate)});
  }
}

std::string id_set_text(kl::IdSet id_set, size_t candidates) {
  if (id_set == kl::IdSet::full) return "full: the exact divergence";
  const std::string whose = candidates > 1 ? "both candidates'" : "the candidate's";
  if (id_set == kl::IdSet::candidate_top_k)
    return fmt::format("candidate: ids in {} top K; a lower bound", whose);
  return fmt::format("both: ids in the reference's and {} top K; a lower bound", whose);
}

std::string heading(const Side& reference, const Side& candidate, kl::IdSet id_set, size_t candidates) {
  const kl::DumpInfo& info = reference.capture.dump.info;
  const auto line = [](const char* name, const Side& side) {
    const std::string settings = side.record ? "; " + settings_text(*side.record) : "";
    return fmt::format("{:<10} {} ({}{})\n", name, side.path, side.capture.dump.info.model, settings);
  };
  return line("reference", reference) + line("candidate", candidate) +
         fmt::format("{:<10} {}: {} windows, {} positions, top {} of {}\n", "corpus", info.corpus,
                     info.num_windows, info.scored_positions, info.top_k, info.vocab_size) +
         fmt::format("{:<10} {}\n\n", "ids", id_set_text(id_set, candidates));
}

report::Table class_table(const std::vector<kl::ClassRow>& classes) {
  report::Table table;
  table.header = {"token class", "positions", "mean KL", "top-1", "share of KL"};
  table.align = {report::Align::left, report::Align::right, report::Align::right, report::Align::right,
                 report::Align::right};
  for (const auto& row : classes) {
    table.rows.push_back({std::string(kl::token_class_name(row.token_class)), std::to_string(row.positions),
                          nats(row.mean_kl), percent(row.top1), percent(row.kl_share)});
  }
  return table;
}

report::Table summary_table() {
  report::Table table;
  table.header = {"measure", "value"};
  table.align = {report::Align::left, report::Align::right};
  return table;
}

/// The parts of a comparison that do not depend on how it is shown.
struct Run {
  Side reference, candidate;
  std::optional<text::Tokenizer> tokenizer;
};

Result<std::vector<kl::ClassRow>> classes_of(const Run& run, const kl::Positions& positions) {
  if (!run.tokenizer) return std::vector<kl::ClassRow>();
  const auto& dump = run.reference.capture.dump;
  if (run.tokenizer->vocab_size() > dump.info.vocab_size) {
    return Error(Code::invalid_argument,
                 fmt::format("the tokenizer has {} tokens, the captures' vocabulary {}",
                             run.tokenizer->vocab_size(), dump.info.vocab_size),
                 "give the tokenizer of the captured model: --tokenizer FILE or model folder");
  }
  return kl::split_by_class(*run.tokenizer, dump.token, positions);
}

Json document_head(const Run& run, kl::IdSet id_set) {
  const kl::DumpInfo& info = run.reference.capture.dump.info;
  return {{"schema", "rorqual.kl.compare/1"},
          {"reference", side_json(run.reference)},
          {"candidate", side_json(run.candidate)},
          {"corpus", info.corpus},
          {"context", info.context},
          {"windows", info.num_windows},
          {"first_scored", info.first_scored},
          {"positions", info.scored_positions},
          {"top_k", info.top_k},
          {"vocab_size", info.vocab_size},
          {"id_set", kl::id_set_name(id_set)}};
}

Status compare_one(const KlCompareOptions& options, const Run& run, std::string& out) {
  kl::CompareOptions compare_options;
  compare_options.id_set = options.id_set;
  compare_options.reference_logits = run.reference.capture.logits.get();
  compare_options.candidate_logits = run.candidate.capture.logits.get();
  RORQUAL_TRY_ASSIGN(const auto result,
                     kl::compare(run.reference.capture.dump, run.candidate.capture.dump, compare_options));
  RORQUAL_TRY_ASSIGN(const auto classes, classes_of(run, result.positions));
  if (options.as_json) {
    Json document = document_head(run, options.id_set);
    document.update(summary_json(result.summary));
    if (run.tokenizer) document["classes"] = classes_json(classes);
    out = dump_json(document);
    return Ok();
  }
  report::Table table = summary_table();
  add_summary_rows(result.summary, table);
  out = heading(run.reference, run.candidate, options.id_set, 1) + report::to_text(table);
  if (run.tokenizer) out += "\n" + report::to_text(class_table(classes));
  return Ok();
}

Json paired_json(const kl::Paired& paired) {
  return {{"mean_difference", paired.mean_difference},
          {"difference_ci95", interval_json(paired.difference_ci)},
          {"relative_change", paired.relative_change},
          {"relative_ci95", interval_json(paired.relative_ci)},
          {"probability_a_greater", paired.probability_a_greater}};
}

std::string difference_text(const kl::Paired& paired) {
  std::string text = fmt::format(
      "\nA - B       {:+.6f} nats, 95 % interval {:+.6f} to {:+.6f}, {:.1f} % of resamples above 0\n",
      paired.mean_difference, paired.difference_ci.low, paired.difference_ci.high,
      100 * paired.probability_a_greater);
  if (!std::isfinite(paired.relative_change)) return text + "(A - B) / B not defined: B is 0\n";
  text += fmt::format("(A - B) / B {:+.2f} %", 100 * paired.relative_change);
  if (std::isfinite(paired.relative_ci.low) && std::isfinite(paired.relative_ci.high)) {
    text += fmt::format(", 95 % interval {:+.2f} % to {:+.2f} %", 100 * paired.relative_ci.low,
                        100 * paired.relative_ci.high);
  }
  return text + "\n";
}

Status compare_two(const KlCompareOptions& options, const Run& run, const Side& second, std::string& out) {
  kl::CompareOptions compare_options;
  compare_options.id_set = options.id_set;
  compare_options.reference_logits = run.reference.capture.logits.get();
  compare_options.candidate_logits = run.candidate.capture.logits.get();
  compare_options.second_logits = second.capture.logits.get();
  RORQUAL_TRY_ASSIGN(const auto paired,
                     kl::compare_paired(run.reference.capture.dump, run.candidate.capture.dump,
                                        second.capture.dump, compare_options));
  RORQUAL_TRY_ASSIGN(const auto classes, classes_of(run, paired.a.positions));
  if (options.as_json) {
    Json document = document_head(run, options.id_set);
    document.update(summary_json(paired.a.summary));
    if (run.tokenizer) document["classes"] = classes_json(classes);
    document["second"] = side_json(second);
    document["second"].update(summary_json(paired.b.summary));
    document["paired"] = paired_json(paired);
    out = dump_json(document);
    return Ok();
  }
  report::Table a = summary_table(), b = summary_table();
  add_summary_rows(paired.a.summary, a);
  add_summary_rows(paired.b.summary, b);
  report::Table both;
  both.header = {"measure", "A", "B"};
  both.align = {report::Align::left, report::Align::right, report::Align::right};
  for (size_t i = 0; i < std::min(a.rows.size(), b.rows.size()); ++i)
    both.rows.push_back({a.rows[i][0], a.rows[i][1], b.rows[i][1]});
  out = heading(run.reference, run.candidate, options.id_set, 2) +
        fmt::format("A is the candidate, B is {} ({})\n\n", second.path, second.capture.dump.info.model) +
        report::to_text(both);
  out += difference_text(paired);
  if (paired.difference_ci.low <= 0 && paired.difference_ci.high >= 0)
    out += "The interval holds 0: no difference was found, which is not a proof of equality.\n";
  if (run.tokenizer) out += "\nA by token class\n" + report::to_text(class_table(classes));
  return Ok();
}

}  // namespace

Status run_kl_compare(const KlCompareOptions& options, std::string& out) {
  Run run;
  RORQUAL_TRY_ASSIGN(run.candidate, read_side(options.candidate, 512, options.force));
  const int64_t top_k = run.candidate.capture.dump.info.top_k;
  RORQUAL_TRY_ASSIGN(run.reference, read_side(options.reference, top_k, options.force));
  if (!options.force) RORQUAL_TRY(check_same_prompts(run.reference.record, run.candidate.record));
  if (options.by_class) {
    RORQUAL_TRY_ASSIGN(auto tokenizer, load_tokenizer(options.tokenizer));
    run.tokenizer.emplace(std::move(tokenizer));
  }
  if (options.second.empty()) return compare_one(options, run, out);
  RORQUAL_TRY_ASSIGN(const Side second, read_side(options.second, top_k, options.force));
  if (!options.force) RORQUAL_TRY(check_same_prompts(run.reference.record, second.record));
  return compare_two(options, run, second, out);
}

// ---- table ----

namespace {

Result<kl::TableRowFiles> row_files(const std::string& row) {
  const size_t equals = row.find('=');
  if (equals == std::string::npos || equals == 0 || equals + 1 == row.size()) {
    return Error(Code::invalid_argument, fmt::format("row '{}': expected NAME=PATH", row),
                 "rorqual kl table --reference captures/exact 'As served=captures/served'");
  }
  kl::TableRowFiles out{row.substr(0, equals), {}};
  std::string_view rest = std::string_view(row).substr(equals + 1);
  while (!rest.empty()) {
    const size_t comma = rest.find(',');
    RORQUAL_TRY_ASSIGN(const auto files, kl::find_dumps(std::string(rest.substr(0, comma))));
    out.files.insert(out.files.end(), files.begin(), files.end());
    rest.remove_prefix(comma == std::string_view::npos ? rest.size() : comma + 1);
  }
  return out;
}

Json table_json(const kl::KlTable& table) {
  Json rows = Json::array();
  for (const auto& row : table.rows) {
    Json cells = Json::object();
    for (const auto& [corpus, cell] : row.cells)
      cells[corpus] = {{"mean_kl", cell.mean_kl}, {"top1", cell.top1}, {"runs", cell.runs}};
    rows.push_back({{"name", row.name}, {"cells", cells}});
  }
  return {{"schema", "rorqual.kl.table/1"},
          {"id_set", "both"},
          {"corpora", table.corpora},
          {"rows", rows},
          {"notes", table.notes}};
}

}  // namespace

Status run_kl_table(const KlTableOptions& options, std::string& out) {
  std::vector<std::string> references;
  for (const auto& path : options.references) {
    RORQUAL_TRY_ASSIGN(const auto files, kl::find_dumps(path));
    references.insert(references.end(), files.begin(), files.end());
  }
  std::vector<kl::TableRowFiles> rows;
  if (!options.noise_floor.empty()) {
    RORQUAL_TRY_ASSIGN(auto files, kl::find_dumps(options.noise_floor));
    rows.push_back({"Reference, second run (noise floor)", std::move(files)});
  }
  for (const auto& row : options.rows) {
    RORQUAL_TRY_ASSIGN(auto files, row_files(row));
    rows.push_back(std::move(files));
  }
  if (rows.empty() || references.empty()) {
    return Error(Code::invalid_argument, "kl table needs --reference and at least one row NAME=PATH",
                 "rorqual kl table --reference captures/exact 'As served=captures/served'");
  }
  RORQUAL_TRY_ASSIGN(const auto table, kl::make_kl_table(references, rows));
  if (options.as_json) {
    out = dump_json(table_json(table));
    return Ok();
  }
  const report::Table layout = kl::layout(table);
  out = options.format == "csv"    ? report::to_csv(layout)
        : options.format == "text" ? report::to_text(layout)
                                   : report::to_markdown(layout);
  if (options.format != "csv") {
    for (const auto& note : table.notes) out += "\n" + note + "\n";
  }
  return Ok();
}

}  // namespace rorqual::tools
