// SPDX-License-Identifier: Apache-2.0
// Boundary, tap and Engram stages: the same bits for every tier, thread count and batch, and the parts in
// their order.
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <random>
#include <vector>

#include "kernels/kernels.h"
#include "num/formats.h"

namespace rorqual::kernels {
namespace {

constexpr uint32_t kSeed = 99;

std::vector<float> normals(uint32_t seed, int64_t count, float scale, bool bf16) {
  std::mt19937 engine(seed);
  std::normal_distribution<float> normal(0.0f, scale);
  std::vector<float> out(static_cast<size_t>(count));
  for (float& v : out) v = bf16 ? num::bf16_round(normal(engine)) : normal(engine);
  return out;
}

void expect_same_bits(const std::vector<float>& got, const std::vector<float>& want,
                      const std::string& what) {
  ASSERT_EQ(got.size(), want.size());
  for (size_t i = 0; i < got.size(); ++i) {
    ASSERT_EQ(std::bit_cast<uint32_t>(got[i]), std::bit_cast<uint32_t>(want[i]))
        << what << ": value " << i << ", got " << got[i] << ", expected " << want[i];
  }
}

tensor::Buffer pack_f32(const std::vector<float>& values, int64_t rows, int64_t cols, Matrix* matrix) {
  auto buffer = tensor::Buffer::allocate(packed_data_bytes(WeightFormat::f32, rows, cols));
  tensor::Buffer data = *std::move(buffer);
  *matrix = pack_matrix(WeightFormat::f32, rows, cols, reinterpret_cast<const std::byte*>(values.data()),
                        nullptr, data.data(), nullptr);
  return data;
}

// ------------------------------------------------------------------------------------------------ boundary
struct BoundaryResult {
  std::vector<float> streams, pre, post, comb, collapsed, x;
};

struct BoundaryData {
  int64_t n, d;
  Matrix fn;
  tensor::Buffer fn_data;
  std::vector<float> base, scale = {0.7f, 1.1f, 0.9f}, norm;

  BoundaryData(int64_t n_in, int64_t d_in) : n(n_in), d(d_in) {
    const int64_t rows = (2 + n) * n;
    fn_data = pack_f32(normals(kSeed, rows * n * d, 0.05f, false), rows, n * d, &fn);
    base = normals(kSeed + 1, rows, 1.0f, false);
    norm = normals(kSeed + 2, d, 1.0f, true);
  }

