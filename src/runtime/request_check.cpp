// SPDX-License-Identifier: Apache-2.0
// Ranges of every field of a request.
#include "runtime/request_check.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <span>
#include <string>
#include <string_view>

namespace rorqual::runtime {

namespace {

constexpr float kBiasLimit = 100.0f;
constexpr float kPenaltyLimit = 2.0f;

Error out_of_range(std::string_view field, std::string_view got, std::string_view expected) {
  return Error(Code::invalid_argument, fmt::format("{} is {}, expected {}", field, got, expected),
               fmt::format("correct {}", field));
}

Status check_number(std::string_view field, float value, bool is_valid, std::string_view expected) {
  if (std::isfinite(value) && is_valid) return Ok{};
  return out_of_range(field, fmt::format("{}", value), expected);
}

Status check_ids(std::string_view field, std::span<const int32_t> ids, int64_t vocab_size) {
  const auto bad =
      std::find_if(ids.begin(), ids.end(), [=](int32_t id) { return id < 0 || id >= vocab_size; });
  if (bad == ids.end()) return Ok{};
  return out_of_range(fmt::format("{}[{}]", field, bad - ids.begin()), fmt::format("{}", *bad),
                      fmt::format("a token id from 0 to {}", vocab_size - 1));
}

Status check_logprobs(std::string_view field, int64_t value, const RequestLimits& limits) {
  const int64_t limit = limits.max_logprobs < 0 ? limits.vocab_size : limits.max_logprobs;
  if (value >= -1 && value <= limit) return Ok{};
  return Error(Code::invalid_argument, fmt::format("{} is {}, expected -1 to {}", field, value, limit),
               "ask for fewer, or start the server with a larger --max-logprobs");
}

Status check_prompt(const Request& request, const RequestLimits& limits) {
  if (request.prompt.empty()) {
    return Error(Code::invalid_argument, "the prompt has no tokens", "send at least one token");
  }
  const auto length = static_cast<int64_t>(request.prompt.size());
  const int64_t longest = limits.max_model_len - (request.sampling.max_tokens > 0 ? 1 : 0);
  if (length > longest) {
    return Error(Code::invalid_argument,
                 fmt::format("the prompt has {} tokens, the context holds {}{}", length, limits.max_model_len,
                             longest < limits.max_model_len ? " and one must be left for the reply" : ""),
                 "shorten the prompt");
  }
  RORQUAL_TRY(check_ids("prompt", request.prompt, limits.vocab_size));
  if (request.sampling.prompt_logprobs_begin < 1) {
    return out_of_range("prompt_logprobs_begin", fmt::format("{}", request.sampling.prompt_logprobs_begin),
                        "1 or more");
  }
  if (request.sampling.stream_prompt_rows) return Ok{};  // they are not collected
  const int64_t per_token = int64_t{request.sampling.prompt_logprobs} + 1;
  if (limits.max_prompt_logprob_entries > 0 && per_token > limits.max_prompt_logprob_entries / length) {
    return Error(Code::invalid_argument,
                 fmt::format("prompt_logprobs of {} for {} tokens is over the limit of {} entries in all",
                             request.sampling.prompt_logprobs, length, limits.max_prompt_logprob_entries),
                 "ask for fewer log-probabilities or send a shorter prompt");
  }
  return Ok{};
}

Status check_lists(const SamplingParams& p, int64_t vocab_size) {
  RORQUAL_TRY(check_ids("stop_token_ids", p.stop_token_ids, vocab_size));
  RORQUAL_TRY(check_ids("allowed_token_ids", p.allowed_token_ids, vocab_size));
  RORQUAL_TRY(check_ids("logprob_token_ids", p.logprob_token_ids, vocab_size));
  for (const auto& sequence : p.bad_token_sequences) {
    if (sequence.empty())
      return out_of_range("bad_token_sequences", "an empty sequence", "at least one token id");
    RORQUAL_TRY(check_ids("bad_token_sequences", sequence, vocab_size));
  }
  for (const auto& [id, bias] : p.logit_bias) {
    RORQUAL_TRY(check_ids("logit_bias", std::span(&id, 1), vocab_size));
    RORQUAL_TRY(check_number("logit_bias", bias, std::abs(bias) <= kBiasLimit, "a value from -100 to 100"));
  }
  return Ok{};
}

Status check_forced(const SamplingParams& p, int64_t vocab_size) {
  if (p.forced_tokens.empty()) return Ok{};
  RORQUAL_TRY(check_ids("forced_tokens", p.forced_tokens, vocab_size));
  if (p.max_tokens != static_cast<int64_t>(p.forced_tokens.size())) {
    return out_of_range("max_tokens", fmt::format("{}", p.max_tokens),
                        fmt::format("the number of forced_tokens ({})", p.forced_tokens.size()));
  }
  return Ok{};
}

}  // namespace

Status check_request(const Request& request, const RequestLimits& limits) {
  const SamplingParams& p = request.sampling;
  RORQUAL_TRY(check_number("temperature", p.temperature, p.temperature >= 0, "a value from 0"));
  if (p.top_k < 0) return out_of_range("top_k", fmt::format("{}", p.top_k), "0 (off) or more");
  RORQUAL_TRY(check_number("top_p", p.top_p, p.top_p > 0 && p.top_p <= 1, "a value above 0, up to 1"));
  RORQUAL_TRY(check_number("min_p", p.min_p, p.min_p >= 0 && p.min_p <= 1, "a value from 0 to 1"));
  RORQUAL_TRY(check_number("presence_penalty", p.presence_penalty,
                           std::abs(p.presence_penalty) <= kPenaltyLimit, "a value from -2 to 2"));
  RORQUAL_TRY(check_number("frequency_penalty", p.frequency_penalty,
                           std::abs(p.frequency_penalty) <= kPenaltyLimit, "a value from -2 to 2"));
  RORQUAL_TRY(
      check_number("repetition_penalty", p.repetition_penalty, p.repetition_penalty > 0, "a value above 0"));
  if (p.max_tokens < 0) return out_of_range("max_tokens", fmt::format("{}", p.max_tokens), "0 or more");
  if (p.min_tokens < 0 || p.min_tokens > p.max_tokens) {
    return out_of_range("min_tokens", fmt::format("{}", p.min_tokens),
                        fmt::format("0 to max_tokens ({})", p.max_tokens));
  }
  RORQUAL_TRY(check_logprobs("logprobs", p.logprobs, limits));
  RORQUAL_TRY(check_logprobs("prompt_logprobs", p.prompt_logprobs, limits));
  RORQUAL_TRY(check_lists(p, limits.vocab_size));
  RORQUAL_TRY(check_forced(p, limits.vocab_size));
  return check_prompt(request, limits);
}

bool ends_reply(const SamplingParams& params, int32_t token, int32_t eos_token_id, int64_t num_output) {
  if (num_output < params.min_tokens) return false;
  if (token == eos_token_id && !params.ignore_eos) return true;
  return std::find(params.stop_token_ids.begin(), params.stop_token_ids.end(), token) !=
         params.stop_token_ids.end();
}

}  // namespace rorqual::runtime
