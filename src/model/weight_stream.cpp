// SPDX-License-Identifier: Apache-2.0
#include "model/weight_stream.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "base/check.h"
#include "num/formats.h"

namespace rorqual::model {
namespace {

// The draws below depend on these constants; changing one changes every synthetic model (docs/synthetic.md).
constexpr int kMagnitudesFp4 = 128;  // 7 bits of magnitude and a sign per nibble
constexpr int kMagnitudes = 2048;    // 11 bits of magnitude and a sign for wider formats
constexpr double kGridStep = 1.0 / 1024.0;
constexpr int kGridPoints = 8 * 1024 + 1;  // distribution of |z| tabulated on [0, 8]

/// exp(-x) for x in [0, 40], relative error below 1e-12; only IEEE operations, so equal on every machine.
double exp_negative(double x) {
  const double y = -x / 1024.0;
  double term = 1.0, sum = 1.0;
  for (int i = 1; i < 12; ++i) {
    term *= y / i;
    sum += term;
  }
  for (int i = 0; i < 10; ++i) sum *= sum;
  return sum;
}

/// P(|z| <= x) of a normal z, tabulated once.
class HalfNormal {
 public:
  static const HalfNormal& instance() {
    static const HalfNormal half_normal;
    return half_normal;
  }

  double probability(double x) const {
    const double place = x / kGridStep;
    if (place >= kGridPoints - 1) return 1.0;
    const auto index = static_cast<size_t>(place);
    const double fraction = place - static_cast<double>(index);
    return cumulative_[index] + fraction * (cumulative_[index + 1] - cumulative_[index]);
  }

  double quantile(double probability) const {
    const auto upper = std::lower_bound(cumulative_.begin() + 1, cumulative_.end() - 1, probability);
    const auto index = static_cast<size_t>(upper - cumulative_.begin());
    const double low = cumulative_[index - 1], high = cumulative_[index];
    const double fraction = high > low ? std::min(1.0, (probability - low) / (high - low)) : 0.0;
    return (static_cast<double>(index - 1) + fraction) * kGridStep;
  }

 private:
  HalfNormal() : cumulative_(kGridPoints) {
    const double peak = 2.0 / std::sqrt(2.0 * 3.14159265358979323846);
    const auto density = [&](double x) { return peak * exp_negative(0.5 * x * x); };
    for (size_t i = 1; i < cumulative_.size(); ++i) {  // Simpson's rule, cell by cell
      const double a = static_cast<double>(i - 1) * kGridStep;
      cumulative_[i] =
          cumulative_[i - 1] +
          kGridStep / 6.0 * (density(a) + 4.0 * density(a + 0.5 * kGridStep) + density(a + kGridStep));
    }
    const double total = cumulative_.back();
    for (double& value : cumulative_) value /= total;
  }

