// SPDX-License-Identifier: Apache-2.0
// From a request to what its output must follow.
#pragma once

#include <optional>

#include "api/request.h"
#include "grammar/constraint.h"
#include "server/service.h"

namespace rorqual::server {

/// None: the output is free. Errors are 400s that name the place of the fault.
api::ApiResult<std::optional<grammar::CompiledConstraint>> compile_constraint(const api::ChatRequest& request,
                                                                              const Backend& backend);
api::ApiResult<std::optional<grammar::CompiledConstraint>> compile_constraint(
    const api::CompletionRequest& request, const Backend& backend);

}  // namespace rorqual::server
