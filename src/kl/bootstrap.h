// SPDX-License-Identifier: Apache-2.0
// numpy's generator and the bootstrap over windows, bit for bit: PCG64 seeded by SeedSequence(seed),
// Generator.integers (Lemire's bounded method, 64-bit).
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace rorqual::kl {

/// numpy.random.default_rng(seed). One thread.
class Pcg64 {
 public:
  explicit Pcg64(uint64_t seed);
  uint64_t next();

  /// Uniform on [0, bound), as Generator.integers(0, bound) draws int64 values; bound > 0.
  int64_t integer(int64_t bound);

 private:
  uint64_t state_high_ = 0, state_low_ = 0, increment_high_ = 0, increment_low_ = 0;
  bool has_half_ = false;  // numpy draws 32-bit values in pairs when the bound allows
  uint32_t half_ = 0;
};

inline constexpr int kBootstrapRounds = 20000;

/// numpy.mean of one row: its order of addition. `values` must not be empty.
double mean(std::span<const double> values);

/// Means of `rounds` resamples of `values` (with replacement), in drawn order: integers(0, W, (B, W)), seed
/// 0.
std::vector<double> bootstrap_means(std::span<const double> values, int rounds = kBootstrapRounds,
                                    uint64_t seed = 0);

/// numpy.percentile(values, percent), linear interpolation. `values` need not be sorted.
double percentile(std::vector<double> values, double percent);

}  // namespace rorqual::kl
