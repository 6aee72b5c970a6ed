// SPDX-License-Identifier: Apache-2.0
// What no program can beat on this machine: how fast all threads read memory, and how fast they multiply.
// `doctor` and `bench op` measure with this code.
#pragma once

#include <array>
#include <cstdint>

#include "base/result.h"
#include "base/thread_pool.h"
#include "plan/machine.h"
#include "tensor/buffer.h"

namespace rorqual::tools {

/// Units that kernels multiply with. An operation is one multiplication or one addition.
enum class Peak : uint8_t {
  f32_fma,    // fused multiply-adds of F32 vectors
  int8_dot,   // byte products summed into 32 bits by vector instructions
  int8_tile,  // the same by the tile unit
  bf16_tile,  // BF16 products summed into F32 by the tile unit
};

inline constexpr int kNumPeaks = 4;

/// Stable name, as in JSON ("f32_fma").
const char* peak_name(Peak peak);

/// The instructions that measure it on this CPU; empty if it has none.
const char* peak_instructions(Peak peak);

/// Operations per second of all threads together in one sample of some milliseconds; 0 if the CPU has no such
/// unit or the system does not grant it.
double sample_peak(ThreadPool& pool, Peak peak);

/// Memory to read from: one long forward stream per thread with prefetch 4 KiB ahead, in huge pages where the
/// system gives them.
class ReadProbe {
 public:
  /// Far more than the caches, but at most a quarter of what is free.
  static int64_t default_bytes();

  /// Errors: out_of_memory; unsupported without AVX2.
  static Result<ReadProbe> create(ThreadPool& pool, int64_t size_bytes);

  int64_t size_bytes() const { return memory_.size_bytes(); }

  /// At least four times the last level cache, so that no cache serves it.
  bool exceeds_caches() const;

  /// Bytes per second of one pass.
  double sample(ThreadPool& pool) const;

 private:
  tensor::Buffer memory_;
};

/// Medians of several passes over fresh memory. Unknown if it cannot be had or the CPU has no AVX2.
plan::Rate measure_read_bandwidth(ThreadPool& pool, int64_t size_bytes, int repeats);

struct Ceilings {
  plan::Rate read;  // bytes per second
  int64_t read_bytes = 0;
  bool exceeds_caches = false;
  std::array<plan::Rate, kNumPeaks> peaks;  // by Peak; unknown where the CPU has none

  const plan::Rate& peak(Peak which) const { return peaks[static_cast<size_t>(which)]; }
};

/// Samples in turn with what is measured against them, so that both see the same neighbours.
class CeilingSampler {
 public:
  /// Errors: those of ReadProbe::create.
  static Result<CeilingSampler> create(ThreadPool& pool, int64_t read_bytes);

  void sample(ThreadPool& pool);

  /// Seconds that so much work takes at least, by the rates of sample number `index`; only bytes count if the
  /// CPU has no such unit.
  double limit_seconds(size_t index, double bytes, double operations, Peak peak) const;

  /// Medians of the samples so far.
  Ceilings result() const;

 private:
  explicit CeilingSampler(ReadProbe probe) : probe_(std::move(probe)) {}

  ReadProbe probe_;
  std::vector<double> read_;
  std::array<std::vector<double>, kNumPeaks> peaks_;
};

}  // namespace rorqual::tools
