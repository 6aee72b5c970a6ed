// SPDX-License-Identifier: Apache-2.0
// This machine with all rates that `plan` predicts from.
#pragma once

#include <string>
#include <vector>

#include "base/result.h"
#include "base/thread_pool.h"
#include "kernels/kernels.h"
#include "plan/machine.h"
#include "tools/machine_ceilings.h"

namespace rorqual::tools {

/// One pass over memory, kernels and stages: about a second, one sample of each rate.
struct RateSample {
  plan::Rate ram_read;
  std::vector<plan::KernelRate> kernels;
  std::vector<plan::StageRate> stages;
};

/// `probe` is memory to read from, made once for all samples; null leaves its rate unknown. Errors:
/// out_of_memory.
Result<RateSample> sample_rates(ThreadPool& pool, const ReadProbe* probe, const kernels::KernelTable& table,
                                kernels::Numerics numerics);

/// Medians of the samples, put into `machine`. At least one sample.
void apply_samples(plan::Machine& machine, const std::vector<RateSample>& samples);

/// Rates of the disk that holds the model in `folder`. Unknown stays what cannot be measured, or if `folder`
/// is empty.
void measure_model_disk(plan::Machine& machine, ThreadPool& pool, const std::string& folder);

/// plan::this_machine with memory, kernels and stages measured five times (`threads` 0 = the default), and
/// the disk as above. Takes about five seconds. Errors: out_of_memory, unsupported (no kernels for this CPU).
Result<plan::Machine> measure_machine(const std::string& folder, int threads, kernels::Numerics numerics,
                                      int* num_samples = nullptr);

}  // namespace rorqual::tools
