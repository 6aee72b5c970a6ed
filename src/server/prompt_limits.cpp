// SPDX-License-Identifier: Apache-2.0
// Length check by bytes and the spelling of "all" in log-probability counts.
#include "server/prompt_limits.h"

#include <algorithm>

namespace rorqual::server {

std::optional<api::ApiError> refuse_long_text(size_t num_bytes, int64_t max_tokens, const Backend& backend) {
  const int64_t tokens_min = static_cast<int64_t>(num_bytes) / backend.token_bytes_max;
  if (tokens_min <= backend.max_model_len) return std::nullopt;
  return api::ApiError::conversion(
      api::context_overflow_message(backend.max_model_len, tokens_min, std::max<int64_t>(1, max_tokens)));
}

void truncate_prompt(std::vector<int32_t>& ids, const api::PromptFields& fields, int64_t max_tokens,
                     const Backend& backend) {
  if (!fields.truncate_tokens) return;
  const int64_t room = std::max<int64_t>(backend.max_model_len - max_tokens, 1);
  const int64_t asked = *fields.truncate_tokens < 0 ? room : *fields.truncate_tokens;
  const auto kept = static_cast<size_t>(asked);
  if (ids.size() <= kept) return;
  if (fields.truncates_end) {
    ids.resize(kept);
  } else {
    ids.erase(ids.begin(), ids.end() - static_cast<std::ptrdiff_t>(kept));
  }
}

int32_t num_top_logprobs(const api::SamplingFields& fields) {
  return fields.logprob_token_ids.empty() ? fields.top_logprobs.value_or(0) : 0;
}

size_t longest_text_bytes(const Backend& backend) {
  return static_cast<size_t>((backend.max_model_len + 1) * backend.token_bytes_max - 1);
}

int32_t engine_logprobs(int32_t k, const Backend& backend) {
  return k < 0 ? static_cast<int32_t>(backend.engine.info().vocab_size) : k;
}

}  // namespace rorqual::server
