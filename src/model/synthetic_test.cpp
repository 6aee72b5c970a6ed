// SPDX-License-Identifier: Apache-2.0
#include "model/synthetic.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <random>
#include <set>
#include <vector>

#include "model/engram_hash.h"
#include "model/manifest.h"
#include "model/synthetic_spec.h"

namespace rorqual::model {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

Config config_of(const std::string& keys) {
  const auto spec = parse_synthetic("synthetic:v41?" + keys);
  auto config = spec.ok() ? synthetic_config(*spec) : Result<Config>(spec.error());
  if (config.ok()) return *config;
  ADD_FAILURE() << keys << ": " << config.error().message();
  return release_config();
}

std::string config_error(const std::string& keys) {
  const auto spec = parse_synthetic("synthetic:v41?" + keys);
  if (!spec.ok()) return spec.error().message();
  const auto config = synthetic_config(*spec);
  return config.ok() ? "no error" : config.error().message();
}

/// Small enough to read whole: every role and tensor kind.
constexpr const char* kSmall =
    "layers=0,1,2,3,20,21,24&drafts=1&vision=1&experts=6&hidden=64&heads=8&vocab=512&compressed-vocab=256&"
    "engram-rows=50";

TEST(SyntheticSpec, ReadsAllKeys) {
  const auto spec = parse_synthetic(
      "synthetic:v41?layers=0-3,20,24&seed=7&drafts=0&vision=1&experts=16&draft-experts=8&engram-rows=20k&"
      "hidden=1024"
      "&heads=16&vocab=512&compressed-vocab=256&index-topk=64&candidate-blocks=9&tokenizer=/some/folder");
  ASSERT_TRUE(spec.ok()) << spec.error().message();
  EXPECT_THAT(spec->layers, ElementsAre(0, 1, 2, 3, 20, 24));
  EXPECT_EQ(spec->seed, 7u);
  EXPECT_EQ(spec->drafts, false);
  EXPECT_EQ(spec->vision, true);
  EXPECT_EQ(spec->experts, 16);
  EXPECT_EQ(spec->draft_experts, 8);
  EXPECT_EQ(spec->engram_rows, 20000);
  EXPECT_EQ(spec->hidden, 1024);
  EXPECT_EQ(spec->heads, 16);
  EXPECT_EQ(spec->vocab, 512);
  EXPECT_EQ(spec->compressed_vocab, 256);
  EXPECT_EQ(spec->index_topk, 64);
  EXPECT_EQ(spec->candidate_blocks, 9);
  EXPECT_EQ(spec->tokenizer, "/some/folder");
}

TEST(SyntheticSpec, NameIsReadBackAsTheSameSpec) {
  for (const char* keys :
       {"seed=1", "seed=3&layers=4", "seed=1&layers=0,1,2,20&drafts=1", "seed=9&layers=2-2",
        "seed=18446744073709551615&experts=16&engram-rows=20000&tokenizer=/t"}) {
    const std::string name = std::string("synthetic:v41?") + keys;
    const auto spec = parse_synthetic(name);
    ASSERT_TRUE(spec.ok()) << spec.error().message();
    EXPECT_EQ(synthetic_name(*spec), name);
  }
}

TEST(SyntheticSpec, ErrorsNameKeyValueAndWhatIsAllowed) {
  EXPECT_THAT(config_error("layer=3"), HasSubstr("unknown key 'layer'"));
  EXPECT_THAT(config_error("experts=3"), HasSubstr("experts=3, expected a number from 6"));
  EXPECT_THAT(config_error("experts"), HasSubstr("'experts' has no value"));
  EXPECT_THAT(config_error("seed=-1"), HasSubstr("seed=-1"));
  EXPECT_THAT(config_error("drafts=yes"), HasSubstr("drafts=yes, expected 0 or 1"));
  EXPECT_THAT(config_error("layers=0"), HasSubstr("layers=0, expected 1 to 40 layers"));
  EXPECT_THAT(config_error("layers=41"), HasSubstr("layers=41"));
  EXPECT_THAT(config_error("layers=0,40"), HasSubstr("expected layer ids from 0 to 39"));
  EXPECT_THAT(config_error("layers=0,2,1"), HasSubstr("ascending"));
  EXPECT_THAT(config_error("layers=0,,1"), HasSubstr("layers=0,,1"));
  EXPECT_THAT(config_error("layers="), HasSubstr("layers="));
  EXPECT_FALSE(parse_synthetic("synthetic:v5?layers=1").ok());
  EXPECT_FALSE(parse_synthetic("/some/folder").ok());
}

TEST(SyntheticConfig, WithoutKeysIsTheRelease) {
  const Config config = config_of("");
  EXPECT_EQ(config_to_json(config), config_to_json(release_config()));
  EXPECT_EQ(manifest(config).size(), 96085u);
}

TEST(SyntheticConfig, FirstLayersKeepTheirIds) {
  const Config config = config_of("layers=4");
  EXPECT_EQ(config.num_hidden_layers, 4);
  EXPECT_THAT(config.compress_ratios, ElementsAre(0, 0, 2, 2));
  EXPECT_THAT(config.kv_source_layer_ids, ElementsAre(2));
  EXPECT_THAT(config.engram_layer_ids, ElementsAre(1));
  EXPECT_THAT(config.engram_num_embeddings, ElementsAre(384006168));
  EXPECT_TRUE(config.layer_origin.empty());
  EXPECT_EQ(config.candidate_source_layer_id, -1);
  EXPECT_EQ(config.num_stages(), 0);
  EXPECT_EQ(config.vision.num_hidden_layers, 0);
  EXPECT_EQ(config.vocab_size, 129280);
  EXPECT_EQ(config.engram_compressed_vocab_size, 99092);
}

TEST(SyntheticConfig, ListsAreRenumberedAndKeepTheirRoles) {
  const Config config = config_of("layers=0,1,2,3,20,21,24&drafts=1&experts=16");
  EXPECT_THAT(config.layer_origin, ElementsAre(0, 1, 2, 3, 20, 21, 24));
  EXPECT_THAT(config.compress_ratios, ElementsAre(0, 0, 2, 2, 1, 1, 1, 0, 0, 0));
  EXPECT_THAT(config.kv_source_layer_ids, ElementsAre(2, 4));
  EXPECT_THAT(config.index_source_layer_ids, ElementsAre(2, 4, 6));
  EXPECT_EQ(config.candidate_source_layer_id, 4);
  EXPECT_THAT(config.dspark_target_layer_ids, ElementsAre(4, 5, 6));
  EXPECT_EQ(config.n_routed_experts, 16);
  EXPECT_EQ(config.dspark_n_routed_experts, 16);
  const Config& release = release_config();
  for (size_t i = 0; i < config.layer_origin.size(); ++i) {
    EXPECT_EQ(config.role(static_cast<int64_t>(i)), release.role(config.layer_origin[i])) << "layer " << i;
  }
}

TEST(SyntheticConfig, TapsStayOnKeptLayers) {
  EXPECT_THAT(config_of("layers=0,1,2,20,38&drafts=1").dspark_target_layer_ids, ElementsAre(2, 3, 4));
  EXPECT_THAT(config_of("layers=0-2,14,15,20,36,37&drafts=1").dspark_target_layer_ids, ElementsAre(5, 6, 7));
  EXPECT_THAT(config_of("layers=1&drafts=1").dspark_target_layer_ids, ElementsAre(0));
}

TEST(SyntheticConfig, ImpossibleListsSayWhichLayerIsMissing) {
  EXPECT_THAT(config_error("layers=0,1,3"), HasSubstr("layer 3 reads the compressed KV of layer 2"));
  EXPECT_THAT(config_error("layers=2,24"), HasSubstr("layer 24 reads the compressed KV of layer 20"));
  EXPECT_THAT(config_error("layers=2,9"), HasSubstr("layer 9 reads the compressed KV of layer 8"));
}

TEST(SyntheticConfig, EngramRowsSetTheStartOfThePrimeSearch) {
  const Config config = config_of("layers=0-2,8,14,20&engram-rows=1000");
  ASSERT_EQ(config.engram_num_embeddings.size(), 2u);
  const auto primes = engram_primes(config);
  ASSERT_TRUE(primes.ok()) << primes.error().message();
  EXPECT_EQ((*primes)[0][0], 1009);
  std::set<int64_t> distinct;
  for (size_t slot = 0; slot < 2; ++slot) {
    int64_t sum = 0;
    for (const int64_t prime : (*primes)[slot]) {
      distinct.insert(prime);
      sum += prime;
    }
    EXPECT_EQ(sum, config.engram_num_embeddings[slot]);
  }
  EXPECT_EQ(distinct.size(), 48u) << "a prime is used twice";
}

TEST(SyntheticConfig, ALayerKeepsItsEngramPrimesInASlice) {
  const Config both = config_of("layers=0-2,8,14,20&engram-rows=1000");
  const Config second = config_of("layers=0,8,14,20&engram-rows=1000");
  ASSERT_EQ(second.engram_num_embeddings.size(), 1u);
  EXPECT_EQ(second.engram_num_embeddings[0], both.engram_num_embeddings[1]);
  EXPECT_EQ((*engram_primes(second))[0], (*engram_primes(both))[1]);
}

TEST(SyntheticConfig, AnotherVocabularyNeedsItsEngramMap) {
  EXPECT_THAT(config_error("layers=2&vocab=512"), HasSubstr("no compressed-vocab"));
  EXPECT_THAT(config_error("layers=2&vocab=512&compressed-vocab=1000"), HasSubstr("compressed-vocab=1000"));
  EXPECT_EQ(config_of("layers=1&vocab=512").vocab_size, 512);
}

TEST(SyntheticConfig, ImpossibleWidthsAreRefused) {
  EXPECT_NE(config_error("layers=1&hidden=100"), "no error");
  EXPECT_NE(config_error("layers=1&heads=12"), "no error");
}

std::vector<std::byte> read_all(const format::TensorSource& source, const format::TensorInfo& info) {
  std::vector<std::byte> bytes(static_cast<size_t>(info.size_bytes));
  EXPECT_TRUE(source.read(info, 0, bytes).ok());
  return bytes;
}

TEST(SyntheticSource, HasExactlyTheManifest) {
  const auto source = open_synthetic(std::string("synthetic:v41?") + kSmall);
  ASSERT_TRUE(source.ok()) << source.error().message();
  const auto config = parse_config(*(*source)->read_text("config.json"));
  ASSERT_TRUE(config.ok()) << config.error().message();
  const Status status = check_manifest(**source, manifest(*config));
  EXPECT_TRUE(status.ok()) << status.error().message();
}

TEST(SyntheticSource, AnyPartEqualsThePartOfTheWhole) {
  const auto source = open_synthetic(std::string("synthetic:v41?") + kSmall);
  ASSERT_TRUE(source.ok()) << source.error().message();
  const unsigned seed = std::random_device{}();
  SCOPED_TRACE(testing::Message() << "seed " << seed);
  std::mt19937 random(seed);
  for (const format::TensorInfo& info : (*source)->tensors()) {
    const bool is_one_of_many =
        info.name.find(".experts.") != std::string::npos || info.name.starts_with("vision.blocks.");
    if (is_one_of_many && info.name.find(".3.") == std::string::npos) continue;
    const std::vector<std::byte> whole = read_all(**source, info);
    for (int i = 0; i < 3; ++i) {
      const auto offset = std::uniform_int_distribution<int64_t>(0, info.size_bytes - 1)(random);
      const auto length = std::uniform_int_distribution<int64_t>(
          1, std::min<int64_t>(info.size_bytes - offset, 5000))(random);
      std::vector<std::byte> part(static_cast<size_t>(length));
      ASSERT_TRUE((*source)->read(info, offset, part).ok());
      ASSERT_EQ(std::memcmp(part.data(), whole.data() + offset, part.size()), 0)
          << info.name << " bytes " << offset << " + " << length;
    }
  }
}

TEST(SyntheticSource, HasNoForbiddenCode) {
  const auto source = open_synthetic(std::string("synthetic:v41?") + kSmall);
  ASSERT_TRUE(source.ok());
  for (const format::TensorInfo& info : (*source)->tensors()) {
    if (info.dtype != tensor::DType::f8_e8m0 && info.dtype != tensor::DType::f8_e4m3) continue;
    for (const std::byte b : read_all(**source, info)) {
      const auto code = static_cast<uint8_t>(b);
      const bool is_bad = info.dtype == tensor::DType::f8_e8m0 ? code == 255 : (code & 0x7F) == 0x7F;
      ASSERT_FALSE(is_bad) << info.name << " holds " << int{code};
    }
  }
}

TEST(SyntheticSource, BytesAreTheSameOnEveryMachineAndInEveryVersion) {
  const auto source = open_synthetic(std::string("synthetic:v41?") + kSmall);
  ASSERT_TRUE(source.ok());
  uint64_t hash = 0xCBF29CE484222325u;  // FNV-1a over one tensor of each kind
  for (const char* name :
       {"embed.weight", "layers.0.attn.wq_a.weight", "layers.0.attn.wq_a.scale", "layers.0.hc_attn_fn",
        "layers.1.engram.embed.weight", "layers.1.engram.embed.scale", "layers.1.hc_ffn_base",
        "layers.4.ffn.experts.5.w2.weight", "layers.4.ffn.experts.5.w2.scale", "mtp.0.hc_attn_scale"}) {
    const auto* info = (*source)->find(name);
    ASSERT_NE(info, nullptr) << name;
    for (const std::byte b : read_all(**source, *info))
      hash = (hash ^ static_cast<uint8_t>(b)) * 0x100000001B3u;
  }
  EXPECT_EQ(hash, 0xAC4B044B6F172B24u)
      << "the recipe changed: every recorded golden run of a synthetic model is void";
}

TEST(SyntheticSource, SeedAndNameChangeTheWeights) {
  const auto first = open_synthetic("synthetic:v41?layers=1&hidden=64&seed=1");
  const auto second = open_synthetic("synthetic:v41?layers=1&hidden=64&seed=2");
  ASSERT_TRUE(first.ok() && second.ok());
  const auto* query = (*first)->find("layers.0.attn.wq_a.weight");
  ASSERT_NE(query, nullptr);
  EXPECT_NE(read_all(**first, *query), read_all(**second, *(*second)->find(query->name)));
  const auto* gate = (*first)->find("layers.0.ffn.experts.0.w1.weight");
  const auto* up = (*first)->find("layers.0.ffn.experts.0.w3.weight");
  ASSERT_TRUE(gate != nullptr && up != nullptr);
  EXPECT_NE(read_all(**first, *gate), read_all(**first, *up));
}

TEST(SyntheticSource, ASliceHasTheLayersOfTheFullModel) {
  const auto slice = open_synthetic("synthetic:v41?layers=2,20&hidden=64&vocab=512");
  const auto full = open_synthetic("synthetic:v41?hidden=64&vocab=512&compressed-vocab=256");
  ASSERT_TRUE(slice.ok() && full.ok());
  for (const char* name :
       {"attn.wq_a.weight", "attn.compressor.wkv.weight", "ffn.experts.5.w2.scale", "hc_attn_fn"}) {
    const auto* a = (*slice)->find(std::string("layers.1.") + name);
    const auto* b = (*full)->find(std::string("layers.20.") + name);
    ASSERT_TRUE(a != nullptr && b != nullptr) << name;
    EXPECT_EQ(read_all(**slice, *a), read_all(**full, *b)) << name;
  }
}

TEST(SyntheticSource, WithoutATokenizerSaysHowToNameOne) {
  const auto source = open_synthetic("synthetic:v41?layers=1");
  ASSERT_TRUE(source.ok());
  const auto text = (*source)->read_text("tokenizer.json");
  ASSERT_FALSE(text.ok());
  EXPECT_EQ(text.error().code(), Code::not_found);
  EXPECT_THAT(text.error().hint(), HasSubstr("tokenizer=FOLDER"));
}

}  // namespace
}  // namespace rorqual::model
