// SPDX-License-Identifier: Apache-2.0
// Gated activation and routing on eight lanes. Selection itself is the scalar one: it is a comparison of few
// values.
#include <immintrin.h>

#include <cstdint>

#include "kernels/cpu/avx2/math_avx2.h"
#include "kernels/cpu/avx2/operators_avx2.h"

namespace rorqual::kernels::avx2 {
namespace {

__m256 swiglu8(__m256 gate, __m256 up, float limit, __m256 weight) {
  if (limit > 0) {
    gate = _mm256_min_ps(gate, set8(limit));
    up = _mm256_max_ps(_mm256_min_ps(up, set8(limit)), set8(-limit));
  }
  return _mm256_mul_ps(weight, _mm256_mul_ps(silu8(gate), up));
}

constexpr int64_t kMaxExperts = 4096;
constexpr float kWeightSumEps = 1e-20f;

/// Scores of all experts; lanes beyond num_experts hold what padding gives and are not read.
void score_experts(const float* logits, int64_t num_experts, const MoeArgs& args, float* scores) {
  const __m256 temperature = set8(args.gate_temperature);
  for (int64_t e = 0; e < num_experts; e += 8) {
    const __m256i mask = first_lanes(num_experts - e < 8 ? num_experts - e : 8);
    const __m256 z = _mm256_div_ps(_mm256_maskload_ps(logits + e, mask), temperature);
    __m256 score = z;
    if (args.scoring == Scoring::sqrt_softplus) score = _mm256_sqrt_ps(softplus8(z));
    if (args.scoring == Scoring::sigmoid) score = sigmoid8(z);
    _mm256_storeu_ps(scores + e, score);
  }
  if (args.scoring != Scoring::softmax) return;
  float largest = scores[0];
  for (int64_t e = 1; e < num_experts; ++e) largest = scores[e] > largest ? scores[e] : largest;
  for (int64_t e = 0; e < num_experts; e += 8) {
    _mm256_storeu_ps(scores + e, exp8(_mm256_sub_ps(_mm256_loadu_ps(scores + e), set8(largest))));
  }
  const float total = sum(scores, num_experts);
  for (int64_t e = 0; e < num_experts; ++e) scores[e] = scores[e] / total;
}

int32_t best_left(const float* values, const bool* taken, int64_t count) {
  int32_t best = -1;
  for (int64_t e = 0; e < count; ++e) {
    if (taken[e]) continue;
    if (best < 0 || values[e] > values[best]) best = static_cast<int32_t>(e);
  }
  return best;
}

}  // namespace

void swiglu(const float* gate, const float* up, int64_t width, float limit, float weight, bool round_bf16,
            float* out) {
  const __m256 scale = set8(weight);
  for (int64_t i = 0; i < width; i += 8) {
    const bool whole = i + 8 <= width;
    const __m256i mask = first_lanes(whole ? 8 : width - i);
    const __m256 g = whole ? _mm256_loadu_ps(gate + i) : _mm256_maskload_ps(gate + i, mask);
    const __m256 u = whole ? _mm256_loadu_ps(up + i) : _mm256_maskload_ps(up + i, mask);
    __m256 value = swiglu8(g, u, limit, scale);
    if (round_bf16) value = round_bf16_8(value);
    if (whole) {
      _mm256_storeu_ps(out + i, value);
    } else {
      _mm256_maskstore_ps(out + i, mask, value);
    }
  }
}

void route(const float* logits, const float* bias, int64_t num_experts, const MoeArgs& args, int32_t* index,
           float* weight, float* gap) {
  alignas(32) float scores[kMaxExperts + 8];
  float selection[kMaxExperts];
  bool taken[kMaxExperts];
  scores[0] = 0.0f;
  score_experts(logits, num_experts, args, scores);
  for (int64_t e = 0; e < num_experts; ++e) {
    selection[e] = scores[e] + bias[e];
    taken[e] = false;
  }
  const int64_t k = args.num_active;
  for (int64_t i = 0; i < k; ++i) {
    index[i] = best_left(selection, taken, num_experts);
    taken[index[i]] = true;
    weight[i] = scores[index[i]];
  }
  if (gap != nullptr) {
    const int32_t rejected = best_left(selection, taken, num_experts);
    *gap = rejected < 0 ? _mm256_cvtss_f32(inf8()) : selection[index[k - 1]] - selection[rejected];
  }
  if (args.normalise_weights && k > 1) {
    const float total = sum(weight, k) + kWeightSumEps;
    for (int64_t i = 0; i < k; ++i) weight[i] = weight[i] / total;
  }
  for (int64_t i = 0; i < k; ++i) weight[i] = weight[i] * args.routed_scale;
}

}  // namespace rorqual::kernels::avx2
