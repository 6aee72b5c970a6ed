// SPDX-License-Identifier: Apache-2.0
#include "kl/compare.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <numeric>
#include <random>

#include "kl/bootstrap.h"
#include "kl/sample_dump.h"

namespace rorqual::kl {
namespace {

using sample::dump_of;
using sample::random_dump;
using sample::random_logits;
using sample::random_tokens;
using sample::with_noise;
using ::testing::HasSubstr;
using Matrix = std::vector<std::vector<float>>;

class MemoryRows final : public LogitRows {
 public:
  explicit MemoryRows(Matrix rows) : rows_(std::move(rows)) {}

  int64_t num_rows() const override { return static_cast<int64_t>(rows_.size()); }

  int64_t vocab_size() const override { return static_cast<int64_t>(rows_[0].size()); }

  Status read(int64_t row, std::span<float> out) const override {
    std::copy(rows_[static_cast<size_t>(row)].begin(), rows_[static_cast<size_t>(row)].end(), out.begin());
    return Ok();
  }

 private:
  Matrix rows_;
};

// The worked example of the protocol: p and q over five ids, K = 3.
const std::vector<double> kP = {0.5, 0.25, 0.125, 0.0625, 0.0625};
const std::vector<double> kQ = {0.4, 0.3, 0.05, 0.2, 0.05};

std::vector<double> logs(const std::vector<double>& values, std::initializer_list<size_t> ids) {
  std::vector<double> out;
  for (const size_t id : ids) out.push_back(std::log(values[id]));
  return out;
}

std::vector<float> float_logs(const std::vector<double>& values) {
  std::vector<float> out;
  for (const double value : values) out.push_back(static_cast<float>(std::log(value)));
  return out;
}

TEST(Divergence, OfTheWorkedExampleIsExact) {
  // S = the ids in both top three.
  EXPECT_NEAR(kl_bound(logs(kP, {0, 1}), logs(kQ, {0, 1})).kl, 0.020410997260127565, 1e-15);
  // S = the candidate's top three.
  EXPECT_NEAR(kl_bound(logs(kP, {0, 1, 3}), logs(kQ, {0, 1, 3})).kl, 0.11115858448745618, 1e-15);
  // All ids: nothing is left for the bucket but what rounding leaves.
  EXPECT_NEAR(kl_bound(logs(kP, {0, 1, 2, 3, 4}), logs(kQ, {0, 1, 2, 3, 4})).kl, 0.12177727428716871, 1e-15);
  EXPECT_DOUBLE_EQ(kl_bound(logs(kP, {0, 1}), logs(kQ, {0, 1})).mass, 0.75);
}

TEST(Divergence, OfTheWorkedExampleAsDumpsUsesTheRightIds) {
  // F32 storage moves the last digits only.
  const Matrix p = {float_logs(kP)}, q = {float_logs(kQ)};
  const Dump reference = dump_of(p, {0}, {1}, 3), candidate = dump_of(q, {0}, {1}, 3);
  auto both = compare(reference, candidate);
  ASSERT_TRUE(both.ok()) << both.error().message();
  EXPECT_NEAR(both->positions.kl[0], 0.020410997260127565, 1e-7);
  const MemoryRows reference_rows(p), candidate_rows(q);
  CompareOptions options;
  options.reference_logits = &reference_rows;
  options.id_set = IdSet::candidate_top_k;
  auto candidates = compare(reference, candidate, options);
  ASSERT_TRUE(candidates.ok()) << candidates.error().message();
  EXPECT_NEAR(candidates->positions.kl[0], 0.11115858448745618, 1e-7);
  options.id_set = IdSet::full;
  const auto missing = compare(reference, candidate, options);
  ASSERT_FALSE(missing.ok());
  EXPECT_EQ(missing.error().code(), Code::unsupported);
  options.candidate_logits = &candidate_rows;
  auto full = compare(reference, candidate, options);
  ASSERT_TRUE(full.ok()) << full.error().message();
  EXPECT_NEAR(full->positions.kl[0], 0.12177727428716871, 1e-7);
  EXPECT_NEAR(exact_kl(p[0], q[0]), full->positions.kl[0], 0);
}

TEST(Comparisons, OfACaptureWithItselfAreExactlyZero) {
  const Dump dump = random_dump(1, {8, 8, 8}, 5, 40);
  auto result = compare(dump, dump);
  ASSERT_TRUE(result.ok()) << result.error().message();
  const Summary& s = result->summary;
  EXPECT_EQ(s.mean_kl, 0);
  EXPECT_EQ(s.max, 0);
  EXPECT_EQ(s.mean_kl_ci.low, 0);
  EXPECT_EQ(s.mean_kl_ci.high, 0);
  EXPECT_EQ(s.top1, 1);
  EXPECT_EQ(s.mean_abs_token_delta, 0);
  EXPECT_EQ(s.reference_perplexity, s.candidate_perplexity);
  EXPECT_EQ(s.positions, 24);
  EXPECT_EQ(s.windows, 3);
}

TEST(Comparisons, BoundTheExactDivergenceFromBelow) {
  const uint32_t seed = std::random_device()();
  SCOPED_TRACE("seed " + std::to_string(seed));
  const auto p = random_logits(seed, 60, 50);
  const auto q = with_noise(p, seed + 1, 0.7f);
  const auto tokens = random_tokens(seed, 60, 50);
  const Dump reference = dump_of(p, tokens, {20, 20, 20}, 6), candidate = dump_of(q, tokens, {20, 20, 20}, 6);
  const MemoryRows p_rows(p), q_rows(q);
  CompareOptions options;
  options.reference_logits = &p_rows;
  options.candidate_logits = &q_rows;
  options.id_set = IdSet::full;
  auto exact = compare(reference, candidate, options);
  options.id_set = IdSet::candidate_top_k;
  auto candidate_ids = compare(reference, candidate, options);
  auto both = compare(reference, candidate);
  ASSERT_TRUE(exact.ok() && candidate_ids.ok() && both.ok());
  for (size_t row = 0; row < 60; ++row) {
    EXPECT_LE(candidate_ids->positions.kl[row], exact->positions.kl[row] + 1e-6);
    // The ids of both are among the candidate's: a coarser partition.
    EXPECT_LE(both->positions.kl[row], candidate_ids->positions.kl[row] + 1e-6);
  }
  EXPECT_GT(both->summary.mean_kl, 0.001);
}

TEST(Summaries, FollowTheProtocol) {
  // Divergences that are known: every row has p = (1/2, 1/2) and q chosen for it.
  Matrix p, q;
  std::vector<double> expected;
  for (int row = 0; row < 20; ++row) {
    const double share = 0.5 - 0.02 * row;
    p.push_back({0, 0});
    q.push_back({static_cast<float>(std::log(share)), static_cast<float>(std::log(1 - share))});
    expected.push_back(0.5 * (std::log(0.5 / share) + std::log(0.5 / (1 - share))));
  }
  const auto tokens = std::vector<int32_t>(20, 1);
  auto result = compare(dump_of(p, tokens, {5, 15}, 2), dump_of(q, tokens, {5, 15}, 2));
  ASSERT_TRUE(result.ok()) << result.error().message();
  const Summary& s = result->summary;
  const double first = std::accumulate(expected.begin(), expected.begin() + 5, 0.0) / 5;
  const double second = std::accumulate(expected.begin() + 5, expected.end(), 0.0) / 15;
  EXPECT_NEAR(s.mean_kl, (first + second) / 2, 1e-6);  // of windows, not of positions
  EXPECT_NEAR(s.position_mean_kl, (first * 5 + second * 15) / 20, 1e-6);
  EXPECT_NEAR(s.median, expected[10], 1e-6);
  EXPECT_NEAR(s.p90, expected[18], 1e-6);
  EXPECT_NEAR(s.p95, expected[19], 1e-6);
  EXPECT_NEAR(s.max, expected[19], 1e-6);
  EXPECT_NEAR(s.reference_perplexity, 2, 1e-6);
  EXPECT_DOUBLE_EQ(s.top1, 1);  // ties go to the larger id, which q prefers from row 1 on
  EXPECT_NEAR(s.mean_kl_ci.low, first, 1e-6);
  EXPECT_NEAR(s.mean_kl_ci.high, second, 1e-6);
  EXPECT_NEAR(s.common_mass_min, 1, 1e-6);
}

TEST(Summaries, ShowLargeDifferencesThatTheMeanHides) {
  // Equal mean loss, one position far off (E-eval-04).
  Matrix p(40, {0, 0, 0}), q(40, {0, 0, 0});
  q[7] = {0, 0, 6};
  const std::vector<int32_t> tokens(40, 1);
  auto result = compare(dump_of(p, tokens, {40}, 3), dump_of(q, tokens, {40}, 3));
  ASSERT_TRUE(result.ok());
  EXPECT_LT(result->summary.median, 1e-9);
  EXPECT_GT(result->summary.max, 1);
  EXPECT_GT(result->summary.p99, 1);
}

TEST(Summaries, CountRowsWithTooMuchMass) {
  Dump dump = random_dump(2, {4}, 5, 40);
  for (size_t i = 5; i < 10; ++i) dump.top_logprobs[i] = -0.5f;
  auto result = compare(dump, dump);
  ASSERT_TRUE(result.ok());
  EXPECT_EQ(result->summary.overshoot_reference, 1);
  EXPECT_EQ(result->summary.mean_kl, 0);
}

TEST(Paired, ComparisonsUseOneIdSetForBothSides) {
  const auto logits = random_logits(5, 80, 60);
  const auto tokens = random_tokens(5, 80, 60);
  const std::vector<int64_t> windows = {10, 10, 10, 10, 10, 10, 10, 10};
  const Dump reference = dump_of(logits, tokens, windows, 8);
  const Dump a = dump_of(with_noise(logits, 6, 0.9f), tokens, windows, 8);
  const Dump b = dump_of(with_noise(logits, 7, 0.3f), tokens, windows, 8);
  auto paired = compare_paired(reference, a, b);
  ASSERT_TRUE(paired.ok()) << paired.error().message();
  // By hand: S of a row is what all three have.
  double mass = 0;
  for (size_t i = 0; i < 8; ++i) {
    const auto has = [&](const Dump& dump) {
      return std::count(dump.top_ids.begin(), dump.top_ids.begin() + 8, reference.top_ids[i]) > 0;
    };
    if (has(a) && has(b)) mass += std::exp(static_cast<double>(reference.top_logprobs[i]));
  }
  EXPECT_NEAR(paired->a.positions.common_mass[0], mass, 1e-12);
  EXPECT_EQ(paired->a.positions.common_mass, paired->b.positions.common_mass);
  EXPECT_GT(paired->mean_difference, 0);
  EXPECT_GT(paired->difference_ci.low, 0);
  EXPECT_EQ(paired->probability_a_greater, 1);
  EXPECT_NEAR(paired->relative_change, paired->a.summary.mean_kl / paired->b.summary.mean_kl - 1, 1e-12);
  EXPECT_LT(paired->relative_ci.low, paired->relative_change);
  EXPECT_GT(paired->relative_ci.high, paired->relative_change);
  auto same = compare_paired(reference, b, b);
  ASSERT_TRUE(same.ok());
  EXPECT_EQ(same->mean_difference, 0);
  EXPECT_EQ(same->relative_change, 0);
  EXPECT_EQ(same->relative_ci.high, 0);
}

TEST(Captures, OfOtherThingsAreRefusedByName) {
  const Dump good = random_dump(3, {20, 20}, 5, 40);
  const auto with = [&](auto change) {
    Dump other = good;
    change(other);
    const auto status = check_comparable(good, other);
    if (status.ok()) return std::string("accepted");
    EXPECT_EQ(status.error().code(), Code::corrupt_data);
    return status.error().message();
  };
  EXPECT_EQ(with([](Dump&) {}), "accepted");
  EXPECT_THAT(with([](Dump& d) { d.info.corpus = "code"; }),
              HasSubstr("corpus is 'neutral' in the reference, 'code'"));
  EXPECT_THAT(with([](Dump& d) { d.info.context = 41; }), HasSubstr("length of windows is 40"));
  EXPECT_THAT(with([](Dump& d) { d.info.num_windows = 4; }), HasSubstr("number of windows"));
  EXPECT_THAT(with([](Dump& d) { d.info.first_scored = 19; }), HasSubstr("shift by one position"));
  EXPECT_THAT(with([](Dump& d) { d.info.top_k = 6; }), HasSubstr("top K is 5"));
  EXPECT_THAT(with([](Dump& d) { d.info.vocab_size = 41; }), HasSubstr("vocabulary is 40"));
  EXPECT_THAT(with([](Dump& d) { d.token[9] = (d.token[9] + 1) % 40; }), HasSubstr("the token of row 9"));
  EXPECT_EQ(with([](Dump& d) { d.info.corpus_sha256 = "x"; }), "accepted");  // only one has it
  Dump hashed = good;
  hashed.info.windows_sha256 = "aaa";
  Dump otherwise = hashed;
  otherwise.info.windows_sha256 = "bbb";
  EXPECT_THAT(check_comparable(hashed, otherwise).error().message(), HasSubstr("windows' SHA-256"));
}

TEST(Captures, ShiftedByOnePositionAreRecognised) {
  const Dump good = random_dump(4, {30, 30}, 5, 40);
  // The tokens alone moved: every label is its neighbour's.
  for (const bool later : {true, false}) {
    Dump moved = good;
    for (size_t w = 0; w < 2; ++w) {
      const auto begin = moved.token.begin() + static_cast<std::ptrdiff_t>(30 * w);
      if (later) {
        std::rotate(begin, begin + 29, begin + 30);
      } else {
        std::rotate(begin, begin + 1, begin + 30);
      }
    }
    const auto status = check_comparable(good, moved);
    ASSERT_FALSE(status.ok());
    EXPECT_THAT(status.error().message(), HasSubstr("tokens are the reference's, shifted by one position"));
  }
  // Tokens as they were, distributions of the neighbour (labels shifted twice).
  Dump moved = good;
  std::rotate(moved.top_ids.begin(), moved.top_ids.begin() + 5, moved.top_ids.end());
  std::rotate(moved.top_logprobs.begin(), moved.top_logprobs.begin() + 5, moved.top_logprobs.end());
  const auto status = check_comparable(good, moved);
  ASSERT_FALSE(status.ok());
  EXPECT_THAT(status.error().message(), HasSubstr("rows are shifted by one position"));
  EXPECT_FALSE(compare(good, moved).ok());
}

TEST(Captures, WithUnusedPlacesCompareByTheUsedOnes) {
  Dump dump = random_dump(6, {4}, 5, 40);
  dump.top_logprobs[4] = -INFINITY;
  dump.top_ids[4] = -1;
  auto result = compare(dump, dump);
  ASSERT_TRUE(result.ok());
  EXPECT_EQ(result->summary.mean_kl, 0);
}

}  // namespace
}  // namespace rorqual::kl
