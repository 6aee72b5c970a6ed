// SPDX-License-Identifier: Apache-2.0
// Scalar operators of the mixture of experts: gated activation and routing of one token.
#include <cmath>
#include <limits>

#include "base/check.h"
#include "kernels/ref/operators_ref.h"
#include "num/formats.h"
#include "num/vector_math.h"

namespace rorqual::kernels::ref {
namespace {

constexpr int64_t kMaxExperts = 4096;
constexpr int64_t kMaxActive = 64;
constexpr float kWeightSumEps = 1e-20f;

void softmax(float* values, int64_t count) {
  float largest = values[0];
  for (int64_t e = 1; e < count; ++e) largest = values[e] > largest ? values[e] : largest;
  for (int64_t e = 0; e < count; ++e) values[e] = num::exp(values[e] - largest);
  const float total = sum(values, count);
  for (int64_t e = 0; e < count; ++e) values[e] = values[e] / total;
}

void score_experts(const float* logits, int64_t num_experts, const MoeArgs& args, float* scores) {
  for (int64_t e = 0; e < num_experts; ++e) {
    const float z = logits[e] / args.gate_temperature;
    switch (args.scoring) {
      case Scoring::sqrt_softplus:
        scores[e] = std::sqrt(num::softplus(z));
        break;
      case Scoring::sigmoid:
        scores[e] = num::sigmoid(z);
        break;
      case Scoring::softmax:
        scores[e] = z;
        break;
    }
  }
  if (args.scoring == Scoring::softmax) softmax(scores, num_experts);
}

/// Index of the largest value that is not taken; ties go to the lowest index. -1 when all are taken or NaN.
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
  for (int64_t i = 0; i < width; ++i) {
    float g = gate[i];
    float u = up[i];
    if (limit > 0) {
      g = g < limit ? g : limit;
      u = u < limit ? u : limit;
      u = u > -limit ? u : -limit;
    }
    const float value = weight * (num::silu(g) * u);
    out[i] = round_bf16 ? num::bf16_round(value) : value;
  }
}

void route(const float* logits, const float* bias, int64_t num_experts, const MoeArgs& args, int32_t* index,
           float* weight, float* gap) {
  const int64_t k = args.num_active;
  RORQUAL_CHECK(num_experts <= kMaxExperts && k <= kMaxActive && k <= num_experts && k > 0);
  float scores[kMaxExperts];
  float selection[kMaxExperts];
  bool taken[kMaxExperts];
  score_experts(logits, num_experts, args, scores);
  for (int64_t e = 0; e < num_experts; ++e) {
    selection[e] = scores[e] + bias[e];
    taken[e] = false;
  }
  for (int64_t i = 0; i < k; ++i) {
    index[i] = best_left(selection, taken, num_experts);
    taken[index[i]] = true;
    weight[i] = scores[index[i]];
  }
  if (gap != nullptr) {
    const int32_t rejected = best_left(selection, taken, num_experts);
    *gap =
        rejected < 0 ? std::numeric_limits<float>::infinity() : selection[index[k - 1]] - selection[rejected];
  }
  if (args.normalise_weights && k > 1) {
    const float total = sum(weight, k) + kWeightSumEps;
    for (int64_t i = 0; i < k; ++i) weight[i] = weight[i] / total;
  }
  for (int64_t i = 0; i < k; ++i) weight[i] = weight[i] * args.routed_scale;
}

}  // namespace rorqual::kernels::ref
