// SPDX-License-Identifier: Apache-2.0
#include "runtime/sampler.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <numeric>
#include <random>

#include "runtime/philox.h"

namespace rorqual::runtime {
namespace {

constexpr int32_t kEos = 1;

/// One draw on a small row; the fields are what a case sets.
struct Draw {
  std::vector<float> logits;
  SamplingParams params;
  std::vector<int32_t> prompt = {0};
  std::vector<int32_t> reply = {};
  uint64_t seed = 1;

  Result<int32_t> result() const {
    std::vector<int32_t> tokens = prompt;
    tokens.insert(tokens.end(), reply.begin(), reply.end());
    TokenCounts counts(prompt);
    for (const int32_t token : reply) counts.add_output(token);
    Sampler sampler(static_cast<int64_t>(logits.size()));
    return sampler.sample(logits, {params, counts, tokens, static_cast<int64_t>(prompt.size()), seed, kEos});
  }

  int32_t token() const {
    auto r = result();
    EXPECT_TRUE(r.ok()) << (r.ok() ? "" : r.error().message());
    return r.ok() ? *r : -1;
  }

  /// Share of each token over many positions.
  std::vector<double> shares(int num_draws) {
    std::vector<double> share(logits.size());
    for (int i = 0; i < num_draws; ++i) {
      seed = static_cast<uint64_t>(i);
      share[static_cast<size_t>(token())] += 1.0;
    }
    for (double& x : share) x /= num_draws;
    return share;
  }
};

Draw greedy(std::vector<float> logits) {
  Draw draw{.logits = std::move(logits), .params = {}};
  draw.params.temperature = 0;
  return draw;
}

Draw at_temperature(std::vector<float> logits, float temperature) {
  Draw draw{.logits = std::move(logits), .params = {}};
  draw.params.temperature = temperature;
  return draw;
}

std::vector<double> softmax(const std::vector<double>& z) {
  std::vector<double> p(z.size());
  double sum = 0;
  for (size_t i = 0; i < z.size(); ++i) sum += p[i] = std::exp(z[i]);
  for (double& x : p) x /= sum;
  return p;
}

TEST(Sampler, GreedyTakesTheLowestOfEqualBestIds) {
  EXPECT_EQ(greedy({1, 3, 3, 2}).token(), 1);
  EXPECT_EQ(greedy({-5, -5, -5}).token(), 0);
}

TEST(Sampler, TemperaturesBelowTheFloorAreGreedyWhateverTheSeed) {
  for (uint64_t seed = 0; seed < 50; ++seed) {
    Draw draw = at_temperature({1, 1.0001f, 1}, 9e-6f);
    draw.seed = seed;
    EXPECT_EQ(draw.token(), 1);
  }
}

TEST(Sampler, SharesFollowTheSoftmaxAtTheTemperature) {
  const auto share = at_temperature({0.5f, -1, 2, 1}, 0.7f).shares(20000);
  const auto expected = softmax({0.5 / 0.7, -1 / 0.7, 2 / 0.7, 1 / 0.7});
  for (size_t i = 0; i < 4; ++i) EXPECT_NEAR(share[i], expected[i], 0.018) << i;  // five standard deviations
}

TEST(Sampler, DrawIsTheInverseTransformOverAscendingIds) {
  // Equal weights: the token is floor(u * 8).
  Draw draw = at_temperature(std::vector<float>(8, 2.0f), 1.0f);
  for (uint64_t seed = 0; seed < 200; ++seed) {
    draw.seed = seed;
    draw.params.choice_index = static_cast<uint32_t>(seed % 3);
    draw.prompt.assign(static_cast<size_t>(seed % 7 + 1), 0);
    const double u =
        position_uniform(seed, draw.params.choice_index, static_cast<int64_t>(draw.prompt.size()));
    EXPECT_EQ(draw.token(), static_cast<int32_t>(u * 8));
  }
}

TEST(Sampler, DependsOnThePositionAndNotOnWhereThePromptEnds) {
  Draw a = at_temperature(std::vector<float>(1000, 0.0f), 1.0f);
  a.prompt = {5, 6, 7, 8};
  Draw b = a;
  b.prompt = {5, 6};
  b.reply = {7, 8};
  EXPECT_EQ(a.token(), b.token());
  b.reply.push_back(9);
  EXPECT_NE(a.token(), b.token());
}

TEST(Sampler, TopKKeepsExactlyKAndPrefersLowerIdsAtTies) {
  Draw draw = at_temperature({1, 2, 2, 2, 0}, 1.0f);
  draw.params.top_k = 2;
  const auto share = draw.shares(2000);
  EXPECT_NEAR(share[1], 0.5, 0.06);
  EXPECT_NEAR(share[2], 0.5, 0.06);
  EXPECT_EQ(share[0] + share[3] + share[4], 0.0);
  draw.params.top_k = 1;
  EXPECT_EQ(draw.shares(100)[1], 1.0);
}

TEST(Sampler, TopPKeepsTheShortestHeadThatReachesIt) {
  // Probabilities 0.5, 0.25, 0.125, 0.125 (ids 2, 0, 1, 3).
  const float ln2 = 0.69314718f;
  Draw draw = at_temperature({1 * ln2, 0, 2 * ln2, 0}, 1.0f);
  draw.params.top_p = 0.49f;
  EXPECT_EQ(draw.shares(200)[2], 1.0);
  draw.params.top_p = 0.6f;
  auto share = draw.shares(4000);
  EXPECT_NEAR(share[2], 2.0 / 3, 0.04);
  EXPECT_NEAR(share[0], 1.0 / 3, 0.04);
  EXPECT_EQ(share[1] + share[3], 0.0);
  draw.params.top_p = 0.8f;  // of the equal ids 1 and 3 the lower one stays
  share = draw.shares(4000);
  EXPECT_NEAR(share[1], 1.0 / 7, 0.03);
  EXPECT_EQ(share[3], 0.0);
}

TEST(Sampler, ATinyTopPStillKeepsTheBestToken) {
  Draw draw = at_temperature({0, 0, 1}, 1.0f);
  draw.params.top_p = 1e-6f;
  EXPECT_EQ(draw.shares(50)[2], 1.0);
}

TEST(Sampler, TopPIsTakenOfWhatTopKLeft) {
  // Probabilities 0.4, 0.3, 0.3: with top_k 2 the best has 4/7 = 0.571 of the rest.
  Draw draw = at_temperature({std::log(0.4f), std::log(0.3f), std::log(0.3f)}, 1.0f);
  draw.params.top_p = 0.55f;
  EXPECT_GT(draw.shares(500)[1], 0.0);
  draw.params.top_k = 2;
  EXPECT_EQ(draw.shares(500)[0], 1.0);
}

TEST(Sampler, MinPDropsWhatIsFarBelowTheBest) {
  Draw draw = at_temperature({std::log(0.6f), std::log(0.31f), std::log(0.09f)}, 1.0f);
  draw.params.min_p = 0.5f;
  const auto share = draw.shares(3000);
  EXPECT_NEAR(share[0], 0.6 / 0.91, 0.05);
  EXPECT_EQ(share[2], 0.0);
  draw.params.min_p = 1.0f;
  EXPECT_EQ(draw.shares(100)[0], 1.0);
}

TEST(Sampler, TopPAndTopKEqualABruteForceOnLargeRows) {
  const unsigned seed = 20260103;
  SCOPED_TRACE(seed);
  std::mt19937 random(seed);
  std::normal_distribution<float> normal(0.0f, 2.0f);
  for (int round = 0; round < 30; ++round) {
    Draw draw = at_temperature(std::vector<float>(3000), 1.3f);
    for (float& x : draw.logits) x = normal(random);
    draw.params.top_k = round % 3 == 0 ? 0 : static_cast<int32_t>(random() % 1500 + 1);
    draw.params.top_p = std::array{0.97f, 0.3f, 0.9999f, 0.7f}[static_cast<size_t>(round) % 4];
    draw.seed = random();
    std::vector<size_t> ids(3000);
    std::iota(ids.begin(), ids.end(), size_t{0});
    std::stable_sort(ids.begin(), ids.end(),
                     [&](size_t a, size_t b) { return draw.logits[a] > draw.logits[b]; });
    if (draw.params.top_k > 0) ids.resize(static_cast<size_t>(draw.params.top_k));
    const auto weight = [&](size_t id) { return std::exp(static_cast<double>(draw.logits[id]) / 1.3); };
    double total = 0;
    for (const size_t id : ids) total += weight(id);
    double before = 0;
    size_t kept = 0;
    while (kept < ids.size() && before < static_cast<double>(draw.params.top_p) * total)
      before += weight(ids[kept++]);
    ids.resize(kept);
    std::sort(ids.begin(), ids.end());
    const double target = position_uniform(draw.seed, 0, 1) * before;
    double sum = 0;
    size_t expected = 0;
    for (const size_t id : ids) {
      expected = id;
      if ((sum += weight(id)) > target) break;
    }
    EXPECT_EQ(draw.token(), static_cast<int32_t>(expected)) << "round " << round;
  }
}

TEST(Sampler, AllowedIdsAreTheOnlyOnesWhateverTheBias) {
  Draw draw = greedy({9, 8, 7, 6});
  draw.params.allowed_token_ids = {3, 2};
  EXPECT_EQ(draw.token(), 2);
  draw.params.logit_bias = {{0, 100.0f}, {3, 2.0f}};
  EXPECT_EQ(draw.token(), 3);
  draw.params.temperature = 5;
  const auto share = draw.shares(500);
  EXPECT_EQ(share[0] + share[1], 0.0);
}

TEST(Sampler, BadSequencesAreStoppedAtTheirLastId) {
  Draw draw = greedy({0, 0, 0, 9, 5});
  draw.params.bad_token_sequences = {{2, 4, 3}};
  EXPECT_EQ(draw.token(), 3);
  draw.reply = {2, 4};
  EXPECT_EQ(draw.token(), 4);
  draw.reply = {4};
  EXPECT_EQ(draw.token(), 3);
  draw.params.bad_token_sequences = {{3}};
  EXPECT_EQ(draw.token(), 4);
}

TEST(Sampler, BadSequencesLookAtTheReplyOnly) {
  Draw draw = greedy({0, 0, 0, 9, 5});
  draw.params.bad_token_sequences = {{2, 3}};
  draw.prompt = {2};
  EXPECT_EQ(draw.token(), 3);
  draw.prompt = {0};
  draw.reply = {2};
  EXPECT_EQ(draw.token(), 4);
}

TEST(Sampler, EosAndStopIdsAreMaskedUntilMinTokens) {
  Draw draw = greedy({1, 9, 8, 7});
  draw.params.min_tokens = 2;
  draw.params.stop_token_ids = {2};
  draw.reply = {0};
  EXPECT_EQ(draw.token(), 3);
  draw.reply = {0, 0};
  EXPECT_EQ(draw.token(), kEos);
}

TEST(Sampler, LogitBiasIsAdded) {
  Draw draw = greedy({1, 2, 3});
  draw.params.logit_bias = {{0, 2.5f}};
  EXPECT_EQ(draw.token(), 0);
  draw.params.logit_bias = {{2, -100.0f}};
  EXPECT_EQ(draw.token(), 1);
}

TEST(Sampler, RepetitionPenaltyDividesPositiveAndMultipliesNegativeLogitsOnce) {
  Draw draw = greedy({4.0f, 2.1f, -1.0f});
  draw.params.repetition_penalty = 2.0f;
  draw.prompt = {0, 0, 0};  // 4 / 2 = 2 whatever the count
  EXPECT_EQ(draw.token(), 1);
  draw.logits = {4.0f, 1.9f, -1.0f};
  EXPECT_EQ(draw.token(), 0);
  draw.reply = {0, 0};  // in prompt and reply: still once
  EXPECT_EQ(draw.token(), 0);
  draw.logits = {-1.0f, -1.5f, -9.0f};
  EXPECT_EQ(draw.token(), 1);
}

TEST(Sampler, PresenceAndFrequencyPenaltiesCountTheReplyOnly) {
  Draw draw = greedy({3.0f, 2.0f, 1.2f});
  draw.prompt = {0, 0, 0};
  draw.params.presence_penalty = 1.5f;
  EXPECT_EQ(draw.token(), 0);
  draw.reply = {0, 0};  // 3 - 1.5 = 1.5
  EXPECT_EQ(draw.token(), 1);
  draw.params.presence_penalty = 0;
  draw.params.frequency_penalty = 0.4f;  // 3 - 2 * 0.4 = 2.2
  EXPECT_EQ(draw.token(), 0);
  draw.reply = {0, 0, 0};  // 1.8
  EXPECT_EQ(draw.token(), 1);
}

TEST(Sampler, PenaltiesComeAfterTheBias) {
  Draw draw = greedy({-1.0f, 1.1f, 0});
  draw.params.logit_bias = {{0, 3.0f}};  // 2, then halved to 1
  draw.params.repetition_penalty = 2.0f;
  draw.prompt = {0};
  EXPECT_EQ(draw.token(), 1);
}

TEST(Sampler, RowsThatAreNotFiniteAreAnError) {
  for (const float temperature : {0.0f, 1.0f}) {
    Draw draw = at_temperature({1, std::numeric_limits<float>::quiet_NaN(), 2}, temperature);
    ASSERT_FALSE(draw.result().ok());
    EXPECT_EQ(draw.result().error().code(), Code::internal);
    EXPECT_NE(draw.result().error().message().find("position 1"), std::string::npos);
  }
}

TEST(Sampler, ARowWithNothingAllowedIsAnError) {
  Draw draw = greedy({1, 2, 3});
  draw.params.allowed_token_ids = {kEos};
  draw.params.min_tokens = 1;
  ASSERT_FALSE(draw.result().ok());
  EXPECT_EQ(draw.result().error().code(), Code::invalid_argument);
}

TEST(Sampler, ExtremeLogitsAndPenaltiesStayOrdered) {
  constexpr float kMax = std::numeric_limits<float>::max();
  EXPECT_EQ(at_temperature({-kMax, kMax, 0}, 1.0f).token(), 1);
  Draw draw = at_temperature({1e30f, 2e30f, 0}, 1.0f);
  draw.params.repetition_penalty = 1e-20f;
  draw.prompt = {1};
  EXPECT_EQ(draw.token(), 1);
  draw = at_temperature({1.0f, 0.5f, 0}, 1e-5f);
  EXPECT_EQ(draw.token(), 0);
}

TEST(Sampler, AReusedSamplerGivesTheSameTokensAsAFreshOne) {
  Sampler sampler(100);
  std::mt19937 random(5);
  std::normal_distribution<float> normal(0.0f, 2.0f);
  for (int round = 0; round < 200; ++round) {
    Draw draw = at_temperature(std::vector<float>(100), 0.9f);
    for (float& x : draw.logits) x = normal(random);
    draw.params.top_k = round % 3 == 1 ? 20 : 0;
    draw.params.top_p = round % 2 == 1 ? 0.8f : 1.0f;
    draw.params.min_p = round % 5 == 1 ? 0.1f : 0.0f;
    if (round % 7 == 0) draw.params.allowed_token_ids = {3, 5, 70};
    const TokenCounts counts(draw.prompt);
    const auto reused = sampler.sample(draw.logits, {draw.params, counts, draw.prompt, 1, draw.seed, kEos});
    ASSERT_TRUE(reused.ok());
    EXPECT_EQ(*reused, draw.token());
  }
}

TEST(Sampler, AConstraintMasksIdsBesideTheOtherMasks) {
  const std::vector<float> row = {1, 5, 4, 3, 2, 0};
  SamplingParams params;
  params.temperature = 0;
  const TokenCounts counts;
  const std::vector<int32_t> tokens = {0};
  std::vector<uint32_t> allowed = {~uint32_t{0} & ~(uint32_t{1} << 1)};
  Sampler sampler(6);
  const SampleInput input{params, counts, tokens, 1, 1, -1, allowed};
  EXPECT_EQ(*sampler.sample(row, input), 2);
  params.logit_bias = {{2, -50.0f}};
  EXPECT_EQ(*sampler.sample(row, input), 3);
  params.temperature = 1;
  for (uint64_t seed = 0; seed < 200; ++seed) {
    const SampleInput seeded{params, counts, tokens, 1, seed, -1, allowed};
    EXPECT_NE(*sampler.sample(row, seeded), 1);
  }
  allowed = {0};
  const auto none = sampler.sample(row, input);
  ASSERT_FALSE(none.ok());
  EXPECT_EQ(none.error().code(), Code::invalid_argument);
}

}  // namespace
}  // namespace rorqual::runtime
