// SPDX-License-Identifier: Apache-2.0
// Draws one token from one row of logits. A pure function of the row, the parameters, the seed and the token
// history: nothing depends on other requests, on steps or on the machine.
#pragma once

#include <cstdint>
#include <span>
#include <unordered_map>
#include <vector>

#include "base/result.h"
#include "runtime/engine.h"

namespace rorqual::runtime {

/// Below this temperature the best token is taken (vLLM's floor).
inline constexpr float kGreedyTemperature = 1e-5f;

/// Token counts of one request for the penalties; grows with the reply.
class TokenCounts {
 public:
  TokenCounts() = default;
  explicit TokenCounts(std::span<const int32_t> prompt);

  void add_output(int32_t token) { ++output_[token]; }

  const std::vector<int32_t>& prompt_ids() const { return prompt_ids_; }

  const std::unordered_map<int32_t, int32_t>& output() const { return output_; }

 private:
  std::vector<int32_t> prompt_ids_;  // ascending, each once
  std::unordered_map<int32_t, int32_t> output_;
};

/// True when the parameters need TokenCounts.
bool has_penalties(const SamplingParams& params);

/// What one draw depends on, beside the row.
struct SampleInput {
  const SamplingParams& params;
  const TokenCounts& counts;        // read only if has_penalties(params)
  std::span<const int32_t> tokens;  // prompt and reply so far; its size is the position of the token to draw
  int64_t num_prompt_tokens = 0;
  uint64_t seed = 0;
  int32_t eos_token_id = -1;
  std::span<const uint32_t> allowed{};  // of a TokenConstraint: bit i % 32 of word i / 32; empty = all
};

/// Holds the work space. One thread.
class Sampler {
 public:
  explicit Sampler(int64_t vocab_size);

  /// The next token. The row is processed in vLLM's order; F32 values unless noted, ties everywhere to the
  /// lower id:
  ///   1. ids outside allowed_token_ids get -inf (empty list: none do), and so do those that a constraint
  ///   forbids;
  ///   2. the last id of a bad sequence gets -inf when the reply ends with the ids before it;
  ///   3. while the reply is shorter than min_tokens, EOS and the stop ids get -inf;
  ///   4. logit_bias is added, in the order of the list;
  ///   5. ids of prompt or reply: l > 0 ? l / repetition_penalty : l * repetition_penalty; then, for ids of
  ///   the reply,
  ///      l - count * frequency_penalty, and l - presence_penalty;
  ///   6. temperature < 1e-5: the best id. Otherwise z = (l - max l) / temperature and w = F32(e^z), 0 for z
  ///   < -87;
  ///   7. min_p: w < min_p gets 0 (the largest w is 1);
  ///   8. top_k: the k best by z stay;
  ///   9. top_p: in descending order a token stays while the F64 sum of the w before it is < top_p * total of
  ///   w;
  ///  10. the draw: u = position_uniform(seed, choice_index, position); running F64 sums of w over ascending
  ///  ids; the
  ///      first id whose sum exceeds u * total.
  /// Errors: internal (a value of the row is not finite), invalid_argument (no token is allowed).
  Result<int32_t> sample(std::span<const float> logits, const SampleInput& input);

 private:
  void apply_masks(const SampleInput& input);
  void apply_penalties(const SampleInput& input);
  void weigh(const SamplingParams& params, float max);
  void keep_best(const SamplingParams& params);
  int32_t draw(double uniform) const;

  std::vector<float> values_;   // [V] processed logits, then z
  std::vector<float> weights_;  // [V]
  std::vector<int32_t> order_;  // candidates of top_k and top_p
};

/// Index of the largest value, the lowest one of equals.
int32_t argmax(std::span<const float> values);

}  // namespace rorqual::runtime
