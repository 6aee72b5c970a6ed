// SPDX-License-Identifier: Apache-2.0
#include "tools/measured_machine.h"

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <utility>

#include "base/check.h"
#include "base/cpu_info.h"
#include "tools/disk_measure.h"
#include "tools/kernel_rates.h"
#include "tools/machine_measure.h"

namespace rorqual::tools {
namespace {

constexpr double kSampleSeconds = 0.02;
constexpr double kLoneSpread = 0.5;               // of one sample: nothing says how far it is off
constexpr std::chrono::seconds kMeasureLimit{6};  // no further sample after that

/// Median over the samples of the rate that `get` names.
template <class Get>
plan::Rate median_of(const std::vector<RateSample>& samples, const Get& get) {
  std::vector<double> values;
  for (const RateSample& sample : samples) {
    const plan::Rate& rate = get(sample);
    if (rate.value > 0) values.push_back(rate.value);
  }
  const bool is_lone = values.size() == 1;
  plan::Rate rate = rate_of(std::move(values));
  if (is_lone) rate.spread = kLoneSpread;
  return rate;
}

}  // namespace

Result<RateSample> sample_rates(ThreadPool& pool, const ReadProbe* probe, const kernels::KernelTable& table,
                                kernels::Numerics numerics) {
  KernelRateOptions options;
  options.kernels = &table;
  options.numerics = numerics;
  options.repeats = 1;
  options.sample_seconds = kSampleSeconds;
  RateSample sample;
  // Larger than the caches, but never more than an eighth of what is free.
  const int64_t room = memory_info().available_bytes / 8;
  options.weight_bytes = std::min(room, std::max<int64_t>(int64_t{256} << 20, 2 * cpu_info().l3_bytes));
  if (probe != nullptr) sample.ram_read = rate_of({probe->sample(pool)});
  RORQUAL_TRY_ASSIGN(sample.kernels, measure_kernel_rates(pool, options));
  RORQUAL_TRY_ASSIGN(sample.stages, measure_stage_rates(pool, options));
  return sample;
}

void apply_samples(plan::Machine& machine, const std::vector<RateSample>& samples) {
  RORQUAL_CHECK(!samples.empty());
  machine.ram_read = median_of(samples, [](const RateSample& s) { return s.ram_read; });
  machine.kernels = samples.front().kernels;
  for (size_t i = 0; i < machine.kernels.size(); ++i) {
    plan::KernelRate& rate = machine.kernels[i];
    rate.one_row = median_of(samples, [&](const RateSample& s) { return s.kernels[i].one_row; });
    rate.few_rows = median_of(samples, [&](const RateSample& s) { return s.kernels[i].few_rows; });
    rate.many_rows = median_of(samples, [&](const RateSample& s) { return s.kernels[i].many_rows; });
  }
  machine.stages = samples.front().stages;
  for (size_t i = 0; i < machine.stages.size(); ++i) {
    plan::StageRate& rate = machine.stages[i];
    rate.one_row = median_of(samples, [&](const RateSample& s) { return s.stages[i].one_row; });
    rate.many_rows = median_of(samples, [&](const RateSample& s) { return s.stages[i].many_rows; });
  }
}

void measure_model_disk(plan::Machine& machine, ThreadPool& pool, const std::string& folder) {
  if (folder.empty()) return;
  const auto disk = measure_disk(pool, folder);
  if (!disk.ok()) return;  // unknown
  machine.disk_read = disk->sequential;
  machine.disk_random = disk->random;
}

Result<plan::Machine> measure_machine(const std::string& folder, int threads, kernels::Numerics numerics,
                                      int* num_samples) {
  const auto* table = kernels::select_kernels();
  if (table == nullptr)
    return Error(Code::unsupported, "no kernels for this CPU", "rorqual needs AVX2 and FMA");
  plan::Machine machine = plan::this_machine(folder);
  if (threads > 0) machine.threads = threads;
  ThreadPool pool(machine.threads);
  const auto probe = ReadProbe::create(pool, ReadProbe::default_bytes());
  std::vector<RateSample> samples;
  // Slow tiers get fewer samples, so that the whole stays bounded.
  const auto start = std::chrono::steady_clock::now();
  for (int i = 0; i < kMeasureRepeats; ++i) {
    if (i > 0 && std::chrono::steady_clock::now() - start > kMeasureLimit) break;
    RORQUAL_TRY_ASSIGN(auto sample, sample_rates(pool, probe.ok() ? &*probe : nullptr, *table, numerics));
    samples.push_back(std::move(sample));
  }
  apply_samples(machine, samples);
  if (num_samples != nullptr) *num_samples = static_cast<int>(samples.size());
  measure_model_disk(machine, pool, folder);
  return machine;
}

}  // namespace rorqual::tools
