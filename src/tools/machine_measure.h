// SPDX-License-Identifier: Apache-2.0
// Measures of the machine that need no model: how fast memory is read and numbers are multiplied.
// Medians of five samples with their spread.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/thread_pool.h"
#include "plan/machine.h"

namespace rorqual::tools {

inline constexpr int kMeasureRepeats = 5;

/// Median of the samples, and half their range relative to it. Empty = unknown.
plan::Rate rate_of(std::vector<double> samples);

/// Bytes per second that all threads read together from `size_bytes` of memory. Unknown if the memory cannot
/// be had or the CPU has no AVX2.
plan::Rate measure_read_bandwidth(ThreadPool& pool, int64_t size_bytes, int repeats = kMeasureRepeats);

struct NodeBandwidth {
  int node = 0;
  int threads = 0;  // CPUs of the node that this process may use
  plan::Rate read;
};

/// The same for each NUMA node on its own: threads and memory of that node. Empty if there is only one.
std::vector<NodeBandwidth> measure_node_bandwidth(int64_t size_bytes);

/// F32 operations per second of 256-bit fused multiply-adds (two operations each) on all threads. Unknown on
/// a CPU without AVX2 and FMA.
plan::Rate measure_fma_rate(ThreadPool& pool);

/// Names of the graphics cards that the system shows; `note` says what is known of the link to them.
struct GpuList {
  std::vector<std::string> names;
  std::string note;
};

GpuList list_gpus(const std::string& root = "/");

}  // namespace rorqual::tools
