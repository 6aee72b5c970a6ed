// SPDX-License-Identifier: Apache-2.0
// Golden values of sampled counters (tools/load_counters.h).
#pragma once

#include <string>
#include <vector>

#include "base/result.h"
#include "tools/check_report.h"

namespace rorqual::tools {

/// Files of tests/golden/eval/README.md: lists "runs" with samples and windows, and the spread of their
/// rates. Errors: not_found, corrupt_data.
Status check_counters(const std::vector<std::string>& files, CheckReport& report);

}  // namespace rorqual::tools
