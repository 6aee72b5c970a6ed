// SPDX-License-Identifier: Apache-2.0
// plan.
#include <string_view>
#include <utility>

#include "cli/commands.h"
#include "cli/model_options.h"
#include "cli/reuse_options.h"
#include "cli/values.h"
#include "tools/plan.h"

namespace rorqual::cli {
namespace {

Status plan(const Values& values) {
  RORQUAL_TRY_ASSIGN(const tools::OpenOptions open, open_options(values));
  tools::PlanOptions options;
  options.request.model = open.model;
  options.request.numerics =
      open.numerics == "exact" ? kernels::Numerics::exact : kernels::Numerics::reference;
  options.request.max_model_len = open.max_model_len;
  options.request.max_num_seqs = open.max_num_seqs;
  options.request.max_num_batched_tokens = open.max_num_batched_tokens;
  options.request.kv_cache_bytes = open.kv_cache_bytes;
  if (values.number("prefix-cache-memory")) {
    options.request.prefix_cache_bytes = *values.number("prefix-cache-memory");
  }
  options.request.swap_bytes = swap_bytes(values);
  options.request.threads = open.threads;
  options.request.engram_placement = open.engram_placement;
  options.request.cpu_experts = open.cpu_experts;
  options.request.switches = open.switches;
  options.machine = values.text("machine");
  options.measure = values.flag("measure");
  options.as_json = values.flag("json");
  return tools::run_plan(options);
}

/// Limits that a plan depends on; those of the queue do not matter here.
std::vector<OptionSpec> plan_limits() {
  std::vector<OptionSpec> limits;
  for (auto& option : limit_options()) {
    constexpr std::string_view kUsed[] = {"max-model-len", "max-num-seqs", "max-num-batched-tokens",
                                          "kv-cache-memory-bytes"};
    for (const std::string_view name : kUsed) {
      if (option.name == name) limits.push_back(option);
    }
  }
  return limits;
}

}  // namespace

CommandSpec plan_command() {
  std::vector<OptionSpec> options;
  for (auto& option : model_options()) {
    if (option.name == "model") {
      option.help =
          "v41 (the release, no files needed), model folder (only its config.json), or synthetic:v41?…";
    }
    options.push_back(option);
  }
  append(options, plan_limits());
  options.push_back(
      {.name = "prefix-cache-memory",
       .kind = OptionKind::size,
       .group = "memory",
       .help = "memory for pages of past prompts (`serve` takes some of what is left by itself)",
       .value_name = "BYTES",
       .default_value = "0",
       .min = 0});
  for (OptionSpec& option : swap_options()) {
    option.group = "memory";
    options.push_back(std::move(option));
  }
  options.push_back({.name = "machine",
                     .group = "machine",
                     .help =
                         "in words or by name; list = print the names, all = plan on all of them; default: "
                         "this machine",
                     .value_name = "MACHINE",
                     .is_common = true});
  options.push_back({.name = "measure",
                     .kind = OptionKind::flag,
                     .group = "machine",
                     .help = "measure this machine's kernels and memory for the speeds (about five seconds)",
                     .default_value = "on",
                     .is_common = true});
  return {
      .name = "plan",
      .summary = "what goes where, whether it fits, and how fast, before loading or downloading",
      .description =
          "Computes memory and speed of a model on this machine or a described one; reads no weights. A "
          "machine in words: ram=512G,cores=64,gpu=2x24G,disk=4T; keys ram, cores, threads, ram-bandwidth, "
          "disk, disk-bandwidth, gpu, gpu-bandwidth, link, cgroup.",
      .example = "rorqual plan v41 --machine ram=512G,gpu=24G,disk=4T",
      .options = std::move(options),
      .run = plan};
}

}  // namespace rorqual::cli
