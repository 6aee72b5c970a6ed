// SPDX-License-Identifier: Apache-2.0
// Rows of logits of a step -> scores and tokens, many requests at the same time. Verifies drafts: a draft is
// accepted iff the sampler draws it, so tokens are the same with and without drafts.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "base/result.h"
#include "model/runner.h"
#include "runtime/engine.h"
#include "runtime/request_state.h"
#include "runtime/sampler.h"
#include "runtime/scheduler.h"

namespace rorqual::runtime {

struct SampledToken {
  int32_t token = 0;
  std::optional<PositionLogprobs> logprobs;
};

/// What the rows of one slice gave. With an error the rest is what came before it.
struct SliceOutcome {
  std::vector<PositionLogprobs> scores;  // of prompt tokens
  std::vector<SampledToken> tokens;      // appended to the request; an ending token is not delivered
  int64_t num_accepted = 0;              // drafts that were drawn
  std::optional<FinishReason> end;       // stop (the last of `tokens` is the reason) or length
  std::optional<Error> error;
};

/// Holds a work space per thread. One caller at a time.
class StepSampler {
 public:
  StepSampler(const EngineInfo& info, int num_threads);

  /// Computes the masks of the plan's first sampled positions ahead: they depend on tokens that are known
  /// before the logits are. For the time in which the model computes; `run` of the same plan follows.
  void prepare(const StepPlan& plan);

  /// One outcome per slice. `drafts`: tokens of each slice's drafts. `logits`: all rows of the step.
  /// Sampled tokens are appended to their requests. Slices without a request are passed over.
  std::vector<SliceOutcome> run(model::Runner& runner, const StepPlan& plan,
                                std::span<const std::vector<int32_t>> drafts, std::span<const float> logits);

 private:
  /// Work space of one thread.
  struct Space {
    Sampler sampler;
    std::vector<uint32_t> mask;  // of a position behind drafts
  };

  /// One row to score, or all rows to sample of a slice.
  struct Item {
    size_t slice = 0;
    int64_t scored = -1;  // index into the outcome's scores; -1: sample
    std::span<const float> rows;
  };

  std::vector<Item> list_items(const StepPlan& plan, std::span<const float> logits,
                               std::vector<SliceOutcome>& outcomes) const;
  Status score(const Item& item, const ScheduledSlice& slice, SliceOutcome& outcome) const;
  Status sample(const Item& item, RequestState& request, std::span<const int32_t> drafts, Space& space,
                SliceOutcome& outcome) const;
  Result<int32_t> next_token(const RequestState& request, std::span<const float> row,
                             std::span<const uint32_t> prepared, Space& space) const;
  void compute_mask(const RequestState& request, std::vector<uint32_t>& mask) const;

  int64_t vocab_size_, max_model_len_;
  int32_t eos_token_id_;
  std::vector<Space> spaces_;
  std::vector<std::vector<uint32_t>> prepared_;  // [slice] of the plan at hand; empty: not prepared
};

}  // namespace rorqual::runtime
