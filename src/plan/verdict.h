// SPDX-License-Identifier: Apache-2.0
// The whole answer: what a model needs on a machine, whether this version can run it, and what would help.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/result.h"
#include "model/switches.h"
#include "plan/cures.h"
#include "plan/machine.h"
#include "plan/memory.h"
#include "plan/placement.h"
#include "plan/speed.h"

namespace rorqual::plan {

/// What the user asks for; zero and "auto" are chosen by the plan.
struct PlanRequest {
  std::string model;  // to show
  kernels::Numerics numerics = kernels::Numerics::reference;
  int64_t max_model_len = 0;  // 0 = the largest that fits, up to the config's and 32768
  int64_t max_num_seqs = 8;
  int64_t max_num_batched_tokens = 512;
  int64_t max_logit_rows = 256;
  int threads = 0;                        // 0 = the machine's
  std::string engram_placement = "auto";  // auto | host | disk
  std::string cpu_experts = "auto";       // auto | all
  bool is_embedded = false;
  bool with_drafts = false;
  int64_t kv_cache_bytes = 0;      // 0 = enough for all sequences at their longest
  int64_t prefix_cache_bytes = 0;  // -1 = a quarter of what is left, within limits
  int64_t swap_bytes = 0;          // most memory of preempted requests
  model::Switches switches;
};

struct Plan {
  PlanRequest request;
  Machine machine;
  MemoryPlan memory;  // settings resolved
  Placement now;      // what this version does
  /// What the machine could do and this version cannot: GPUs, experts on disk. Absent when `now` is the best.
  std::optional<Placement> later;
  std::vector<Cure> cures;  // at most three, when `now` does not fit
  SpeedQuestion question;
  SpeedEstimate speed, later_speed;  // of `now` and `later`; unknown before add_speed

  bool fits() const { return now.fits(); }

  /// The tier that decides: the short one, or the fullest.
  Tier limiting_tier() const { return now.tightest(); }
};

inline constexpr int64_t kDefaultMaxModelLen = 32768;
/// Automatic choice does not go below this context; less must be asked for.
inline constexpr int64_t kLeastAutoModelLen = 4096;

/// auto, host and disk are fine. Errors: unsupported for gpu, invalid_argument for other words.
Status check_engram_placement(const std::string& placement);

/// auto and all are fine. Errors: unsupported for none and numbers of layers, invalid_argument for other
/// words.
Status check_cpu_experts(const std::string& which);

/// Errors: invalid_argument when the request is out of the config's range, unsupported for placements that
/// this version does not have.
Result<Plan> make_plan(const model::Config& config, const Machine& machine, const PlanRequest& request);

/// Predicts the speed of both placements for one request of up to 2,048 tokens that gets 128, from the
/// machine's rates as far as they are known.
void add_speed(Plan& plan);

/// OK, or out_of_memory with both numbers and the cures as its hint.
Status check_plan(const Plan& plan);

}  // namespace rorqual::plan
