// SPDX-License-Identifier: Apache-2.0
// A short comparison of all kernel tiers that this machine runs, on matrix products of every weight format.
#pragma once

#include <string>
#include <vector>

namespace rorqual::tools {

struct SelfTestRow {
  std::string tier;    // compared with "ref"
  std::string format;  // of the weights
  bool is_equal = false;
  std::string difference;  // first differing element, if any
};

/// Tiers must agree bit for bit (docs/numerics.md). Empty if only `ref` runs here.
std::vector<SelfTestRow> run_kernel_self_test();

}  // namespace rorqual::tools
