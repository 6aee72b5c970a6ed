// SPDX-License-Identifier: Apache-2.0
#include "base/cpu_info.h"

#include <cpuid.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <fstream>
#include <set>
#include <sstream>
#include <string_view>
#include <vector>

#include "base/affinity.h"

namespace rorqual {
namespace {

bool bit(unsigned value, int index) {
  return ((value >> index) & 1U) != 0;
}

/// XCR0: which register files the operating system saves. Without it an instruction set must not be used.
uint64_t enabled_register_state() {
  unsigned low = 0;
  unsigned high = 0;
  __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
  return (uint64_t{high} << 32) | low;
}

CpuFeatures read_features() {
  CpuFeatures features;
  unsigned a = 0;
  unsigned b = 0;
  unsigned c = 0;
  unsigned d = 0;
  if (__get_cpuid(1, &a, &b, &c, &d) == 0 || !bit(c, 27)) return features;  // 27: OSXSAVE
  constexpr uint64_t kYmm = 0x6;
  constexpr uint64_t kZmm = 0xe6;
  constexpr uint64_t kTiles = 0x60000;
  const uint64_t state = enabled_register_state();
  const bool ymm = (state & kYmm) == kYmm;
  const bool zmm = (state & kZmm) == kZmm;
  const bool tiles = (state & kTiles) == kTiles;
  features.fma = ymm && bit(c, 12);
  features.f16c = ymm && bit(c, 29);
  if (__get_cpuid_count(7, 0, &a, &b, &c, &d) == 0) return features;
  features.avx2 = ymm && bit(b, 5);
  features.avx512f = zmm && bit(b, 16);
  features.avx512dq = zmm && bit(b, 17);
  features.avx512bw = zmm && bit(b, 30);
  features.avx512vl = zmm && bit(b, 31);
  features.avx512_vbmi = zmm && bit(c, 1);
  features.avx512_vnni = zmm && bit(c, 11);
  features.avx512_fp16 = zmm && bit(d, 23);
  features.amx_bf16 = tiles && bit(d, 22);
  features.amx_tile = tiles && bit(d, 24);
  features.amx_int8 = tiles && bit(d, 25);
  if (a >= 1 && __get_cpuid_count(7, 1, &a, &b, &c, &d) != 0) {
    features.avx_vnni = ymm && bit(a, 4);
    features.avx512_bf16 = zmm && bit(a, 5);
  }
  return features;
}

std::string first_line(const std::string& path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  while (!line.empty() && (line.back() == ' ' || line.back() == '\r')) line.pop_back();
  return line;
}

std::optional<int64_t> parse_int(std::string_view text) {
  int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end == text.data()) return std::nullopt;
  return value;
}

std::optional<int64_t> int_of_file(const std::string& path) {
  return parse_int(first_line(path));
}

std::string read_model_name() {
  std::ifstream file("/proc/cpuinfo");
  std::string line;
  while (std::getline(file, line)) {
    if (line.rfind("model name", 0) != 0) continue;
    const size_t colon = line.find(": ");
    return colon == std::string::npos ? "" : line.substr(colon + 2);
  }
  return "";
}

/// Bytes of the data or unified cache of `level` that CPU 0 uses.
int64_t cache_bytes(int level) {
  for (int index = 0; index < 8; ++index) {
    const std::string folder = fmt::format("/sys/devices/system/cpu/cpu0/cache/index{}/", index);
    if (int_of_file(folder + "level") != level || first_line(folder + "type") == "Instruction") continue;
    const std::string size = first_line(folder + "size");
    const auto value = parse_int(size);
    if (!value) return 0;
    const int shift = size.back() == 'K' ? 10 : size.back() == 'M' ? 20 : 0;
    return *value << shift;
  }
  return 0;
}

/// Distinct physical cores behind `cpus`. A CPU whose topology is hidden counts as a core of its own.
int count_cores(const std::vector<int>& cpus) {
  std::set<std::string> cores;
  for (const int cpu : cpus) {
    const std::string folder = fmt::format("/sys/devices/system/cpu/cpu{}/topology/", cpu);
    const std::string siblings = first_line(folder + "thread_siblings_list");
    cores.insert(siblings.empty() ? fmt::format("cpu {}", cpu) : siblings);
  }
  return std::max(1, static_cast<int>(cores.size()));
}

/// Path of the process's cgroup for `controller`; "" asks for the v2 hierarchy.
std::string cgroup_path(const std::string& root, std::string_view controller) {
  std::ifstream file(root + "proc/self/cgroup");
  std::string line;
  while (std::getline(file, line)) {
    const size_t first = line.find(':');
    const size_t second = first == std::string::npos ? first : line.find(':', first + 1);
    if (second == std::string::npos) continue;
    std::istringstream controllers(line.substr(first + 1, second - first - 1));
    std::string name;
    bool found = controller.empty() && second == first + 1;
    while (!controller.empty() && std::getline(controllers, name, ',')) found = found || name == controller;
    if (found) return line.substr(second + 1);
  }
  return "";
}

void tighten(double& limit, double value) {
  if (value > 0) limit = limit > 0 ? std::min(limit, value) : value;
}

/// Memory of a cgroup that the kernel does not give back when it is needed: cached files do not count, and a
/// download fills the cache up to the limit. `prefix`: version 1 has sums over children as "total_…".
std::optional<int64_t> used_memory(const std::string& folder, const char* file, const std::string& prefix) {
  std::optional<int64_t> used = int_of_file(folder + file);
  if (!used) return used;
  std::ifstream stat(folder + "memory.stat");
  std::string key;
  int64_t value = 0, cached = 0;
  while (stat >> key >> value) {
    if (key == prefix + "inactive_file" || key == prefix + "active_file")
      cached += std::max<int64_t>(value, 0);
  }
  return std::max<int64_t>(0, *used - std::min(cached, *used));
}

/// The limit that leaves the least room is kept.
void tighten_memory(CgroupLimits& limits, std::optional<int64_t> limit, std::optional<int64_t> used) {
  constexpr int64_t kUnlimited_bytes = int64_t{1} << 60;  // v1 writes "none" as a number near 2^63
  if (!limit || *limit >= kUnlimited_bytes) return;
  if (limits.memory_bytes &&
      *limits.memory_bytes - limits.memory_used_bytes.value_or(0) <= *limit - used.value_or(0)) {
    return;
  }
  limits.memory_bytes = limit;
  limits.memory_used_bytes = used;
}

/// "max 100000" or "150000 100000".
double cpus_of_cpu_max(const std::string& text) {
  const size_t space = text.find(' ');
  if (space == std::string::npos) return 0;
  const auto quota = parse_int(text);
  const auto period = parse_int(std::string_view(text).substr(space + 1));
  return quota && period && *period > 0 ? static_cast<double>(*quota) / static_cast<double>(*period) : 0;
}

/// Calls visit(folder) for mount + path and each ancestor down to the mount itself.
template <class Visit>
void for_each_ancestor(const std::string& mount, std::string path, const Visit& visit) {
  constexpr int kMaxDepth = 64;
  for (int depth = 0; depth < kMaxDepth; ++depth) {
    while (!path.empty() && path.back() == '/') path.pop_back();
    visit(mount + path + "/");
    if (path.empty()) return;
    path.resize(path.rfind('/') == std::string::npos ? 0 : path.rfind('/'));
  }
}

}  // namespace

