// SPDX-License-Identifier: Apache-2.0
// `rorqual plan`: what goes where, whether it fits, and how fast it would be; loads nothing.
#pragma once

#include <string>

#include "base/result.h"
#include "plan/verdict.h"

namespace rorqual::tools {

struct PlanOptions {
  plan::PlanRequest request;  // model: folder, "v41", "synthetic:…", empty = the embedded model
  std::string machine;  // empty = this machine; "list" = print the built-in ones, "all" = plan on all of them
  bool measure = true;  // this machine's rates, about five seconds; else speeds are unknown
  bool as_json = false;
};

/// Prints the plan to standard output; a model that does not fit is an answer, not an error. Errors:
/// not_found, corrupt_data, invalid_argument, unsupported.
Status run_plan(const PlanOptions& options);

}  // namespace rorqual::tools
