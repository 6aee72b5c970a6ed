// SPDX-License-Identifier: Apache-2.0
// convert, inspect, check.
#include <fmt/format.h>

#include <cstdio>
#include <iostream>
#include <nlohmann/json.hpp>
#include <string>

#include "cli/commands.h"
#include "cli/model_options.h"
#include "cli/values.h"
#include "tools/check_counters.h"
#include "tools/check_forward.h"
#include "tools/check_invariance.h"
#include "tools/check_ops.h"
#include "tools/check_replies.h"
#include "tools/check_stats.h"
#include "tools/check_text.h"
#include "tools/inspect.h"
#include "tools/synthesize.h"

namespace rorqual::cli {
namespace {

/// Options of `convert --synthesize` that go to model::set_synthetic_option under their own names.
constexpr std::string_view kSyntheticKeys[] = {
    "layers", "seed",  "drafts", "vision",           "experts",    "draft-experts",    "engram-rows",
    "hidden", "heads", "vocab",  "compressed-vocab", "index-topk", "candidate-blocks", "tokenizer"};

OptionSpec synthetic_option(std::string_view name, std::string_view value_name, std::string_view help,
                            bool is_common) {
  return {.name = name,
          .group = "synthetic model",
          .help = help,
          .value_name = value_name,
          .is_common = is_common};
}

void print_json(const nlohmann::ordered_json& document) {
  fmt::print("{}\n", document.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace));
}

Status convert(const Values& values) {
  if (!values.has("synthesize")) {
    return Error(Code::unsupported, "convert can only synthesize in this version",
                 "rorqual convert --synthesize v41 --layers 4 --seed 1 OUT");
  }
  tools::SynthesizeOptions options;
  options.family = values.text("synthesize");
  options.output = values.text("output");
  options.force = values.flag("force");
  options.dry_run = values.flag("dry-run");
  options.num_threads = static_cast<int>(values.integer("threads"));
  for (const auto key : kSyntheticKeys) {
    if (values.has(key)) RORQUAL_TRY(model::set_synthetic_option(options.spec, key, values.text(key)));
  }
  const bool as_json = values.flag("json");
  tools::SynthesizeSummary summary;
  RORQUAL_TRY(tools::run_synthesize(options, as_json ? nullptr : stderr, &summary));
  if (as_json) {
    print_json({{"schema", "rorqual.convert/1"},
                {"model", summary.model},
                {"output", options.output},
                {"written", !options.dry_run},
                {"tensors", summary.tensors},
                {"bytes", summary.bytes},
                {"shards", summary.shards}});
  }
  return Ok();
}

Status inspect(const Values& values) {
  std::string report;
  auto status = tools::run_inspect({.path = values.text("model"),
                                    .as_json = values.flag("json"),
                                    .list_tensors = values.flag("tensors"),
                                    .verify = values.flag("verify")},
                                   report);
  std::fwrite(report.data(), 1, report.size(), stdout);
  return status;
}

/// Prints the counters; failures and empty runs are errors, so that the exit code tells.
Status finish_check(const tools::CheckReport& report, const Status& status, bool as_json) {
  if (!status.ok()) return status.error();
  if (as_json) {
    print_json({{"schema", "rorqual.check/1"},
                {"passed", report.passed()},
                {"failed", report.failed()},
                {"skipped", report.skipped()},
                {"failures", report.failures()},
                {"notes", report.notes()}});
  } else {
    report.print(std::cout);
    std::cout.flush();
  }
  if (report.failed() > 0) return Error(Code::gate, fmt::format("{} checks failed", report.failed()));
  if (report.passed() == 0)
    return Error(Code::gate, "no check ran", "the files are made for other models, or empty");
  return Ok();
}

Status check(const Values& values) {
  const auto kind = values.text("kind");
  const auto& files = values.list("files");
  if (files.empty() && kind != "invariance" && kind != "replies" && kind != "forward") {
    return Error(Code::invalid_argument, fmt::format("check {}: missing argument FILE", kind),
                 fmt::format("rorqual check {} FILE …", kind));
  }
  const bool as_json = values.flag("json");
  tools::CheckReport report;
  tools::OpenOptions open;
  open.tokenizer = values.text("tokenizer");
  open.threads = static_cast<int>(values.integer("threads"));
  open.kernels = values.text("kernels");
  RORQUAL_TRY_ASSIGN(open.switches, switch_values(values));
  if (kind == "ops") return finish_check(report, tools::check_ops(files, report), as_json);
  if (kind == "counters") return finish_check(report, tools::check_counters(files, report), as_json);
  if (kind == "stats") return finish_check(report, tools::check_stats(files, report), as_json);
  if (kind == "forward") {
    if (files.size() < 2) {
      return Error(Code::invalid_argument, "check forward: needs MODEL_DIR and at least one fixture",
                   "rorqual check forward tests/models/tiny-a tests/golden/forward/tiny-a");
    }
    open.model = files.front();
    return finish_check(
        report, tools::check_forward({.open = open, .fixtures = {files.begin() + 1, files.end()}}, report),
        as_json);
  }
  if (kind == "invariance") {
    open.model = files.empty() ? "" : files.front();
    tools::CheckInvarianceOptions options;
    options.open = open;
    options.tokens = values.integer("tokens");
    return finish_check(report, tools::check_invariance(options, report), as_json);
  }
  if (kind == "replies") {
    tools::CheckRepliesOptions options;
    options.open = open;
    if (!files.empty()) options.open.model = files.front();
    if (files.size() > 1) options.files.assign(files.begin() + 1, files.end());
    options.prompts = values.integer("prompts");
    options.cells = values.integer("cells");
    options.is_full = values.flag("full");
    options.seed = static_cast<uint64_t>(values.integer("seed"));
    options.shard = values.integer("shard");
    options.shards = values.integer("shards");
    return finish_check(report, tools::check_replies(options, report), as_json);
  }
  return finish_check(
      report,
      tools::check_text({.kind = kind, .files = files, .tokenizer = values.text("tokenizer")}, report),
      as_json);
}

OptionSpec threads_option(std::string_view group) {
  return {.name = "threads",
          .kind = OptionKind::integer,
          .group = group,
          .help = "compute threads, 0 = the physical cores that this process may use",
          .value_name = "N",
          .default_value = "0",
          .min = 0,
          .max = 4096,
          .is_common = true};
}

}  // namespace

