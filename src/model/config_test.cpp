// SPDX-License-Identifier: Apache-2.0
#include "model/config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "base/file.h"

namespace rorqual::model {
namespace {

using Json = nlohmann::ordered_json;
using ::testing::HasSubstr;

std::string config_text(const std::string& model) {
  auto text = read_text_file(std::string(RORQUAL_SOURCE_DIR) + "/" + model + "/config.json", 1 << 20);
  EXPECT_TRUE(text.ok()) << text.error().message();
  return text.ok() ? *text : "";
}

TEST(Config, reads_every_model_of_the_repository) {
  for (const char* model :
       {"tests/models/tiny-a", "tests/models/tiny-b", "tests/models/tiny-c", "models/mini"}) {
    const auto config = parse_config(config_text(model));
    ASSERT_TRUE(config.ok()) << model << ": " << config.error().message();
    const Json raw = Json::parse(config_text(model));
    EXPECT_EQ(config->hidden_size, raw["text_config"]["hidden_size"].get<int64_t>()) << model;
    EXPECT_EQ(config->hc_mult, raw["text_config"]["hc_mult"].get<int64_t>()) << model;
    EXPECT_EQ(config->compress_ratios, raw["text_config"]["compress_ratios"].get<std::vector<int64_t>>())
        << model;
    EXPECT_EQ(config->image_token_id, raw["image_token_id"].get<int64_t>()) << model;
  }
}

TEST(Config, keeps_the_defaults_of_the_official_code_for_absent_fields) {
  const auto config = parse_config(config_text("tests/models/tiny-c"));
  ASSERT_TRUE(config.ok()) << config.error().message();
  EXPECT_EQ(config->original_seq_len, 0);  // no rope_scaling: YaRN off
  EXPECT_EQ(config->gate_temp, 1.0);
  EXPECT_EQ(config->swiglu_limit, 0.0);
  EXPECT_EQ(config->candidate_source_layer_id, -1);
  EXPECT_EQ(config->num_stages(), 0);
  EXPECT_EQ(config->dspark_markov_rank, 256);
  EXPECT_EQ(config->pad_token_id, 2);
}

TEST(Config, tells_role_sources_and_experts_of_each_layer) {
  const auto config = parse_config(config_text("tests/models/tiny-b"));
  ASSERT_TRUE(config.ok()) << config.error().message();
  const LayerRole roles[] = {LayerRole::full,    LayerRole::reindex, LayerRole::window_only,
                             LayerRole::full,    LayerRole::reuse,   LayerRole::full,
                             LayerRole::reindex, LayerRole::reuse,   LayerRole::reindex};
  const int64_t kv_sources[] = {0, 0, -1, 3, 3, 5, 5, 5, 5};
  const int64_t index_sources[] = {0, 1, -1, 3, 3, 5, 6, 6, 8};
  for (int64_t layer = 0; layer < 9; ++layer) {
    EXPECT_EQ(config->role(layer), roles[layer]) << layer;
    EXPECT_EQ(config->kv_source_of(layer), kv_sources[layer]) << layer;
    EXPECT_EQ(config->index_source_of(layer), index_sources[layer]) << layer;
  }
  EXPECT_EQ(config->ratio(10), 0);
  EXPECT_EQ(config->num_experts(10), 7);  // no draft sizes in the file: those of the backbone
  EXPECT_EQ(config->engram_slot(2), 1);
  EXPECT_EQ(config->engram_slot(3), -1);
  EXPECT_EQ(config->num_stages(), 3);
}

TEST(Config, writes_what_it_reads) {
  std::vector<std::string> texts = {config_to_json(release_config())};
  for (const char* model :
       {"tests/models/tiny-a", "tests/models/tiny-b", "tests/models/tiny-c", "models/mini"}) {
    const auto config = parse_config(config_text(model));
    ASSERT_TRUE(config.ok()) << config.error().message();
    texts.push_back(config_to_json(*config));
  }
  for (const std::string& text : texts) {
    const auto config = parse_config(text);
    ASSERT_TRUE(config.ok()) << config.error().message();
    EXPECT_EQ(config_to_json(*config), text);
  }
}

TEST(Config, reads_the_flat_spelling_to_the_same_values) {
  const std::map<std::string, std::string> flat_names = {
      {"hidden_size", "dim"},
      {"moe_intermediate_size", "moe_inter_dim"},
      {"num_hidden_layers", "n_layers"},
      {"num_nextn_predict_layers", "n_mtp_layers"},
      {"num_attention_heads", "n_heads"},
      {"num_experts_per_tok", "n_activated_experts"},
      {"scoring_func", "score_func"},
      {"routed_scaling_factor", "route_scale"},
      {"qk_rope_head_dim", "rope_head_dim"},
      {"rms_norm_eps", "norm_eps"},
      {"sliding_window", "window_size"},
      {"kv_source_layer_ids", "kv_source_layers"},
      {"index_source_layer_ids", "index_source_layers"},
      {"candidate_source_layer_id", "candidate_source_layer"},
      {"engram_pad_token_id", "engram_pad_id"},
      {"dspark_num_experts_per_tok", "dspark_n_activated_experts"}};
  const Json nested = Json::parse(config_text("tests/models/tiny-a"));
  Json flat;
  for (const auto& [name, value] : nested["text_config"].items()) {
    const auto it = flat_names.find(name);
    if (name == "rope_scaling") {
      flat["rope_factor"] = value["factor"];
      flat["beta_fast"] = value["beta_fast"];
      flat["beta_slow"] = value["beta_slow"];
      flat["original_seq_len"] = value["original_max_position_embeddings"];
    } else if (name != "model_type") {
      flat[it == flat_names.end() ? name : it->second] = value;
    }
  }
  flat["image_token_id"] = nested["image_token_id"];
  flat["vision_config"] = nested["vision_config"];
  const auto from_flat = parse_config(flat.dump());
  const auto from_nested = parse_config(nested.dump());
  ASSERT_TRUE(from_flat.ok()) << from_flat.error().message();
  ASSERT_TRUE(from_nested.ok());
  EXPECT_EQ(config_to_json(*from_flat), config_to_json(*from_nested));
}

TEST(Config, refuses_what_is_not_json_or_another_architecture) {
  EXPECT_EQ(parse_config("").error().code(), Code::corrupt_data);
  EXPECT_EQ(parse_config("[1]").error().code(), Code::corrupt_data);
  EXPECT_EQ(parse_config("{\"a\":1} x").error().code(), Code::corrupt_data);
  EXPECT_EQ(parse_config(std::string(1'000'000, '[')).error().code(), Code::corrupt_data);
  std::string nested = "{\"x\":";
  for (int i = 0; i < 1'000'000; ++i) nested += "{\"x\":";
  EXPECT_EQ(parse_config(nested).error().code(), Code::corrupt_data);
  EXPECT_EQ(parse_config("{\"hidden_size\": \"\xff\"}").error().code(), Code::corrupt_data);
  const auto other = parse_config(R"({"architectures": ["LlamaForCausalLM"], "model_type": "llama"})");
  ASSERT_FALSE(other.ok());
  EXPECT_EQ(other.error().code(), Code::unsupported);
  EXPECT_THAT(other.error().message(), HasSubstr("LlamaForCausalLM"));
  EXPECT_THAT(other.error().message(), HasSubstr("DeepseekV41ForCausalLM"));
}

struct BadField {
  const char* pointer;  // into tiny-a's config.json
  const char* value;
  const char* message;  // part of the error
};

class BadFields : public ::testing::TestWithParam<BadField> {};

TEST_P(BadFields, give_one_line_that_names_the_field) {
  Json json = Json::parse(config_text("tests/models/tiny-a"));
  json[Json::json_pointer(GetParam().pointer)] = Json::parse(GetParam().value);
  const auto config = parse_config(json.dump());
  ASSERT_FALSE(config.ok()) << GetParam().pointer << " = " << GetParam().value;
  const std::string& message = config.error().message();
  EXPECT_THAT(message, HasSubstr("config.json: "));
  EXPECT_THAT(message, HasSubstr(GetParam().message));
  EXPECT_EQ(message.find('\n'), std::string::npos);
  EXPECT_LT(message.size(), 400U);
  EXPECT_FALSE(config.error().hint().empty());
  EXPECT_TRUE(config.error().code() == Code::corrupt_data || config.error().code() == Code::unsupported);
}

const BadField kBadFields[] = {
    {"/text_config/hidden_size", "-5", "hidden_size is -5"},
    {"/text_config/hidden_size", "0", "hidden_size is 0"},
    {"/text_config/hidden_size", "1000000000", "hidden_size is 1000000000"},
    {"/text_config/hidden_size", "9223372036854775808", "hidden_size"},
    {"/text_config/hidden_size", "1.5", "hidden_size is 1.5, expected an integer"},
    {"/text_config/hidden_size", "\"256\"", "expected an integer"},
    {"/text_config/hidden_size", "true", "expected an integer"},
    {"/text_config/hidden_size", "250", "a multiple of 32"},
    {"/text_config/num_hidden_layers", "1000000000", "num_hidden_layers"},
    {"/text_config/num_hidden_layers", "9", "length of compress_ratios"},
    {"/text_config/vocab_size", "0", "vocab_size"},
    {"/text_config/vocab_size", "1000", "vocab_size"},
    {"/text_config/qk_rope_head_dim", "15", "qk_rope_head_dim"},
    {"/text_config/qk_rope_head_dim", "40",
     "qk_rope_head_dim is 40, expected at most head_dim 64 and index_head_dim 32"},
    {"/text_config/head_dim", "48", "head_dim"},
    {"/text_config/num_attention_heads", "6", "num_attention_heads"},
    {"/text_config/q_lora_rank", "100", "q_lora_rank"},
    {"/text_config/moe_intermediate_size", "100", "moe_intermediate_size"},
    {"/text_config/o_lora_rank", "7", "o_groups * o_lora_rank"},
    {"/text_config/index_head_dim", "40", "index_head_dim"},
    {"/text_config/index_topk", "0", "index_topk"},
    {"/text_config/n_routed_experts", "2", "num_experts_per_tok is 3, expected at most the 2 experts"},
    {"/text_config/n_routed_experts", "1000000000", "n_routed_experts"},
    {"/text_config/num_experts_per_tok", "0", "num_experts_per_tok"},
    {"/text_config/n_shared_experts", "2", "n_shared_experts is 2, expected 1"},
    {"/text_config/dspark_n_routed_experts", "1", "dspark_num_experts_per_tok"},
    {"/text_config/compress_ratios", "[]", "length of compress_ratios is 0"},
    {"/text_config/compress_ratios", "[0,0,2,2,1,1,1,3,0,0]", "compress_ratios[7] is 3"},
    {"/text_config/compress_ratios", "[0,0,2,2,1,1,1,1,0,1]", "draft stage"},
    {"/text_config/compress_ratios", "[0,0,2,2,1,1,1,2,0,0]",
     "compress_ratios[7] is 2, expected 1 as its kv source 4"},
    {"/text_config/compress_ratios", "[0,1,2,2,1,1,1,1,0,0]",
     "compress_ratios[1] is 1, expected a kv source"},
    {"/text_config/compress_ratios", "[0,0,2,2,0,1,1,1,0,0]", "compress_ratios[4]"},
    {"/text_config/compress_ratios", "\"none\"", "expected a list of integers"},
    {"/text_config/kv_source_layer_ids", "[2,4,8]",
     "kv_source_layer_ids[2] is 8, expected a layer from 0 to 7"},
    {"/text_config/kv_source_layer_ids", "[-1,4]", "kv_source_layer_ids[0] is -1"},
    {"/text_config/kv_source_layer_ids", "[4,2]", "kv_source_layer_ids[1] is 2"},
    {"/text_config/kv_source_layer_ids", "[2,2]", "kv_source_layer_ids[1] is 2"},
    {"/text_config/index_source_layer_ids", "[4,6]", "index_source_layer_ids"},
    {"/text_config/index_source_layer_ids", "[1,2,4,6]", "compress_ratios[1] is 0"},
    {"/text_config/candidate_source_layer_id", "2", "candidate_source_layer_id is 2"},
    {"/text_config/candidate_topk_blocks", "0", "candidate_topk_blocks"},
    {"/text_config/candidate_topk_blocks", "6", "is 41, expected at least index_topk 48"},
    {"/text_config/engram_layer_ids", "[1,99]", "engram_layer_ids[1] is 99"},
    {"/text_config/engram_layer_ids", "[1]", "length of engram_num_embeddings"},
    {"/text_config/engram_num_embeddings", "[2514,2713]", "engram_num_embeddings[1] is 2713, expected 2712"},
    {"/text_config/engram_num_embeddings", "[0,0]", "engram_num_embeddings[0] is 0"},
    {"/text_config/engram_vocab_size", "0", "engram_vocab_size"},
    {"/text_config/engram_vocab_size", "4000000000", "engram_vocab_size"},
    {"/text_config/engram_n_heads", "0", "engram_n_heads"},
    {"/text_config/engram_n_heads", "4096", "number of Engram rows"},
    {"/text_config/engram_max_ngram_size", "1", "engram_max_ngram_size"},
    {"/text_config/engram_head_dim", "20", "engram_head_dim"},
    {"/text_config/engram_compressed_vocab_size", "0", "engram_compressed_vocab_size"},
    {"/text_config/engram_compressed_vocab_size", "1793", "at most vocab_size"},
    {"/text_config/engram_pad_token_id", "1792", "engram_pad_token_id"},
    {"/text_config/dspark_target_layer_ids", "[5,8]", "dspark_target_layer_ids[1] is 8"},
    {"/text_config/dspark_target_layer_ids", "[]", "dspark_target_layer_ids is empty"},
    {"/text_config/dspark_noise_token_id", "1792", "dspark_noise_token_id"},
    {"/text_config/dspark_block_size", "1000", "dspark_block_size"},
    {"/text_config/sliding_window", "3", "sliding_window"},
    {"/text_config/rms_norm_eps", "-1", "rms_norm_eps"},
    {"/text_config/rms_norm_eps", "\"x\"", "rms_norm_eps"},
    {"/text_config/rope_theta", "0", "rope_theta"},
    {"/text_config/rope_scaling/factor", "0", "rope_factor"},
    {"/text_config/rope_scaling/beta_slow", "64", "beta_fast"},
    {"/text_config/rope_scaling/rope_type", "\"linear\"", "rope_type"},
    {"/text_config/rope_scaling", "5", "expected an object"},
    {"/text_config/hc_mult", "0", "hc_mult"},
    {"/text_config/hc_mult", "1000000000", "hc_mult"},
    {"/text_config/scoring_func", "\"argmax\"", "scoring_func"},
    {"/text_config/hidden_act", "\"gelu\"", "hidden_act"},
    {"/text_config/num_key_value_heads", "8", "num_key_value_heads"},
    {"/text_config/rorqual_layer_origin", "[0,1]", "length of rorqual_layer_origin"},
    {"/text_config/rorqual_layer_origin", "[0,1,2,3,4,5,7,6]", "rorqual_layer_origin[7]"},
    {"/text_config", "7", "text_config is 7, expected an object"},
    {"/quantization_config/weight_block_size", "[128,128]", "weight_block_size"},
    {"/quantization_config/expert_dtype", "\"fp8\"", "expert_dtype"},
    {"/vision_config/num_hidden_layers", "-1", "vision_config.num_hidden_layers"},
    {"/vision_config/hidden_size", "0", "vision_config.hidden_size"},
    {"/vision_config/rope_theta", "-1", "vision_config.rope_theta is -1"},
    {"/vision_config/num_attention_heads", "5", "vision_config.hidden_size"},
    {"/image_token_id", "5000", "image_token_id"},
    {"/eos_token_id", "-7", "eos_token_id"},
};

INSTANTIATE_TEST_SUITE_P(Config, BadFields, ::testing::ValuesIn(kBadFields));

TEST(Config, refuses_a_field_given_twice) {
  std::string text = config_text("tests/models/tiny-a");
  const size_t at = text.find("\"hidden_size\"");
  ASSERT_NE(at, std::string::npos);
  text.insert(at, "\"hidden_size\": 256, ");
  const auto config = parse_config(text);
  ASSERT_FALSE(config.ok());
  EXPECT_THAT(config.error().message(), HasSubstr("'text_config.hidden_size' is given twice"));
}

TEST(Config, ignores_unknown_fields_and_nulls) {
  Json json = Json::parse(config_text("tests/models/tiny-a"));
  json["transformers_version"] = "5.0";
  json["text_config"]["brand_new"] = {{"deep", {1, 2, 3}}};
  json["text_config"]["gate_temp"] = nullptr;
  const auto config = parse_config(json.dump());
  ASSERT_TRUE(config.ok()) << config.error().message();
  EXPECT_EQ(config->gate_temp, 1.0);
}

TEST(Config, lets_a_slice_keep_the_primes_of_its_original_layers) {
  Json json = Json::parse(config_text("tests/models/tiny-a"));
  json["text_config"]["engram_layer_ids"] = {3};
  json["text_config"]["engram_num_embeddings"] = {2712};  // the second Engram layer of the full model
  EXPECT_FALSE(parse_config(json.dump()).ok());
  json["text_config"]["rorqual_layer_origin"] = {0, 1, 2, 3, 20, 21, 24, 25};
  const auto config = parse_config(json.dump());
  ASSERT_TRUE(config.ok()) << config.error().message();
  EXPECT_EQ(config->layer_origin.size(), 8U);
}

}  // namespace
}  // namespace rorqual::model
