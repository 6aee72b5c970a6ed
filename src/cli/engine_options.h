// SPDX-License-Identifier: Apache-2.0
// The options of the kl commands that ask an engine: a model in this process or a server behind a URL.
#pragma once

#include <vector>

#include "base/result.h"
#include "cli/option.h"
#include "cli/values.h"
#include "tools/kl_engine.h"

namespace rorqual::cli {

/// model_options(), kernels, max-model-len, streams, url, api-key, served-model-name, timeout, vocab-size.
std::vector<OptionSpec> engine_options();

/// Errors: invalid_argument when MODEL and --url are both given.
Result<tools::KlEngineOptions> engine_values(const Values& values);

}  // namespace rorqual::cli
