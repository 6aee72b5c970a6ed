// SPDX-License-Identifier: Apache-2.0
#include "base/affinity.h"

#include <sched.h>

#include <algorithm>
#include <cstddef>
#include <fstream>
#include <map>
#include <memory>
#include <set>
#include <string>

namespace rorqual {
namespace {

constexpr int kMaxCpus = 8192;

/// A mask for any number of CPUs that Linux has.
struct CpuMask {
  struct Free {
    void operator()(cpu_set_t* set) const { CPU_FREE(set); }
  };

  CpuMask() : set(CPU_ALLOC(kMaxCpus)) { CPU_ZERO_S(size, set.get()); }

  const size_t size = CPU_ALLOC_SIZE(kMaxCpus);
  std::unique_ptr<cpu_set_t, Free> set;
};

}  // namespace

std::vector<int> thread_cpus() {
  std::vector<int> cpus;
  CpuMask mask;
  if (::sched_getaffinity(0, mask.size, mask.set.get()) != 0) return cpus;
  for (int cpu = 0; cpu < kMaxCpus; ++cpu) {
    if (CPU_ISSET_S(static_cast<size_t>(cpu), mask.size, mask.set.get())) cpus.push_back(cpu);
  }
  return cpus;
}

bool set_thread_cpus(const std::vector<int>& cpus) {
  CpuMask mask;
  for (const int cpu : cpus) {
    if (cpu < 0 || cpu >= kMaxCpus) return false;
    CPU_SET_S(static_cast<size_t>(cpu), mask.size, mask.set.get());
  }
  return ::sched_setaffinity(0, mask.size, mask.set.get()) == 0;
}

std::vector<CpuPlace> thread_cpu_places() {
  std::vector<CpuPlace> places;
  std::map<std::string, int> cores;  // by the list of CPUs that share one
  for (const int cpu : thread_cpus()) {
    std::ifstream file("/sys/devices/system/cpu/cpu" + std::to_string(cpu) +
                       "/topology/thread_siblings_list");
    std::string siblings;
    std::getline(file, siblings);
    if (siblings.empty()) siblings = "cpu " + std::to_string(cpu);  // hidden: a core of its own
    const auto core = cores.emplace(siblings, static_cast<int>(cores.size())).first;
    places.push_back({cpu, core->second});
  }
  return places;
}

CpuDivision divide_cpus(const std::vector<CpuPlace>& places, int compute_threads) {
  std::vector<int> cores;  // in order of appearance
  for (const CpuPlace& place : places) {
    if (std::find(cores.begin(), cores.end(), place.core) == cores.end()) cores.push_back(place.core);
  }
  const auto wanted = static_cast<size_t>(std::max(compute_threads, 0));
  if (wanted == 0 || cores.size() <= wanted) return {};
  std::set<int> free(cores.end() - static_cast<std::ptrdiff_t>(wanted), cores.end());
  const std::set<int> computing = free;
  CpuDivision division;
  for (const CpuPlace& place : places) {
    if (!computing.contains(place.core)) {
      division.rest.push_back(place.cpu);
    } else if (free.erase(place.core) > 0) {
      division.compute.push_back(place.cpu);
    }
  }
  return division;
}

}  // namespace rorqual
