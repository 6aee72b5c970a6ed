// SPDX-License-Identifier: Apache-2.0
// Log-probabilities of one row of raw logits: log-softmax, ranks, the k best. Same bits on every machine.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/result.h"
#include "runtime/engine.h"

namespace rorqual::runtime {

/// True when every value of the row is a finite number.
bool is_finite_row(std::span<const float> logits);

/// The error (internal) of a row that is not, for the token at `position`.
Error not_finite(int64_t position);

/// max + ln(sum of exp(logit - max)) in F64: element i goes to chain i mod 16, then the chains are added j
/// with j + 8,
/// + 4, + 2, + 1.
double log_sum_exp(std::span<const float> logits);

/// The `k` best ids, best first; of equal logits the lower id is better. k <= size.
std::vector<int32_t> best_ids(std::span<const float> logits, int64_t k);

struct LogprobRequest {
  int32_t chosen = 0;
  int64_t top_k = 0;                          // best ids to report, at most the vocabulary
  std::span<const int32_t> additional_ids{};  // reported too; repeated and unknown ids are harmless
};

/// The row's log-softmax at the asked ids, F64 rounded once to F32. A rank counts the better ids (ties: lower
/// id first) plus one. `top` holds the k best and the additional ids in descending order, without repetition.
PositionLogprobs position_logprobs(std::span<const float> logits, const LogprobRequest& request);

}  // namespace rorqual::runtime
