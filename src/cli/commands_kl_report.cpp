// SPDX-License-Identifier: Apache-2.0
// kl report.
#include "cli/commands.h"
#include "cli/values.h"
#include "tools/kl_report.h"

namespace rorqual::cli {
namespace {

Status kl_report(const Values& values) {
  return tools::run_kl_report({.reference = values.text("reference"),
                               .candidates = values.list("candidates"),
                               .labels = values.list("label"),
                               .floor = values.text("floor"),
                               .tokenizer = values.text("tokenizer"),
                               .corpora = values.list("corpus"),
                               .id_set = values.text("id-set"),
                               .out = values.text("out"),
                               .num_worst = values.integer("worst"),
                               .as_json = values.flag("json")});
}

std::vector<OptionSpec> report_options() {
  return {
      {.name = "reference",
       .kind = OptionKind::path,
       .group = "arguments",
       .help = "capture of the reference, or a folder with one per corpus",
       .value_name = "REF",
       .is_positional = true,
       .is_required = true},
      {.name = "candidates",
       .kind = OptionKind::path,
       .group = "arguments",
       .help = "captures (or folders) to judge; corpora are matched by name, two are compared in pairs",
       .value_name = "CAND",
       .is_list = true,
       .is_positional = true,
       .is_required = true},
      {.name = "out",
       .kind = OptionKind::path,
       .group = "report",
       .help = "file to write",
       .value_name = "FILE",
       .default_value = "report.html",
       .letter = 'o',
       .is_common = true},
      {.name = "label",
       .group = "report",
       .help = "name of a candidate in the report, once per candidate; default: its file or folder",
       .value_name = "NAME",
       .is_common = true,
       .is_list = true},
      {.name = "floor",
       .kind = OptionKind::path,
       .group = "report",
       .help = "second run of the reference, shown as noise floor",
       .value_name = "PATH",
       .is_common = true},
      {.name = "tokenizer",
       .kind = OptionKind::path,
       .group = "report",
       .help = "tokenizer.json or model folder, `embedded` or `none`; default: embedded for its own captures",
       .value_name = "PATH",
       .is_common = true},
      {.name = "corpus",
       .kind = OptionKind::path,
       .group = "report",
       .help = "text or panel that .npz captures of that name come from, for the whole context",
       .value_name = "FILE",
       .is_common = true,
       .is_list = true},
      {.name = "id-set",
       .kind = OptionKind::choice,
       .group = "report",
       .help = "ids kept apart in the KL bound; candidate and full need captures with full logits",
       .value_name = "SET",
       .default_value = "both",
       .choices = "both|candidate|full",
       .is_common = true},
      {.name = "worst",
       .kind = OptionKind::integer,
       .group = "report",
       .help = "worst positions to show per corpus and candidate",
       .value_name = "N",
       .default_value = "50",
       .min = 0,
       .max = 1000,
       .is_common = true}};
}

}  // namespace

CommandSpec kl_report_command() {
  return {.name = "kl report",
          .summary = "captures to an HTML page with plots and the worst positions",
          .description =
              "One page, no outside files: KL per corpus with intervals, by token class, by position, as "
              "histogram and per window, and the worst positions in context with both best lists.",
          .example = "rorqual kl report runs/exact runs/fp8 --floor runs/exact-again --out report.html",
          .options = report_options(),
          .run = kl_report};
}

}  // namespace rorqual::cli
