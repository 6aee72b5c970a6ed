// SPDX-License-Identifier: Apache-2.0
// Index scores from integers are the bits of the scores from F32 values, on every tier and for scales that
// are far apart.
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <random>
#include <vector>

#include "kernels/operators.h"

namespace rorqual::kernels {
namespace {

constexpr float kValues[] = {0, 0.5f, 1, 1.5f, 2, 3, 4, 6};

/// Rows of FP4 values in both forms.
struct Operand {
  std::vector<float> values;  // [rows, dim]
  std::vector<int> doubled;   // twice the value without its scale
  std::vector<float> scales;  // [rows, dim/32]
};

Operand make_operand(std::mt19937_64& random, int64_t rows, int64_t dim, int spread) {
  Operand out;
  for (int64_t i = 0; i < rows * dim / 32; ++i) {
    const bool is_zero = random() % 8 == 0;
    const int exponent = static_cast<int>(random() % static_cast<uint64_t>(2 * spread + 1)) - spread;
    out.scales.push_back(std::ldexp(1.0f, exponent));
    for (int d = 0; d < 32; ++d) {
      const auto code = is_zero ? 0 : random() % 16;
      const float value = (code & 8) != 0 ? -kValues[code & 7] : kValues[code & 7];
      out.doubled.push_back(static_cast<int>(2 * value));
      out.values.push_back(value * out.scales.back());
    }
  }
  return out;
}

/// Queries and keys in the layouts of IndexQuery and IndexKeys.
struct Packed {
  Packed(const Operand& q, const Operand& k, std::span<const float> weights, int64_t dim)
      : count(static_cast<int64_t>(k.values.size()) / dim) {
    for (size_t i = 0; i < q.doubled.size(); ++i) {
      codes.push_back(static_cast<int8_t>(q.doubled[i]));
      if (i % 32 == 0) {
        scales.push_back(0.25f * q.scales[i / 32]);
        offsets.push_back(0);
      }
      offsets.back() += kIndexKeyZero * q.doubled[i];
    }
    query = {
        codes.data(), scales.data(), offsets.data(), weights.data(), static_cast<int64_t>(weights.size()),
        dim};
    const int64_t lanes = (count + kIndexKeyLanes - 1) / kIndexKeyLanes * kIndexKeyLanes;
    key_bytes.assign(static_cast<size_t>(lanes * dim) + 32, kIndexKeyZero);
    key_floats.assign(static_cast<size_t>(lanes * dim / 32) + 8, 1.0f);
    uint8_t* key_codes = aligned(key_bytes.data());
    float* key_scales = aligned(key_floats.data());
    for (int64_t i = 0; i < count; ++i) {
      const int64_t group = i / kIndexKeyLanes, lane = i % kIndexKeyLanes;
      for (int64_t d = 0; d < dim; ++d) {
        key_codes[(group * dim + d / 4 * 4) * kIndexKeyLanes + lane * 4 + d % 4] =
            static_cast<uint8_t>(k.doubled[static_cast<size_t>(i * dim + d)] + kIndexKeyZero);
        key_scales[(group * (dim / 32) + d / 32) * kIndexKeyLanes + lane] =
            k.scales[static_cast<size_t>(i * (dim / 32) + d / 32)];
      }
    }
    keys = {key_codes, key_scales};
  }

  template <class T>
  static T* aligned(T* p) {
    return reinterpret_cast<T*>((reinterpret_cast<uintptr_t>(p) + 31) / 32 * 32);
  }

  int64_t count;
  std::vector<int8_t> codes;
  std::vector<float> scales, key_floats;
  std::vector<int32_t> offsets;
  std::vector<uint8_t> key_bytes;
  IndexQuery query;
  IndexKeys keys;
};

TEST(IndexScoresInt8, AreTheBitsOfTheScoresFromFloats) {
  const uint64_t seed = std::random_device{}();
  SCOPED_TRACE(testing::Message() << "seed " << seed);
  std::mt19937_64 random(seed);
  const OperatorTable& law = *available_operators().front();
  for (int round = 0; round < 400; ++round) {
    const int64_t dim = 32 * (1 + static_cast<int64_t>(random() % 4)),
                  heads = 1 + static_cast<int64_t>(random() % 5),
                  count = 1 + static_cast<int64_t>(random() % 40);
    const int spread = round % 4 == 0 ? 60 : round % 4;
    const Operand q = make_operand(random, heads, dim, spread), k = make_operand(random, count, dim, spread);
    std::vector<float> weights;
    for (int64_t h = 0; h < heads; ++h) weights.push_back(std::normal_distribution<float>(0, 1)(random));
    std::vector<float> want(static_cast<size_t>(count));
    law.index_scores(q.values.data(), weights.data(), heads, dim, k.values.data(), count, Numerics::reference,
                     want.data());
    const Packed packed(q, k, weights, dim);
    for (const OperatorTable* table : available_operators()) {
      std::vector<float> got(static_cast<size_t>(count), NAN);
      table->index_scores_int8(packed.query, packed.keys, count, got.data());
      for (size_t i = 0; i < got.size(); ++i) {
        ASSERT_EQ(std::bit_cast<uint32_t>(got[i]), std::bit_cast<uint32_t>(want[i]))
            << table->name << " key " << i << " of " << count << ", dim " << dim << ", heads " << heads;
      }
    }
  }
}

}  // namespace
}  // namespace rorqual::kernels
