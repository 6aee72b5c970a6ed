// SPDX-License-Identifier: Apache-2.0
#include "model/manifest.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>

#include "base/file.h"

namespace rorqual::model {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

constexpr const char* kModels[] = {"tests/models/tiny-a", "tests/models/tiny-b", "tests/models/tiny-c",
                                   "models/mini"};

std::string path_of(const std::string& model) {
  return std::string(RORQUAL_SOURCE_DIR) + "/" + model;
}

Config config_of(const std::string& model) {
  auto text = read_text_file(path_of(model) + "/config.json", 1 << 20);
  EXPECT_TRUE(text.ok());
  auto config = parse_config(*text);
  EXPECT_TRUE(config.ok()) << config.error().message();
  return *config;
}

int64_t elements(const ManifestEntry& entry) {
  return entry.size_bytes() / tensor::dtype_bytes(entry.dtype);
}

/// A source without data whose list can be spoiled.
class ListSource final : public format::TensorSource {
 public:
  explicit ListSource(const std::vector<ManifestEntry>& entries) {
    for (const auto& entry : entries) {
      list.push_back({entry.name, entry.dtype, entry.shape, entry.size_bytes(), "a.safetensors", 0});
    }
  }

  const std::vector<format::TensorInfo>& tensors() const override { return list; }

  Status read(const format::TensorInfo&, int64_t, std::span<std::byte>) const override { return Ok{}; }

  Result<std::string> read_text(std::string_view) const override { return Error(Code::not_found, "none"); }

  std::string name() const override { return "list"; }