CgroupLimits read_cgroup_limits(const std::string& root) {
  CgroupLimits limits;
  const std::string mount = root + "sys/fs/cgroup";
  const auto visit_v2 = [&](const std::string& folder) {
    tighten(limits.cpus, cpus_of_cpu_max(first_line(folder + "cpu.max")));
    tighten_memory(limits, int_of_file(folder + "memory.max"), used_memory(folder, "memory.current", ""));
  };
  for_each_ancestor(mount, cgroup_path(root, ""), visit_v2);
  for_each_ancestor(mount + "/memory", cgroup_path(root, "memory"), [&](const std::string& folder) {
    tighten_memory(limits, int_of_file(folder + "memory.limit_in_bytes"),
                   used_memory(folder, "memory.usage_in_bytes", "total_"));
  });
  for (const char* name : {"/cpu", "/cpu,cpuacct"}) {
    for_each_ancestor(mount + name, cgroup_path(root, "cpu"), [&](const std::string& folder) {
      const auto quota = int_of_file(folder + "cpu.cfs_quota_us");
      const auto period = int_of_file(folder + "cpu.cfs_period_us");
      if (quota && period && *quota > 0 && *period > 0) {
        tighten(limits.cpus, static_cast<double>(*quota) / static_cast<double>(*period));
      }
    });
  }
  return limits;
}

const CpuInfo& cpu_info() {
  static const CpuInfo info = [] {
    CpuInfo result;
    result.model_name = read_model_name();
    result.features = read_features();
    result.logical_cpus = std::max(1, static_cast<int>(::sysconf(_SC_NPROCESSORS_ONLN)));
    std::vector<int> all(static_cast<size_t>(result.logical_cpus));
    for (size_t i = 0; i < all.size(); ++i) all[i] = static_cast<int>(i);
    result.physical_cores = count_cores(all);
    const std::vector<int> usable = thread_cpus();
    result.usable_cpus = usable.empty() ? result.logical_cpus : static_cast<int>(usable.size());
    result.usable_cores = usable.empty() ? result.physical_cores : count_cores(usable);
    result.cgroup_cpus = read_cgroup_limits("/").cpus;
    result.l2_bytes = cache_bytes(2);
    result.l3_bytes = cache_bytes(3);
    return result;
  }();
  return info;
}

int default_compute_threads(const CpuInfo& info) {
  int threads = std::max(1, info.usable_cores);
  // A quota of 1.5 CPUs pays for two threads only half of the time: more threads than quota stall all at each
  // barrier.
  if (info.cgroup_cpus > 0)
    threads = std::min(threads, std::max(1, static_cast<int>(std::floor(info.cgroup_cpus))));
  return threads;
}

MemoryInfo memory_info() {
  MemoryInfo result;
  std::ifstream file("/proc/meminfo");
  std::string key;
  std::string line;
  while (std::getline(file, line)) {
    std::istringstream fields(line);
    int64_t kibibytes = 0;
    if (!(fields >> key >> kibibytes)) continue;
    if (key == "MemTotal:") result.total_bytes = kibibytes * 1024;
    if (key == "MemAvailable:") result.available_bytes = kibibytes * 1024;
  }
  const CgroupLimits limits = read_cgroup_limits("/");
  result.cgroup_limit_bytes = limits.memory_bytes;
  if (limits.memory_bytes) {
    const int64_t room = std::max<int64_t>(0, *limits.memory_bytes - limits.memory_used_bytes.value_or(0));
    result.available_bytes = std::min(result.available_bytes, room);
  }
  return result;
}

}  // namespace rorqual
