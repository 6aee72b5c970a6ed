// SPDX-License-Identifier: Apache-2.0
#include "server/error_body.h"

#include <gtest/gtest.h>

namespace rorqual::server {
namespace {

TEST(ErrorBody, AFullQueueIsTheClientsToRetry) {
  for (const Limit limit : {Limit::queued_reqs, Limit::queued_tokens}) {
    const HttpError http = http_error(Error(Code::unavailable, "the queue is full", "later").by(limit));
    EXPECT_EQ(http.status, 429);
    EXPECT_EQ(http.type, "rate_limit_error");
    EXPECT_EQ(http.code, "queue_full");
    EXPECT_EQ(http.message, "the queue is full");
    EXPECT_EQ(http.hint, "later");
    EXPECT_EQ(http.retry_after_s, 1);
  }
}

TEST(ErrorBody, AnEngineThatDrainsOrHasStoppedIsNoFullQueue) {
  const HttpError http = http_error(Error(Code::unavailable, "the engine has stopped after an error"));
  EXPECT_EQ(http.status, 503);
  EXPECT_EQ(http.type, "server_error");
  EXPECT_EQ(http.code, "unavailable");
  EXPECT_EQ(http.retry_after_s, 1);
}

}  // namespace
}  // namespace rorqual::server
