// SPDX-License-Identifier: Apache-2.0
// vLLM's structured_outputs, in chat and in completions. docs/constraints.md.
#pragma once

#include "api/body_reader.h"
#include "api/policy.h"
#include "api/request.h"

namespace rorqual::api {

/// Fills `constraint` if the field is there. Exactly one kind is allowed; what would have no effect is
/// refused.
void read_structured_outputs(BodyReader& reader, const Json& body, const ApiPolicy& policy,
                             Constraint& constraint);

/// response_format of completions, where the prompt does not tell the model of it.
void read_response_constraint(BodyReader& reader, const Json& body, const ApiPolicy& policy,
                              Constraint& constraint);

}  // namespace rorqual::api
