// SPDX-License-Identifier: Apache-2.0
#include "tools/inspect.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "base/file.h"
#include "format/safetensors_writer.h"

namespace rorqual::tools {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;
using Json = nlohmann::json;

const std::string kRoot = RORQUAL_SOURCE_DIR;

/// A copy of tiny-c that a test may damage.
class InspectCopy : public ::testing::Test {
 protected:
  void SetUp() override {
    const auto* info = ::testing::UnitTest::GetInstance()->current_test_info();
    folder_ =
        fs::temp_directory_path() / ("rorqual-inspect-" + std::to_string(::getpid()) + "-" + info->name());
    fs::create_directories(folder_);
    for (const auto& entry : fs::directory_iterator(kRoot + "/tests/models/tiny-c")) {
      fs::copy(entry.path(), folder_ / entry.path().filename());
      fs::permissions(folder_ / entry.path().filename(), fs::perms::owner_all);
    }
  }

  void TearDown() override { fs::remove_all(folder_); }

  /// Overwrites bytes of a tensor's data.
  void poke(const std::string& tensor, int64_t offset, const std::string& bytes) {
    const auto source = format::open_checkpoint(folder_.string());
    ASSERT_TRUE(source.ok()) << source.error().message();
    const auto* info = (*source)->find(tensor);
    ASSERT_NE(info, nullptr);
    std::fstream file(folder_ / info->file, std::ios::in | std::ios::out | std::ios::binary);
    file.seekp(info->file_offset + offset);
    file << bytes;
    ASSERT_TRUE(file.good());
  }

  Status inspect(std::string& out, bool as_json = false) {
    InspectOptions options;
    options.path = folder_.string();
    options.verify = true;
    options.as_json = as_json;
    return run_inspect(options, out);
  }

