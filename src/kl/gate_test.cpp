// SPDX-License-Identifier: Apache-2.0
#include "kl/gate.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "kl/sample_dump.h"

namespace rorqual::kl {
namespace {

using ::testing::HasSubstr;

GateNumbers numbers(double old_kl, double new_kl) {
  GateNumbers out;
  out.corpus = "code";
  out.old_kl = old_kl;
  out.new_kl = new_kl;
  return out;
}

Verdict verdict(double old_kl, double new_kl) {
  return judge(numbers(old_kl, new_kl), {}).verdict;
}

TEST(Gates, AllowThreePercentOrTheAbsoluteAmount) {
  EXPECT_EQ(verdict(0.1, 0.103), Verdict::passed);  // exactly the limit
  EXPECT_EQ(verdict(0.1, 0.10301), Verdict::failed);
  EXPECT_EQ(verdict(0.1, 0.05), Verdict::passed);  // smaller is fine
  // Below 0.01 nats the absolute amount is the larger one.
  EXPECT_EQ(verdict(0.001, 0.001 + 3e-4), Verdict::passed);
  EXPECT_EQ(verdict(0.001, 0.00131), Verdict::failed);
  EXPECT_EQ(verdict(0, 2e-4), Verdict::passed);
  EXPECT_EQ(verdict(0, 4e-4), Verdict::failed);
  EXPECT_EQ(verdict(0, 0), Verdict::passed);
  EXPECT_EQ(verdict(0.1, NAN), Verdict::failed);
  EXPECT_EQ(verdict(0.1, INFINITY), Verdict::failed);
}

TEST(Gates, SayWhatWasExpected) {
  const GateCorpus corpus = judge(numbers(0.0516, 0.0543), {});
  EXPECT_EQ(corpus.reason, "KL 0.0543 is above 0.0531 (old 0.0516, +5.2 %)");
  EXPECT_NEAR(corpus.relative_change, 0.0543 / 0.0516 - 1, 1e-15);
}

TEST(Gates, AreUndecidedWhereTheOldSideDoesNotRepeat) {
  GateNumbers noisy = numbers(0.1, 0.1005);
  noisy.old_again_kl = 0.104;
  EXPECT_EQ(judge(noisy, {}).verdict, Verdict::undecided);
  EXPECT_THAT(judge(noisy, {}).reason, HasSubstr("differ by 0.0040, more than the allowance of 0.0030"));
  noisy.old_again_kl = 0.1029;
  EXPECT_EQ(judge(noisy, {}).verdict, Verdict::passed);
  noisy.old_again_kl = 0.0965;  // smaller is as noisy
  EXPECT_EQ(judge(noisy, {}).verdict, Verdict::undecided);
  for (const double old_kl : {0.0309, 0.05, 0.00185172}) {  // exactly the allowance, up or down
    GateNumbers edge = numbers(old_kl, old_kl);
    edge.old_again_kl = std::max(1.03 * old_kl, old_kl + 3e-4);
    EXPECT_EQ(judge(edge, {}).verdict, Verdict::passed) << old_kl;
    edge.old_again_kl = std::min(0.97 * old_kl, old_kl - 3e-4);
    EXPECT_EQ(judge(edge, {}).verdict, Verdict::passed) << old_kl;
  }
  GateNumbers unknown = numbers(0.1, 0.1);
  unknown.old_is_nondeterministic = true;
  EXPECT_EQ(judge(unknown, {}).verdict, Verdict::undecided);
  unknown.old_again_kl = 0.1;
  EXPECT_EQ(judge(unknown, {}).verdict, Verdict::passed);
}

TEST(Gates, CanLimitTheTailThatTheMeanHides) {
  GateNumbers tails = numbers(0.1, 0.1);
  tails.old_tail = Tail{0.3, 0.5, 1.0};
  tails.new_tail = Tail{0.3, 0.9, 7.0};
  EXPECT_EQ(judge(tails, {}).verdict, Verdict::passed);
  GateLimits limits;
  limits.tail_relative = 0.1;
  EXPECT_EQ(judge(tails, limits).verdict, Verdict::failed);
  EXPECT_THAT(judge(tails, limits).reason, HasSubstr("p99 0.9000 is above 0.5500"));
  limits.tail_relative = 1;
  EXPECT_EQ(judge(tails, limits).verdict, Verdict::passed);
  limits.max_kl = 5;
  EXPECT_THAT(judge(tails, limits).reason, HasSubstr("largest position has 7.0000"));
}

TEST(Gates, AreAsGoodAsTheirWorstCorpus) {
  const GateCorpus good = judge(numbers(0.1, 0.1), {}), bad = judge(numbers(0.1, 0.2), {});
  GateNumbers noisy = numbers(0.1, 0.1);
  noisy.old_again_kl = 0.2;
  const GateCorpus open = judge(noisy, {});
  EXPECT_EQ(worst({good, good}), Verdict::passed);
  EXPECT_EQ(worst({good, open}), Verdict::undecided);
  EXPECT_EQ(worst({open, bad, good}), Verdict::failed);
  EXPECT_EQ(worst({}), Verdict::undecided);
}

TEST(Gates, MeasureAllSidesWithOneIdSet) {
  const auto logits = sample::random_logits(1, 60, 50);
  const auto tokens = sample::random_tokens(1, 60, 50);
  const std::vector<int64_t> windows = {20, 20, 20};
  const auto dump = [&](uint32_t seed, float noise) {
    return sample::dump_of(sample::with_noise(logits, seed, noise), tokens, windows, 8);
  };
  const Dump reference = dump(0, 0), before = dump(2, 0.4f), after = dump(3, 0.8f), again = dump(4, 0.4f);
  auto same = measure({&reference, &before, &before, nullptr});
  ASSERT_TRUE(same.ok()) << same.error().message();
  EXPECT_EQ(same->old_kl, same->new_kl);
  EXPECT_EQ(same->relative_ci->low, 0);
  EXPECT_EQ(judge(*same, {}).verdict, Verdict::passed);
  auto worse = measure({&reference, &before, &after, &again});
  ASSERT_TRUE(worse.ok());
  EXPECT_EQ(judge({.corpus = "x",
                   .old_kl = worse->old_kl,
                   .new_kl = worse->new_kl,
                   .old_again_kl = {},
                   .old_tail = {},
                   .new_tail = {},
                   .relative_ci = {}},
                  {})
                .verdict,
            Verdict::failed);
  EXPECT_GT(worse->relative_ci->low, 0);
  // By hand: S is what all four have.
  CompareOptions options;
  options.also = {&after, &again};
  auto old_side = compare(reference, before, options);
  ASSERT_TRUE(old_side.ok());
  EXPECT_EQ(worse->old_kl, old_side->summary.mean_kl);
  EXPECT_EQ(worse->new_tail->max > worse->old_tail->max, true);
  Dump other = after;
  other.info.corpus = "code";
  EXPECT_FALSE(measure({&reference, &before, &other, nullptr}).ok());
}

RunRecord record() {
  RunRecord out;
  out.version = "0.2.0";
  out.commit = "abc";
  out.engine = "local";
  out.machine = "2 cores";
  out.numerics = "exact";
  out.max_model_len = 4097;
  out.started_at = "2026-11-30T13:40:00Z";
  return out;
}

TEST(Pairs, MustShareBuildMachineSettingsAndDay) {
  const auto with = [](auto change) {
    RunRecord other = record();
    change(other);
    const auto status = check_pair(record(), other);
    return status.ok() ? "accepted" : status.error().message();
  };
  EXPECT_EQ(with([](RunRecord&) {}), "accepted");
  EXPECT_EQ(with([](RunRecord& r) { r.switches = "lm-head=fp8"; }), "accepted");
  EXPECT_THAT(with([](RunRecord& r) { r.commit = "def"; }), HasSubstr("the commit is 'abc' on the old side"));
  EXPECT_THAT(with([](RunRecord& r) { r.version = "0.3.0"; }), HasSubstr("the version"));
  EXPECT_THAT(with([](RunRecord& r) { r.machine = "8 cores"; }), HasSubstr("the machine"));
  EXPECT_THAT(with([](RunRecord& r) { r.max_model_len = 8192; }), HasSubstr("max_model_len is '4097'"));
  EXPECT_THAT(with([](RunRecord& r) { r.speculation = true; }), HasSubstr("speculation is 'off'"));
  EXPECT_EQ(with([](RunRecord& r) { r.started_at = "2026-12-01T13:40:00Z"; }), "accepted");
  EXPECT_THAT(with([](RunRecord& r) { r.started_at = "2026-12-01T13:40:01Z"; }), HasSubstr("hours apart"));
  EXPECT_THAT(with([](RunRecord& r) { r.started_at = "yesterday"; }), HasSubstr("time of capture"));
}

TEST(Pairs, SayWhatChanged) {
  RunRecord after = record();
  EXPECT_EQ(changes(record(), after), "");
  after.switches = "lm-head=fp8";
  after.numerics = "reference";
  EXPECT_EQ(changes(record(), after), "switches none -> lm-head=fp8, numerics exact -> reference");
}

TEST(Times, AreReadAsUtc) {
  EXPECT_EQ(parse_utc("1970-01-02T00:00:01Z"), 86401);
  EXPECT_EQ(parse_utc("2026-11-30T13:40:00.123Z"), 1796046000);
  EXPECT_EQ(parse_utc("2026-11-30T13:40:00+00:00"), 1796046000);
  EXPECT_EQ(parse_utc("2026-02-30T13:40:00Z"), std::nullopt);
  EXPECT_EQ(parse_utc("2026-11-30T25:40:00Z"), std::nullopt);
  EXPECT_EQ(parse_utc("2026-11-30T13:40:00+01:00"), std::nullopt);
  EXPECT_EQ(parse_utc(""), std::nullopt);
}

}  // namespace
}  // namespace rorqual::kl
