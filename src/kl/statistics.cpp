// SPDX-License-Identifier: Apache-2.0
#include "kl/statistics.h"

#include <algorithm>
#include <cmath>

#include "base/check.h"

namespace rorqual::kl {
namespace {

constexpr double kZ95 = 1.959963984540054;  // 97.5 % point of the normal distribution
constexpr int64_t kMaxExactPower = 1000;    // 2^-n is a normal double up to here

struct Tail {
  double up_to = 0;  // P(X <= k)
  double at = 0;     // P(X = k)
};

/// X binomial with n trials of probability 1/2.
Tail binomial_tail(int64_t k, int64_t n) {
  Tail tail;
  if (n <= kMaxExactPower) {
    double term = std::ldexp(1.0, -static_cast<int>(n));
    for (int64_t i = 0; i <= k; ++i) {
      tail.at = term;
      tail.up_to += term;
      term = term * static_cast<double>(n - i) / static_cast<double>(i + 1);
    }
    return tail;
  }
  const double trials = static_cast<double>(n), hits = static_cast<double>(k);
  tail.at = std::exp(std::lgamma(trials + 1) - std::lgamma(hits + 1) - std::lgamma(trials - hits + 1) -
                     trials * std::log(2.0));
  double term = tail.at;
  for (int64_t i = k; i >= 0 && term > 0; --i) {
    tail.up_to += term;
    term = term * static_cast<double>(i) / static_cast<double>(n - i + 1);
  }
  return tail;
}

}  // namespace

double mcnemar_exact(int64_t b, int64_t c) {
  RORQUAL_CHECK(b >= 0 && c >= 0);
  return std::min(1.0, 2 * binomial_tail(std::min(b, c), b + c).up_to);
}

double mcnemar_mid_p(int64_t b, int64_t c) {
  RORQUAL_CHECK(b >= 0 && c >= 0);
  const Tail tail = binomial_tail(std::min(b, c), b + c);
  return std::min(1.0, 2 * tail.up_to - tail.at);
}

Share wilson95(int64_t x, int64_t n) {
  RORQUAL_CHECK(n > 0 && x >= 0 && x <= n);
  const double size = static_cast<double>(n), p = static_cast<double>(x) / size;
  const double z2 = kZ95 * kZ95;
  const double center = (p + z2 / (2 * size)) / (1 + z2 / size);
  const double half = kZ95 * std::sqrt(p * (1 - p) / size + z2 / (4 * size * size)) / (1 + z2 / size);
  // The ends of no and of all right answers are exact.
  return {p, x == 0 ? 0.0 : std::max(0.0, center - half), x == n ? 1.0 : std::min(1.0, center + half)};
}

Share bonett_price95(int64_t b, int64_t c, int64_t n) {
  RORQUAL_CHECK(b >= 0 && c >= 0 && n > 0 && b + c <= n);
  const double size = static_cast<double>(n) + 2;
  const double first = static_cast<double>(b + 1) / size, second = static_cast<double>(c + 1) / size;
  const double difference = second - first;
  const double half = kZ95 * std::sqrt((first + second - difference * difference) / size);
  return {difference, difference - half, difference + half};
}

}  // namespace rorqual::kl
