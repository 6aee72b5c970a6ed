// SPDX-License-Identifier: Apache-2.0
// `rorqual check ops`: golden vectors of single operations against every kernel tier of this machine. The
// schema of the files is tests/golden/ops/README.md; formats and integers must match exactly, sums within
// derived bounds.
#pragma once

#include <string>
#include <vector>

#include "base/result.h"
#include "tools/check_report.h"

namespace rorqual::tools {

/// Runs each safetensors file on each available tier and records every comparison in `report`. The topic of a
/// file is its name ("linear.safetensors"), or what its keys say. Errors: files that cannot be read, unknown
/// topics.
Status check_ops(const std::vector<std::string>& files, CheckReport& report);

}  // namespace rorqual::tools
