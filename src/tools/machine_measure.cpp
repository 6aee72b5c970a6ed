// SPDX-License-Identifier: Apache-2.0
#include "tools/machine_measure.h"

#include <sched.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <string_view>
#include <thread>

#include "tools/machine_ceilings.h"

namespace rorqual::tools {
namespace {

/// CPUs of a NUMA node that this process may use.
cpu_set_t node_cpus(int node) {
  cpu_set_t allowed, cpus;
  CPU_ZERO(&allowed);
  CPU_ZERO(&cpus);
  if (sched_getaffinity(0, sizeof(allowed), &allowed) != 0) return cpus;
  std::ifstream file("/sys/devices/system/node/node" + std::to_string(node) + "/cpulist");
  std::string ranges;
  std::getline(file, ranges);
  for (size_t at = 0; at < ranges.size();) {
    const size_t comma = std::min(ranges.find(',', at), ranges.size());
    int first = 0, last = 0;
    const std::string range = ranges.substr(at, comma - at);
    const int fields = std::sscanf(range.c_str(), "%d-%d", &first, &last);
    if (fields == 1) last = first;
    for (int cpu = first; fields >= 1 && cpu <= last && cpu < CPU_SETSIZE; ++cpu) {
      if (CPU_ISSET(static_cast<size_t>(cpu), &allowed)) CPU_SET(static_cast<size_t>(cpu), &cpus);
    }
    at = comma + 1;
  }
  return cpus;
}

}  // namespace

plan::Rate rate_of(std::vector<double> samples) {
  if (samples.empty()) return {};
  std::sort(samples.begin(), samples.end());
  const size_t middle = samples.size() / 2;
  const double median =
      samples.size() % 2 == 1 ? samples[middle] : (samples[middle - 1] + samples[middle]) / 2;
  const double spread = median > 0 ? (samples.back() - samples.front()) / (2 * median) : 0;
  return {.value = median, .spread = spread, .measured = true};
}

std::vector<NodeBandwidth> measure_node_bandwidth(int64_t size_bytes) {
  std::vector<NodeBandwidth> nodes;
  for (int node = 0;; ++node) {
    if (!std::filesystem::exists("/sys/devices/system/node/node" + std::to_string(node))) break;
    const cpu_set_t cpus = node_cpus(node);
    const int threads = CPU_COUNT(&cpus);
    if (threads == 0) continue;
    NodeBandwidth result{.node = node, .threads = threads, .read = {}};
    // Threads of the pool inherit the affinity of the thread that makes it, and memory lies where it is
    // written first.
    std::thread([&] {
      if (sched_setaffinity(0, sizeof(cpus), &cpus) != 0) return;
      ThreadPool pool(threads);
      result.read = measure_read_bandwidth(pool, size_bytes, kMeasureRepeats);
    }).join();
    nodes.push_back(result);
  }
  if (nodes.size() < 2) nodes.clear();
  return nodes;
}

GpuList list_gpus(const std::string& root) {
  GpuList list;
  std::error_code error;
  std::filesystem::directory_iterator cards(root + "proc/driver/nvidia/gpus", error), end;
  for (; !error && cards != end; cards.increment(error)) {
    std::ifstream file(cards->path() / "information");
    std::string line;
    while (std::getline(file, line)) {
      constexpr std::string_view kModel = "Model:";
      if (line.rfind(kModel, 0) != 0) continue;
      const size_t begin = line.find_first_not_of(" \t", kModel.size());
      if (begin != std::string::npos) list.names.push_back(line.substr(begin));
    }
  }
  std::sort(list.names.begin(), list.names.end());
  list.note = list.names.empty() ? "no GPU: the system shows no NVIDIA driver"
                                 : "link not measured: this version computes on CPUs only";
  return list;
}

}  // namespace rorqual::tools