  std::vector<format::TensorInfo> list;
};

TEST(Manifest, has_the_published_totals_of_the_release) {
  const auto entries = manifest(release_config());
  EXPECT_EQ(entries.size(), 96085U);
  int64_t bytes = 0;
  std::map<tensor::DType, int64_t> counts;
  for (const auto& entry : entries) {
    bytes += entry.size_bytes();
    counts[entry.dtype] += elements(entry);
  }
  EXPECT_EQ(bytes, 510'286'023'000);
  EXPECT_EQ(counts.size(), 5U);
  EXPECT_EQ(counts[tensor::DType::i8], 278'585'671'680);
  EXPECT_EQ(counts[tensor::DType::f8_e4m3], 204'015'223'296);
  EXPECT_EQ(counts[tensor::DType::f8_e8m0], 23'563'015'184);
  EXPECT_EQ(counts[tensor::DType::bf16], 1'976'441'856);
  EXPECT_EQ(counts[tensor::DType::f32], 42'307'282);
}

TEST(Manifest, sums_to_the_published_byte_budget_by_group) {
  std::map<TensorGroup, int64_t> bytes;
  for (const auto& entry : manifest(release_config())) bytes[entry.group] += entry.size_bytes();
  const auto giga = [&](TensorGroup group) { return static_cast<double>(bytes[group]) / 1e9; };
  EXPECT_EQ(bytes[TensorGroup::routed_experts], int64_t{40} * 384 * 18'800'640);
  EXPECT_NEAR(giga(TensorGroup::routed_experts), 288.78, 0.005);
  EXPECT_NEAR(giga(TensorGroup::engram_tables) + giga(TensorGroup::engram_mix), 203.07, 0.005);
  EXPECT_NEAR(giga(TensorGroup::draft), 7.93, 0.005);
  EXPECT_NEAR(giga(TensorGroup::embedding), 1.32, 0.005);
  EXPECT_NEAR(giga(TensorGroup::head), 1.32, 0.005);
  EXPECT_NEAR(giga(TensorGroup::shared_experts), 1.42, 0.005);
  EXPECT_NEAR(giga(TensorGroup::vision), 0.97, 0.005);
}

TEST(Manifest, is_sorted_and_free_of_double_names) {
  const auto entries = manifest(release_config());
  for (size_t i = 1; i < entries.size(); ++i) ASSERT_LT(entries[i - 1].name, entries[i].name);
}

TEST(Manifest, matches_every_model_of_the_repository) {
  for (const char* model : kModels) {
    const auto source = format::open_checkpoint(path_of(model));
    ASSERT_TRUE(source.ok()) << source.error().message();
    const auto entries = manifest(config_of(model));
    EXPECT_EQ(entries.size(), (*source)->tensors().size()) << model;
    const auto status = check_manifest(**source, entries);
    EXPECT_TRUE(status.ok()) << status.error().message();
  }
}

TEST(Manifest, keeps_the_tensors_of_one_expert_under_one_shard_rule) {
  for (const auto& entry : manifest(config_of("tests/models/tiny-b"))) {
    const bool is_expert = entry.name.find(".experts.") != std::string::npos;
    EXPECT_EQ(is_expert, entry.shard == ShardRule::by_expert) << entry.name;
    EXPECT_EQ(is_expert, entry.expert >= 0) << entry.name;
  }
}

TEST(Manifest, lists_up_to_ten_differences_at_once) {
  const auto entries = manifest(config_of("tests/models/tiny-c"));
  ListSource source(entries);
  EXPECT_TRUE(check_manifest(source, entries).ok());
  for (auto& tensor : source.list) {
    if (tensor.name == "norm.weight") tensor.shape = {1};
    if (tensor.name == "head.weight") tensor.dtype = tensor::DType::f32;
  }
  std::erase_if(source.list, [](const auto& tensor) { return tensor.name == "embed.weight"; });
  source.list.push_back({"zebra", tensor::DType::u8, {3}, 3, "b.safetensors", 0});
  const auto status = check_manifest(source, entries);
  ASSERT_FALSE(status.ok());
  EXPECT_EQ(status.error().code(), Code::corrupt_data);
  const std::string& message = status.error().message();
  EXPECT_THAT(message,
              HasSubstr("'norm.weight' (a.safetensors) is BF16 [1], config.json implies BF16 [128]"));
  EXPECT_THAT(
      message,
      HasSubstr("'head.weight' (a.safetensors) is F32 [1024, 128], config.json implies BF16 [1024, 128]"));
  EXPECT_THAT(message, HasSubstr("'embed.weight' is missing, expected BF16 [1024, 128]"));
  EXPECT_THAT(message, HasSubstr("'zebra' (b.safetensors) is not part of this architecture"));
  EXPECT_THAT(message, Not(HasSubstr("\n")));

  source.list.clear();
  const auto empty = check_manifest(source, entries);
  ASSERT_FALSE(empty.ok());
  EXPECT_THAT(empty.error().message(), HasSubstr("and 336 more"));
}

TEST(Manifest, finds_a_short_bias_and_an_expert_of_another_size) {
  const auto entries = manifest(config_of("models/mini"));
  for (const char* name : {"layers.3.ffn.gate.bias", "mtp.1.ffn.experts.1.w2.weight", "norm.weight",
                           "layers.0.attn.attn_sink"}) {
    ListSource source(entries);
    for (auto& tensor : source.list) {
      if (tensor.name == name) tensor.shape.back() += 1;
    }
    const auto status = check_manifest(source, entries);
    ASSERT_FALSE(status.ok()) << name;
    EXPECT_THAT(status.error().message(), HasSubstr(name));
  }
}

TEST(ShardRange, covers_everything_once_in_whole_blocks) {
  for (const int64_t count : {0, 1, 31, 32, 33, 96, 384, 1000}) {
    for (const int64_t multiple : {1, 32}) {
      for (const int world : {1, 2, 3, 7, 64}) {
        int64_t position = 0;
        int64_t largest = 0;
        for (int rank = 0; rank < world; ++rank) {
          const Range range = shard_range(count, multiple, {rank, world});
          EXPECT_EQ(range.begin, position);
          EXPECT_LE(range.begin, range.end);
          EXPECT_TRUE(range.begin % multiple == 0 || range.begin == count);
          if (rank > 0) {  // remainders go to the first ranks
            EXPECT_LE(range.end - range.begin, largest);
          }
          largest = range.end - range.begin;
          position = range.end;
        }
        EXPECT_EQ(position, count);
      }
    }
  }
}

}  // namespace
}  // namespace rorqual::model
