// SPDX-License-Identifier: Apache-2.0
// What this process may use of the machine: instruction sets, cores, memory; cpusets and cgroup limits
// included.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace rorqual {

struct CpuFeatures {
  bool avx2 = false, fma = false, f16c = false;
  bool avx512f = false, avx512bw = false, avx512vl = false, avx512dq = false;
  bool avx512_vnni = false, avx512_vbmi = false, avx512_bf16 = false, avx512_fp16 = false;
  bool avx_vnni = false;
  bool amx_tile = false, amx_int8 = false, amx_bf16 = false;
};

struct CpuInfo {
  std::string model_name;              // "" if the system does not tell
  CpuFeatures features;                // only those that the operating system has enabled as well
  int logical_cpus = 1;                // of the machine
  int physical_cores = 1;              // of the machine
  int usable_cpus = 1;                 // in this process's affinity mask (cpuset)
  int usable_cores = 1;                // physical cores behind usable_cpus
  double cgroup_cpus = 0;              // cgroup quota in CPUs, 0 = none
  int64_t l2_bytes = 0, l3_bytes = 0;  // 0 if unknown
};

/// Read once, at the first call. Any thread.
const CpuInfo& cpu_info();

/// Threads that pay for compute: physical cores of the affinity mask, not more than the cgroup quota; at
/// least 1.
int default_compute_threads(const CpuInfo& info);

struct MemoryInfo {
  int64_t total_bytes = 0;      // of the machine
  int64_t available_bytes = 0;  // what can be had without swapping, the cgroup's room included
  std::optional<int64_t> cgroup_limit_bytes;
};

/// Read at each call.
MemoryInfo memory_info();

/// Limits of the calling process's cgroup (v2 or v1) and its ancestors, the tightest one; `root` is "/"
/// outside tests.
struct CgroupLimits {
  double cpus = 0;  // 0 = none
  std::optional<int64_t> memory_bytes, memory_used_bytes;
};

CgroupLimits read_cgroup_limits(const std::string& root);

}  // namespace rorqual
