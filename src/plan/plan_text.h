// SPDX-License-Identifier: Apache-2.0
// A plan as text for people and as JSON for programs.
#pragma once

#include <string>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "plan/verdict.h"
#include "report/table.h"

namespace rorqual::plan {

/// "what goes where": one row per part and tier, totals below.
report::Table placement_table(const Plan& plan, const Placement& placement);

/// One row per plan: verdict, memory and speed on each machine, now and later.
report::Table machines_table(const std::vector<Plan>& plans);

/// One line: fits or not, with both numbers.
std::string verdict_line(const Plan& plan, const Placement& placement);

/// "fits" or what is short, the tier that decides, cures: a few lines, each without a line end.
std::vector<std::string> verdict_lines(const Plan& plan);

/// Placement and verdict as `serve` logs them before loading.
std::vector<std::string> start_lines(const Plan& plan);

/// Everything, as `rorqual plan` prints it.
std::string plan_text(const Plan& plan);

/// Schema rorqual.plan/1.
nlohmann::ordered_json plan_json(const Plan& plan);

}  // namespace rorqual::plan
