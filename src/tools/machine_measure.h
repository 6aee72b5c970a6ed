// SPDX-License-Identifier: Apache-2.0
// Medians of samples with their spread, and what the machine shows of its memory nodes and graphics cards.
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

struct NodeBandwidth {
  int node = 0;
  int threads = 0;  // CPUs of the node that this process may use
  plan::Rate read;
};

/// Read bandwidth (tools/machine_ceilings.h) of each NUMA node on its own: threads and memory of that node.
/// Empty if there is only one.
std::vector<NodeBandwidth> measure_node_bandwidth(int64_t size_bytes);

/// Names of the graphics cards that the system shows; `note` says what is known of the link to them.
struct GpuList {
  std::vector<std::string> names;
  std::string note;
};

GpuList list_gpus(const std::string& root = "/");

}  // namespace rorqual::tools
