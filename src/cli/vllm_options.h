// SPDX-License-Identifier: Apache-2.0
// vLLM's options of serve beside those that have the same name and meaning here: another name for one of
// ours, accepted because what they ask for is so anyway, or refused with the reason.
// docs/api.md#vllm-options.
#pragma once

#include <vector>

#include "base/result.h"
#include "cli/option.h"
#include "cli/values.h"
#include "tools/serve.h"

namespace rorqual::cli {

std::vector<OptionSpec> vllm_options();

/// Checks them and fills in what other names stand for. Call it after the options with our names have been
/// read. Errors: unsupported (what cannot be done, and why), invalid_argument (both names of one option,
/// JSON).
Status apply_vllm_options(const Values& values, tools::ServeOptions& options);

}  // namespace rorqual::cli
