// SPDX-License-Identifier: Apache-2.0
// How fast the kernels of a table are on this machine at the release's widths: matrix products per weight
// format, and the stages beside them. What `plan` predicts with. docs/plan.md#measure.
#pragma once

#include <cstdint>
#include <vector>

#include "base/result.h"
#include "base/thread_pool.h"
#include "kernels/kernels.h"
#include "plan/machine.h"

namespace rorqual::tools {

struct KernelRateOptions {
  const kernels::KernelTable* kernels = nullptr;
  kernels::Numerics numerics = kernels::Numerics::reference;
  int64_t weight_bytes = 0;      // weights in turn, so that none stays in a cache; 0 = chosen by the caches
  int repeats = 5;               // samples; rates are their medians
  double sample_seconds = 0.02;  // least duration of a sample
};

/// Rates of MXFP4, FP8, BF16 and F32 products with 1, 4 and 48 rows. One thread: the pool's owner. Takes
/// about two seconds. Errors: out_of_memory.
Result<std::vector<plan::KernelRate>> measure_kernel_rates(ThreadPool& pool,
                                                           const KernelRateOptions& options);

/// Rates of the stages that plan::StageRate names. Errors: out_of_memory.
Result<std::vector<plan::StageRate>> measure_stage_rates(ThreadPool& pool, const KernelRateOptions& options);

}  // namespace rorqual::tools
