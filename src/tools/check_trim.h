// SPDX-License-Identifier: Apache-2.0
// The replay trim of golden runs (trim_logits, trim_greedy): what a prompt gives when the layers past the
// last KV source run only as many of its rows as the window has. Part of `check forward`.
#pragma once

#include "base/result.h"
#include "model/model.h"
#include "tools/check_report.h"
#include "tools/forward_fixture.h"

namespace rorqual::tools {

/// Bounds of a comparison in exact numerics (check_forward).
struct TrimBounds {
  float logits = 0;    // largest difference of two logits
  float near_tie = 0;  // a choice of experts or entries may fall either way when its gap is smaller …
  float near_tie_logits =
      0;  // … and then this is the largest difference: the files record no gaps of trimmed rows
  float near_tie_token = 0;  // a token may be another one when its lead is smaller
};

/// Returns how many near-ties were excused; nothing is done for a file without these tensors. The model has a
/// free sequence and exact numerics. Differences go to `report`. Errors: those of forward.
Result<int64_t> check_trim(const ForwardFixture& fixture, model::Model& model, const TrimBounds& bounds,
                           CheckReport& report);

}  // namespace rorqual::tools
