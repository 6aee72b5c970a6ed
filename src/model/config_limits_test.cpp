// SPDX-License-Identifier: Apache-2.0
// A config beyond what the kernels hold in fixed arrays is refused when it is read, not in the middle of a
// step.
#include <gtest/gtest.h>

#include <string>
#include <utility>

#include "model/config.h"

namespace rorqual::model {
namespace {

/// One compressing layer with 32-wide everything, and the fields given.
std::string config_with(const std::string& fields) {
  return R"({"architectures": ["DeepseekV41ForCausalLM"], "model_type": "deepseek_v41", "text_config": {
    "vocab_size": 64, "hidden_size": 32, "num_hidden_layers": 1, "moe_intermediate_size": 32,
    "num_attention_heads": 2, "head_dim": 32, "qk_rope_head_dim": 16, "q_lora_rank": 32, "o_groups": 1,
    "o_lora_rank": 32, "sliding_window": 8, "num_experts_per_tok": 2, "compress_ratios": [0],
    "kv_source_layer_ids": [], "index_source_layer_ids": [], "index_head_dim": 32, "max_position_embeddings": 64,
    )" + fields +
         "}}";
}

TEST(ConfigLimits, take_the_largest_that_kernels_hold) {
  const auto config = parse_config(config_with(R"("hc_mult": 8, "n_routed_experts": 4096)"));
  EXPECT_TRUE(config.ok()) << config.error().message();
}

TEST(ConfigLimits, refuse_one_more) {
  const std::pair<const char*, const char*> cases[] = {
      {R"("n_routed_experts": 8, "hc_mult": 9)", "hc_mult is 9, expected 1 to 8"},
      {R"("n_routed_experts": 4097)", "n_routed_experts is 4097, expected 1 to 4096"},
      {R"("n_routed_experts": 8, "dspark_n_routed_experts": 4097)",
       "dspark_n_routed_experts is 4097, expected 0 to 4096"}};
  for (const auto& [fields, message] : cases) {
    const auto config = parse_config(config_with(fields));
    ASSERT_FALSE(config.ok()) << fields;
    EXPECT_NE(config.error().message().find(message), std::string::npos) << config.error().message();
  }
}

}  // namespace
}  // namespace rorqual::model
