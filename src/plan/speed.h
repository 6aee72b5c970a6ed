// SPDX-License-Identifier: Apache-2.0
// How fast a planned model will be: time of a prefill and of a decode step as a sum over parts and stages,
// from the rates of a machine. Nothing is measured here. docs/plan.md#speed.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "plan/machine.h"
#include "plan/memory.h"

namespace rorqual::plan {

/// What is to be served.
struct SpeedQuestion {
  int64_t prompt_tokens = 512;   // of each sequence
  int64_t generate_tokens = 32;  // of each sequence, the first of them comes from the prompt's last row
  int64_t batch = 1;             // sequences at a time
};

/// One summand of a step.
struct StageTime {
  std::string name;   // "routed experts", "attention scores", …
  std::string limit;  // what it waits for: "MXFP4 kernels", "RAM bandwidth", "disk", "VRAM bandwidth", …
  double seconds = 0;
  double spread = 0;  // relative
};

/// A phase: tokens per second of all sequences together. Unknown (value 0) when a rate that it needs is.
struct PhaseSpeed {
  Rate tokens_per_second;
  double seconds = 0;             // of the whole phase
  std::vector<StageTime> stages;  // descending; they add up to `seconds`
  std::string limit;              // of the largest: "routed experts: MXFP4 kernels"; "" if unknown
  std::string unknown;            // the missing rate, "" if none
};

struct SpeedEstimate {
  PhaseSpeed prefill, decode;
};

/// Predicts both phases. Measured rates give the spread of their samples plus the model's own error;
/// described ones the stated efficiencies and wide bars. `parts` are those of a placement, or plan.parts.
SpeedEstimate predict_speed(const MemoryPlan& plan, std::span<const Part> parts, const Machine& machine,
                            const SpeedQuestion& question);

/// "3.1 to 4.6 tok/s", or "unknown".
std::string speed_text(const Rate& tokens_per_second);

/// Kernel rates of a machine that was described: figures per thread as measured on AVX2 cores, not more than
/// the memory gives. Empty if threads or bandwidth are unknown.
std::vector<KernelRate> assumed_kernel_rates(const Machine& machine);
std::vector<StageRate> assumed_stage_rates(const Machine& machine);

/// Seconds that one weight of `format` costs with `rows` rows on the CPU; 0 = unknown.
double seconds_per_weight(const KernelRate& rate, int64_t rows);

/// Expected seconds per weight and expert when each of `rows` rows picks `active` of `experts`: rows per
/// expert follow the binomial distribution.
double expected_expert_seconds(const KernelRate& rate, int64_t rows, int64_t active, int64_t experts);

/// Expected number of experts that `rows` rows touch: E·(1 - (1 - K/E)^T).
double expected_distinct_experts(int64_t rows, int64_t active, int64_t experts);

}  // namespace rorqual::plan
