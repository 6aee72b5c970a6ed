// SPDX-License-Identifier: Apache-2.0
// bench latency.
#include "cli/commands.h"
#include "cli/model_options.h"
#include "cli/values.h"
#include "tools/bench_latency.h"

namespace rorqual::cli {
namespace {

OptionSpec count_option(std::string_view name, std::string_view help, std::string_view value, double least) {
  return {.name = name,
          .kind = OptionKind::size,
          .group = "workload",
          .help = help,
          .value_name = "N",
          .default_value = value,
          .min = least,
          .max = 1 << 24,
          .is_common = true};
}

Status bench_latency(const Values& values) {
  tools::BenchLatencyOptions options;
  RORQUAL_TRY_ASSIGN(options.open, open_options(values));
  options.prompt_tokens = values.number("prompt").value_or(512);
  options.generate_tokens = values.number("generate").value_or(32);
  options.batch = values.number("batch").value_or(1);
  options.repeats = static_cast<int>(values.integer("repeat"));
  options.as_json = values.flag("json");
  return tools::run_bench_latency(options);
}

}  // namespace

CommandSpec bench_latency_command() {
  CommandSpec command{
      .name = "bench latency",
      .summary = "prefill and decode speed of a model in this process, beside the plan's prediction",
      .description =
          "Loads a model, times prompts and answers of random tokens without server and sampler, and samples "
          "the machine's rates in between. Prints medians, half their range, and what `plan` predicts from "
          "these rates.",
      .example = "rorqual bench latency 'synthetic:v41?layers=1&experts=64' --prompt 64 --json",
      .options = model_options(),
      .run = bench_latency};
  append(command.options, {count_option("prompt", "tokens of each prompt", "512", 1),
                           count_option("generate", "tokens of each answer", "32", 2),
                           count_option("batch", "sequences at a time", "1", 1),
                           {.name = "repeat",
                            .kind = OptionKind::integer,
                            .group = "workload",
                            .help = "measured repetitions, after one that is not",
                            .value_name = "N",
                            .default_value = "5",
                            .min = 1,
                            .max = 1000,
                            .is_common = true},
                           max_model_len_option(),
                           {.name = "max-num-batched-tokens",
                            .kind = OptionKind::size,
                            .group = "memory",
                            .help = "tokens of one step",
                            .value_name = "TOKENS",
                            .default_value = "512",
                            .min = 1,
                            .max = 65536},
                           kernels_option()});
  return command;
}

}  // namespace rorqual::cli
