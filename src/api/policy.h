// SPDX-License-Identifier: Apache-2.0
// Where the official API and vLLM contradict each other, a switch decides. docs/api.md#policy lists them.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "text/prompt_compat.h"

namespace rorqual::api {

struct ApiPolicy {
  std::vector<std::string> model_names;  // accepted names; empty = any
  int unknown_model_status = 404;        // 400 with the official text, or 404
  bool developer_as_system = true;       // false: the role is rejected
  bool integer_effort = true;            // reasoning_effort 1..100
  bool pin_sampling = false;             // thinking: temperature 1, top_p >= 0.95; chat: top_p 1
  bool apply_penalties = true;           // false: penalties are validated, then ignored
  bool max_completion_tokens = true;     // overrides max_tokens; false: ignored
  bool extensions = true;                // vLLM's fields (top_k, min_p, prompt_logprobs, …); false: ignored
  bool names_fields = true;  // errors say which field is at fault (`param`); false: null, as official
  bool force_tools_in_thinking = true;  // false: 400 for tool_choice required/named with thinking on
  int32_t max_choices = 16;             // n
  int32_t max_top_logprobs = 20;
  int32_t max_logprobs = 20;  // prompt_logprobs and completions' logprobs; -1 = whole vocabulary allowed
  int64_t max_tokens_limit = 393216;
  text::PromptCompat prompt_compat;  // all off: the prompt of the official service

  /// What the official service does; the vectors in tests/golden/encoding hold for it.
  static ApiPolicy official(std::vector<std::string> model_names);
};

}  // namespace rorqual::api
