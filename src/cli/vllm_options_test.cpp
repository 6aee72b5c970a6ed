// SPDX-License-Identifier: Apache-2.0
#include "cli/vllm_options.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "cli/commands.h"
#include "cli/resolve.h"

namespace rorqual::cli {
namespace {

using testing::HasSubstr;

struct Applied {
  tools::ServeOptions options;
  Status status = Ok();
};

Applied apply(const std::vector<std::string>& arguments) {
  std::string offending;
  const auto resolution = resolve(*find_command("serve"), arguments, {}, offending);
  if (!resolution.ok()) return {{}, resolution.error()};
  Applied applied;
  applied.status = apply_vllm_options(resolution->values, applied.options);
  return applied;
}

TEST(VllmOptions, TheOptionsOfThePublishedRecipeAreTakenOrRefusedByName) {
  // The recipe: TP8, EP8 with EPLB, FlashInfer, DSpark 2, Engram on the host, 0.95, block 64, limits, graphs
  // to 768.
  const Applied taken = apply({"--speculative-config",
                               R"({"method": "dspark", "num_speculative_tokens": 2})",
                               "--gpu-memory-utilization",
                               "0.95",
                               "--kv-cache-dtype",
                               "auto",
                               "--block-size",
                               "64",
                               "--engram-config",
                               R"({"cpu_offload": true})",
                               "--max-num-queued-reqs",
                               "256",
                               "--async-scheduling",
                               "--enable-chunked-prefill",
                               "--enable-prefix-caching",
                               "--max-cudagraph-capture-size",
                               "768",
                               "--max-model-len",
                               "262144",
                               "--max-num-seqs",
                               "256",
                               "--max-num-batched-tokens",
                               "8192",
                               "--long-prefill-token-threshold",
                               "6144",
                               "--tensor-parallel-size",
                               "1",
                               "--tool-call-parser",
                               "deepseek_v41",
                               "--reasoning-parser",
                               "deepseek_v41",
                               "--enable-auto-tool-choice",
                               "--trust-remote-code",
                               "--served-model-name",
                               "x"});
  ASSERT_TRUE(taken.status.ok()) << taken.status.error().message();
  EXPECT_EQ(taken.options.reuse.speculative_tokens, 2);
  EXPECT_EQ(taken.options.open.engram_placement, "host");
  EXPECT_EQ(taken.options.engine.max_num_queued_reqs, 256);
  EXPECT_EQ(taken.options.server.max_num_queued_reqs, 256);
  for (const std::vector<std::string>& refused : {std::vector<std::string>{"--tensor-parallel-size", "8"},
                                                  {"--enable-expert-parallel"},
                                                  {"--enable-eplb"},
                                                  {"--eplb-config", R"({"num_redundant_experts": 16})"},
                                                  {"--moe-backend", "flashinfer_cutlass"},
                                                  {"--attention-backend", "FLASHINFER"}}) {
    const Applied applied = apply(refused);
    ASSERT_FALSE(applied.status.ok()) << refused[0];
    EXPECT_EQ(applied.status.error().code(), Code::unsupported);
    EXPECT_THAT(applied.status.error().message(), HasSubstr(refused[0]));
    EXPECT_THAT(applied.status.error().message(), HasSubstr("is not possible: "));
  }
}

TEST(VllmOptions, RefuseWhatWouldNotHappen) {
  for (const std::vector<std::string>& refused :
       {std::vector<std::string>{"--no-enable-chunked-prefill"},
        {"--kv-cache-dtype", "fp8"},
        {"--block-size", "16"},
        {"--chat-template", "x.jinja"},
        {"--tool-call-parser", "hermes"},
        {"--enable-log-requests"},
        {"--engram-config", R"({"cpu_offload": false})"},
        {"--engram-config", R"({"table_path": "x"})"},
        {"--speculative-config", R"({"method": "ngram", "num_speculative_tokens": 2})"}}) {
    EXPECT_FALSE(apply(refused).status.ok()) << refused[0];
  }
}

TEST(VllmOptions, SayWhatIsWrongWithAValue) {
  EXPECT_THAT(apply({"--speculative-config", "5"}).status.error().message(),
              HasSubstr("expected a JSON object"));
  EXPECT_THAT(apply({"--speculative-config", "{}"}).status.error().message(), HasSubstr("from 0 to 7"));
  EXPECT_THAT(apply({"--max-num-queued-reqs", "1", "--max-queued-requests", "1"}).status.error().message(),
              HasSubstr("the same option"));
}

TEST(VllmOptions, OtherNamesWork) {
  EXPECT_FALSE(apply({"--disable-uvicorn-access-log"}).options.server.access_log);
  EXPECT_TRUE(apply({}).options.server.access_log);
}

}  // namespace
}  // namespace rorqual::cli
