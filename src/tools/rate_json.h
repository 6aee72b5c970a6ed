// SPDX-License-Identifier: Apache-2.0
// Measured rates in the JSON of `doctor` and `bench op`: one form for both.
#pragma once

#include <array>
#include <nlohmann/json.hpp>

#include "plan/machine.h"
#include "tools/machine_ceilings.h"

namespace rorqual::tools {

/// {value, spread}; value null if unknown.
nlohmann::ordered_json rate_json(const plan::Rate& rate);

/// A row {unit, instructions, operations_per_second} for each Peak, in order.
nlohmann::ordered_json peaks_json(const std::array<plan::Rate, kNumPeaks>& peaks);

}  // namespace rorqual::tools
