// SPDX-License-Identifier: Apache-2.0
// bench context.
#include "cli/commands.h"
#include "cli/model_options.h"
#include "cli/values.h"
#include "tools/bench_context.h"

namespace rorqual::cli {
namespace {

Status bench_context(const Values& values) {
  tools::BenchContextOptions options;
  RORQUAL_TRY_ASSIGN(options.open, open_options(values));
  options.prompt_tokens = values.number("prompt").value_or(options.prompt_tokens);
  options.generate_tokens = values.number("generate").value_or(options.generate_tokens);
  options.part_tokens = values.number("part").value_or(options.part_tokens);
  options.skips_unread_rows = !values.flag("no-skip-unread-rows");
  options.as_json = values.flag("json");
  return tools::run_bench_context(options);
}

}  // namespace

CommandSpec bench_context_command() {
  CommandSpec command{
      .name = "bench context",
      .summary = "one long prompt: times by position, memory beside the plan, a digest of the logits",
      .description =
          "Runs one prompt of random tokens and a short answer through a model in this process. Two runs "
          "that "
          "differ in --max-num-batched-tokens, threads or --no-skip-unread-rows have the same digest.",
      .example = "rorqual bench context models/mini --prompt 131072 --max-num-batched-tokens 8192 --json",
      .options = model_options(),
      .run = bench_context};
  append(command.options, {workload_option("prompt", "length of the prompt", "131072", 1),
                           workload_option("generate", "length of the answer", "8", 1),
                           workload_option("part", "prompt tokens of one line of the table", "65536", 1),
                           {.name = "no-skip-unread-rows",
                            .kind = OptionKind::flag,
                            .group = "workload",
                            .help = "every row runs through every layer, whether anything reads it or not"},
                           max_model_len_option(),
                           max_num_batched_tokens_option(),
                           kernels_option()});
  return command;
}

}  // namespace rorqual::cli