CommandSpec convert_command() {
  return {
      .name = "convert",
      .summary = "make a synthetic checkpoint (--synthesize)",
      .description =
          "Writes a seeded random model of the release's architecture in the official checkpoint format: "
          "real "
          "widths, chosen layers.",
      .example = "rorqual convert --synthesize v41 --layers 4 --seed 1 OUT",
      .options = {{.name = "output",
                   .kind = OptionKind::path,
                   .group = "arguments",
                   .help = "folder to write",
                   .value_name = "OUT",
                   .is_positional = true,
                   .is_required = true},
                  {.name = "synthesize",
                   .kind = OptionKind::choice,
                   .group = "output",
                   .help = "family of the model",
                   .value_name = "FAMILY",
                   .choices = "v41",
                   .is_common = true},
                  {.name = "force",
                   .kind = OptionKind::flag,
                   .group = "output",
                   .help = "replace the model that OUT holds",
                   .is_common = true},
                  {.name = "dry-run",
                   .kind = OptionKind::flag,
                   .group = "output",
                   .help = "only say what would be written",
                   .is_common = true},
                  threads_option("output"),
                  synthetic_option("layers", "LIST",
                                   "number of layers, or ids of the release's such as 0-3,20; default: all",
                                   true),
                  synthetic_option("seed", "N", "seed of the weights; default 1", true),
                  synthetic_option("experts", "N", "routed experts per layer; default 384", true),
                  synthetic_option("engram-rows", "N",
                                   "rows of each Engram hash column, about; default: the release's", true),
                  synthetic_option("tokenizer", "DIR", "folder whose tokenizer files are copied", true),
                  synthetic_option("drafts", "0|1",
                                   "with the draft stages; default: only if no layer is left out", false),
                  synthetic_option("vision", "0|1",
                                   "with the vision tower; default: only if no layer is left out", false),
                  synthetic_option("draft-experts", "N", "routed experts of the draft stages", false),
                  synthetic_option("hidden", "N", "width of the model; default 5120", false),
                  synthetic_option("heads", "N", "attention heads; default 64", false),
                  synthetic_option("vocab", "N", "vocabulary; default 129280", false),
                  synthetic_option("compressed-vocab", "N", "distinct ids of the tokenizer's Engram map",
                                   false),
                  synthetic_option("index-topk", "N", "entries that the index selects; default 512", false),
                  synthetic_option("candidate-blocks", "N", "blocks of the first index level", false)},
      .run = convert};
}

