// SPDX-License-Identifier: Apache-2.0
// Random weights as a pure function of (seed, tensor name, element index): any part of a tensor can be made
// without the rest, on any thread, with the same bytes on every machine (no libm). The recipe is
// docs/synthetic.md. It knows number formats and distributions; which tensor gets which is model/synthetic.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

namespace rorqual::model {

/// Elements are drawn in runs of 32, the width of a scale group.
inline constexpr int64_t kRunElements = 32;

/// Key of the random stream of one tensor: independent for different names and for different seeds.
uint64_t stream_key(uint64_t seed, std::string_view tensor_name);

/// Word `index` of a stream: 64 independent bits.
constexpr uint64_t stream_word(uint64_t key, uint64_t index) {
  uint64_t z = key + (index + 1) * 0x9E3779B97F4A7C15u;
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
  return z ^ (z >> 31);
}

/// Plain numbers, mean + deviation * z with z normal. BF16 has 4,096 different z, F32 fills its mantissa.
class NormalLaw {
 public:
  /// `hyper_streams` n > 0 turns the means into those of a hyper-connection tensor; see `Pattern`.
  enum class Pattern : uint8_t {
    constant,     // every element has `mean`
    hyper_base,   // [2n + n*n]: 0 for the first n, -0.5 for the next n, then 2 on the diagonal and 0 off it
    hyper_scale,  // [3]: 0.5, 0.5, 0.8; the deviation is relative
  };

  NormalLaw(double mean, double deviation, Pattern pattern = Pattern::constant, int64_t hyper_streams = 0);

  /// Writes runs [first_run, first_run + num_runs) as BF16 (64 bytes each).
  void fill_bf16(uint64_t key, int64_t first_run, int64_t num_runs, std::byte* dst) const;
  /// The same as F32 (128 bytes each).
  void fill_f32(uint64_t key, int64_t first_run, int64_t num_runs, std::byte* dst) const;

 private:
  double mean_of(int64_t element) const;

  double mean_, deviation_;
  Pattern pattern_;
  int64_t hyper_streams_;
  std::vector<uint16_t> bf16_;  // [4096]
};

/// Normal numbers with zero mean as codes with a power-of-two scale per group. Scales follow the distribution
/// of the group's largest magnitude; codes follow the normal distribution cut where that scale saturates.
/// Never produces the E4M3 NaN codes or the E8M0 code 255.
class QuantisedLaw {
 public:
  enum class Format : uint8_t { mxfp4, fp8 };

  using ThresholdsFp4 = std::array<std::array<int8_t, 16>, 7>;  // each value in 16 equal lanes

  /// `group_elements` share one scale: 32 (a row's run) or 1024 (a 32 x 32 block). deviation > 0.
  QuantisedLaw(Format format, int64_t group_elements, double deviation);

  /// Runs of `scales` bytes (32 bytes each), scale j of the tensor at byte j.
  void fill_scales(uint64_t scale_key, int64_t first_run, int64_t num_runs, std::byte* dst) const;

  struct CodeRequest {
    uint64_t key = 0, scale_key = 0;
    int64_t first_run = 0, num_runs = 0;
    int64_t runs_per_row = 0;  // fp8: > 0 = 32 rows share a row of scales; 0 = one scale per run
  };

  /// Runs of codes: 16 bytes each for mxfp4 (low nibble = even element), 32 for fp8.
  void fill_codes(const CodeRequest& request, std::byte* dst) const;

  int64_t run_bytes() const { return format_ == Format::mxfp4 ? kRunElements / 2 : kRunElements; }

 private:
  static constexpr int kMaxScales = 8;

  void build(int64_t group_elements, double deviation);
  void add_thresholds(size_t scale, const std::vector<uint8_t>& table);
  void add_codes(const std::vector<uint8_t>& table);
  int choose_scale(uint64_t word, uint64_t scale_index) const;
  void fill_fp4(uint64_t key, uint64_t scale_key, int64_t first_run, int64_t num_runs, std::byte* dst) const;
  void fill_fp8(const CodeRequest& request, std::byte* dst) const;

  Format format_;
  int num_scales_ = 0;
  double built_deviation_ = 0.0;
  std::array<uint32_t, kMaxScales> limits_{};  // cumulative probabilities in 1/65536
  std::array<uint8_t, kMaxScales> scale_bytes_{};
  std::vector<uint8_t> codes_;                          // fp8: [num_scales][4096], sign in bit 11 of the draw
  std::array<ThresholdsFp4, kMaxScales> thresholds_{};  // mxfp4: code = thresholds below the draw
};

}  // namespace rorqual::model
