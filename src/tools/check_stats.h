// SPDX-License-Identifier: Apache-2.0
// Golden values of the statistics of paired counts (kl/statistics.h).
#pragma once

#include <string>
#include <vector>

#include "base/result.h"
#include "tools/check_report.h"

namespace rorqual::tools {

/// Files of tests/golden/eval/README.md: lists "mcnemar", "wilson" and "paired_diff". Errors: not_found,
/// corrupt_data.
Status check_stats(const std::vector<std::string>& files, CheckReport& report);

}  // namespace rorqual::tools
