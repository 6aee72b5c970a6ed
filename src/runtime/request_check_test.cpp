// SPDX-License-Identifier: Apache-2.0
#include "runtime/request_check.h"

#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <string>

namespace rorqual::runtime {
namespace {

constexpr RequestLimits kLimits{
    .vocab_size = 100, .max_model_len = 50, .max_logprobs = 20, .max_prompt_logprob_entries = 60};

Request valid_request() {
  Request request;
  request.prompt = {1, 2, 3};
  request.sampling.max_tokens = 4;
  return request;
}

struct BadField {
  const char* field;
  std::function<void(Request&)> spoil;
};

TEST(RequestCheck, AcceptsTheEdgesOfEveryRange) {
  Request request = valid_request();
  SamplingParams& p = request.sampling;
  EXPECT_TRUE(check_request(request, kLimits).ok());
  p.temperature = 0;
  p.top_p = 1e-9f;
  p.min_p = 1;
  p.presence_penalty = -2;
  p.frequency_penalty = 2;
  p.repetition_penalty = 1e-3f;
  p.min_tokens = 4;
  p.logprobs = 20;
  p.prompt_logprobs = 19;  // 20 entries for each of 3 tokens
  p.stop_token_ids = {0, 99};
  p.logit_bias = {{99, -100.0f}, {0, 100.0f}};
  const Status status = check_request(request, kLimits);
  EXPECT_TRUE(status.ok()) << status.error().message();
}

TEST(RequestCheck, StreamedPromptRowsAreNotBoundedTogether) {
  Request request = valid_request();
  request.sampling.prompt_logprobs = 20;  // 21 entries for each of 3 tokens: over the limit of 60
  EXPECT_FALSE(check_request(request, kLimits).ok());
  request.sampling.stream_prompt_rows = true;
  EXPECT_TRUE(check_request(request, kLimits).ok());
}

TEST(RequestCheck, NamesTheFieldThatIsOutOfRange) {
  const std::vector<BadField> cases = {
      {"temperature", [](Request& r) { r.sampling.temperature = -0.1f; }},
      {"temperature", [](Request& r) { r.sampling.temperature = NAN; }},
      {"temperature", [](Request& r) { r.sampling.temperature = HUGE_VALF; }},
      {"top_k", [](Request& r) { r.sampling.top_k = -1; }},
      {"top_p", [](Request& r) { r.sampling.top_p = 0; }},
      {"top_p", [](Request& r) { r.sampling.top_p = 1.01f; }},
      {"min_p", [](Request& r) { r.sampling.min_p = -0.1f; }},
      {"presence_penalty", [](Request& r) { r.sampling.presence_penalty = 2.1f; }},
      {"frequency_penalty", [](Request& r) { r.sampling.frequency_penalty = -2.1f; }},
      {"repetition_penalty", [](Request& r) { r.sampling.repetition_penalty = 0; }},
      {"max_tokens", [](Request& r) { r.sampling.max_tokens = -1; }},
      {"min_tokens", [](Request& r) { r.sampling.min_tokens = 5; }},
      {"prompt_logprobs_begin", [](Request& r) { r.sampling.prompt_logprobs_begin = 0; }},
      {"max_tokens",
       [](Request& r) {
         r.sampling.forced_tokens = {1, 2, 3};
       }},
      {"forced_tokens[1]",
       [](Request& r) {
         r.sampling.forced_tokens = {1, 100, 3, 4};
       }},
      {"min_tokens", [](Request& r) { r.sampling.min_tokens = -1; }},
      {"logprobs", [](Request& r) { r.sampling.logprobs = 21; }},
      {"logprobs", [](Request& r) { r.sampling.logprobs = -2; }},
      {"prompt_logprobs", [](Request& r) { r.sampling.prompt_logprobs = 21; }},
      {"prompt_logprobs", [](Request& r) { r.sampling.prompt_logprobs = 20; }},  // 63 entries
      {"stop_token_ids[1]",
       [](Request& r) {
         r.sampling.stop_token_ids = {5, 100};
       }},
      {"allowed_token_ids[0]", [](Request& r) { r.sampling.allowed_token_ids = {-1}; }},
      {"logprob_token_ids[0]", [](Request& r) { r.sampling.logprob_token_ids = {100}; }},
      {"bad_token_sequences", [](Request& r) { r.sampling.bad_token_sequences = {{}}; }},
      {"bad_token_sequences",
       [](Request& r) {
         r.sampling.bad_token_sequences = {{1, 100}};
       }},
      {"logit_bias",
       [](Request& r) {
         r.sampling.logit_bias = {{100, 1.0f}};
       }},
      {"logit_bias",
       [](Request& r) {
         r.sampling.logit_bias = {{1, 100.5f}};
       }},
      {"logit_bias",
       [](Request& r) {
         r.sampling.logit_bias = {{1, NAN}};
       }},
      {"prompt", [](Request& r) { r.prompt.clear(); }},
      {"prompt[1]",
       [](Request& r) {
         r.prompt = {1, 100};
       }},
      {"prompt", [](Request& r) { r.prompt.assign(50, 1); }},
  };
  for (const BadField& bad : cases) {
    Request request = valid_request();
    bad.spoil(request);
    const Status status = check_request(request, kLimits);
    ASSERT_FALSE(status.ok()) << bad.field;
    EXPECT_EQ(status.error().code(), Code::invalid_argument);
    EXPECT_NE(status.error().message().find(bad.field), std::string::npos) << status.error().message();
    EXPECT_FALSE(status.error().hint().empty());
  }
}

TEST(RequestCheck, AFullContextMayOnlyBeScored) {
  Request request = valid_request();
  request.prompt.assign(50, 1);
  request.sampling.max_tokens = 0;
  EXPECT_TRUE(check_request(request, kLimits).ok());
  request.prompt.push_back(1);
  EXPECT_FALSE(check_request(request, kLimits).ok());
}

TEST(RequestCheck, NoLogprobLimitMeansTheVocabulary) {
  RequestLimits limits = kLimits;
  limits.max_logprobs = -1;
  Request request = valid_request();
  request.sampling.logprobs = 100;
  EXPECT_TRUE(check_request(request, limits).ok());
  request.sampling.logprobs = 101;
  EXPECT_FALSE(check_request(request, limits).ok());
}

TEST(EndsReply, KnowsEosStopIdsAndMinTokens) {
  SamplingParams params;
  params.stop_token_ids = {7};
  EXPECT_TRUE(ends_reply(params, 1, 1, 0));
  EXPECT_TRUE(ends_reply(params, 7, 1, 0));
  EXPECT_FALSE(ends_reply(params, 8, 1, 0));
  params.ignore_eos = true;
  EXPECT_FALSE(ends_reply(params, 1, 1, 0));
  EXPECT_TRUE(ends_reply(params, 7, 1, 0));
  params.min_tokens = 3;
  EXPECT_FALSE(ends_reply(params, 7, 1, 2));
  EXPECT_TRUE(ends_reply(params, 7, 1, 3));
}

}  // namespace
}  // namespace rorqual::runtime
