// SPDX-License-Identifier: Apache-2.0
// Everything the engine knows of one unfinished request. Plain data, owned by the scheduler.
#pragma once

#include <compare>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "model/runner.h"
#include "runtime/engine.h"
#include "runtime/sampler.h"

namespace rorqual::runtime {

/// Place of a request in the order of service, smaller first. Total, because arrivals differ.
struct ServiceOrder {
  int32_t priority = 0;
  uint64_t turn = 0;     // round of the request's client (scheduler.h)
  uint64_t arrival = 0;  // count of accepted requests

  auto operator<=>(const ServiceOrder&) const = default;
};

struct RequestState {
  RequestId id = 0;
  SamplingParams sampling;
  std::string client_key;
  ServiceOrder order;
  std::shared_ptr<TokenSink> sink;
  uint64_t seed = 0;

  std::vector<int32_t> tokens;  // prompt and reply; the last one is not yet in the cache while decoding
  int64_t num_prompt_tokens = 0;
  TokenCounts counts;  // filled only if the penalties need it

  std::optional<model::SequenceId> sequence;  // open while running
  int64_t num_computed = 0;                   // tokens in the cache of `sequence`
  int64_t num_preemptions = 0;

  std::vector<std::optional<PositionLogprobs>> prompt_logprobs;  // rows so far; kept over a preemption
  int64_t num_scored = 1;          // prompt tokens [.., num_scored) have their row, or want none
  bool is_prompt_counted = false;  // prompt done once: counters and sink know

  // 0 = not yet
  int64_t queued_ns = 0, scheduled_ns = 0, first_token_ns = 0, last_token_ns = 0;

  int64_t num_tokens() const { return static_cast<int64_t>(tokens.size()); }

  int64_t num_output() const { return num_tokens() - num_prompt_tokens; }

  int64_t num_remaining() const { return num_tokens() - num_computed; }

  bool is_decoding() const { return sequence && num_computed >= num_prompt_tokens && num_remaining() == 1; }

  bool needs_prompt_scores() const { return sampling.prompt_logprobs >= 0 && !is_prompt_counted; }
};

}  // namespace rorqual::runtime