  fs::path folder_;
};

TEST(Inspect, prints_groups_types_and_config) {
  InspectOptions options;
  options.path = kRoot + "/tests/models/tiny-a";
  std::string out;
  const auto status = run_inspect(options, out);
  ASSERT_TRUE(status.ok()) << status.error().message();
  EXPECT_THAT(out, HasSubstr("934 tensors in 3 files"));
  EXPECT_THAT(out, HasSubstr("8: 2 window-only, 2 full, 1 reindex, 3 reuse; hidden 256, 4 residual streams"));
  EXPECT_THAT(out, HasSubstr("routed experts"));
  EXPECT_THAT(out, HasSubstr("F8_E8M0"));
  EXPECT_EQ(out.find("layers.0.attn.wkv.weight"), std::string::npos);
  options.list_tensors = true;
  ASSERT_TRUE(run_inspect(options, out).ok());
  EXPECT_THAT(out, HasSubstr("layers.0.attn.wkv.weight"));
}

TEST(Inspect, prints_one_json_object_whose_sums_agree) {
  InspectOptions options;
  options.path = kRoot + "/models/mini";
  options.as_json = true;
  options.list_tensors = true;
  options.verify = true;
  std::string out;
  const auto status = run_inspect(options, out);
  ASSERT_TRUE(status.ok()) << status.error().message();
  const Json json = Json::parse(out);
  EXPECT_EQ(json["schema"], "rorqual.inspect/1");
  EXPECT_EQ(json["total"]["tensors"], 1194);
  EXPECT_EQ(json["total"]["bytes"], 26382976);  // metadata.total_size of its index
  EXPECT_EQ(json["tensors"].size(), 1194U);
  EXPECT_TRUE(json["matches_config"]);
  EXPECT_EQ(json["config"]["text_config"]["hidden_size"], 256);
  for (const char* table : {"groups", "dtypes"}) {
    int64_t bytes = 0;
    for (const auto& [name, sum] : json[table].items()) bytes += sum["bytes"].get<int64_t>();
    EXPECT_EQ(bytes, 26382976) << table;
  }
  EXPECT_TRUE(json["verify"]["damaged"].empty());
  EXPECT_EQ(json["verify"]["content_sha256"].get<std::string>().size(), 64U);
}

TEST(Inspect, hashes_the_embedded_model_like_its_folder) {
  InspectOptions options;
  options.verify = true;
  options.as_json = true;
  std::string embedded;
  ASSERT_TRUE(run_inspect(options, embedded).ok());
  options.path = kRoot + "/models/mini";
  std::string folder;
  ASSERT_TRUE(run_inspect(options, folder).ok());
  EXPECT_EQ(Json::parse(embedded)["verify"]["content_sha256"],
            Json::parse(folder)["verify"]["content_sha256"]);
}

TEST(Inspect, shows_a_single_file_without_a_config) {
  InspectOptions options;
  options.path = kRoot + "/tests/golden/ops/hashing.safetensors";
  options.list_tensors = true;
  std::string out;
  ASSERT_TRUE(run_inspect(options, out).ok());
  EXPECT_THAT(out, HasSubstr("release.multipliers"));
  options.path = "/nowhere/model";
  EXPECT_EQ(run_inspect(options, out).error().code(), Code::not_found);
}

TEST_F(InspectCopy, finds_nothing_in_a_sound_model) {
  std::string out;
  const auto status = inspect(out);
  EXPECT_TRUE(status.ok()) << status.error().message();
  EXPECT_THAT(out, HasSubstr("0 tensors with values that are not finite"));
}

TEST_F(InspectCopy, says_when_the_tokenizer_is_missing_or_broken) {
  std::string sound;
  ASSERT_TRUE(inspect(sound, true).ok());
  EXPECT_TRUE(Json::parse(sound)["tokenizer_fault"].is_null());
  ASSERT_TRUE(write_text_file((folder_ / "tokenizer.json").string(), "{").ok());
  std::string broken;
  ASSERT_TRUE(inspect(broken).ok());
  EXPECT_THAT(broken, HasSubstr("\ntokenizer  unusable: tokenizer.json is not valid JSON"));
  fs::remove(folder_ / "tokenizer.json");
  std::string missing;
  ASSERT_TRUE(inspect(missing).ok());
  EXPECT_THAT(missing,
              HasSubstr("\ntokenizer  unusable: model '" + folder_.string() + "' has no tokenizer.json"));
}

TEST_F(InspectCopy, counts_values_that_are_not_finite_per_tensor) {
  poke("layers.0.attn.wkv.scale", 1, "\xff");                             // E8M0 NaN
  poke("layers.1.attn.wq_a.weight", 5, "\x7f\xff");                       // both E4M3 NaNs
  poke("norm.weight", 2, std::string("\x80\x7f\xc0\xff", 4));             // BF16 infinity and NaN
  poke("layers.2.attn.attn_sink", 4, std::string("\0\0\xc0\x7f", 4));     // F32 NaN
  poke("layers.3.ffn.shared_experts.w1.scale", 0, std::string(1, '\0'));  // 2^-127: counted only
  std::string out;
  const auto status = inspect(out, true);
  ASSERT_FALSE(status.ok());
  EXPECT_EQ(status.error().code(), Code::corrupt_data);
  EXPECT_EQ(exit_code(status.error().code()), 4);
  EXPECT_THAT(status.error().message(), HasSubstr("4 tensors with values that are not finite"));
  const Json json = Json::parse(out);
  std::map<std::string, int64_t> damaged;
  for (const auto& tensor : json["verify"]["damaged"]) damaged[tensor["name"]] = tensor["not_finite"];
  const std::map<std::string, int64_t> expected = {{"layers.0.attn.wkv.scale", 1},
                                                   {"layers.1.attn.wq_a.weight", 2},
                                                   {"norm.weight", 2},
                                                   {"layers.2.attn.attn_sink", 1}};
  EXPECT_EQ(damaged, expected);
  EXPECT_EQ(json["verify"]["zero_scales"], 1);
}

TEST_F(InspectCopy, still_reports_when_config_and_tensors_disagree) {
  Json config = Json::parse(*read_text_file((folder_ / "config.json").string(), 1 << 20));
  config["text_config"]["n_routed_experts"] = 7;
  ASSERT_TRUE(write_text_file((folder_ / "config.json").string(), config.dump()).ok());
  std::string out;
  const auto status = inspect(out);
  ASSERT_FALSE(status.ok());
  EXPECT_EQ(status.error().code(), Code::corrupt_data);
  EXPECT_THAT(status.error().message(), HasSubstr("is missing, expected I8 [64, 64]"));
  EXPECT_THAT(out, HasSubstr("routed experts"));
}

TEST_F(InspectCopy, changes_its_content_hash_with_one_bit) {
  std::string before;
  ASSERT_TRUE(inspect(before, true).ok());
  poke("layers.0.ffn.experts.0.w1.weight", 0, "\x01");
  std::string first;
  ASSERT_TRUE(inspect(first, true).ok());
  poke("layers.0.ffn.experts.0.w1.weight", 0, "\x03");
  std::string second;
  ASSERT_TRUE(inspect(second, true).ok());
  EXPECT_NE(Json::parse(first)["verify"]["content_sha256"], Json::parse(second)["verify"]["content_sha256"]);
}

}  // namespace
}  // namespace rorqual::tools
