// SPDX-License-Identifier: Apache-2.0
// Logit processing and the draw; the order and every definition are in sampler.h.
#include "runtime/sampler.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>
#include <string>

#include "base/check.h"
#include "base/thread_pool.h"
#include "runtime/exp_log.h"
#include "runtime/logprobs.h"
#include "runtime/philox.h"

namespace rorqual::runtime {

namespace {

constexpr float kMasked = -std::numeric_limits<float>::infinity();
constexpr float kSmallestExponent = -87.0f;  // e^-87 is still a normal F32

size_t index_of(int32_t id) {
  return static_cast<size_t>(id);
}

int64_t num_output(const SampleInput& input) {
  return static_cast<int64_t>(input.tokens.size()) - input.num_prompt_tokens;
}

bool is_below_min_tokens(const SampleInput& input) {
  return num_output(input) < input.params.min_tokens;
}

bool is_row_changed(const SampleInput& input) {
  const SamplingParams& p = input.params;
  return !p.allowed_token_ids.empty() || !p.bad_token_sequences.empty() || !p.logit_bias.empty() ||
         has_penalties(p) || is_below_min_tokens(input) || !input.allowed.empty();
}

/// True when the reply ends with all of `sequence` but its last id.
bool is_about_to_complete(std::span<const int32_t> reply, const std::vector<int32_t>& sequence) {
  const size_t prefix = sequence.size() - 1;
  if (reply.size() < prefix) return false;
  return std::equal(sequence.begin(), sequence.end() - 1, reply.end() - static_cast<std::ptrdiff_t>(prefix));
}

}  // namespace

TokenCounts::TokenCounts(std::span<const int32_t> prompt) : prompt_ids_(prompt.begin(), prompt.end()) {
  std::sort(prompt_ids_.begin(), prompt_ids_.end());
  prompt_ids_.erase(std::unique(prompt_ids_.begin(), prompt_ids_.end()), prompt_ids_.end());
}

bool has_penalties(const SamplingParams& params) {
  return params.repetition_penalty != 1.0f || params.presence_penalty != 0.0f ||
         params.frequency_penalty != 0.0f;
}

int32_t argmax(std::span<const float> values) {
  size_t best = 0;
  for (size_t i = 1; i < values.size(); ++i) {
    if (values[i] > values[best]) best = i;
  }
  return static_cast<int32_t>(best);
}

Sampler::Sampler(int64_t vocab_size)
    : values_(static_cast<size_t>(vocab_size)), weights_(static_cast<size_t>(vocab_size)) {
  order_.reserve(static_cast<size_t>(vocab_size));
}

Result<int32_t> Sampler::sample(std::span<const float> logits, const SampleInput& input) {
  RORQUAL_CHECK(logits.size() == values_.size());
  const ScopedFlushToZero flush_to_zero;  // the same treatment of subnormals whoever calls
  const auto position = static_cast<int64_t>(input.tokens.size());
  if (!is_finite_row(logits)) {
    return not_finite(position);
  }
  const bool is_greedy = input.params.temperature < kGreedyTemperature;
  if (is_greedy && !is_row_changed(input)) return argmax(logits);
  std::copy(logits.begin(), logits.end(), values_.begin());
  apply_masks(input);
  if (has_penalties(input.params)) apply_penalties(input);
  const int32_t best = argmax(values_);
  const float max = values_[index_of(best)];
  if (max == kMasked) {
    return Error(Code::invalid_argument, "no token is allowed at position " + std::to_string(position),
                 "loosen allowed_token_ids, bad_words, logit_bias, min_tokens or the grammar");
  }
  if (is_greedy) return best;
  weigh(input.params, max);
  if (input.params.top_k > 0 || input.params.top_p < 1.0f) keep_best(input.params);
  return draw(position_uniform(input.seed, input.params.choice_index, position));
}

void Sampler::apply_masks(const SampleInput& input) {
  const SamplingParams& params = input.params;
  if (!params.allowed_token_ids.empty()) {
    std::fill(weights_.begin(), weights_.end(), kMasked);
    for (const int32_t id : params.allowed_token_ids) weights_[index_of(id)] = values_[index_of(id)];
    std::swap(values_, weights_);
  }
  for (size_t i = 0; i < values_.size() && !input.allowed.empty(); ++i) {
    if ((input.allowed[i / 32] >> (i % 32) & 1) == 0) values_[i] = kMasked;
  }
  const auto reply = input.tokens.subspan(static_cast<size_t>(input.num_prompt_tokens));
  for (const auto& sequence : params.bad_token_sequences) {
    if (is_about_to_complete(reply, sequence)) values_[index_of(sequence.back())] = kMasked;
  }
  if (is_below_min_tokens(input)) {
    const auto eos = index_of(input.eos_token_id);
    if (input.eos_token_id >= 0 && eos < values_.size()) values_[eos] = kMasked;
    for (const int32_t id : params.stop_token_ids) values_[index_of(id)] = kMasked;
  }
  for (const auto& [id, bias] : params.logit_bias) values_[index_of(id)] += bias;
}

void Sampler::apply_penalties(const SampleInput& input) {
  const SamplingParams& params = input.params;
  const auto& output = input.counts.output();
  if (params.repetition_penalty != 1.0f) {
    const float penalty = params.repetition_penalty;
    const auto repeat = [&](int32_t id) {
      float& value = values_[index_of(id)];
      value = value > 0.0f ? std::min(value / penalty, std::numeric_limits<float>::max()) : value * penalty;
    };
    for (const int32_t id : input.counts.prompt_ids()) repeat(id);
    for (const auto& [id, count] : output) {
      const auto& prompt = input.counts.prompt_ids();
      if (!std::binary_search(prompt.begin(), prompt.end(), id)) repeat(id);
    }
  }
  for (const auto& [id, count] : output) {
    float& value = values_[index_of(id)];
    value -= static_cast<float>(count) * params.frequency_penalty;
    value -= params.presence_penalty;
  }
}

void Sampler::weigh(const SamplingParams& params, float max) {
  const float temperature = params.temperature;
  for (float& value : values_) value = (value - max) / temperature;
  for (size_t i = 0; i < values_.size(); ++i) {
    const float weight = static_cast<float>(exp_nonpositive(static_cast<double>(values_[i])));
    weights_[i] = values_[i] < kSmallestExponent ? 0.0f : weight;
  }
  if (params.min_p > 0.0f) {
    for (float& weight : weights_) weight = weight < params.min_p ? 0.0f : weight;
  }
}

void Sampler::keep_best(const SamplingParams& params) {
  const auto better = [this](int32_t a, int32_t b) {
    const float x = values_[index_of(a)];
    const float y = values_[index_of(b)];
    return x > y || (x == y && a < b);
  };
  order_.clear();
  for (size_t i = 0; i < weights_.size(); ++i) {
    if (weights_[i] > 0.0f) order_.push_back(static_cast<int32_t>(i));
  }
  const auto top_k = static_cast<size_t>(params.top_k);
  if (top_k > 0 && top_k < order_.size()) {
    std::nth_element(order_.begin(), order_.begin() + static_cast<std::ptrdiff_t>(top_k), order_.end(),
                     better);
    order_.resize(top_k);
    std::sort(order_.begin(), order_.end());
  }
  double total = 0;
  for (const int32_t id : order_) total += static_cast<double>(weights_[index_of(id)]);
  if (params.top_p < 1.0f) {
    // The sorted head grows in steps: most distributions need few tokens, and sorting all of them is slow.
    const double limit = static_cast<double>(params.top_p) * total;
    // All weights below `least` together stay under (1 - top_p) * total, so none of them is in the head. The
    // factor keeps the argument true with rounded sums.
    const double least =
        0.999 * (1.0 - static_cast<double>(params.top_p)) * total / static_cast<double>(order_.size());
    std::erase_if(order_, [&](int32_t id) { return static_cast<double>(weights_[index_of(id)]) < least; });
    double before = 0;
    size_t kept = 0;
    size_t sorted = 0;
    while (kept < order_.size() && before < limit) {
      if (kept == sorted) {
        const size_t end = std::min(order_.size(), std::max<size_t>(64, sorted * 4));
        std::partial_sort(order_.begin() + static_cast<std::ptrdiff_t>(sorted),
                          order_.begin() + static_cast<std::ptrdiff_t>(end), order_.end(), better);
        sorted = end;
      }
      before += static_cast<double>(weights_[index_of(order_[kept])]);
      ++kept;
    }
    order_.resize(kept);
  }
  std::fill(values_.begin(), values_.end(), 0.0f);
  for (const int32_t id : order_) values_[index_of(id)] = weights_[index_of(id)];
  std::swap(values_, weights_);
}

int32_t Sampler::draw(double uniform) const {
  double total = 0;
  for (const float weight : weights_) total += static_cast<double>(weight);
  const double target = uniform * total;
  double sum = 0;
  int32_t last = 0;
  for (size_t i = 0; i < weights_.size(); ++i) {
    if (weights_[i] == 0.0f) continue;
    sum += static_cast<double>(weights_[i]);
    last = static_cast<int32_t>(i);
    if (sum > target) break;
  }
  return last;
}

}  // namespace rorqual::runtime
