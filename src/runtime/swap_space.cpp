// SPDX-License-Identifier: Apache-2.0
// Images of preempted sequences.
#include "runtime/swap_space.h"

#include <new>
#include <utility>

#include "base/check.h"

namespace rorqual::runtime {

bool SwapSpace::swap_out(RequestState& request, const model::Runner& runner) {
  RORQUAL_CHECK(request.sequence.has_value() && request.image.empty());
  if (max_bytes_ == 0) return false;
  const int64_t size = runner.image_bytes(*request.sequence);
  if (size <= 0 || size > max_bytes_ - bytes_) return false;
  try {
    request.image.resize(static_cast<size_t>(size));
  } catch (const std::bad_alloc&) {  // computing again is slower, and always possible
    return false;
  }
  runner.save_image(*request.sequence, request.image);
  bytes_ += size;
  ++num_out_;
  return true;
}

Result<model::SequenceId> SwapSpace::swap_in(RequestState& request, model::Runner& runner) {
  Result<model::SequenceId> sequence = runner.open_image(request.image);
  if (!sequence.ok()) return sequence;
  ++num_in_;
  forget(request);
  return sequence;
}

void SwapSpace::forget(RequestState& request) {
  bytes_ -= static_cast<int64_t>(request.image.size());
  request.image = {};
}

}  // namespace rorqual::runtime
