// SPDX-License-Identifier: Apache-2.0
// Two quick measures of the machine: how fast weights can be read, and how fast numbers can be multiplied.
#pragma once

#include <cstdint>

#include "base/thread_pool.h"

namespace rorqual::tools {

struct Measure {
  double value = 0;  // per second
  double seconds = 0;
};

/// Bytes per second that all threads read together from `size_bytes` of memory; best of three passes.
/// Value 0 if the memory cannot be had or the CPU has no AVX2.
Measure measure_read_bandwidth(ThreadPool& pool, int64_t size_bytes);

/// F32 operations per second of 256-bit fused multiply-adds (two operations each) on all threads; best of
/// three. Value 0 on a CPU without AVX2 and FMA.
Measure measure_fma_rate(ThreadPool& pool);

}  // namespace rorqual::tools
