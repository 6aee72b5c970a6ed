// SPDX-License-Identifier: Apache-2.0
#include "server/usage.h"

#include <gtest/gtest.h>

namespace rorqual::server {
namespace {

using prefix::MissReason;

prefix::MissReport miss(MissReason reason, int64_t common) {
  prefix::MissReport report;
  report.reason = reason;
  report.common_tokens = common;
  return report;
}

TEST(Usage, NotableIsALongCommonBeginningThatWasLost) {
  EXPECT_TRUE(is_notable(miss(MissReason::tokens_differ, 65), 64));
  EXPECT_FALSE(is_notable(miss(MissReason::tokens_differ, 64), 0));
  EXPECT_TRUE(is_notable(miss(MissReason::image_differs, 1000), 960));
  EXPECT_TRUE(is_notable(miss(MissReason::evicted, 200), 128));
  EXPECT_FALSE(is_notable(miss(MissReason::evicted, 192), 128));
  EXPECT_TRUE(is_notable(miss(MissReason::windows_missing, 500), 0));
  EXPECT_TRUE(is_notable(miss(MissReason::disk_error, 500), 0));
  for (const MissReason calm : {MissReason::none, MissReason::off, MissReason::bypassed,
                                MissReason::too_short, MissReason::first_seen, MissReason::extends}) {
    EXPECT_FALSE(is_notable(miss(calm, 5000), 0)) << prefix::miss_reason_name(calm);
  }
}

TEST(Usage, CountsThePrefixOncePerPromptAndTheRestPerChoice) {
  runtime::FinishInfo info;
  info.cached_tokens = 128;
  info.disk_tokens = 64;
  info.replayed_tokens = 10;
  info.drafted_tokens = 7;
  info.accepted_tokens = 5;
  info.preemptions = 1;
  ReuseReport report;
  report.add(info, true);
  report.add(info, false);
  EXPECT_EQ(report.cached_tokens, 128);
  EXPECT_EQ(report.disk_tokens, 64);
  EXPECT_EQ(report.replayed_tokens, 10);
  EXPECT_EQ(report.drafted_tokens, 14);
  EXPECT_EQ(report.accepted_tokens, 10);
  EXPECT_EQ(report.preemptions, 2);
}

TEST(Usage, WritesOurOwnObjectOnlyWhenItIsGiven) {
  const Usage usage{.prompt_tokens = 10, .cached_tokens = 4, .completion_tokens = 3, .reasoning_tokens = 0};
  JsonWriter plain;
  write_usage(plain, usage);
  const std::string official =
      R"({"prompt_tokens":10,"completion_tokens":3,"total_tokens":13,"prompt_tokens_details":{"cached_tokens":4},)"
      R"("completion_tokens_details":{"reasoning_tokens":0},"prompt_cache_hit_tokens":4,"prompt_cache_miss_tokens":6)";
  EXPECT_EQ(plain.take(), official + "}");

  ReuseReport report;
  report.cached_tokens = 4;
  report.miss = miss(MissReason::tokens_differ, 5);
  report.miss->position = 5;
  report.miss->token = 70;
  report.token_text = "\"a";
  JsonWriter with;
  write_usage(with, usage, &report);
  EXPECT_EQ(with.take(),
            official +
                R"(,"rorqual":{"prefix":{"cached":4,"disk":0,"replayed":0,"miss":{"reason":"tokens_differ",)"
                R"("position":5,"common_tokens":5,"token_text":"\"a","kept_token_text":null}},)"
                R"("drafts":{"drafted":0,"accepted":0},"replay_trim":0,"preemptions":0}})");

  report.miss = miss(MissReason::none, 5);
  JsonWriter none;
  write_usage(none, usage, &report);
  EXPECT_NE(none.take().find(R"("miss":null)"), std::string::npos);
}

}  // namespace
}  // namespace rorqual::server
