// SPDX-License-Identifier: Apache-2.0
// Hyper-connections, scalar: mixes with Sinkhorn, collapse and expand. Order of every sum: docs/numerics.md.
#include <cmath>
#include <cstdint>

#include "base/check.h"
#include "kernels/ref/operators_ref.h"
#include "num/formats.h"
#include "num/vector_math.h"

namespace rorqual::kernels::ref {
namespace {

constexpr int64_t kMaxStreams = 8;

/// Divides each row (over k) by its sum plus eps.
void normalise_rows(float* comb, int64_t n, float eps) {
  for (int64_t j = 0; j < n; ++j) {
    float sum = 0;
    for (int64_t k = 0; k < n; ++k) sum += comb[j * n + k];
    sum += eps;
    for (int64_t k = 0; k < n; ++k) comb[j * n + k] /= sum;
  }
}

/// Divides each column (over j) by its sum plus eps.
void normalise_columns(float* comb, int64_t n, float eps) {
  for (int64_t k = 0; k < n; ++k) {
    float sum = 0;
    for (int64_t j = 0; j < n; ++j) sum += comb[j * n + k];
    sum += eps;
    for (int64_t j = 0; j < n; ++j) comb[j * n + k] /= sum;
  }
}

}  // namespace

void sinkhorn(float* comb, int64_t n, int iters, float eps) {
  for (int64_t j = 0; j < n; ++j) {
    float* row = comb + j * n;
    float largest = row[0];
    for (int64_t k = 1; k < n; ++k) largest = row[k] > largest ? row[k] : largest;
    float sum = 0;
    for (int64_t k = 0; k < n; ++k) {
      row[k] = num::exp(row[k] - largest);
      sum += row[k];
    }
    for (int64_t k = 0; k < n; ++k) row[k] = row[k] / sum + eps;
  }
  normalise_columns(comb, n, eps);
  for (int i = 1; i < iters; ++i) {
    normalise_rows(comb, n, eps);
    normalise_columns(comb, n, eps);
  }
}

void hyper_mixes(const float* products, float mean_square, const HyperWeights& weights, int64_t n,
                 float norm_eps, float hc_eps, int sinkhorn_iters, float* pre, float* post, float* comb) {
  const float r = 1.0f / std::sqrt(mean_square + norm_eps);
  const auto mix = [&](int64_t i, int part) {
    return products[i] * r * weights.scale[part] + weights.base[i];
  };
  for (int64_t i = 0; i < n; ++i) pre[i] = num::sigmoid(mix(i, 0)) + hc_eps;
  for (int64_t i = 0; i < n; ++i) post[i] = 2.0f * num::sigmoid(mix(n + i, 1));
  for (int64_t i = 0; i < n * n; ++i) comb[i] = mix(2 * n + i, 2);
  sinkhorn(comb, n, sinkhorn_iters, hc_eps);
}

void hyper_collapse(const float* streams, const float* pre, int64_t n, int64_t width, bool round_bf16,
                    float* y) {
  for (int64_t c = 0; c < width; ++c) {
    float acc = pre[0] * streams[c];
    for (int64_t i = 1; i < n; ++i) acc = std::fma(pre[i], streams[i * width + c], acc);
    y[c] = round_bf16 ? num::bf16_round(acc) : acc;
  }
}

void hyper_expand(const float* y, const float* post, const float* comb, int64_t n, int64_t width,
                  bool round_bf16, float* streams) {
  RORQUAL_CHECK(n >= 1 && n <= kMaxStreams);
  float old[kMaxStreams];
  for (int64_t c = 0; c < width; ++c) {
    for (int64_t j = 0; j < n; ++j) old[j] = streams[j * width + c];
    for (int64_t k = 0; k < n; ++k) {
      float acc = post[k] * y[c];
      for (int64_t j = 0; j < n; ++j) acc = std::fma(comb[j * n + k], old[j], acc);
      streams[k * width + c] = round_bf16 ? num::bf16_round(acc) : acc;
    }
  }
}

}  // namespace rorqual::kernels::ref
