// SPDX-License-Identifier: Apache-2.0
// The registry of lossy switches: every option that trades accuracy for speed or memory is listed here once.
// Option tables, docs/switches.md, start-up lines, run records and the planner read it. A switch that is not
// here does not exist.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/result.h"

namespace rorqual::model {

/// How the output head is kept in memory. fp8: E4M3 with one power-of-two scale per 32 x 32 block, made from
/// the BF16 weights while loading (num/quantise.h: fp8_block_quantise); activations and logits stay F32.
enum class HeadFormat : uint8_t { bf16, fp8 };

/// One value per lossy switch; as made, all are off.
struct Switches {
  HeadFormat lm_head = HeadFormat::bf16;
  int64_t replay_trim = 0;  // rows before a prompt's end that the layers past the last KV source run; 0 = all

  bool operator==(const Switches&) const = default;
};

/// What recorded runs say (docs/fidelity.md#recorded-run, docs/testing.md); "not measured" until one has.
struct SwitchRecord {
  std::string_view kl_neutral = "not measured";
  std::string_view kl_code = "not measured";
  std::string_view kl_agentic = "not measured";
  std::string_view kl_panel = "not measured";
  std::string_view gate = "not measured";  // verdict of `kl gate`
  std::string_view speed = "not measured";
  std::string_view memory = "not measured";
};

struct SwitchSpec {
  std::string_view option;       // without dashes
  std::string_view choices;      // "bf16|fp8"
  std::string_view exact_value;  // the default: no loss
  std::string_view lossy_value;  // the other one, or the usual of several
  bool is_in_fast;               // --fast sets it: only switches that passed the gate
  std::string_view help;         // one line, for the option table
  std::string_view changes;      // what differs in the numbers
  std::string_view public_name;  // how public fidelity pages call it
  std::string_view since;        // first version that has it
  SwitchRecord record;
  std::string_view (*read)(const Switches&);
  void (*write)(Switches&, std::string_view value);  // value is one of choices
};

std::span<const SwitchSpec> switch_registry();

/// Null if no switch has that option name.
const SwitchSpec* find_switch(std::string_view option);

/// "lm-head=fp8,…" of the switches that are on, in registry order; empty if all are off.
std::string describe_switches(const Switches& switches);

/// Reads what describe_switches wrote. Errors: invalid_argument (unknown switch or value).
Result<Switches> parse_switches(std::string_view text);

/// What the user asked for, as options.
struct SwitchChoice {
  bool exact = false;                                      // --exact-switches: all off
  bool fast = false;                                       // --fast: all that passed the gate
  std::vector<std::pair<std::string, std::string>> given;  // option, value: explicit ones win over --fast
};

/// Errors: invalid_argument when --exact-switches meets --fast or a lossy value, or for unknown names and
/// values.
Result<Switches> choose_switches(const SwitchChoice& choice);

/// An option that may look as if it changed results, and why it does not (or, for numerics, how).
struct NeutralOption {
  std::string_view name, fallback, changes, cost;
};

std::span<const NeutralOption> neutral_options();

}  // namespace rorqual::model
