// SPDX-License-Identifier: Apache-2.0
// The vector code sits in functions with a target attribute, so that this file needs no ISA flags of its own.
#include "tools/machine_measure.h"

#include <immintrin.h>
#include <sched.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <string_view>
#include <thread>
#include <utility>

#include "base/cpu_info.h"
#include "tensor/buffer.h"

namespace rorqual::tools {
namespace {

constexpr int64_t kChunkBytes = 4 << 20;

/// Keeps results alive so that the loops are not removed.
std::atomic<uint64_t> g_sink{0};

__attribute__((target("avx2"))) uint64_t read_all(const std::byte* data, int64_t size_bytes) {
  __m256i a = _mm256_setzero_si256(), b = a, c = a, d = a;
  for (int64_t i = 0; i + 128 <= size_bytes; i += 128) {
    const auto* p = reinterpret_cast<const __m256i*>(data + i);
    a = _mm256_xor_si256(a, _mm256_load_si256(p));
    b = _mm256_xor_si256(b, _mm256_load_si256(p + 1));
    c = _mm256_xor_si256(c, _mm256_load_si256(p + 2));
    d = _mm256_xor_si256(d, _mm256_load_si256(p + 3));
  }
  const auto sum = _mm256_xor_si256(_mm256_xor_si256(a, b), _mm256_xor_si256(c, d));
  return static_cast<uint64_t>(_mm256_extract_epi64(sum, 0)) ^
         static_cast<uint64_t>(_mm256_extract_epi64(sum, 2));
}

/// Twelve independent chains hide the latency of the two FMA units.
__attribute__((target("avx2,fma"))) float multiply_add(int64_t rounds) {
  constexpr int kChains = 12;
  __m256 chains[kChains];
  for (int i = 0; i < kChains; ++i) chains[i] = _mm256_set1_ps(static_cast<float>(i));
  const auto x = _mm256_set1_ps(0.999F), y = _mm256_set1_ps(0.001F);
  for (int64_t round = 0; round < rounds; ++round) {
#pragma GCC unroll 12
    for (int i = 0; i < kChains; ++i) chains[i] = _mm256_fmadd_ps(chains[i], x, y);
  }
  for (int i = 1; i < kChains; ++i) chains[0] = _mm256_add_ps(chains[0], chains[i]);
  return _mm256_cvtss_f32(chains[0]);
}

/// Units per second of `repeats` runs of a body that does `units`.
template <class Body>
plan::Rate repeat(int repeats, double units, const Body& body) {
  std::vector<double> rates;
  for (int i = 0; i < repeats; ++i) {
    const auto start = std::chrono::steady_clock::now();
    body();
    rates.push_back(units / std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
  }
  return rate_of(std::move(rates));
}

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

plan::Rate measure_read_bandwidth(ThreadPool& pool, int64_t size_bytes, int repeats) {
  size_bytes = std::max<int64_t>(size_bytes / kChunkBytes, 1) * kChunkBytes;
  if (!cpu_info().features.avx2) return {};
  auto memory = tensor::Buffer::allocate(size_bytes);
  if (!memory.ok()) return {};
  auto* data = memory->data();
  const int64_t num_chunks = size_bytes / kChunkBytes;
  pool.parallel_for(num_chunks, [&](int64_t chunk, int) {
    std::memset(data + chunk * kChunkBytes, static_cast<int>(chunk & 0x7F), static_cast<size_t>(kChunkBytes));
  });
  return repeat(repeats, static_cast<double>(size_bytes), [&] {
    pool.parallel_for(
        num_chunks, [&](int64_t chunk, int) { g_sink += read_all(data + chunk * kChunkBytes, kChunkBytes); });
  });
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
      result.read = measure_read_bandwidth(pool, size_bytes);
    }).join();
    nodes.push_back(result);
  }
  if (nodes.size() < 2) nodes.clear();
  return nodes;
}

plan::Rate measure_fma_rate(ThreadPool& pool) {
  constexpr int64_t kRounds = 4'000'000;
  constexpr double kOperationsPerRound = 12 * 8 * 2;
  const auto& features = cpu_info().features;
  if (!features.avx2 || !features.fma) return {};
  const int threads = pool.num_threads();
  return repeat(kMeasureRepeats, static_cast<double>(kRounds) * kOperationsPerRound * threads, [&] {
    pool.parallel_for(threads, [](int64_t, int) { g_sink += multiply_add(kRounds) > 0 ? 1 : 0; });
  });
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
