// SPDX-License-Identifier: Apache-2.0
// Exchange between the ranks of one model instance. Sums run in rank order, so that the bits do not depend on
// message size or arrival (docs/numerics.md). One rank exists today; shared memory, NCCL and MPI implement
// the same.
#pragma once

#include <cstdint>
#include <memory>
#include <span>

#include "base/result.h"

namespace rorqual::tensor {

/// Which part of a sharded tensor a rank holds.
struct Shard {
  int rank = 0;
  int world = 1;
};

/// Thread rule: one thread per rank; all ranks call the same functions in the same order.
class Collective {
 public:
  virtual ~Collective() = default;
  virtual Shard shard() const = 0;

  /// values[i] becomes the sum over ranks of their values[i], added in ascending rank order in F32.
  virtual Status sum(std::span<float> values) = 0;

  /// Concatenates `mine` of all ranks in rank order into `all` (all.size() == world * mine.size()).
  virtual Status gather(std::span<const float> mine, std::span<float> all) = 0;
};

/// The collective of a single rank: both operations are local copies.
std::unique_ptr<Collective> single_rank();

}  // namespace rorqual::tensor
