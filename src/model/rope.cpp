// SPDX-License-Identifier: Apache-2.0
// Rotary frequencies and the YaRN ramp. Logarithm and exponential are own series in F64, far more precise
// than the F32 results need, so that the frequencies are the same bits with every C library.
#include "model/rope.h"

#include <algorithm>
#include <cmath>
#include <cstdint>

namespace rorqual::model {
namespace {

constexpr double kLn2 = 0.69314718055994530942;
constexpr double kPi = 3.14159265358979323846;

/// Natural logarithm of x > 0: x = m·2^e, ln m = 2·atanh((m-1)/(m+1)) with |z| < 0.172.
double log_series(double x) {
  int exponent = 0;
  double m = std::frexp(x, &exponent);  // exact
  if (m < 0.70710678118654752440) {
    m *= 2;
    --exponent;
  }
  const double z = (m - 1) / (m + 1);
  double sum = 0;
  for (int k = 21; k >= 0; --k) sum = sum * (z * z) + 1.0 / (2 * k + 1);
  return 2 * z * sum + exponent * kLn2;
}

/// e^x for |x| < 700: x = k·ln 2 + r, Taylor series of e^r.
double exp_series(double x) {
  const double k = std::floor(x / kLn2 + 0.5);
  const double r = x - k * kLn2;
  double sum = 1;
  for (int i = 22; i >= 1; --i) sum = 1 + sum * r / i;
  return std::ldexp(sum, static_cast<int>(k));  // exact
}

struct Ramp {
  int64_t low = 0, high = 0;
};

/// Dimensions between which YaRN goes from the original to the interpolated frequency.
Ramp yarn_ramp(const Config& config, double theta) {
  const auto d = static_cast<double>(config.qk_rope_head_dim);
  const auto dim_of = [&](double turns) {
    return d * log_series(static_cast<double>(config.original_seq_len) / (turns * 2 * kPi)) /
           (2 * log_series(theta));
  };
  const auto low = static_cast<int64_t>(std::floor(dim_of(config.beta_fast)));
  const auto high = static_cast<int64_t>(std::ceil(dim_of(config.beta_slow)));
  return {std::max<int64_t>(low, 0), std::min(high, config.qk_rope_head_dim - 1)};
}

}  // namespace

std::vector<float> rope_inv_freq(const Config& config, bool compressed) {
  const double theta = compressed ? config.compress_rope_theta : config.rope_theta;
  const int64_t half = config.qk_rope_head_dim / 2;
  const double log_theta = log_series(static_cast<double>(static_cast<float>(theta)));
  std::vector<float> freq(static_cast<size_t>(half));
  for (int64_t i = 0; i < half; ++i) {
    const float exponent = static_cast<float>(2 * i) / static_cast<float>(config.qk_rope_head_dim);
    freq[static_cast<size_t>(i)] = 1.0f / static_cast<float>(exp_series(exponent * log_theta));
  }
  if (!compressed || config.original_seq_len <= 0) return freq;

  const Ramp ramp = yarn_ramp(config, theta);
  const auto factor = static_cast<float>(config.rope_factor);
  const float span = std::max(static_cast<float>(ramp.high - ramp.low), 1e-3f);
  for (int64_t i = 0; i < half; ++i) {
    const float position = static_cast<float>(i) - static_cast<float>(ramp.low);
    const float keep = 1.0f - std::clamp(position / span, 0.0f, 1.0f);
    float& f = freq[static_cast<size_t>(i)];
    f = f / factor * (1.0f - keep) + f * keep;
  }
  return freq;
}

}  // namespace rorqual::model
