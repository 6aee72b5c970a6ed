// SPDX-License-Identifier: Apache-2.0
// bench op, bench compare.
#include "cli/commands.h"
#include "cli/values.h"
#include "tools/bench_compare.h"
#include "tools/bench_op.h"

namespace rorqual::cli {
namespace {

constexpr int64_t kMostTokens = 65536;

Status bench_op(const Values& values) {
  tools::BenchOpOptions options;
  options.op = values.text("op");
  options.shape = values.text("shape");
  RORQUAL_TRY_ASSIGN(options.tokens, parse_numbers("tokens", values.text("tokens"), kMostTokens));
  options.threads = static_cast<int>(values.integer("threads"));
  options.tier = values.text("tier");
  const std::string& activations = values.text("activations");
  options.activations = activations == "int8"    ? tools::Activations::int8
                        : activations == "exact" ? tools::Activations::exact
                                                 : tools::Activations::reference;
  options.experts = values.integer("experts");
  options.shared_expert = !values.flag("routed-only");
  options.context = values.number("context").value_or(options.context);
  options.seconds = values.real("seconds");
  options.compete = static_cast<int>(values.integer("compete"));
  options.seed = values.integer("seed");
  options.as_json = values.flag("json");
  return tools::run_bench_op(options);
}

OptionSpec number_option(std::string_view name, std::string_view help, std::string_view value, double least,
                         double most) {
  return {.name = name,
          .kind = OptionKind::integer,
          .group = "operation",
          .help = help,
          .value_name = "N",
          .default_value = value,
          .min = least,
          .max = most};
}

std::vector<OptionSpec> operand_options() {
  OptionSpec experts = number_option("experts", "routed experts in memory (moe)", "48", 6, 1024);
  experts.is_common = true;
  return {{.name = "op",
           .kind = OptionKind::choice,
           .group = "operation",
           .help = "moe: router and experts; dense: attention's five projections; mhc: a sublayer boundary",
           .value_name = "OP",
           .default_value = "moe",
           .choices = "moe|dense|attention|indexer|mhc|engram|head",
           .is_common = true},
          {.name = "shape",
           .kind = OptionKind::choice,
           .group = "operation",
           .help = "sizes of the release or of the embedded model",
           .value_name = "SHAPE",
           .default_value = "v41",
           .choices = "v41|mini",
           .is_common = true},
          {.name = "tokens",
           .group = "operation",
           .help = "rows of a call; several numbers are measured in turn",
           .value_name = "LIST",
           .default_value = "1,4,16",
           .is_common = true},
          experts,
          {.name = "routed-only",
           .kind = OptionKind::flag,
           .group = "operation",
           .help = "moe with a shared expert of 32 columns: what other engines' runners time"},
          {.name = "context",
           .kind = OptionKind::size,
           .group = "operation",
           .help = "entries before the rows (attention, indexer)",
           .value_name = "N",
           .default_value = "16384",
           .min = 1,
           .max = 16 << 20}};
}

std::vector<OptionSpec> compute_options() {
  return {{.name = "threads",
           .kind = OptionKind::integer,
           .group = "compute",
           .help = "compute threads, 0 = the physical cores that this process may use",
           .value_name = "N",
           .default_value = "0",
           .min = 0,
           .max = 4096,
           .is_common = true},
          {.name = "tier",
           .group = "compute",
           .help = "kernel tier; default: the best of this machine",
           .value_name = "TIER",
           .is_common = true},
          {.name = "activations",
           .kind = OptionKind::choice,
           .group = "compute",
           .help = "numbers that the products see",
           .value_name = "KIND",
           .default_value = "reference",
           .choices = "reference|exact|int8",
           .is_common = true}};
}

std::vector<OptionSpec> measure_options() {
  std::vector<OptionSpec> options = {
      {.name = "seconds",
       .kind = OptionKind::real,
       .group = "measure",
       .help = "time for all rounds; three are made in any case",
       .value_name = "SECONDS",
       .default_value = "10",
       .min = 0,
       .max = 3600,
       .is_common = true},
      number_option("compete", "busy processes of one core each, for a second figure of each row", "0", 0,
                    1024),
      number_option("seed", "seed of operands and routing", "1", 0, 1e9)};
  for (OptionSpec& option : options) option.group = "measure";
  return options;
}

}  // namespace

CommandSpec bench_op_command() {
  CommandSpec command{
      .name = "bench op",
      .summary = "one operation with weights of true shape, beside what the machine allows",
      .description =
          "Times a stage of the model with random operands and, in the same rounds, how fast this machine "
          "reads memory and multiplies. Each row tells its share of the larger of the two limits.",
      .example = "rorqual bench op --op moe --tokens 1,16,256 --experts 48 --threads 2 --json",
      .options = operand_options(),
      .run = bench_op};
  for (auto& group : {compute_options(), measure_options()})
    command.options.insert(command.options.end(), group.begin(), group.end());
  return command;
}

CommandSpec bench_compare_command() {
  return {.name = "bench compare",
          .summary = "our reports of `bench op` beside timings of other engines",
          .description =
              "Reads reports (*.json) and CSV files with the columns peer, op, M, us_median and note, takes "
              "the medians of repeated rows, and prints how many times longer each peer takes.",
          .example = "rorqual bench compare ours.json peers.csv",
          .options = {{.name = "file",
                       .kind = OptionKind::path,
                       .group = "arguments",
                       .help = "OURS.json PEERS.csv, several of each",
                       .value_name = "FILE",
                       .is_list = true,
                       .is_positional = true,
                       .is_required = true}},
          .run = [](const Values& values) {
            return tools::run_bench_compare({.files = values.list("file"), .as_json = values.flag("json")});
          }};
}

}  // namespace rorqual::cli
