// SPDX-License-Identifier: Apache-2.0
// numpy's default generator from its published description: SeedSequence hashes the seed's 32-bit words into
// a pool of four and draws the 128-bit state and increment from it; PCG64 is the linear congruential
// generator with XSL-RR output (O'Neill, PCG, 2014). Bounds that fit 32 bits are drawn from halves of 64-bit
// outputs by Lemire's method (2019), larger ones from whole outputs. Means add as numpy does along the last
// axis of an array [B, W]: in pairs (eight running sums per block of up to 128). tests/golden/kl/README.md
// names the numpy that was asked.
#include "kl/bootstrap.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "base/check.h"

namespace rorqual::kl {
namespace {

__extension__ typedef unsigned __int128 uint128;  // NOLINT: the only 128-bit integer of this compiler

constexpr uint128 make_uint128(uint64_t high, uint64_t low) {
  return uint128{high} << 64 | low;
}

constexpr uint128 kMultiplier = make_uint128(0x2360ed051fc65da4, 0x4385df649fccf645);

/// SeedSequence(entropy) without spawn key.
class SeedSequence {
 public:
  explicit SeedSequence(uint64_t seed) {
    const uint32_t low = static_cast<uint32_t>(seed), high = static_cast<uint32_t>(seed >> 32);
    uint32_t constant = 0x43b0d7e5;
    const std::array<uint32_t, 4> words = {low, high, 0, 0};  // missing words count as 0
    for (size_t i = 0; i < pool_.size(); ++i) pool_[i] = hash(words[i], constant);
    for (size_t from = 0; from < pool_.size(); ++from) {
      for (size_t to = 0; to < pool_.size(); ++to) {
        if (from != to) pool_[to] = mix(pool_[to], hash(pool_[from], constant));
      }
    }
  }

  std::array<uint64_t, 4> words() const {
    std::array<uint64_t, 4> out{};
    uint32_t constant = 0x8b51f9dd;
    for (size_t i = 0; i < 8; ++i) {
      uint32_t value = pool_[i % pool_.size()] ^ constant;
      constant *= 0x58f38dedu;
      value *= constant;
      value ^= value >> 16;
      out[i / 2] |= uint64_t{value} << (i % 2 == 0 ? 0 : 32);
    }
    return out;
  }

 private:
  static uint32_t hash(uint32_t value, uint32_t& constant) {
    value ^= constant;
    constant *= 0x931e8875u;
    value *= constant;
    return value ^ value >> 16;
  }

  static uint32_t mix(uint32_t x, uint32_t y) {
    const uint32_t value = 0xca01f9ddu * x - 0x4973f715u * y;
    return value ^ value >> 16;
  }

  std::array<uint32_t, 4> pool_{};
};

/// Sum of n values in numpy's order.
double pairwise_sum(const double* values, size_t n) {
  if (n < 8) {
    double sum = -0.0;
    for (size_t i = 0; i < n; ++i) sum += values[i];
    return sum;
  }
  if (n <= 128) {
    std::array<double, 8> r{};
    std::copy(values, values + 8, r.begin());
    size_t i = 8;
    for (; i + 8 <= n; i += 8) {
      for (size_t j = 0; j < 8; ++j) r[j] += values[i + j];
    }
    double sum = ((r[0] + r[1]) + (r[2] + r[3])) + ((r[4] + r[5]) + (r[6] + r[7]));
    for (; i < n; ++i) sum += values[i];
    return sum;
  }
  const size_t half = n / 2 - n / 2 % 8;
  return pairwise_sum(values, half) + pairwise_sum(values + half, n - half);
}

}  // namespace

Pcg64::Pcg64(uint64_t seed) {
  const auto words = SeedSequence(seed).words();
  const uint128 increment = make_uint128(words[2], words[3]) << 1 | 1;
  uint128 state = increment + make_uint128(words[0], words[1]);
  state = state * kMultiplier + increment;
  state_high_ = static_cast<uint64_t>(state >> 64);
  state_low_ = static_cast<uint64_t>(state);
  increment_high_ = static_cast<uint64_t>(increment >> 64);
  increment_low_ = static_cast<uint64_t>(increment);
}

uint64_t Pcg64::next() {
  const uint128 state =
      make_uint128(state_high_, state_low_) * kMultiplier + make_uint128(increment_high_, increment_low_);
  state_high_ = static_cast<uint64_t>(state >> 64);
  state_low_ = static_cast<uint64_t>(state);
  const uint64_t folded = state_high_ ^ state_low_;
  const auto turn = static_cast<unsigned>(state_high_ >> 58);
  return folded >> turn | folded << (-turn & 63u);
}

int64_t Pcg64::integer(int64_t bound) {
  RORQUAL_CHECK(bound > 0);
  const auto range = static_cast<uint64_t>(bound);
  if (range == 1) return 0;
  if (range <= uint64_t{1} << 32) {
    const auto next_half = [this]() -> uint64_t {
      has_half_ = !has_half_;
      if (!has_half_) return half_;
      const uint64_t whole = next();
      half_ = static_cast<uint32_t>(whole >> 32);
      return static_cast<uint32_t>(whole);
    };
    if (range == uint64_t{1} << 32) return static_cast<int64_t>(next_half());
    uint64_t product = next_half() * range;
    if (static_cast<uint32_t>(product) < range) {
      const uint64_t threshold = (uint64_t{0xffffffff} - (range - 1)) % range;
      while (static_cast<uint32_t>(product) < threshold) product = next_half() * range;
    }
    return static_cast<int64_t>(product >> 32);
  }
  uint128 product = uint128{next()} * range;
  if (static_cast<uint64_t>(product) < range) {
    const uint64_t threshold = (~uint64_t{0} - (range - 1)) % range;
    while (static_cast<uint64_t>(product) < threshold) product = uint128{next()} * range;
  }
  return static_cast<int64_t>(static_cast<uint64_t>(product >> 64));
}

double mean(std::span<const double> values) {
  return pairwise_sum(values.data(), values.size()) / static_cast<double>(values.size());
}

std::vector<double> bootstrap_means(std::span<const double> values, int rounds, uint64_t seed) {
  RORQUAL_CHECK(!values.empty() && rounds > 0);
  Pcg64 random(seed);
  const auto bound = static_cast<int64_t>(values.size());
  std::vector<double> drawn(values.size());
  std::vector<double> means;
  means.reserve(static_cast<size_t>(rounds));
  for (int round = 0; round < rounds; ++round) {
    for (auto& value : drawn) value = values[static_cast<size_t>(random.integer(bound))];
    means.push_back(mean(drawn));
  }
  return means;
}

double percentile(std::vector<double> values, double percent) {
  RORQUAL_CHECK(!values.empty() && percent >= 0 && percent <= 100);
  std::sort(values.begin(), values.end());
  const double place = percent / 100.0 * static_cast<double>(values.size() - 1);
  const auto below = static_cast<size_t>(std::floor(place));
  const size_t above = std::min(below + 1, values.size() - 1);
  const double fraction = place - static_cast<double>(below);
  // numpy interpolates from the nearer side, which keeps the result monotonic.
  const double difference = values[above] - values[below];
  if (fraction >= 0.5) return values[above] - difference * (1 - fraction);
  return values[below] + difference * fraction;
}

}  // namespace rorqual::kl
