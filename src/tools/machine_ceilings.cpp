// SPDX-License-Identifier: Apache-2.0
// The vector code sits in functions with a target attribute, so that this file needs no ISA flags of its own.
#include "tools/machine_ceilings.h"

#include <immintrin.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstring>
#include <utility>
#include <vector>

#include "base/cpu_info.h"
#include "tools/machine_measure.h"

namespace rorqual::tools {
namespace {

constexpr int64_t kPieceBytes = 4 << 20;  // least length of a stream
constexpr int64_t kStreamsPerThread = 4;  // a thread that is interrupted leaves some to the others
constexpr int64_t kLeastReadBytes = int64_t{512} << 20;
constexpr int64_t kChunksPerThread = 8;

/// Keeps results alive so that the loops are not removed.
std::atomic<uint64_t> g_sink{0};

double seconds_now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

// ------------------------------------------------------------------------------------------------ memory
/// `size_bytes` is a multiple of 256. Prefetches may reach behind the end; they never fault.
__attribute__((target("avx2"))) uint64_t read_stream(const std::byte* data, int64_t size_bytes) {
  constexpr int64_t kAhead = 4096;
  constexpr int kLanes = 8;
  __m256i sums[kLanes];
  for (auto& sum : sums) sum = _mm256_setzero_si256();
  for (int64_t i = 0; i < size_bytes; i += 256) {
    for (int64_t line = 0; line < 256; line += 64) {
      _mm_prefetch(reinterpret_cast<const char*>(data) + i + kAhead + line, _MM_HINT_T0);
    }
    for (int lane = 0; lane < kLanes; ++lane) {
      const auto* at = reinterpret_cast<const __m256i*>(data + i + 32 * lane);
      sums[lane] = _mm256_xor_si256(sums[lane], _mm256_load_si256(at));
    }
  }
  for (int lane = 1; lane < kLanes; ++lane) sums[0] = _mm256_xor_si256(sums[0], sums[lane]);
  return static_cast<uint64_t>(_mm256_extract_epi64(sums[0], 0)) ^
         static_cast<uint64_t>(_mm256_extract_epi64(sums[0], 2));
}

/// Calls body(begin, size) for each stream, in parallel.
template <class Body>
void for_streams(ThreadPool& pool, int64_t size_bytes, const Body& body) {
  const int64_t pieces = size_bytes / kPieceBytes;
  const int64_t streams = std::min(pieces, kStreamsPerThread * pool.num_threads());
  pool.parallel_for(streams, [&](int64_t stream, int) {
    const int64_t begin = pieces * stream / streams, end = pieces * (stream + 1) / streams;
    body(begin * kPieceBytes, (end - begin) * kPieceBytes);
  });
}

// ------------------------------------------------------------------------------------------------ arithmetic
// Each body does `rounds` rounds on enough independent chains to hide the latency of its unit.
constexpr int kFmaChains = 12;
constexpr int kDotChains = 12;
constexpr int kByteChains = 3;  // of four products each: what the registers hold

__attribute__((target("avx2,fma"))) void fma_256(int64_t rounds) {
  __m256 chains[kFmaChains];
  for (int i = 0; i < kFmaChains; ++i) chains[i] = _mm256_set1_ps(static_cast<float>(i));
  const auto x = _mm256_set1_ps(0.999F), y = _mm256_set1_ps(0.001F);
  for (int64_t round = 0; round < rounds; ++round) {
#pragma GCC unroll 12
    for (auto& chain : chains) chain = _mm256_fmadd_ps(chain, x, y);
  }
  for (int i = 1; i < kFmaChains; ++i) chains[0] = _mm256_add_ps(chains[0], chains[i]);
  g_sink += _mm256_cvtss_f32(chains[0]) > 0 ? 1 : 0;
}

__attribute__((target("avx512f"))) void fma_512(int64_t rounds) {
  __m512 chains[kFmaChains];
  for (int i = 0; i < kFmaChains; ++i) chains[i] = _mm512_set1_ps(static_cast<float>(i));
  const auto x = _mm512_set1_ps(0.999F), y = _mm512_set1_ps(0.001F);
  for (int64_t round = 0; round < rounds; ++round) {
#pragma GCC unroll 12
    for (auto& chain : chains) chain = _mm512_fmadd_ps(chain, x, y);
  }
  for (int i = 1; i < kFmaChains; ++i) chains[0] = _mm512_add_ps(chains[0], chains[i]);
  g_sink += _mm512_cvtss_f32(chains[0]) > 0 ? 1 : 0;
}

/// Four byte products in 16 bits before they widen: legal for weights of up to 5 bits (4·2·24·127 < 2^15),
/// which is what FP4 weights are. The assembler statement keeps the products inside the loop.
__attribute__((target("avx2"))) void byte_dot_256(int64_t rounds) {
  __m256i weights[4], sums[kByteChains];
  for (int i = 0; i < 4; ++i) weights[i] = _mm256_set1_epi8(static_cast<char>(i + 20));
  for (auto& sum : sums) sum = _mm256_setzero_si256();
  const auto x = _mm256_set1_epi8(-3), ones = _mm256_set1_epi16(1);
  for (int64_t round = 0; round < rounds; ++round) {
#pragma GCC unroll 3
    for (auto& sum : sums) {
      __asm__ volatile("" : "+x"(weights[0]), "+x"(weights[1]), "+x"(weights[2]), "+x"(weights[3]));
      const auto left =
          _mm256_add_epi16(_mm256_maddubs_epi16(weights[0], x), _mm256_maddubs_epi16(weights[1], x));
      const auto right =
          _mm256_add_epi16(_mm256_maddubs_epi16(weights[2], x), _mm256_maddubs_epi16(weights[3], x));
      sum = _mm256_add_epi32(sum, _mm256_madd_epi16(_mm256_add_epi16(left, right), ones));
    }
  }
  for (int i = 1; i < kByteChains; ++i) sums[0] = _mm256_add_epi32(sums[0], sums[i]);
  g_sink += static_cast<uint64_t>(_mm256_extract_epi64(sums[0], 0));
}

__attribute__((target("avxvnni"))) void vnni_256(int64_t rounds) {
  __m256i sums[kDotChains];
  for (auto& sum : sums) sum = _mm256_setzero_si256();
  const auto w = _mm256_set1_epi8(7), x = _mm256_set1_epi8(-3);
  for (int64_t round = 0; round < rounds; ++round) {
#pragma GCC unroll 12
    for (auto& sum : sums) sum = _mm256_dpbusd_avx_epi32(sum, w, x);
  }
  for (int i = 1; i < kDotChains; ++i) sums[0] = _mm256_add_epi32(sums[0], sums[i]);
  g_sink += static_cast<uint64_t>(_mm256_extract_epi64(sums[0], 0));
}

__attribute__((target("avx512f,avx512vnni"))) void vnni_512(int64_t rounds) {
  __m512i sums[kDotChains];
  for (auto& sum : sums) sum = _mm512_setzero_si512();
  const auto w = _mm512_set1_epi8(7), x = _mm512_set1_epi8(-3);
  for (int64_t round = 0; round < rounds; ++round) {
#pragma GCC unroll 12
    for (auto& sum : sums) sum = _mm512_dpbusd_epi32(sum, w, x);
  }
  for (int i = 1; i < kDotChains; ++i) sums[0] = _mm512_add_epi32(sums[0], sums[i]);
  alignas(64) uint64_t words[8];
  _mm512_store_si512(words, sums[0]);
  g_sink += words[0];
}

/// Eight full tiles: 0 to 3 are sums, 4 to 7 operands.
struct alignas(64) TileConfig {
  uint8_t palette = 1, start_row = 0;
  uint8_t reserved[14] = {};
  uint16_t row_bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
  uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
};

__attribute__((target("amx-tile"))) void load_tiles() {
  alignas(64) static const uint8_t kZeros[1024] = {};
  const TileConfig config;
  _tile_loadconfig(&config);
  _tile_zero(0);
  _tile_zero(1);
  _tile_zero(2);
  _tile_zero(3);
  _tile_loadd(4, kZeros, 64);
  _tile_loadd(5, kZeros, 64);
  _tile_loadd(6, kZeros, 64);
  _tile_loadd(7, kZeros, 64);
}

__attribute__((target("amx-tile,amx-int8"))) void int8_tiles(int64_t rounds) {
  load_tiles();
  for (int64_t round = 0; round < rounds; ++round) {
    _tile_dpbssd(0, 4, 6);
    _tile_dpbssd(1, 4, 7);
    _tile_dpbssd(2, 5, 6);
    _tile_dpbssd(3, 5, 7);
  }
  _tile_release();
}

__attribute__((target("amx-tile,amx-bf16"))) void bf16_tiles(int64_t rounds) {
  load_tiles();
  for (int64_t round = 0; round < rounds; ++round) {
    _tile_dpbf16ps(0, 4, 6);
    _tile_dpbf16ps(1, 4, 7);
    _tile_dpbf16ps(2, 5, 6);
    _tile_dpbf16ps(3, 5, 7);
  }
  _tile_release();
}

/// Linux gives the tile registers to a process that asks for them, once.
bool tiles_granted() {
  static const bool kGranted = [] {
    constexpr long kRequestPermission = 0x1023, kTileData = 18;  // ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA
    return ::syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
  }();
  return kGranted;
}

struct PeakBody {
  const char* instructions = "";
  void (*run)(int64_t rounds) = nullptr;  // null: no such unit
  int64_t rounds = 0;                     // about a millisecond
  double operations = 0;                  // of a round
};

PeakBody body_of(Peak peak) {
  const CpuFeatures& cpu = cpu_info().features;
  switch (peak) {
    case Peak::f32_fma:
      if (cpu.avx512f) return {"512-bit vfmadd", fma_512, 400'000, kFmaChains * 16 * 2};
      if (cpu.avx2 && cpu.fma) return {"256-bit vfmadd", fma_256, 400'000, kFmaChains * 8 * 2};
      break;
    case Peak::int8_dot:
      if (cpu.avx512_vnni) return {"512-bit vpdpbusd", vnni_512, 200'000, kDotChains * 64 * 2};
      if (cpu.avx_vnni) return {"256-bit vpdpbusd", vnni_256, 200'000, kDotChains * 32 * 2};
      if (cpu.avx2)
        return {"256-bit vpmaddubsw, four per vpmaddwd", byte_dot_256, 300'000, kByteChains * 4 * 32 * 2};
      break;
    case Peak::int8_tile:
      if (cpu.amx_int8 && tiles_granted()) return {"tdpbssd", int8_tiles, 40'000, 4.0 * 2 * 16 * 16 * 64};
      break;
    case Peak::bf16_tile:
      if (cpu.amx_bf16 && tiles_granted()) return {"tdpbf16ps", bf16_tiles, 40'000, 4.0 * 2 * 16 * 16 * 32};
      break;
  }
  return {};
}

}  // namespace

const char* peak_name(Peak peak) {
  constexpr const char* kNames[kNumPeaks] = {"f32_fma", "int8_dot", "int8_tile", "bf16_tile"};
  return kNames[static_cast<size_t>(peak)];
}

const char* peak_instructions(Peak peak) {
  return body_of(peak).instructions;
}

double sample_peak(ThreadPool& pool, Peak peak) {
  const PeakBody body = body_of(peak);
  if (body.run == nullptr) return 0;
  const int64_t chunks = kChunksPerThread * pool.num_threads();
  const double start = seconds_now();
  pool.parallel_for(chunks, [&](int64_t, int) { body.run(body.rounds); });
  return static_cast<double>(chunks * body.rounds) * body.operations / (seconds_now() - start);
}

int64_t ReadProbe::default_bytes() {
  return std::min(memory_info().available_bytes / 4, std::max(kLeastReadBytes, 4 * cpu_info().l3_bytes));
}

Result<ReadProbe> ReadProbe::create(ThreadPool& pool, int64_t size_bytes) {
  if (!cpu_info().features.avx2) return Error(Code::unsupported, "this CPU has no AVX2");
  ReadProbe probe;
  const int64_t size = std::max<int64_t>(size_bytes / kPieceBytes, 1) * kPieceBytes;
  RORQUAL_TRY_ASSIGN(probe.memory_, tensor::Buffer::allocate(size));
  std::byte* data = probe.memory_.data();
  for_streams(pool, size, [&](int64_t begin, int64_t count) {
    std::memset(data + begin, static_cast<int>(begin / kPieceBytes % 251 + 1), static_cast<size_t>(count));
  });
  return probe;
}

bool ReadProbe::exceeds_caches() const {
  return size_bytes() >= 4 * cpu_info().l3_bytes;
}

double ReadProbe::sample(ThreadPool& pool) const {
  const std::byte* data = memory_.data();
  const double start = seconds_now();
  for_streams(pool, size_bytes(),
              [&](int64_t begin, int64_t count) { g_sink += read_stream(data + begin, count); });
  return static_cast<double>(size_bytes()) / (seconds_now() - start);
}

plan::Rate measure_read_bandwidth(ThreadPool& pool, int64_t size_bytes, int repeats) {
  const auto probe = ReadProbe::create(pool, size_bytes);
  if (!probe.ok()) return {};
  std::vector<double> rates;
  for (int i = 0; i < repeats; ++i) rates.push_back(probe->sample(pool));
  return rate_of(std::move(rates));
}

Result<CeilingSampler> CeilingSampler::create(ThreadPool& pool, int64_t read_bytes) {
  RORQUAL_TRY_ASSIGN(ReadProbe probe, ReadProbe::create(pool, read_bytes));
  return CeilingSampler(std::move(probe));
}

void CeilingSampler::sample(ThreadPool& pool) {
  read_.push_back(probe_.sample(pool));
  for (int i = 0; i < kNumPeaks; ++i) {
    const double rate = sample_peak(pool, static_cast<Peak>(i));
    if (rate > 0) peaks_[static_cast<size_t>(i)].push_back(rate);
  }
}

double CeilingSampler::limit_seconds(size_t index, double bytes, double operations, Peak peak) const {
  const auto& rates = peaks_[static_cast<size_t>(peak)];
  return std::max(bytes / read_.at(index), rates.empty() ? 0.0 : operations / rates.at(index));
}

Ceilings CeilingSampler::result() const {
  Ceilings result;
  result.read = rate_of(read_);
  result.read_bytes = probe_.size_bytes();
  result.exceeds_caches = probe_.exceeds_caches();
  for (size_t i = 0; i < peaks_.size(); ++i) result.peaks[i] = rate_of(peaks_[i]);
  return result;
}

}  // namespace rorqual::tools
