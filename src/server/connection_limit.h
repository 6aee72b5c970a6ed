// SPDX-License-Identifier: Apache-2.0
// How many connections fit beside the other files of the process.
#pragma once

#include <cstddef>

namespace rorqual::server {

/// `wanted`, or what the limit on open files leaves above a reserve for shards, logs and libraries; at
/// least 1. Raises the process's soft limit as far as it needs and may.
size_t connection_limit(size_t wanted);

}  // namespace rorqual::server
