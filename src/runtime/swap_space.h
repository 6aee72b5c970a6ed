// SPDX-License-Identifier: Apache-2.0
// Memory for images of preempted sequences, with a limit.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "model/runner.h"
#include "runtime/request_state.h"

namespace rorqual::runtime {

/// One thread.
class SwapSpace {
 public:
  explicit SwapSpace(int64_t max_bytes) : max_bytes_(max_bytes) {}

  /// Saves the request's open sequence in request.image if there is room; the sequence stays open.
  bool swap_out(RequestState& request, const model::Runner& runner);

  /// Opens a sequence with the image, which is dropped then. Errors of open_image: nothing changed.
  Result<model::SequenceId> swap_in(RequestState& request, model::Runner& runner);

  /// Drops the image, if there is one.
  void forget(RequestState& request);

  int64_t num_out() const { return num_out_; }

  int64_t num_in() const { return num_in_; }

 private:
  int64_t max_bytes_, bytes_ = 0, num_out_ = 0, num_in_ = 0;
};

}  // namespace rorqual::runtime
