// SPDX-License-Identifier: Apache-2.0
// Hyper-connections on AVX2: collapse and expand over lanes of the model width. The mixes of one row are a
// few dozen values, so they stay with the scalar code.
#include <immintrin.h>

#include <cstdint>

#include "kernels/cpu/avx2/math_avx2.h"
#include "kernels/cpu/avx2/operators_avx2.h"
#include "kernels/ref/operators_ref.h"

namespace rorqual::kernels::avx2 {
namespace {

constexpr int64_t kMaxStreams = 8;

__m256 finish(__m256 value, bool round) {
  return round ? round_bf16_8(value) : value;
}

struct Expand {
  const float* y;
  const float* post;
  const float* comb;
  int64_t width;
  bool round;
  float* streams;
};

/// Columns [begin, end) of the expansion of N streams, 8 at a time; end - begin is a multiple of 8.
template <int N>
void expand_columns(const Expand& e, int64_t begin, int64_t end) {
  for (int64_t c = begin; c < end; c += 8) {
    const __m256 y = _mm256_loadu_ps(e.y + c);
    __m256 old[static_cast<size_t>(N)];
#pragma GCC unroll 8
    for (int j = 0; j < N; ++j) old[j] = _mm256_loadu_ps(e.streams + j * e.width + c);
#pragma GCC unroll 8
    for (int k = 0; k < N; ++k) {
      __m256 acc = _mm256_mul_ps(_mm256_broadcast_ss(e.post + k), y);
#pragma GCC unroll 8
      for (int j = 0; j < N; ++j) acc = _mm256_fmadd_ps(_mm256_broadcast_ss(e.comb + j * N + k), old[j], acc);
      _mm256_storeu_ps(e.streams + k * e.width + c, finish(acc, e.round));
    }
  }
}

/// The same for any number of streams and any number of columns up to 8.
void expand_tail(const Expand& e, int64_t n, int64_t c, int64_t count) {
  const __m256i mask = first_lanes(count);
  const __m256 y = _mm256_maskload_ps(e.y + c, mask);
  __m256 old[kMaxStreams];
  for (int64_t j = 0; j < n; ++j) old[j] = _mm256_maskload_ps(e.streams + j * e.width + c, mask);
  for (int64_t k = 0; k < n; ++k) {
    __m256 acc = _mm256_mul_ps(_mm256_broadcast_ss(e.post + k), y);
    for (int64_t j = 0; j < n; ++j)
      acc = _mm256_fmadd_ps(_mm256_broadcast_ss(e.comb + j * n + k), old[j], acc);
    _mm256_maskstore_ps(e.streams + k * e.width + c, mask, finish(acc, e.round));
  }
}

}  // namespace

void hyper_mixes(const float* products, float mean_square, const HyperWeights& weights, int64_t n,
                 float norm_eps, float hc_eps, int sinkhorn_iters, float* pre, float* post, float* comb) {
  ref::hyper_mixes(products, mean_square, weights, n, norm_eps, hc_eps, sinkhorn_iters, pre, post, comb);
}

void sinkhorn(float* comb, int64_t n, int iters, float eps) {
  ref::sinkhorn(comb, n, iters, eps);
}

void hyper_collapse(const float* streams, const float* pre, int64_t n, int64_t width, bool round_bf16,
                    float* y) {
  for (int64_t c = 0; c < width; c += 8) {
    const __m256i mask = first_lanes(width - c);
    __m256 acc = _mm256_mul_ps(_mm256_broadcast_ss(pre), _mm256_maskload_ps(streams + c, mask));
    for (int64_t i = 1; i < n; ++i) {
      const __m256 x = _mm256_maskload_ps(streams + i * width + c, mask);
      acc = _mm256_fmadd_ps(_mm256_broadcast_ss(pre + i), x, acc);
    }
    _mm256_maskstore_ps(y + c, mask, finish(acc, round_bf16));
  }
}

void hyper_expand(const float* y, const float* post, const float* comb, int64_t n, int64_t width,
                  bool round_bf16, float* streams) {
  if (n > kMaxStreams) {
    ref::hyper_expand(y, post, comb, n, width, round_bf16, streams);  // refuses
    return;
  }
  const Expand e{y, post, comb, width, round_bf16, streams};
  const int64_t whole = width / 8 * 8;
  int64_t done = 0;
  if (n == 4) {
    expand_columns<4>(e, 0, whole);
    done = whole;
  } else if (n == 3) {
    expand_columns<3>(e, 0, whole);
    done = whole;
  }
  for (int64_t c = done; c < width; c += 8) expand_tail(e, n, c, width - c);
}

}  // namespace rorqual::kernels::avx2
