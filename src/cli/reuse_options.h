// SPDX-License-Identifier: Apache-2.0
// Options of what makes a server faster without changing its answers: prefix cache, speculation, swapping.
#pragma once

#include <vector>

#include "base/result.h"
#include "cli/option.h"
#include "cli/values.h"
#include "tools/open_model.h"

namespace rorqual::cli {

/// preemption-mode, swap-space.
std::vector<OptionSpec> swap_options();

/// Memory for preempted requests, 0 = they are computed again.
int64_t swap_bytes(const Values& values);

/// enable-prefix-caching, prefix-cache-memory, prefix-cache-dir, prefix-cache-disk, prefix-snapshot-interval,
/// speculative-tokens, skip-unread-rows and swap_options.
std::vector<OptionSpec> reuse_options();

/// Fills what belongs to the engine, and gives the rest. Errors: invalid_argument (words, contradictions).
Result<tools::ReuseOptions> reuse_values(const Values& values, runtime::EngineOptions& engine);

}  // namespace rorqual::cli
