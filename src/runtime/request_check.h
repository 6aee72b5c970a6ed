// SPDX-License-Identifier: Apache-2.0
// The checks of Engine::submit, the same for every engine.
#pragma once

#include <cstdint>

#include "base/result.h"
#include "runtime/engine.h"

namespace rorqual::runtime {

struct RequestLimits {
  int64_t vocab_size = 0;
  int64_t max_model_len = 0;
  int64_t max_logprobs = 20;               // -1 = no limit
  int64_t max_prompt_logprob_entries = 0;  // 0 = no limit
};

/// invalid_argument names the field, the value and the range. A prompt must leave room for one token, unless
/// max_tokens is 0; a max_tokens beyond the context is no error (the reply ends there with reason length).
Status check_request(const Request& request, const RequestLimits& limits);

/// True when `token` ends a reply of `num_output` tokens (the ending token not counted): EOS unless ignored,
/// or a stop id, once min_tokens is reached.
bool ends_reply(const SamplingParams& params, int32_t token, int32_t eos_token_id, int64_t num_output);

}  // namespace rorqual::runtime
