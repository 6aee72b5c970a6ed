// SPDX-License-Identifier: Apache-2.0
// Rows of other engines' timings, as their runners write them: CSV with the columns peer, op, M, us_median
// and note.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace rorqual::tools {

struct PeerRow {
  std::string peer, op;  // op as written, such as "moe_mxfp4_t16"
  int64_t tokens = 0;    // M
  int64_t threads = 0;   // from the note or the op's end; 0 = unknown
  int64_t experts = 0;   // resident, from the note; 0 = unknown
  double us_median = 0;
};

/// Rows without a time (skipped, failed) are left out. Errors: corrupt_data with `name` and line.
Result<std::vector<PeerRow>> parse_peer_rows(std::string_view name, std::string_view csv);

}  // namespace rorqual::tools
