// SPDX-License-Identifier: Apache-2.0
// Operators of hyper-connections, attention and index: every tier equals the scalar one bit for bit, and the
// scalar one equals plain F64 formulas.
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <random>
#include <vector>

#include "base/thread_pool.h"
#include "kernels/operators.h"
#include "num/formats.h"

namespace rorqual::kernels {
namespace {

constexpr uint32_t kSeed = 20261130;
constexpr float kInf = std::numeric_limits<float>::infinity();

class Random {
 public:
  explicit Random(uint32_t seed) : engine_(seed) {}

  float normal() { return normal_(engine_); }

  int64_t below(int64_t count) { return std::uniform_int_distribution<int64_t>(0, count - 1)(engine_); }

  std::vector<float> floats(int64_t count, float scale = 1.0f, bool bf16 = true) {
    std::vector<float> out(static_cast<size_t>(count));
    for (float& v : out) v = bf16 ? num::bf16_round(normal() * scale) : normal() * scale;
    return out;
  }

 private:
  std::mt19937 engine_;
  std::normal_distribution<float> normal_;
};

std::vector<const OperatorTable*> faster_tables() {
  const auto all = available_operators();
  return {all.begin() + 1, all.end()};
}

const OperatorTable& scalar() {
  return *available_operators()[0];
}

void expect_same_bits(const std::vector<float>& got, const std::vector<float>& want, const char* what) {
  ASSERT_EQ(got.size(), want.size());
  for (size_t i = 0; i < got.size(); ++i) {
    ASSERT_EQ(std::bit_cast<uint32_t>(got[i]), std::bit_cast<uint32_t>(want[i]))
        << what << ": first difference at " << i << ", got " << got[i] << ", expected " << want[i];
  }
}

// ------------------------------------------------------------------------------------------------
// hyper-connections
TEST(Hyper, EveryTierExpandsAndCollapsesToTheSameBits) {
  const ScopedFlushToZero flush;
  Random random(kSeed);
  for (const int64_t n : {1, 2, 3, 4, 5, 8}) {
    for (const int64_t width : {1, 7, 8, 31, 32, 33, 160}) {
      for (const bool round : {false, true}) {
        const auto streams = random.floats(n * width, 3.0f), y = random.floats(width);
        const auto post = random.floats(n, 1.0f, false), comb = random.floats(n * n, 1.0f, false);
        auto want = streams;
        std::vector<float> want_y(static_cast<size_t>(width));
        scalar().hyper_expand(y.data(), post.data(), comb.data(), n, width, round, want.data());
        scalar().hyper_collapse(streams.data(), post.data(), n, width, round, want_y.data());
        for (const OperatorTable* table : faster_tables()) {
          auto got = streams;
          std::vector<float> got_y(static_cast<size_t>(width));
          table->hyper_expand(y.data(), post.data(), comb.data(), n, width, round, got.data());
          table->hyper_collapse(streams.data(), post.data(), n, width, round, got_y.data());
          expect_same_bits(got, want, "expand");
          expect_same_bits(got_y, want_y, "collapse");
        }
      }
    }
  }
}

TEST(Hyper, ExpansionSumsOverTheSourceStream) {
  // comb[from][to]: stream 0 goes to stream 1 only.
  const std::vector<float> y(32, 0.0f), post(2, 0.0f), comb = {0, 1, 0, 0};
  std::vector<float> streams(64);
  for (size_t i = 0; i < 32; ++i) streams[i] = static_cast<float>(i + 1);
  for (const OperatorTable* table : available_operators()) {
    auto s = streams;
    table->hyper_expand(y.data(), post.data(), comb.data(), 2, 32, true, s.data());
    for (size_t i = 0; i < 32; ++i) {
      EXPECT_EQ(s[i], 0.0f);
      EXPECT_EQ(s[32 + i], static_cast<float>(i + 1));
    }
  }
}

TEST(Hyper, MixesFollowTheFormulasInDoublePrecision) {
  Random random(kSeed + 1);
  const int64_t n = 4;
  const float norm_eps = 1e-20f, eps = 1e-6f;
  const auto products = random.floats(24, 3.0f, false), base = random.floats(24, 1.0f, false);
  const std::vector<float> scale = {0.7f, 1.1f, 1.9f};
  HyperWeights weights;
  weights.base = base.data();
  weights.scale = scale.data();
  for (const OperatorTable* table : available_operators()) {
    std::vector<float> pre(4), post(4), comb(16);
    table->hyper_mixes(products.data(), 2.5f, weights, n, norm_eps, eps, 20, pre.data(), post.data(),
                       comb.data());
    const double r = 1 / std::sqrt(2.5 + 1e-20);
    const auto mix = [&](size_t i, size_t part) {
      return static_cast<double>(products[i]) * r * static_cast<double>(scale[part]) +
             static_cast<double>(base[i]);
    };
    for (size_t i = 0; i < 4; ++i) {
      EXPECT_NEAR(pre[i], 1 / (1 + std::exp(-mix(i, 0))) + 1e-6, 1e-6);
      EXPECT_NEAR(post[i], 2 / (1 + std::exp(-mix(4 + i, 1))), 2e-6);
    }
    double c[4][4];
    for (size_t j = 0; j < 4; ++j) {
      double sum = 0;
      for (size_t k = 0; k < 4; ++k) sum += c[j][k] = std::exp(mix(8 + 4 * j + k, 2));
      for (size_t k = 0; k < 4; ++k) c[j][k] = c[j][k] / sum + 1e-6;
    }
    const auto columns = [&] {
      for (size_t k = 0; k < 4; ++k) {
        const double sum = c[0][k] + c[1][k] + c[2][k] + c[3][k] + 1e-6;
        for (size_t j = 0; j < 4; ++j) c[j][k] /= sum;
      }
    };
    columns();
    for (int i = 1; i < 20; ++i) {
      for (auto& row : c) {
        const double sum = row[0] + row[1] + row[2] + row[3] + 1e-6;
        for (double& v : row) v /= sum;
      }
      columns();
    }
    for (size_t i = 0; i < 16; ++i) EXPECT_NEAR(comb[i], c[i / 4][i % 4], 4e-6);
  }
}

// ------------------------------------------------------------------------------------------------ attention
struct AttendCase {
  int64_t heads, head_dim, slots;
  std::vector<float> q, keys, sink;
  std::vector<uint8_t> valid;
  float scale;
};

AttendCase make_case(Random& random, int64_t heads, int64_t head_dim, int64_t slots, int valid_percent) {
  AttendCase c{heads, head_dim, slots, {}, {}, {}, {}, 1.0f / std::sqrt(static_cast<float>(head_dim))};
  c.q = random.floats(heads * head_dim, 2.0f);
  c.keys = random.floats(slots * head_dim);
  c.sink = random.floats(heads, 1.0f, false);
  for (int64_t s = 0; s < slots; ++s) c.valid.push_back(random.below(100) < valid_percent ? 1 : 0);
  for (size_t s = 0; s < c.valid.size(); ++s) {  // nothing may depend on what lies in empty slots
    if (c.valid[s] == 0) {
      std::fill_n(c.keys.begin() + static_cast<int64_t>(s) * head_dim, head_dim, std::nanf(""));
    }
  }
  return c;
}

std::vector<float> run(const OperatorTable& table, const AttendCase& c, Numerics numerics) {
  std::vector<float> out(static_cast<size_t>(c.heads * c.head_dim), -1.0f);
  std::vector<float> work(static_cast<size_t>(table.attend_workspace(c.heads, c.head_dim, c.slots)));
  table.attend(c.q.data(), c.heads, c.head_dim, c.keys.data(), c.valid.data(), c.slots, c.sink.data(),
               c.scale, numerics, out.data(), work.data());
  return out;
}

TEST(Attend, EveryTierGivesTheSameBits) {
  const ScopedFlushToZero flush;
  Random random(kSeed + 2);
  for (const int64_t heads : {1, 3, 4, 6, 8, 15, 16, 24}) {
    for (const int64_t head_dim : {32, 64, 96}) {
      for (const int64_t slots : {0, 1, 2, 31, 63, 64, 65, 100, 128, 176}) {
        const int percent = slots % 2 == 0 ? 100 : 40;
        const AttendCase c = make_case(random, heads, head_dim, slots, percent);
        for (const Numerics numerics : {Numerics::reference, Numerics::exact}) {
          const auto want = run(scalar(), c, numerics);
          for (const OperatorTable* table : faster_tables()) {
            SCOPED_TRACE(testing::Message() << table->name << " heads " << heads << " slots " << slots);
            expect_same_bits(run(*table, c, numerics), want, "attend");
            if (testing::Test::HasFatalFailure()) return;
          }
        }
      }
    }
  }
}

TEST(Attend, MatchesASoftmaxInDoublePrecision) {
  Random random(kSeed + 3);
  const AttendCase c = make_case(random, 6, 96, 150, 70);
  for (const OperatorTable* table : available_operators()) {
    const auto got = run(*table, c, Numerics::exact);
    for (int64_t h = 0; h < c.heads; ++h) {
      std::vector<double> out(static_cast<size_t>(c.head_dim));
      double sum = std::exp(static_cast<double>(c.sink[static_cast<size_t>(h)]));
      for (int64_t s = 0; s < c.slots; ++s) {
        if (c.valid[static_cast<size_t>(s)] == 0) continue;
        double dot = 0;
        for (int64_t d = 0; d < c.head_dim; ++d) {
          dot += static_cast<double>(c.q[static_cast<size_t>(h * c.head_dim + d)]) *
                 static_cast<double>(c.keys[static_cast<size_t>(s * c.head_dim + d)]);
        }
        const double p = std::exp(dot * static_cast<double>(c.scale));
        sum += p;
        for (int64_t d = 0; d < c.head_dim; ++d) {
          out[static_cast<size_t>(d)] +=
              p * static_cast<double>(c.keys[static_cast<size_t>(s * c.head_dim + d)]);
        }
      }
      for (int64_t d = 0; d < c.head_dim; ++d) {
        EXPECT_NEAR(got[static_cast<size_t>(h * c.head_dim + d)], out[static_cast<size_t>(d)] / sum, 2e-5);
      }
    }
  }
}

TEST(Attend, HeadsAreIndependentOfEachOther) {
  const ScopedFlushToZero flush;
  Random random(kSeed + 4);
  const AttendCase c = make_case(random, 24, 64, 130, 80);
  for (const OperatorTable* table : available_operators()) {
    const auto whole = run(*table, c, Numerics::reference);
    for (const int64_t begin : {0, 8, 16, 21}) {
      AttendCase part = c;
      part.heads = std::min<int64_t>(8, c.heads - begin);
      part.q.assign(c.q.begin() + begin * c.head_dim, c.q.begin() + (begin + part.heads) * c.head_dim);
      part.sink.assign(c.sink.begin() + begin, c.sink.begin() + begin + part.heads);
      const std::vector<float> want(whole.begin() + begin * c.head_dim,
                                    whole.begin() + (begin + part.heads) * c.head_dim);
      expect_same_bits(run(*table, part, Numerics::reference), want, "part");
    }
  }
}

TEST(Attend, GivesZeroWithoutEntriesAndSurvivesExtremeScores) {
  const ScopedFlushToZero flush;
  Random random(kSeed + 5);
  AttendCase none = make_case(random, 3, 32, 70, 0);
  AttendCase large = make_case(random, 3, 32, 70, 100);
  for (float& v : large.q) v *= 1e4f;
  for (const OperatorTable* table : available_operators()) {
    for (const float v : run(*table, none, Numerics::reference)) EXPECT_EQ(v, 0.0f);
    const auto out = run(*table, large, Numerics::reference);
    for (const float v : out) EXPECT_TRUE(std::isfinite(v));
    expect_same_bits(out, run(scalar(), large, Numerics::reference), "large");
  }
}

// ------------------------------------------------------------------------------------------------ index
TEST(IndexScores, EveryTierGivesTheSameBits) {
  const ScopedFlushToZero flush;
  Random random(kSeed + 6);
  for (const int64_t heads : {1, 3, 4, 5, 8, 32}) {
    for (const int64_t dim : {32, 64, 128}) {
      for (const int64_t count : {0, 1, 7, 8, 15, 16, 17, 40}) {
        const auto q = random.floats(heads * dim), w = random.floats(heads),
                   keys = random.floats(count * dim);
        for (const Numerics numerics : {Numerics::reference, Numerics::exact}) {
          std::vector<float> want(static_cast<size_t>(count));
          scalar().index_scores(q.data(), w.data(), heads, dim, keys.data(), count, numerics, want.data());
          for (const OperatorTable* table : faster_tables()) {
            std::vector<float> got(static_cast<size_t>(count));
            table->index_scores(q.data(), w.data(), heads, dim, keys.data(), count, numerics, got.data());
            expect_same_bits(got, want, "scores");
          }
        }
      }
    }
  }
}

TEST(IndexScores, RoundAtFourSitesInReferenceNumerics) {
  Random random(kSeed + 7);
  const int64_t heads = 3, dim = 32;
  const auto q = random.floats(heads * dim), w = random.floats(heads), key = random.floats(dim);
  float sum = 0;
  for (int64_t h = 0; h < heads; ++h) {
    double dot = 0;
    for (int64_t d = 0; d < dim; ++d) {
      dot += static_cast<double>(q[static_cast<size_t>(h * dim + d)]) *
             static_cast<double>(key[static_cast<size_t>(d)]);
    }
    const float rounded = std::max(num::bf16_round(static_cast<float>(dot)), 0.0f);
    sum += num::bf16_round(rounded * w[static_cast<size_t>(h)]);
  }
  for (const OperatorTable* table : available_operators()) {
    float got = 0;
    table->index_scores(q.data(), w.data(), heads, dim, key.data(), 1, Numerics::reference, &got);
    EXPECT_EQ(got, num::bf16_round(sum));
  }
}

/// The definition: sort by descending score, ties by position; NaN and -inf are never taken.
std::vector<int32_t> sorted_top(const std::vector<float>& scores, int64_t k) {
  std::vector<int32_t> order;
  for (size_t i = 0; i < scores.size(); ++i) {
    if (scores[i] > -kInf) order.push_back(static_cast<int32_t>(i));
  }
  std::stable_sort(order.begin(), order.end(), [&](int32_t a, int32_t b) {
    return scores[static_cast<size_t>(a)] > scores[static_cast<size_t>(b)];
  });
  order.resize(std::min(order.size(), static_cast<size_t>(k)));
  std::sort(order.begin(), order.end());
  return order;
}

TEST(TopK, TakesTheLargestWithTiesByLowestPosition) {
  Random random(kSeed + 8);
  for (const OperatorTable* table : available_operators()) {
    for (int trial = 0; trial < 200; ++trial) {
      const int64_t count = random.below(120), k = 1 + random.below(60);
      std::vector<float> scores;
      for (int64_t i = 0; i < count; ++i) {
        const int64_t kind = random.below(8);
        scores.push_back(kind == 0   ? -kInf
                         : kind == 1 ? std::nanf("")
                         : kind == 2 ? -0.0f
                         : kind == 3 ? 0.0f
                                     : std::round(random.normal() * 4) / 4);
      }
      std::vector<int32_t> got(static_cast<size_t>(k), -7);
      float gap = 0;
      const int64_t taken = table->top_k(scores.data(), count, k, got.data(), &gap);
      const auto want = sorted_top(scores, k);
      ASSERT_EQ(taken, static_cast<int64_t>(want.size())) << "seed " << kSeed + 8 << " trial " << trial;
      got.resize(static_cast<size_t>(taken));
      EXPECT_EQ(got, want) << "seed " << kSeed + 8 << " trial " << trial;
      const auto next = sorted_top(scores, k + 1);
      if (next.size() == want.size()) {
        EXPECT_EQ(gap, kInf);
        continue;
      }
      float least = kInf, rejected = -kInf;
      for (size_t i = 0; i < scores.size(); ++i) {
        const bool in = std::binary_search(want.begin(), want.end(), static_cast<int32_t>(i));
        if (in) least = std::min(least, scores[i]);
        if (!in && scores[i] > rejected) rejected = scores[i];
      }
      EXPECT_EQ(gap, least - rejected);
    }
  }
}

TEST(TopK, EveryTierTakesTheSameOfManyScores) {
  const ScopedFlushToZero flush;
  Random random(kSeed + 10);
  for (const int64_t count : {1, 7, 8, 9, 64, 1000, 20000}) {
    for (const int64_t k : {1, 5, 512}) {
      for (const bool ties : {false, true}) {
        auto scores = random.floats(count, 10.0f, ties);
        if (ties) scores[static_cast<size_t>(random.below(count))] = kInf;
        std::vector<int32_t> want(static_cast<size_t>(k)), got(want.size());
        float want_gap = 0, got_gap = 0;
        const int64_t taken = scalar().top_k(scores.data(), count, k, want.data(), &want_gap);
        for (const OperatorTable* table : faster_tables()) {
          ASSERT_EQ(table->top_k(scores.data(), count, k, got.data(), &got_gap), taken);
          EXPECT_EQ(got, want) << count << " scores, top " << k;
          EXPECT_EQ(std::bit_cast<uint32_t>(got_gap), std::bit_cast<uint32_t>(want_gap));
        }
      }
    }
  }
}

TEST(CandidateBlocks, KeepTheNewestAndTheBestByMaximum) {
  Random random(kSeed + 9);
  for (const OperatorTable* table : available_operators()) {
    for (int trial = 0; trial < 200; ++trial) {
      const int64_t count = 1 + random.below(90), size = 1 + random.below(9), keep = 1 + random.below(8);
      std::vector<float> scores;
      for (int64_t i = 0; i < count; ++i) scores.push_back(std::round(random.normal() * 3) / 3);
      std::vector<float> maxima(static_cast<size_t>((count + size - 1) / size), -kInf);
      for (int64_t i = 0; i < count; ++i) {
        float& m = maxima[static_cast<size_t>(i / size)];
        m = std::max(m, scores[static_cast<size_t>(i)]);
      }
      maxima[static_cast<size_t>((count - 1) / size)] = kInf;
      std::vector<int32_t> got(static_cast<size_t>(keep), -7);
      const int64_t taken = table->candidate_blocks(scores.data(), count, size, keep, got.data());
      got.resize(static_cast<size_t>(taken));
      EXPECT_EQ(got, sorted_top(maxima, keep)) << "seed " << kSeed + 9 << " trial " << trial;
    }
  }
}

}  // namespace
}  // namespace rorqual::kernels
