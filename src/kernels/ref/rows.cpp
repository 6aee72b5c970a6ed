// SPDX-License-Identifier: Apache-2.0
// Scalar operators on rows of F32 values: norms, roundings, cache records, rotation, reductions.
#include <cmath>
#include <cstring>

#include "base/check.h"
#include "kernels/ref/operators_ref.h"
#include "num/formats.h"
#include "num/quantise.h"

namespace rorqual::kernels::ref {
namespace {

constexpr int64_t kChains = 16;  // of the reduction order
constexpr int64_t kGroup = num::kFp8Group;
constexpr int64_t kKvGroup = num::kFp4KvGroup;
static_assert(num::kFp4Group == kGroup);

/// c[j] += c[j+8], +4, +2, +1: the end of every reduction.
float fold(float* chains) {
  for (int64_t width = kChains / 2; width >= 1; width /= 2) {
    for (int64_t j = 0; j < width; ++j) chains[j] += chains[j + width];
  }
  return chains[0];
}

uint8_t* bytes_of(std::byte* record) {
  return reinterpret_cast<uint8_t*>(record);
}

const uint8_t* bytes_of(const std::byte* record) {
  return reinterpret_cast<const uint8_t*>(record);
}

uint8_t nibble(const uint8_t* codes, int64_t i) {
  return i % 2 == 0 ? num::e2m1_low(codes[i / 2]) : num::e2m1_high(codes[i / 2]);
}

void put_nibble(uint8_t* codes, int64_t i, uint8_t code) {
  codes[i / 2] = i % 2 == 0 ? code : static_cast<uint8_t>(codes[i / 2] | (code << 4));
}

}  // namespace

void rms_norm(const float* x, const float* weight, float eps, int64_t width, bool round_bf16, float* y) {
  const float mean = sum_squares(x, width) / static_cast<float>(width);
  const float scale = 1.0f / std::sqrt(mean + eps);
  for (int64_t i = 0; i < width; ++i) {
    const float value = weight[i] * (x[i] * scale);
    y[i] = round_bf16 ? num::bf16_round(value) : value;
  }
}

void round_bf16(const float* x, int64_t count, float* y) {
  for (int64_t i = 0; i < count; ++i) y[i] = num::bf16_round(x[i]);
}

void qdq_fp8(const float* x, int64_t width, float* y) {
  RORQUAL_CHECK(width % kGroup == 0);
  for (int64_t group = 0; group < width; group += kGroup) {
    const int exponent = num::fp8_exponent(num::max_abs(x + group, kGroup));
    for (int64_t i = group; i < group + kGroup; ++i) {
      y[i] = num::fp8_value(num::fp8_code(x[i], exponent), exponent);
    }
  }
}

void qdq_fp4_e8m0(const float* x, int64_t width, float* y) {
  RORQUAL_CHECK(width % kGroup == 0);
  for (int64_t group = 0; group < width; group += kGroup) {
    const int exponent = num::fp4_exponent(num::max_abs(x + group, kGroup));
    for (int64_t i = group; i < group + kGroup; ++i) {
      y[i] = num::fp4_value(num::fp4_code(x[i], exponent), exponent);
    }
  }
}

void qdq_fp4_e4m3(const float* x, int64_t width, float* y) {
  RORQUAL_CHECK(width % kKvGroup == 0);
  for (int64_t group = 0; group < width; group += kKvGroup) {
    const uint8_t scale = num::fp4_kv_scale(num::max_abs(x + group, kKvGroup));
    for (int64_t i = group; i < group + kKvGroup; ++i) {
      y[i] = num::fp4_kv_value(num::fp4_kv_code(x[i], scale), scale);
    }
  }
}

void encode_fp8(const float* x, int64_t width, std::byte* record) {
  RORQUAL_CHECK(width % kGroup == 0);
  uint8_t* codes = bytes_of(record);
  uint8_t* scales = codes + width;
  for (int64_t group = 0; group < width; group += kGroup) {
    const int exponent = num::fp8_exponent(num::max_abs(x + group, kGroup));
    scales[group / kGroup] = num::e8m0_encode_exponent(exponent);
    for (int64_t i = group; i < group + kGroup; ++i) codes[i] = num::fp8_code(x[i], exponent);
  }
}

void decode_fp8(const std::byte* record, int64_t width, float* y) {
  const uint8_t* codes = bytes_of(record);
  const uint8_t* scales = codes + width;
  for (int64_t i = 0; i < width; ++i) {
    y[i] = num::fp8_value(codes[i], num::e8m0_exponent(scales[i / kGroup]));
  }
}

void encode_fp4_e8m0(const float* x, int64_t width, std::byte* record) {
  RORQUAL_CHECK(width % kGroup == 0);
  uint8_t* codes = bytes_of(record);
  uint8_t* scales = codes + width / 2;
  for (int64_t group = 0; group < width; group += kGroup) {
    const int exponent = num::fp4_exponent(num::max_abs(x + group, kGroup));
    scales[group / kGroup] = num::e8m0_encode_exponent(exponent);
    for (int64_t i = group; i < group + kGroup; ++i) put_nibble(codes, i, num::fp4_code(x[i], exponent));
  }
}

void decode_fp4_e8m0(const std::byte* record, int64_t width, float* y) {
  const uint8_t* codes = bytes_of(record);
  const uint8_t* scales = codes + width / 2;
  for (int64_t i = 0; i < width; ++i) {
    y[i] = num::fp4_value(nibble(codes, i), num::e8m0_exponent(scales[i / kGroup]));
  }
}

void encode_fp4_e4m3(const float* x, int64_t width, std::byte* record) {
  RORQUAL_CHECK(width % kKvGroup == 0);
  uint8_t* codes = bytes_of(record);
  uint8_t* scales = codes + width / 2;
  for (int64_t group = 0; group < width; group += kKvGroup) {
    const uint8_t scale = num::fp4_kv_scale(num::max_abs(x + group, kKvGroup));
    scales[group / kKvGroup] = scale;
    for (int64_t i = group; i < group + kKvGroup; ++i) put_nibble(codes, i, num::fp4_kv_code(x[i], scale));
  }
}

void decode_fp4_e4m3(const std::byte* record, int64_t width, float* y) {
  const uint8_t* codes = bytes_of(record);
  const uint8_t* scales = codes + width / 2;
  for (int64_t i = 0; i < width; ++i) y[i] = num::fp4_kv_value(nibble(codes, i), scales[i / kKvGroup]);
}

void rope(const float* x, int64_t width, const float* cos, const float* sin, int64_t half, bool inverse,
          bool round_bf16, float* y) {
  const int64_t head = width - 2 * half;
  if (y != x) std::memmove(y, x, static_cast<size_t>(head) * sizeof(float));
  for (int64_t i = 0; i < half; ++i) {
    const float a = x[head + 2 * i];
    const float b = x[head + 2 * i + 1];
    const float s = inverse ? -sin[i] : sin[i];
    const float first = a * cos[i] - b * s;
    const float second = b * cos[i] + a * s;
    y[head + 2 * i] = round_bf16 ? num::bf16_round(first) : first;
    y[head + 2 * i + 1] = round_bf16 ? num::bf16_round(second) : second;
  }
}

float sum(const float* x, int64_t count) {
  float chains[kChains] = {};
  for (int64_t i = 0; i < count; ++i) chains[i % kChains] += x[i];
  return fold(chains);
}

float sum_squares(const float* x, int64_t count) {
  float chains[kChains] = {};
  for (int64_t i = 0; i < count; ++i) chains[i % kChains] = std::fma(x[i], x[i], chains[i % kChains]);
  return fold(chains);
}

float dot(const float* a, const float* b, int64_t count) {
  float acc = 0;
  for (int64_t block = 0; block < count; block += kBlockCols) {
    float chain[2] = {0, 0};
    for (int64_t k = block; k < block + kBlockCols; ++k) {
      const float x = k < count ? a[k] : 0.0f;
      const float w = k < count ? b[k] : 0.0f;
      chain[k % 2] = std::fma(x, w, chain[k % 2]);
    }
    acc = acc + (chain[0] + chain[1]);
  }
  return acc;
}

}  // namespace rorqual::kernels::ref