  std::vector<double> cumulative_;
};

/// Magnitudes of `count` equally probable slices of |z|, cut at `limit`.
std::vector<double> magnitudes(int count, double limit) {
  const HalfNormal& half_normal = HalfNormal::instance();
  const double total = half_normal.probability(limit);
  std::vector<double> result(static_cast<size_t>(count));
  for (size_t i = 0; i < result.size(); ++i) {
    result[i] = half_normal.quantile(total * (static_cast<double>(i) + 0.5) / count);
  }
  return result;
}

/// z of the 4,096 equally probable draws: sign in bit 11.
const std::vector<double>& normal_draws() {
  static const std::vector<double> draws = [] {
    std::vector<double> z = magnitudes(kMagnitudes, 8.0);
    for (int i = 0; i < kMagnitudes; ++i) z.push_back(-z[static_cast<size_t>(i)]);
    return z;
  }();
  return draws;
}

double power_integer(double base, int64_t exponent) {
  double result = 1.0;
  for (; exponent > 0; exponent >>= 1, base *= base) {
    if (exponent & 1) result *= base;
  }
  return result;
}

uint8_t encode(QuantisedLaw::Format format, double value) {
  const auto single = static_cast<float>(value);
  return format == QuantisedLaw::Format::mxfp4 ? num::e2m1_encode(single) : num::e4m3_encode(single);
}

double decode(QuantisedLaw::Format format, uint8_t code) {
  return static_cast<double>(format == QuantisedLaw::Format::mxfp4 ? num::e2m1_decode(code)
                                                                   : num::e4m3_decode(code));
}

using Bytes16 [[gnu::vector_size(16)]] = uint8_t;
using SignedBytes16 [[gnu::vector_size(16)]] = int8_t;

/// E2M1 codes of 16 draws: sign in bit 7, magnitude below; code = number of thresholds below the magnitude.
Bytes16 codes_fp4(Bytes16 draws, const QuantisedLaw::ThresholdsFp4& thresholds) {
  const auto magnitude = reinterpret_cast<SignedBytes16>(draws & 0x7F);
  SignedBytes16 code = {};
  for (const auto& lanes : thresholds) {
    SignedBytes16 threshold;
    std::memcpy(&threshold, lanes.data(), sizeof(threshold));
    code -= magnitude > threshold;  // true is -1
  }
  return reinterpret_cast<Bytes16>(code) | ((draws & 0x80) >> 4);
}

}  // namespace

uint64_t stream_key(uint64_t seed, std::string_view tensor_name) {
  uint64_t hash = 0xCBF29CE484222325u;  // FNV-1a
  for (const char c : tensor_name) hash = (hash ^ static_cast<uint8_t>(c)) * 0x100000001B3u;
  return stream_word(stream_word(seed, 0) ^ hash, 0);
}

// ---- NormalLaw

NormalLaw::NormalLaw(double mean, double deviation, Pattern pattern, int64_t hyper_streams)
    : mean_(mean), deviation_(deviation), pattern_(pattern), hyper_streams_(hyper_streams) {
  for (const double z : normal_draws())
    bf16_.push_back(num::bf16_encode(static_cast<float>(mean + deviation * z)));
}

double NormalLaw::mean_of(int64_t element) const {
  const int64_t n = hyper_streams_;
  switch (pattern_) {
    case Pattern::constant:
      return mean_;
    case Pattern::hyper_scale:
      return element < 2 ? 0.5 : 0.8;
    case Pattern::hyper_base:
      if (element < 2 * n) return element < n ? 0.0 : -0.5;
      return (element - 2 * n) / n == (element - 2 * n) % n ? 2.0 : 0.0;
  }
  return mean_;
}

void NormalLaw::fill_bf16(uint64_t key, int64_t first_run, int64_t num_runs, std::byte* dst) const {
  constexpr int64_t kWords = kRunElements / 4;
  const uint16_t* table = bf16_.data();
  for (int64_t word = first_run * kWords; word < (first_run + num_runs) * kWords; ++word, dst += 8) {
    const uint64_t bits = stream_word(key, static_cast<uint64_t>(word));
    const std::array<uint16_t, 4> values = {table[(bits >> 4) & 0xFFF], table[(bits >> 20) & 0xFFF],
                                            table[(bits >> 36) & 0xFFF], table[bits >> 52]};
    std::memcpy(dst, values.data(), sizeof(values));
  }
}

void NormalLaw::fill_f32(uint64_t key, int64_t first_run, int64_t num_runs, std::byte* dst) const {
  const std::vector<double>& draws = normal_draws();
  for (int64_t i = first_run * kRunElements; i < (first_run + num_runs) * kRunElements; ++i, dst += 4) {
    const uint64_t bits = stream_word(key, static_cast<uint64_t>(i));
    // The low bits spread z by +-2^-10, so that mantissas are full.
    const double spread = 1.0 + (static_cast<double>(bits & 0xFFFFFF) / 16777216.0 - 0.5) / 512.0;
    const double mean = mean_of(i);
    const double deviation = pattern_ == Pattern::hyper_scale ? deviation_ * mean : deviation_;
    const auto value = static_cast<float>(mean + deviation * draws[bits >> 52] * spread);
    std::memcpy(dst, &value, sizeof(value));
  }
}

// ---- QuantisedLaw

QuantisedLaw::QuantisedLaw(Format format, int64_t group_elements, double deviation) : format_(format) {
  RORQUAL_CHECK(deviation > 0);
  // Codes of a group are drawn independently, which loses a little of the tail; a wider draw makes up for it.
  build(group_elements, deviation);
  build(group_elements, deviation * deviation / built_deviation_);
}

void QuantisedLaw::build(int64_t group_elements, double deviation) {
  const bool is_fp4 = format_ == Format::mxfp4;
  const double largest = static_cast<double>(is_fp4 ? num::kE2m1Max : num::kE4m3Max);
  const int num_magnitudes = is_fp4 ? kMagnitudesFp4 : kMagnitudes;
  num_scales_ = 0;
  codes_.clear();
  uint32_t done = 0;
  double second_moment = 0.0;
  for (int exponent = -126; exponent <= 126 && done < 65536; ++exponent) {
    const double unit = std::ldexp(1.0, exponent) / deviation;
    const double probability =
        power_integer(HalfNormal::instance().probability(largest * unit), group_elements);
    const auto limit = static_cast<uint32_t>(65536.0 * probability + 0.5);
    if (limit <= done) continue;
    RORQUAL_CHECK(num_scales_ < kMaxScales);
    const auto index = static_cast<size_t>(num_scales_++);
    std::vector<uint8_t> table;  // ascending
    double squares = 0.0;
    for (const double z : magnitudes(num_magnitudes, largest * unit)) {
      table.push_back(encode(format_, z / unit));
      const double value = std::ldexp(decode(format_, table.back()), exponent);
      squares += value * value;
    }
    second_moment += squares / num_magnitudes * (limit - done) / 65536.0;
    done = limits_[index] = limit;
    scale_bytes_[index] = static_cast<uint8_t>(exponent + 127);
    is_fp4 ? add_thresholds(index, table) : add_codes(table);
  }
  RORQUAL_CHECK_NOTE(done == 65536, "the deviation of a synthetic tensor is outside the range of its scales");
  built_deviation_ = std::sqrt(second_moment);
}

void QuantisedLaw::add_thresholds(size_t scale, const std::vector<uint8_t>& table) {
  for (uint8_t code = 1; code < 8; ++code) {
    const auto first = std::lower_bound(table.begin(), table.end(), code);
    thresholds_[scale][code - 1u].fill(static_cast<int8_t>(first - table.begin() - 1));
  }
}

void QuantisedLaw::add_codes(const std::vector<uint8_t>& table) {
  codes_.insert(codes_.end(), table.begin(), table.end());
  for (const uint8_t code : table) codes_.push_back(code | 0x80);
}

int QuantisedLaw::choose_scale(uint64_t word, uint64_t scale_index) const {
  const auto draw = static_cast<uint32_t>((word >> (16 * (scale_index % 4))) & 0xFFFF);
  int choice = 0;
  for (int i = 0; i + 1 < num_scales_; ++i) choice += draw >= limits_[static_cast<size_t>(i)] ? 1 : 0;
  return choice;
}

void QuantisedLaw::fill_scales(uint64_t scale_key, int64_t first_run, int64_t num_runs,
                               std::byte* dst) const {
  const auto end = static_cast<uint64_t>((first_run + num_runs) * kRunElements);
  for (auto scale = static_cast<uint64_t>(first_run * kRunElements); scale < end; scale += 4) {
    const uint64_t word = stream_word(scale_key, scale / 4);
    for (uint64_t i = scale; i < scale + 4; ++i) {
      *dst++ = static_cast<std::byte>(scale_bytes_[static_cast<size_t>(choose_scale(word, i))]);
    }
  }
}

void QuantisedLaw::fill_fp4(uint64_t key, uint64_t scale_key, int64_t first_run, int64_t num_runs,
                            std::byte* dst) const {
  uint64_t scale_word = stream_word(scale_key, static_cast<uint64_t>(first_run) / 4);
  for (auto run = static_cast<uint64_t>(first_run); num_runs > 0; ++run, --num_runs, dst += 16) {
    if (run % 4 == 0) scale_word = stream_word(scale_key, run / 4);
    const auto& thresholds = thresholds_[static_cast<size_t>(choose_scale(scale_word, run))];
    std::array<uint64_t, 4> words{};
    for (uint64_t w = 0; w < 4; ++w) words[w] = stream_word(key, run * 4 + w);
    Bytes16 even, odd;
    std::memcpy(&even, &words[0], 16);
    std::memcpy(&odd, &words[2], 16);
    const Bytes16 packed = codes_fp4(even, thresholds) | (codes_fp4(odd, thresholds) << 4);
    std::memcpy(dst, &packed, 16);
  }
}

void QuantisedLaw::fill_fp8(const CodeRequest& request, std::byte* dst) const {
  const int64_t runs_per_row = request.runs_per_row;
  int64_t row = runs_per_row > 0 ? request.first_run / runs_per_row : 0;
  int64_t column = runs_per_row > 0 ? request.first_run % runs_per_row : 0;
  for (int64_t run = request.first_run; run < request.first_run + request.num_runs; ++run) {
    auto scale = static_cast<uint64_t>(run);
    if (runs_per_row > 0) {
      scale = static_cast<uint64_t>(row / 32 * runs_per_row + column);
      if (++column == runs_per_row) column = 0, ++row;
    }
    const int choice = choose_scale(stream_word(request.scale_key, scale / 4), scale);
    const uint8_t* table = codes_.data() + choice * 2 * kMagnitudes;
    for (uint64_t w = 0; w < 8; ++w, dst += 4) {
      const uint64_t bits = stream_word(request.key, static_cast<uint64_t>(run) * 8 + w);
      const std::array<uint8_t, 4> codes = {table[(bits >> 4) & 0xFFF], table[(bits >> 20) & 0xFFF],
                                            table[(bits >> 36) & 0xFFF], table[bits >> 52]};
      std::memcpy(dst, codes.data(), sizeof(codes));
    }
  }
}

void QuantisedLaw::fill_codes(const CodeRequest& request, std::byte* dst) const {
  if (format_ == Format::fp8) return fill_fp8(request, dst);
  RORQUAL_CHECK(request.runs_per_row == 0);
  fill_fp4(request.key, request.scale_key, request.first_run, request.num_runs, dst);
}

}  // namespace rorqual::model
