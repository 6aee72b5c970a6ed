// SPDX-License-Identifier: Apache-2.0
#include "tools/peer_rows.h"

#include <gtest/gtest.h>

#include <string>

namespace rorqual::tools {
namespace {

const std::string kHeader = "peer,op,M,rows,experts,us_median,us_min,GBps,TFLOPs,rel_err,note\n";

TEST(PeerRows, TakeThreadsAndExpertsFromTheNote) {
  const auto rows = parse_peer_rows(
      "p.csv", kHeader + "a,moe_mxfp4_t8,4,24,23.3,97.5,90,1,2,3,threads=16;E=384;iters=300\r\n\n");
  ASSERT_TRUE(rows.ok());
  ASSERT_EQ(rows->size(), 1U);
  const PeerRow& row = rows->front();
  EXPECT_EQ(row.peer, "a");
  EXPECT_EQ(row.op, "moe_mxfp4_t8");
  EXPECT_EQ(row.tokens, 4);
  EXPECT_EQ(row.threads, 16);
  EXPECT_EQ(row.experts, 384);
  EXPECT_DOUBLE_EQ(row.us_median, 97.5);
}

TEST(PeerRows, TakeThreadsFromTheOpWithoutANote) {
  const auto rows = parse_peer_rows("p.csv", kHeader + "a,moe_t8,4,,,1,,,,,\na,moe,4,,,1,,,,,no threads=3\n");
  ASSERT_TRUE(rows.ok());
  EXPECT_EQ(rows->at(0).threads, 8);
  EXPECT_EQ(rows->at(0).experts, 0);
  EXPECT_EQ(rows->at(1).threads, 0);
}

TEST(PeerRows, ReadQuotesAndLeaveOutRowsWithoutATime) {
  const auto rows = parse_peer_rows(
      "p.csv",
      "note,us_median,M,op,peer\n\"skipped, \"\"slow\"\"\",,1,moe_t1,a\n\"E=2;x,y\",5,1,moe_t1,\"b, c\"\n");
  ASSERT_TRUE(rows.ok());
  ASSERT_EQ(rows->size(), 1U);
  EXPECT_EQ(rows->front().peer, "b, c");
  EXPECT_EQ(rows->front().experts, 2);
}

TEST(PeerRows, RefuseWhatIsNoTable) {
  const std::string bad[] = {"",
                             "peer,op,M,note\n",
                             kHeader + "a,b,1\n",
                             kHeader + "a,b,x,,,5,,,,,\n",
                             kHeader + "a,b,1,,,-5,,,,,\n",
                             kHeader + "a,b,1,,,nan,,,,,\n"};
  for (const std::string& text : bad) {
    const auto rows = parse_peer_rows("p.csv", text);
    ASSERT_FALSE(rows.ok()) << text;
    EXPECT_EQ(rows.error().code(), Code::corrupt_data);
    EXPECT_NE(rows.error().message().find("p.csv"), std::string::npos);
  }
}

}  // namespace
}  // namespace rorqual::tools