  /// Rows [begin, begin + count) of an endless batch.
  BoundaryResult run(const KernelTable& table, int threads, Numerics numerics, int64_t begin,
                     int64_t count) const {
    ThreadPool pool(threads);
    Scratch scratch;
    Context ctx{&pool, &scratch, numerics};
    std::vector<float> streams, y, post, comb, pre;
    const auto append = [](std::vector<float>& to, const std::vector<float>& from) {
      to.insert(to.end(), from.begin(), from.end());
    };
    for (int64_t t = begin; t < begin + count; ++t) {
      const auto seed = kSeed + 100 * static_cast<uint32_t>(t + 1);
      append(streams, normals(seed, n * d, 2.0f, true));
      append(y, normals(seed + 1, d, 1.0f, true));
      append(post, normals(seed + 2, n, 1.0f, false));
      append(comb, normals(seed + 3, n * n, 0.5f, false));
      append(pre, normals(seed + 4, n, 0.5f, false));
    }
    BoundaryResult r;
    r.streams = streams;
    r.pre.resize(static_cast<size_t>(count * n));
    r.post.resize(r.pre.size());
    r.comb.resize(static_cast<size_t>(count * n * n));
    r.collapsed.resize(static_cast<size_t>(count * d));
    r.x.resize(r.collapsed.size());
    HyperWeights weights{fn, base.data(), scale.data()};
    BoundaryArgs args;
    args.num_rows = count;
    args.d_model = d;
    args.num_streams = n;
    args.norm_eps = 1e-20f;
    args.hc_eps = 1e-6f;
    args.sinkhorn_iters = 20;
    args.streams = r.streams.data();
    args.y = y.data();
    args.post = post.data();
    args.comb = comb.data();
    args.hyper = &weights;
    args.next_pre = r.pre.data();
    args.next_post = r.post.data();
    args.next_comb = r.comb.data();
    args.pre_mix = pre.data();
    args.norm_weight = norm.data();
    args.collapsed = r.collapsed.data();
    args.x = r.x.data();
    table.boundary(ctx, args);
    return r;
  }
};

void expect_same(const BoundaryResult& got, const BoundaryResult& want, const std::string& what) {
  expect_same_bits(got.streams, want.streams, what + " streams");
  expect_same_bits(got.pre, want.pre, what + " pre");
  expect_same_bits(got.post, want.post, what + " post");
  expect_same_bits(got.comb, want.comb, what + " comb");
  expect_same_bits(got.collapsed, want.collapsed, what + " collapsed");
  expect_same_bits(got.x, want.x, what + " x");
}

TEST(Boundary, GivesTheSameBitsForEveryTierAndThreadCount) {
  for (const int64_t n : {3, 4}) {
    const BoundaryData data(n, 160);
    for (const Numerics numerics : {Numerics::reference, Numerics::exact}) {
      const auto want = data.run(*available_kernels()[0], 1, numerics, 0, 13);
      for (const KernelTable* table : available_kernels()) {
        for (const int threads : {1, 3, 16}) {
          expect_same(data.run(*table, threads, numerics, 0, 13), want, std::string(table->name));
        }
      }
    }
  }
}

TEST(Boundary, ARowDoesNotDependOnItsBatch) {
  const BoundaryData data(4, 64);
  const KernelTable& table = *available_kernels().back();
  const auto batch = data.run(table, 2, Numerics::reference, 0, 21);
  for (const int64_t t : {0, 7, 20}) {
    const auto alone = data.run(table, 2, Numerics::reference, t, 1);
    const std::vector<float> x(batch.x.begin() + t * data.d, batch.x.begin() + (t + 1) * data.d);
    const std::vector<float> comb(batch.comb.begin() + t * 16, batch.comb.begin() + (t + 1) * 16);
    expect_same_bits(alone.x, x, "x of row " + std::to_string(t));
    expect_same_bits(alone.comb, comb, "comb of row " + std::to_string(t));
  }
}

TEST(Boundary, MixesComeFromTheStreamsAfterPost) {
  // With exact numerics the mixes of the new streams follow the formula in F64.
  const BoundaryData data(4, 64);
  const auto r = data.run(*available_kernels().back(), 2, Numerics::exact, 0, 2);
  for (int64_t t = 0; t < 2; ++t) {
    double square = 0, product = 0;
    for (int64_t k = 0; k < 256; ++k) {
      const double z = static_cast<double>(r.streams[static_cast<size_t>(t * 256 + k)]);
      square += z * z;
      product += z * static_cast<double>(matrix_value(data.fn, 0, k));
    }
    const double mix = product / std::sqrt(square / 256 + 1e-20) * 0.7 + static_cast<double>(data.base[0]);
    EXPECT_NEAR(r.pre[static_cast<size_t>(t * 4)], 1 / (1 + std::exp(-mix)) + 1e-6, 1e-6);
  }
}

TEST(Tap, IsTheMeanOverTheStreams) {
  const auto streams = normals(kSeed, 5 * 3 * 64, 1.0f, true);
  for (const KernelTable* table : available_kernels()) {
    ThreadPool pool(2);
    Scratch scratch;
    Context ctx{&pool, &scratch, Numerics::reference};
    std::vector<float> out(5 * 100, -1.0f);
    table->tap(ctx, {5, 64, 3, streams.data(), out.data(), 100});
    for (size_t t = 0; t < 5; ++t) {
      for (size_t c = 0; c < 64; ++c) {
        const float* row = streams.data() + t * 192 + c;
        EXPECT_EQ(out[t * 100 + c], num::bf16_round((row[0] + row[64] + row[128]) / 3.0f));
      }
      EXPECT_EQ(out[t * 100 + 64], -1.0f);
    }
  }
}

// ------------------------------------------------------------------------------------------------ Engram
/// A code that is not NaN.
uint8_t random_code(std::mt19937& engine) {
  const auto magnitude = engine() % 120;
  return static_cast<uint8_t>(magnitude + engine() % 2 * 128);
}

struct EngramData {
  static constexpr int64_t kStreams = 3, kModel = 64, kColumns = 4, kHead = 32;
  Matrix wkv;
  tensor::Buffer wkv_data;
  std::vector<float> query = normals(kSeed + 10, kStreams* kModel, 1.0f, true);
  std::vector<float> key = normals(kSeed + 11, kStreams* kModel, 1.0f, true);

  EngramData() {
    const int64_t rows = (kStreams + 1) * kModel, cols = kColumns * kHead;
    wkv_data = pack_f32(normals(kSeed + 12, rows * cols, 0.1f, true), rows, cols, &wkv);
  }

  struct Result {
    std::vector<float> streams, gate;
  };

