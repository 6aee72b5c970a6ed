// SPDX-License-Identifier: Apache-2.0
// kl compare, kl gate, kl table: captures into numbers.
#include <cstdio>
#include <string>

#include "cli/commands.h"
#include "cli/values.h"
#include "tools/kl_compare.h"

namespace rorqual::cli {
namespace {

/// Prints what there is, also beside an error.
Status print(const std::string& out, Status status) {
  std::fwrite(out.data(), 1, out.size(), stdout);
  std::fflush(stdout);
  return status;
}

Status kl_compare(const Values& values) {
  tools::KlCompareOptions options;
  options.reference = values.text("reference");
  options.candidate = values.text("candidate");
  options.second = values.text("second");
  const auto& id_set = values.text("id-set");
  options.id_set = id_set == "full"        ? kl::IdSet::full
                   : id_set == "candidate" ? kl::IdSet::candidate_top_k
                                           : kl::IdSet::both_top_k;
  options.tokenizer = values.text("tokenizer");
  options.by_class = values.flag("by-class") || values.has("tokenizer");
  options.force = values.flag("force");
  options.as_json = values.flag("json");
  std::string out;
  auto status = tools::run_kl_compare(options, out);
  return print(out, std::move(status));
}

Status kl_gate(const Values& values) {
  tools::KlGateOptions options;
  options.references = values.list("reference");
  options.old_side = values.list("old");
  options.new_side = values.list("new");
  options.old_again = values.list("old-again");
  options.numbers = values.text("numbers");
  options.tail_percent = values.real("tail");
  options.max_kl = values.real("max-kl");
  options.force_pair = values.flag("force-pair");
  options.as_json = values.flag("json");
  std::string out;
  auto status = tools::run_kl_gate(options, out);
  return print(out, std::move(status));
}

Status kl_table(const Values& values) {
  tools::KlTableOptions options;
  options.references = values.list("reference");
  options.rows = values.list("rows");
  options.noise_floor = values.text("noise-floor");
  options.format = values.text("format");
  options.as_json = values.flag("json");
  std::string out;
  auto status = tools::run_kl_table(options, out);
  return print(out, std::move(status));
}

OptionSpec capture_argument(std::string_view name, std::string_view help, bool is_required) {
  return {.name = name,
          .kind = OptionKind::path,
          .group = "arguments",
          .help = help,
          .value_name = "CAPTURE",
          .is_positional = true,
          .is_required = is_required};
}

OptionSpec captures_option(std::string_view name, std::string_view help) {
  return {.name = name,
          .kind = OptionKind::path,
          .group = "captures",
          .help = help,
          .value_name = "PATH",
          .is_common = true,
          .is_list = true};
}

}  // namespace

CommandSpec kl_compare_command() {
  return {
      .name = "kl compare",
      .summary = "KL divergence of a capture against a reference, and what goes with it",
      .description =
          "Mean with its bootstrap interval, percentiles, agreement of the best token, perplexities. A "
          "second "
          "candidate makes it a paired comparison on one set of ids. The reference may be a panel of full "
          "logits "
          "that another program wrote.",
      .example = "rorqual kl compare reference-code.npz served-code.npz",
      .options =
          {capture_argument("reference", "capture of the reference, or a panel's manifest", true),
           capture_argument("candidate", "capture to judge", true),
           capture_argument("second", "second capture, for a paired comparison", false),
           {.name = "id-set",
            .kind = OptionKind::choice,
            .group = "measure",
            .help = "ids kept apart: in both top K, the candidate's (needs the reference's logits), or all",
            .value_name = "SET",
            .default_value = "both",
            .choices = "both|candidate|full",
            .is_common = true},
           {.name = "by-class",
            .kind = OptionKind::flag,
            .group = "measure",
            .help = "also split by token class: markup, digits, scripts and so on",
            .is_common = true},
           {.name = "tokenizer",
            .kind = OptionKind::path,
            .group = "measure",
            .help = "tokenizer.json or model folder for the classes; default: the embedded model's",
            .value_name = "FILE",
            .is_common = true},
           {.name = "force",
            .kind = OptionKind::flag,
            .group = "measure",
            .help = "compare captures that were made with a prefix cache or drafts"}},
      .run = kl_compare};
}

CommandSpec kl_gate_command() {
  return {.name = "kl gate",
          .summary = "pass or fail a change by its KL before and after",
          .description =
              "Passes if on every corpus the new mean KL is at most max(1.03 x old, old + 0.0003 nats), both "
              "against "
              "the same reference with the same ids. Exit 1 when it fails, and when it is undecided because "
              "two runs "
              "of the old side differ by more than that; --json says which. Corpora are matched by name; a "
              "folder "
              "stands for its captures.",
          .example = "rorqual kl gate --reference captures/exact --old captures/before --new captures/after",
          .options = {captures_option("reference", "captures of the reference"),
                      captures_option("old", "captures before the change"),
                      captures_option("new", "captures after the change"),
                      captures_option("old-again", "second run of the old side, for its noise"),
                      {.name = "numbers",
                       .kind = OptionKind::path,
                       .group = "captures",
                       .help = "JSON file of mean divergences to judge instead of captures",
                       .value_name = "FILE",
                       .is_common = true},
                      {.name = "tail",
                       .kind = OptionKind::real,
                       .group = "limits",
                       .help = "also allow p95 and p99 this many percent more at most, 0 = show only",
                       .value_name = "PERCENT",
                       .default_value = "0",
                       .min = 0,
                       .max = 1000,
                       .is_common = true},
                      {.name = "max-kl",
                       .kind = OptionKind::real,
                       .group = "limits",
                       .help = "also fail if a single position has more than this, 0 = show only",
                       .value_name = "NATS",
                       .default_value = "0",
                       .min = 0,
                       .max = 1000,
                       .is_common = true},
                      {.name = "force-pair",
                       .kind = OptionKind::flag,
                       .group = "limits",
                       .help = "judge although run records are missing or differ in build, machine or day",
                       .is_common = true}},
          .run = kl_gate};
}

CommandSpec kl_table_command() {
  return {
      .name = "kl table",
      .summary = "a table of captures: configurations as rows, corpora as columns",
      .description =
          "Cells are the mean KL lower bound in nats and the agreement of the best token. Several captures "
          "of one "
          "corpus in a row are runs of one configuration: the cell is their mean.",
      .example = "rorqual kl table --reference captures/exact 'As served=captures/served'",
      .options = {{.name = "rows",
                   .kind = OptionKind::text,
                   .group = "arguments",
                   .help = "a row: its name and captures, folders or quoted patterns, separated by commas",
                   .value_name = "NAME=PATH",
                   .is_list = true,
                   .is_positional = true},
                  captures_option("reference", "captures of the reference, one per corpus"),
                  {.name = "noise-floor",
                   .kind = OptionKind::path,
                   .group = "captures",
                   .help = "second run of the reference configuration, shown as the first row",
                   .value_name = "PATH",
                   .is_common = true},
                  {.name = "format",
                   .kind = OptionKind::choice,
                   .group = "output",
                   .help = "form of the table; --json is a form of its own",
                   .value_name = "FORM",
                   .default_value = "markdown",
                   .choices = "markdown|csv|text",
                   .is_common = true}},
      .run = kl_table};
}

}  // namespace rorqual::cli