CommandSpec inspect_command() {
  return {
      .name = "inspect",
      .summary = "what a model folder holds: config, tensors, formats, bytes",
      .description =
          "Checks a model's files against each other and prints tensors and bytes by group. A folder, one "
          "safetensors file, or synthetic:v41?…; default: the embedded model.",
      .example = "rorqual inspect /models/DeepSeek-V4.1-Flash --verify",
      .options = {{.name = "model",
                   .kind = OptionKind::path,
                   .group = "arguments",
                   .help = "what to look at",
                   .value_name = "PATH",
                   .is_positional = true},
                  {.name = "tensors",
                   .kind = OptionKind::flag,
                   .group = "output",
                   .help = "list every tensor, not only the groups",
                   .is_common = true},
                  {.name = "verify",
                   .kind = OptionKind::flag,
                   .group = "output",
                   .help = "read every byte: count NaN, hash",
                   .is_common = true}},
      .run = inspect};
}

/// What `check replies` asks for.
std::vector<OptionSpec> replies_options() {
  const auto number = [](const char* name, const char* help, const char* value, int64_t least, int64_t most) {
    return OptionSpec{.name = name,
                      .kind = OptionKind::integer,
                      .group = "replies",
                      .help = help,
                      .value_name = "N",
                      .default_value = value,
                      .min = static_cast<double>(least),
                      .max = static_cast<double>(most)};
  };
  return {number("prompts", "most prompts", "100", 1, 1'000'000),
          number("cells", "conditions of each prompt, a multiple of 4", "12", 4, 4096),
          {.name = "full",
           .kind = OptionKind::flag,
           .group = "replies",
           .help = "every combination of conditions instead of --cells drawn ones"},
          number("seed", "of the drawn conditions", "1", 0, int64_t{1} << 53),
          number("shard", "run only the groups of requests of this number", "0", 0, 4096),
          number("shards", "… of so many", "1", 1, 4096)};
}

CommandSpec check_command() {
  CommandSpec command = {
      .name = "check",
      .summary = "run files of golden vectors and count passed and failed",
      .description =
          "Kinds: encoding, encoder-ext, tokenizer, parsing, image-tokens, ops, stats and counters take "
          "vector files; forward takes MODEL_DIR and fixtures; invariance takes a model; replies "
          "takes a model and files of prompts, and asks a running engine for the same replies in every way. "
          "Ends with `N passed, M failed`; exit 1 on a failure, or if none ran.",
      .example = "rorqual check ops tests/golden/ops/*.safetensors",
      .options =
          {{.name = "kind",
            .kind = OptionKind::choice,
            .group = "arguments",
            .help = "what the files hold",
            .value_name = "KIND",
            .choices =
                "encoding|encoder-ext|tokenizer|parsing|image-tokens|ops|stats|counters|forward|invariance|"
                "replies",
            .is_positional = true,
            .is_required = true},
           {.name = "files",
            .kind = OptionKind::path,
            .group = "arguments",
            .help = "vector files; forward: MODEL_DIR, then files or folders; invariance: "
                    "MODEL_DIR; replies: MODEL_DIR, then JSON lines with \"prompt\"",
            .value_name = "FILE",
            .is_list = true,
            .is_positional = true},
           {.name = "tokenizer",
            .kind = OptionKind::path,
            .group = "input",
            .help = "tokenizer.json for encoding, tokenizer and parsing",
            .value_name = "FILE",
            .is_common = true},
           {.name = "kernels",
            .kind = OptionKind::text,
            .group = "input",
            .help = "kernel tier for forward (default: the best) and invariance (default: all)",
            .value_name = "TIER"},
           {.name = "tokens",
            .kind = OptionKind::integer,
            .group = "input",
            .help = "invariance: tokens of the longest of eight sequences",
            .value_name = "N",
            .default_value = "300",
            .min = 2,
            .max = 65536},
           threads_option("input")},
      .run = check};
  append(command.options, replies_options());
  append(command.options, switch_options());  // forward and invariance
  return command;
}

}  // namespace rorqual::cli