  Result run(const KernelTable& table, int threads, Numerics numerics, int64_t begin, int64_t count) const {
    ThreadPool pool(threads);
    Scratch scratch;
    Context ctx{&pool, &scratch, numerics};
    Result r;
    std::vector<uint8_t> codes, scales, image;
    for (int64_t t = begin; t < begin + count; ++t) {
      std::mt19937 engine(kSeed + static_cast<uint32_t>(t));
      const auto streams = normals(kSeed + 1000 + static_cast<uint32_t>(t), kStreams * kModel, 1.0f, true);
      r.streams.insert(r.streams.end(), streams.begin(), streams.end());
      for (int64_t i = 0; i < kColumns * kHead; ++i) codes.push_back(random_code(engine));
      for (int64_t i = 0; i < kColumns; ++i) scales.push_back(static_cast<uint8_t>(118 + engine() % 4));
      image.push_back(t % 5 == 3 ? 1 : 0);
    }
    r.gate.resize(static_cast<size_t>(count * kStreams));
    StepPlan plan;
    plan.num_rows = static_cast<int32_t>(count);
    plan.is_image = image;
    EngramArgs args;
    args.plan = &plan;
    args.d_model = kModel;
    args.num_streams = kStreams;
    args.num_columns = kColumns;
    args.head_dim = kHead;
    args.rows_e4m3 = codes.data();
    args.row_scales = scales.data();
    args.wkv = wkv;
    args.query_weight = query.data();
    args.key_weight = key.data();
    args.eps = 1e-20f;
    args.streams = r.streams.data();
    args.gate = r.gate.data();
    table.engram(ctx, args);
    return r;
  }
};

TEST(Engram, GivesTheSameBitsForEveryTierThreadCountAndBatch) {
  const EngramData data;
  for (const Numerics numerics : {Numerics::reference, Numerics::exact}) {
    const auto want = data.run(*available_kernels()[0], 1, numerics, 0, 300);
    for (const KernelTable* table : available_kernels()) {
      const auto got = data.run(*table, 3, numerics, 0, 300);
      expect_same_bits(got.streams, want.streams, std::string(table->name));
      expect_same_bits(got.gate, want.gate, std::string(table->name));
      const auto alone = data.run(*table, 2, numerics, 7, 1);
      expect_same_bits(alone.streams, {want.streams.begin() + 7 * 192, want.streams.begin() + 8 * 192},
                       "alone");
    }
  }
}

TEST(Engram, FollowsTheFormulaAndLeavesImageRowsAlone) {
  const EngramData data;
  const auto r = data.run(*available_kernels().back(), 1, Numerics::exact, 0, 5);
  const auto image = normals(kSeed + 1003, 192, 1.0f, true);
  expect_same_bits({r.streams.begin() + 3 * 192, r.streams.begin() + 4 * 192}, image, "image row");

  std::mt19937 engine(kSeed);
  std::vector<double> e;
  for (int i = 0; i < 128; ++i) {
    e.push_back(static_cast<double>(num::e4m3_decode(random_code(engine))));
  }
  for (size_t c = 0; c < 4; ++c) {
    const double scale = std::exp2(static_cast<double>(118 + engine() % 4) - 127);
    for (size_t i = 0; i < 32; ++i) e[c * 32 + i] *= scale;
  }
  const auto project = [&](int64_t row) {
    double sum = 0;
    for (int64_t k = 0; k < 128; ++k) {
      sum += e[static_cast<size_t>(k)] * static_cast<double>(matrix_value(data.wkv, row, k));
    }
    return sum;
  };
  const auto h = normals(kSeed + 1000, 192, 1.0f, true);
  for (int64_t i = 0; i < 3; ++i) {
    double dot = 0, h_square = 0, k_square = 0;
    for (int64_t c = 0; c < 64; ++c) {
      const auto at = static_cast<size_t>(i * 64 + c);
      const double key = project(i * 64 + c), x = static_cast<double>(h[at]);
      dot += x * static_cast<double>(data.query[at]) * static_cast<double>(data.key[at]) * key;
      h_square += x * x;
      k_square += key * key;
    }
    const double d = dot / std::sqrt(h_square / 64) / std::sqrt(k_square / 64) / 8;
    const double gate = 1 / (1 + std::exp(-std::copysign(std::sqrt(std::max(std::fabs(d), 1e-6)), d)));
    EXPECT_NEAR(r.gate[static_cast<size_t>(i)], gate, 1e-5);
    for (int64_t c = 0; c < 64; ++c) {
      const auto at = static_cast<size_t>(i * 64 + c);
      EXPECT_NEAR(r.streams[at], static_cast<double>(h[at]) + gate * project(192 + c), 1e-4);
    }
  }
}

}  // namespace
}  // namespace rorqual::kernels
