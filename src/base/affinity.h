// SPDX-License-Identifier: Apache-2.0
// Which CPUs threads may run on, and how the CPUs are divided between compute threads and the rest.
#pragma once

#include <vector>

namespace rorqual {

/// CPUs that the calling thread may run on, ascending; empty if the system does not tell.
std::vector<int> thread_cpus();

/// Lets the calling thread run on `cpus` only; threads that it makes later inherit that. False if the system
/// refuses; the thread then stays where it was.
bool set_thread_cpus(const std::vector<int>& cpus);

/// A CPU and the physical core that it belongs to.
struct CpuPlace {
  int cpu = 0;
  int core = 0;  // the same number for CPUs that share a core
};

/// The calling thread's CPUs with their cores.
std::vector<CpuPlace> thread_cpu_places();

/// Disjoint sets of CPUs.
struct CpuDivision {
  std::vector<int> compute;  // one CPU of each core
  std::vector<int> rest;     // CPUs of the other cores
};

/// Cores for `compute_threads` threads, the lowest ones stay with the rest of the program. Both sets are
/// empty when there is no core beside the compute threads': then nothing can be kept apart.
CpuDivision divide_cpus(const std::vector<CpuPlace>& places, int compute_threads);

}  // namespace rorqual
