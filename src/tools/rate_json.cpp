// SPDX-License-Identifier: Apache-2.0
#include "tools/rate_json.h"

namespace rorqual::tools {

using Json = nlohmann::ordered_json;

Json rate_json(const plan::Rate& rate) {
  return {{"value", rate.value > 0 ? Json(rate.value) : Json(nullptr)}, {"spread", rate.spread}};
}

Json peaks_json(const std::array<plan::Rate, kNumPeaks>& peaks) {
  auto rows = Json::array();
  for (int i = 0; i < kNumPeaks; ++i) {
    const auto peak = static_cast<Peak>(i);
    rows.push_back({{"unit", peak_name(peak)},
                    {"instructions", peak_instructions(peak)},
                    {"operations_per_second", rate_json(peaks[static_cast<size_t>(i)])}});
  }
  return rows;
}

}  // namespace rorqual::tools
