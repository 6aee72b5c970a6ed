// SPDX-License-Identifier: Apache-2.0
#include "cli/model_options.h"

#include <fmt/format.h>

#include <string>
#include <utility>

namespace rorqual::cli {

using Options = std::vector<OptionSpec>;

void append(Options& options, Options more) {
  for (auto& option : more) options.push_back(option);
}

OptionSpec max_model_len_option() {
  return {.name = "max-model-len",
          .kind = OptionKind::size,
          .group = "memory",
          .help = "tokens of prompt and answer together; auto = the most that fits, at most 32768",
          .value_name = "TOKENS",
          .default_value = "auto",
          .choices = "auto",
          .min = 1,
          .max = 1 << 30,
          .is_common = true};
}

OptionSpec max_num_batched_tokens_option() {
  return {.name = "max-num-batched-tokens",
          .kind = OptionKind::size,
          .group = "memory",
          .help = "tokens of one step, prompts and answers together",
          .value_name = "TOKENS",
          .default_value = "512",
          .min = 1,
          .max = 65536};
}

OptionSpec workload_option(std::string_view name, std::string_view help, std::string_view value,
                           double least) {
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

OptionSpec prompt_compat_option() {
  return {.name = "prompt-compat",
          .group = "text",
          .help =
              "prompts as an earlier release or another server makes them: plain_text, developer, "
              "response_format, tool_choice_none, tool_fields, leading_system (docs/text.md)",
          .value_name = "NAME,…"};
}

Result<text::PromptCompat> prompt_compat_value(const Values& values) {
  auto compat = text::parse_prompt_compat(values.text("prompt-compat"));
  if (!compat.ok()) return std::move(compat).error().at("--prompt-compat");
  return compat;
}

OptionSpec kernels_option() {
  return {.name = "kernels",
          .group = "compute",
          .help = "kernel tier; default: the best of this machine",
          .value_name = "TIER"};
}

namespace {

/// What may wait, and in which order it runs.
Options queue_options() {
  return {
      {.name = "max-queued-requests",
       .kind = OptionKind::integer,
       .group = "memory",
       .help = "unfinished requests, waiting and running; more are refused with 429, 0 = no limit",
       .value_name = "N",
       .default_value = "256",
       .min = 0,
       .max = 1'000'000},
      {.name = "max-num-queued-tokens",
       .kind = OptionKind::size,
       .group = "memory",
       .help = "refuse with 429 while so many prompt tokens wait to be computed, 0 = no limit",
       .value_name = "TOKENS",
       .default_value = "0",
       .min = 0,
       .max = 1e12},
      {.name = "max-queue-wait",
       .kind = OptionKind::real,
       .group = "memory",
       .help = "seconds that a request may wait for its first step before it fails with 503, 0 = no limit",
       .value_name = "SECONDS",
       .default_value = "0",
       .min = 0,
       .max = 1e6},
      {.name = "scheduling-policy",
       .kind = OptionKind::choice,
       .group = "memory",
       .help =
           "priority = requests of lower `priority` first, then by turns of the keys; fcfs = the field is "
           "ignored",
       .value_name = "POLICY",
       .default_value = "priority",
       .choices = "priority|fcfs"}};
}

}  // namespace

Options limit_options() {
  Options options = {
      max_model_len_option(),
      {.name = "max-num-seqs",
       .kind = OptionKind::integer,
       .group = "memory",
       .help = "requests that run at the same time",
       .value_name = "N",
       .default_value = "8",
       .min = 1,
       .max = 4096,
       .is_common = true},
      max_num_batched_tokens_option(),
      {.name = "long-prefill-token-threshold",
       .kind = OptionKind::size,
       .group = "memory",
       .help = "most prompt tokens of one request in one step beside others; auto = three quarters, 0 = off",
       .value_name = "TOKENS",
       .default_value = "auto",
       .choices = "auto",
       .min = 0,
       .max = 65536},
      {.name = "kv-cache-memory-bytes",
       .kind = OptionKind::size,
       .group = "memory",
       .help = "cache of running requests; auto = --max-num-seqs times --max-model-len tokens; with less, "
               "requests are preempted",
       .value_name = "BYTES",
       .default_value = "auto",
       .choices = "auto",
       .min = 1},
      {.name = "seed",
       .kind = OptionKind::integer,
       .group = "memory",
       .help = "source of the seeds of requests that give none; default: drawn at random",
       .value_name = "N",
       .min = 0}};
  append(options, queue_options());
  return options;
}

Options switch_options() {
  Options options;
  for (const auto& spec : model::switch_registry()) {
    options.push_back({.name = spec.option,
                       .kind = OptionKind::choice,
                       .group = "lossy switches",
                       .help = spec.help,
                       .value_name = "FORM",
                       .default_value = spec.exact_value,
                       .choices = spec.choices});
  }
  options.push_back({.name = "exact-switches",
                     .kind = OptionKind::flag,
                     .group = "lossy switches",
                     .help = "every lossy switch off; an error beside one that is on"});
  options.push_back(
      {.name = "fast",
       .kind = OptionKind::flag,
       .group = "lossy switches",
       .help = "the lossy switches on that passed the gate (docs/switches.md); those given by name win",
       .is_common = true});
  return options;
}

Options model_options() {
  Options options = {
      {.name = "model",
       .group = "arguments",
       .help = "model folder or synthetic:v41?layers=4&seed=1; default: the demonstration model inside "
               "the program",
       .value_name = "MODEL",
       .is_positional = true},
      {.name = "tokenizer",
       .kind = OptionKind::path,
       .group = "compute",
       .help = "tokenizer.json to use instead of the model's own",
       .value_name = "FILE"},
      {.name = "threads",
       .kind = OptionKind::integer,
       .group = "compute",
       .help = "compute threads, 0 = the physical cores that this process may use",
       .value_name = "N",
       .default_value = "0",
       .min = 0,
       .max = 4096,
       .is_common = true},
      {.name = "numerics",
       .kind = OptionKind::choice,
       .group = "compute",
       .help = "reference = the official roundings, exact = F32 without them",
       .value_name = "KIND",
       .default_value = "reference",
       .choices = "reference|exact",
       .is_common = true},
      {.name = "engram-placement",
       .kind = OptionKind::choice,
       .group = "compute",
       .help = "where the Engram tables live; gpu is planned only",
       .value_name = "PLACE",
       .default_value = "auto",
       .choices = "auto|host|disk|gpu"},
      {.name = "cpu-experts",
       .group = "compute",
       .help = "experts that the CPU computes: auto, all (this version computes all of them)",
       .value_name = "WHICH",
       .default_value = "auto"}};
  append(options, switch_options());
  return options;
}

Result<model::Switches> switch_values(const Values& values) {
  model::SwitchChoice choice;
  choice.exact = values.flag("exact-switches");
  choice.fast = values.flag("fast");
  for (const auto& spec : model::switch_registry()) {
    if (values.is_given(spec.option)) choice.given.emplace_back(spec.option, values.text(spec.option));
  }
  return model::choose_switches(choice);
}

Result<tools::OpenOptions> open_options(const Values& values) {
  const auto has = [&](std::string_view name) { return values.command().find(name) != nullptr; };
  tools::OpenOptions open;
  open.model = values.text("model");
  open.tokenizer = values.text("tokenizer");
  open.numerics = values.text("numerics");
  open.engram_placement = values.text("engram-placement");
  open.cpu_experts = values.text("cpu-experts");
  open.threads = static_cast<int>(values.integer("threads"));
  if (has("kernels")) open.kernels = values.text("kernels");
  if (has("max-model-len")) open.max_model_len = values.number("max-model-len").value_or(0);
  if (has("max-num-seqs")) open.max_num_seqs = values.integer("max-num-seqs");
  if (has("kv-cache-memory-bytes")) open.kv_cache_bytes = values.number("kv-cache-memory-bytes").value_or(0);
  if (has("max-num-batched-tokens")) open.max_num_batched_tokens = values.integer("max-num-batched-tokens");
  RORQUAL_TRY_ASSIGN(open.switches, switch_values(values));
  return open;
}

}  // namespace rorqual::cli
