// SPDX-License-Identifier: Apache-2.0
// The vector code sits in functions with a target attribute, so that this file needs no ISA flags of its own.
#include "tools/machine_measure.h"

#include <immintrin.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstring>

#include "base/cpu_info.h"
#include "tensor/buffer.h"

namespace rorqual::tools {
namespace {

constexpr int kPasses = 3;
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

template <class Body>
double best_seconds(const Body& body) {
  double best = 1e30;
  for (int pass = 0; pass < kPasses; ++pass) {
    const auto start = std::chrono::steady_clock::now();
    body();
    best = std::min(best, std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
  }
  return best;
}

}  // namespace

Measure measure_read_bandwidth(ThreadPool& pool, int64_t size_bytes) {
  size_bytes = std::max<int64_t>(size_bytes / kChunkBytes, 1) * kChunkBytes;
  if (!cpu_info().features.avx2) return {};
  auto memory = tensor::Buffer::allocate(size_bytes);
  if (!memory.ok()) return {};
  auto* data = memory->data();
  const int64_t num_chunks = size_bytes / kChunkBytes;
  pool.parallel_for(num_chunks, [&](int64_t chunk, int) {
    std::memset(data + chunk * kChunkBytes, static_cast<int>(chunk & 0x7F), static_cast<size_t>(kChunkBytes));
  });
  const double seconds = best_seconds([&] {
    pool.parallel_for(
        num_chunks, [&](int64_t chunk, int) { g_sink += read_all(data + chunk * kChunkBytes, kChunkBytes); });
  });
  return {static_cast<double>(size_bytes) / seconds, seconds};
}

Measure measure_fma_rate(ThreadPool& pool) {
  constexpr int64_t kRounds = 4'000'000;
  constexpr double kOperationsPerRound = 12 * 8 * 2;
  const auto& features = cpu_info().features;
  if (!features.avx2 || !features.fma) return {};
  const int threads = pool.num_threads();
  const double seconds = best_seconds(
      [&] { pool.parallel_for(threads, [](int64_t, int) { g_sink += multiply_add(kRounds) > 0 ? 1 : 0; }); });
  return {static_cast<double>(kRounds) * kOperationsPerRound * threads / seconds, seconds};
}

}  // namespace rorqual::tools
