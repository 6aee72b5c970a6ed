// SPDX-License-Identifier: Apache-2.0
// Processes that do nothing but use a core each: what another program on the machine does to ours.
#pragma once

#include <sys/types.h>

#include <vector>

#include "base/result.h"

namespace rorqual::tools {

/// They begin stopped. Make it before any thread: the processes are forks of this one.
class BusyNeighbours {
 public:
  BusyNeighbours() = default;
  ~BusyNeighbours();
  BusyNeighbours(const BusyNeighbours&) = delete;
  BusyNeighbours& operator=(const BusyNeighbours&) = delete;

  /// Errors: io.
  Status start(int count);

  int count() const { return static_cast<int>(processes_.size()); }

  void resume() const;
  void pause() const;

 private:
  std::vector<pid_t> processes_;
};

}  // namespace rorqual::tools
