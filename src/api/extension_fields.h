// SPDX-License-Identifier: Apache-2.0
// vLLM's fields around the prompt and the length of the answer, and those of its fields (and OpenAI's old
// ones) that this server refuses, so that none is dropped without a word. docs/api.md#fields.
#pragma once

#include "api/body_reader.h"
#include "api/policy.h"
#include "api/request.h"

namespace rorqual::api {

/// truncate_prompt_tokens, truncation_side, return_prompt_text.
void read_prompt_fields(BodyReader& reader, const Json& body, const ApiPolicy& policy, PromptFields& prompt);

/// thinking_token_budget, repetition_detection.
void read_length_fields(BodyReader& reader, const Json& body, const ApiPolicy& policy,
                        SamplingFields& sampling);

/// Fields that are accepted without effect: only their shape is checked.
void check_fields_without_effect(BodyReader& reader, const Json& body, const ApiPolicy& policy);

/// The error for the first field that asks for what this server cannot do.
std::optional<ApiError> refuse_fields(const Json& body, const ApiPolicy& policy);

}  // namespace rorqual::api
