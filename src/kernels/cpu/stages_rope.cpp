// SPDX-License-Identifier: Apache-2.0
// Rotary angles: the F32 product position·frequency, then cos and sin rounded correctly to F32 for |angle| up
// to 4e6. Reduction modulo π/2 in F64 pairs (Cody–Waite, exact by FMA), Taylor series in F64; the rare values
// that lie too close to a rounding boundary are evaluated again in F64 pairs. No C library: the same bits
// everywhere.
#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>

#include "kernels/cpu/stages.h"

namespace rorqual::kernels::cpu {
namespace {

/// Unevaluated sum hi + lo with |lo| <= ulp(hi)/2.
struct Pair {
  double hi = 0, lo = 0;
};

Pair two_sum(double a, double b) {
  const double s = a + b;
  const double bb = s - a;
  return {s, (a - (s - bb)) + (b - bb)};
}

Pair add(Pair a, Pair b) {
  const Pair s = two_sum(a.hi, b.hi);
  return two_sum(s.hi, s.lo + a.lo + b.lo);
}

Pair multiply(Pair a, Pair b) {
  const double p = a.hi * b.hi;
  return two_sum(p, std::fma(a.hi, b.hi, -p) + (a.hi * b.lo + a.lo * b.hi));
}

Pair divide(Pair a, double d) {
  const double q = a.hi / d;
  return two_sum(q, (std::fma(-q, d, a.hi) + a.lo) / d);
}

// π/2 in three parts of 53 bits.
constexpr double kHalfPi_1 = 0x1.921fb54442d18p+0;
constexpr double kHalfPi_2 = 0x1.1a62633145c07p-54;
constexpr double kHalfPi_3 = -0x1.f1976b7ed8fbcp-110;
constexpr double kTwoOverPi = 0x1.45f306dc9c883p-1;

struct Reduced {
  Pair r;            // |r| <= π/4 (and a little)
  int quadrant = 0;  // angle = quadrant·π/2 + r, modulo 2π
};

/// x >= 0. The first product is exact: it is a multiple of 2^-52 below 1, so the FMA does not round.
Reduced reduce(double x) {
  const double k = std::floor(x * kTwoOverPi + 0.5);
  const double first = std::fma(-k, kHalfPi_1, x);
  const double second = k * kHalfPi_2;
  const double second_low = std::fma(k, kHalfPi_2, -second);
  const Pair r = two_sum(first, -second);
  return {two_sum(r.hi, r.lo - second_low - k * kHalfPi_3), static_cast<int>(static_cast<int64_t>(k) & 3)};
}

constexpr int kTerms = 10;  // remainder below 2^-65 for |r| <= π/4

/// Σ (-1)^i r^(2i) · first!/(2i + first)! for first = 0 (cos) or 1 (sin / r), in F64.
double series(double square, int first) {
  double sum = 1;
  for (int i = kTerms; i >= 1; --i) {
    const int n = 2 * i + first;
    sum = std::fma(-square / (n * (n - 1)), sum, 1.0);
  }
  return sum;
}

/// sin (odd) or cos (even) of r in F64, relative error below 2^-49.
double quick(const Pair& r, bool sine) {
  const double square = r.hi * r.hi;
  if (sine) return std::fma(r.hi, series(square, 1) - 1.0, r.hi) + r.lo * series(square, 0);
  return std::fma(-r.lo, r.hi, series(square, 0));
}

/// The same in F64 pairs, relative error below 2^-90.
Pair careful(const Pair& r, bool sine) {
  const Pair square = multiply(r, r);
  const int first = sine ? 1 : 0;
  Pair sum{1, 0};
  for (int i = kTerms + 6; i >= 1; --i) {
    const int n = 2 * i + first;
    const Pair term = divide(multiply(square, sum), static_cast<double>(n * (n - 1)));
    sum = add({1, 0}, {-term.hi, -term.lo});
  }
  return sine ? multiply(sum, r) : sum;
}

/// Rounds hi + lo to F32 correctly. As |lo| <= ulp(hi)/2, `lo` matters only where `hi` is exactly between two
/// F32 values.
float round_pair(const Pair& value) {
  constexpr uint64_t kBelowF32 = (uint64_t{1} << 29) - 1;  // F64 mantissa bits that F32 lacks
  const bool tie = (std::bit_cast<uint64_t>(value.hi) & kBelowF32) == (uint64_t{1} << 28);
  if (!tie || value.lo == 0) return static_cast<float>(value.hi);
  return static_cast<float>(std::fma(value.hi, value.lo * value.hi > 0 ? 0x1p-52 : -0x1p-52, value.hi));
}

float sin_or_cos(const Reduced& angle, bool sine) {
  const bool use_sine = sine == ((angle.quadrant & 1) == 0);
  const bool negative = sine ? angle.quadrant >= 2 : angle.quadrant == 1 || angle.quadrant == 2;
  const double value = quick(angle.r, use_sine);
  constexpr double kSlack = 0x1p-48;
  auto result = static_cast<float>(std::fma(value, kSlack, value));
  if (result != static_cast<float>(std::fma(value, -kSlack, value)))
    result = round_pair(careful(angle.r, use_sine));
  return negative ? -result : result;
}

}  // namespace

void rope_angles(const OperatorTable& /*ops*/, Context& ctx, std::span<const int64_t> positions,
                 const RopeTable& rope, float* cos, float* sin) {
  constexpr int64_t kRowsPerChunk = 16;
  const auto num_rows = static_cast<int64_t>(positions.size());
  const auto half = static_cast<int64_t>(rope.inv_freq.size());
  ctx.pool->parallel_for((num_rows + kRowsPerChunk - 1) / kRowsPerChunk, [&](int64_t chunk, int /*thread*/) {
    const int64_t end = std::min(num_rows, (chunk + 1) * kRowsPerChunk);
    for (int64_t t = chunk * kRowsPerChunk; t < end; ++t) {
      const auto position = static_cast<float>(positions[static_cast<size_t>(t)]);
      for (int64_t i = 0; i < half; ++i) {
        const float angle = position * rope.inv_freq[static_cast<size_t>(i)];
        const Reduced reduced = reduce(static_cast<double>(angle));
        cos[t * half + i] = sin_or_cos(reduced, false);
        sin[t * half + i] = sin_or_cos(reduced, true);
      }
    }
  });
}

}  // namespace rorqual::kernels::cpu
