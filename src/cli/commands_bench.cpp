// SPDX-License-Identifier: Apache-2.0
// bench latency.
#include "cli/commands.h"
#include "cli/model_options.h"
#include "cli/values.h"
#include "tools/bench_latency.h"

namespace rorqual::cli {
namespace {

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
  append(command.options, {workload_option("prompt", "tokens of each prompt", "512", 1),
                           workload_option("generate", "tokens of each answer", "32", 2),
                           workload_option("batch", "sequences at a time", "1", 1),
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
                           max_num_batched_tokens_option(),
                           kernels_option()});
  return command;
}

}  // namespace rorqual::cli
