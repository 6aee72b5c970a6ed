// SPDX-License-Identifier: Apache-2.0
#include "model/switches.h"

#include <fmt/format.h>

#include <algorithm>

namespace rorqual::model {
namespace {

constexpr std::pair<std::string_view, int64_t> kTrims[] = {{"exact", 0}, {"64", 64},   {"128", 128},
                                                           {"256", 256}, {"512", 512}, {"1024", 1024}};

constexpr SwitchSpec kSwitches[] = {
    {.option = "lm-head",
     .choices = "bf16|fp8",
     .exact_value = "bf16",
     .lossy_value = "fp8",
     .is_in_fast = false,
     .help = "format of the output head in memory; fp8 halves it and loses a little accuracy",
     .changes =
         "weights of the head: BF16 rounded to E4M3 with one power-of-two scale per 32 x 32 block while "
         "loading; activations are not quantised, logits are F32; drafts use the same head",
     .public_name = "FP8 lm_head",
     .since = "0.1.0",
     .record = {.kl_neutral = "0.0918 -> 0.0947 (+3.15 %)",
                .kl_code = "0.0698 -> 0.0720 (+3.12 %)",
                .kl_agentic = "0.0665 -> 0.0683 (+2.71 %)",
                .kl_panel = "0.0147 -> 0.0160 (+8.54 %)",
                .gate =
                    "failed on the demonstration model (agentic passed); not yet run on the release, where "
                    "public packs report it within 3 %",
                .speed = "head stage at 129,280 x 5,120, one row, one thread of a busy 2-core AVX2 machine: "
                         "207 ms -> 115 ms (`bench_operators head 1`)",
                .memory = "the release's head: 1,323,827,200 -> 663,206,400 bytes"},
     .read = [](const Switches& s) -> std::string_view {
       return s.lm_head == HeadFormat::fp8 ? "fp8" : "bf16";
     },
     .write =
         [](Switches& s, std::string_view value) {
           s.lm_head = value == "fp8" ? HeadFormat::fp8 : HeadFormat::bf16;
         }},
    {.option = "replay-trim",
     .choices = "exact|64|128|256|512|1024",
     .exact_value = "exact",
     .lossy_value = "128",
     .is_in_fast = false,
     .help =
         "rows before a prompt's end that the layers past the last KV source run; fewer than the exact cone "
         "are faster and lose a little accuracy",
     .changes =
         "prompts only: layers past the last KV source run the last N rows instead of all that their "
         "windows reach (release: 2,414), so these rows see shorter windows there; compressed entries of "
         "the prompt stay exact; a prefix hit replays N rows instead of restoring windows, and its new "
         "entries see short windows in the lower layers too; a request may say otherwise (`replay_trim`); "
         "off for prompt logprobs",
     .public_name = "SWA bounded replay",
     .since = "0.1.0",
     .record =
         {.kl_neutral = "scored prompts keep every row",
          .kl_code = "scored prompts keep every row",
          .kl_agentic = "scored prompts keep every row",
          .kl_panel = "scored prompts keep every row",
          .gate =
              "not run: a capture scores prompts, and those keep every row. Instead, 120 held-out prompts of "
              "the demonstration model (`bench_replay_trim models/mini bench/prompts/*.jsonl`), answers "
              "forced behind trimmed prompts: KL of code, tool, needle 7.5e-8, 6.8e-7, 1.7e-5 with 64 rows "
              "and 0, 1.4e-7, 5.0e-6 with 128; all 2,833 forced tokens agree, all 120 answers are identical. "
              "From 190 rows on it is exact there; the release's cone is 2,414",
          .speed = "release, by rows times layers: 20 % less for a prompt of 4,096 tokens, 6 % for 16,384 "
                   "(128 rows); demonstration model: none that could be measured",
          .memory = "none"},
     .read = [](const Switches& s) -> std::string_view {
       for (const auto& [name, rows] : kTrims) {
         if (rows == s.replay_trim) return name;
       }
       return "exact";
     },
     .write =
         [](Switches& s, std::string_view value) {
           for (const auto& [name, rows] : kTrims) {
             if (name == value) s.replay_trim = rows;
           }
         }},
};

constexpr NeutralOption kNeutralOptions[] = {
    {"--numerics reference\\|exact", "reference",
     "`reference` rounds wherever the official code rounds; `exact` is F32 without these roundings: the "
     "yardstick of "
     "the checks and of `kl`",
     "`exact` needs F32 caches; the demonstration model's two differ by a mean KL of 3e-4 on held-out "
     "prompts "
     "(models/mini/README.md), 0.015 on the panel, 0.07 to 0.09 on texts that it does not know "
     "(docs/fidelity.md)"},
    {"RORQUAL_CPU_ISA", "best tier", "nothing: all tiers give the same bits (`rorqual doctor`, kernel tests)",
     "speed"},
    {"--threads, --max-num-seqs, --max-num-batched-tokens", "machine, 8, 512",
     "nothing: a token's logits depend on its prefix only (`rorqual check invariance`)", "speed, memory"},
    {"--engram-placement", "auto", "nothing: the same rows from memory or disk", "speed, memory"},
    {"--seed", "random", "the random streams of requests that give no seed", "none"},
};

bool has_choice(std::string_view choices, std::string_view value) {
  while (!choices.empty()) {
    const auto end = std::min(choices.find('|'), choices.size());
    if (choices.substr(0, end) == value) return true;
    choices.remove_prefix(std::min(end + 1, choices.size()));
  }
  return false;
}

Status set_switch(Switches& switches, std::string_view option, std::string_view value) {
  const SwitchSpec* spec = find_switch(option);
  if (spec == nullptr) {
    return Error(Code::invalid_argument, fmt::format("unknown switch '{}'", option),
                 "`rorqual --help=switches` lists them");
  }
  if (!has_choice(spec->choices, value)) {
    return Error(Code::invalid_argument,
                 fmt::format("--{}: got '{}', expected {}", option, value, spec->choices));
  }
  spec->write(switches, value);
  return Ok{};
}

}  // namespace

std::span<const SwitchSpec> switch_registry() {
  return kSwitches;
}

const SwitchSpec* find_switch(std::string_view option) {
  for (const auto& spec : kSwitches) {
    if (spec.option == option) return &spec;
  }
  return nullptr;
}

std::string describe_switches(const Switches& switches) {
  std::string text;
  for (const auto& spec : kSwitches) {
    const auto value = spec.read(switches);
    if (value == spec.exact_value) continue;
    text += fmt::format("{}{}={}", text.empty() ? "" : ",", spec.option, value);
  }
  return text;
}

Result<Switches> parse_switches(std::string_view text) {
  Switches switches;
  while (!text.empty()) {
    const auto end = std::min(text.find(','), text.size());
    const auto item = text.substr(0, end);
    const auto equals = std::min(item.find('='), item.size());
    RORQUAL_TRY(set_switch(switches, item.substr(0, equals), item.substr(std::min(equals + 1, item.size()))));
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  return switches;
}

Result<Switches> choose_switches(const SwitchChoice& choice) {
  if (choice.exact && choice.fast) {
    return Error(Code::invalid_argument, "--exact-switches and --fast exclude each other",
                 "leave one of them out");
  }
  Switches switches;
  if (choice.fast) {
    for (const auto& spec : kSwitches) {
      if (spec.is_in_fast) spec.write(switches, spec.lossy_value);
    }
  }
  for (const auto& [option, value] : choice.given) {
    RORQUAL_TRY(set_switch(switches, option, value));
    if (choice.exact && value != find_switch(option)->exact_value) {
      return Error(
          Code::invalid_argument,
          fmt::format("--exact-switches switches every lossy path off, but --{} is {}", option, value),
          fmt::format("leave one of them out, or say --{} {}", option, find_switch(option)->exact_value));
    }
  }
  return switches;
}

std::span<const NeutralOption> neutral_options() {
  return kNeutralOptions;
}

}  // namespace rorqual::model
