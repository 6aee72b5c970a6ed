// SPDX-License-Identifier: Apache-2.0
#include "plan/release.h"

#include <gtest/gtest.h>

#include <map>

#include "model/synthetic_spec.h"

namespace rorqual::plan {
namespace {

TEST(Release, adds_up_to_the_published_total_to_the_byte) {
  int64_t total = 0, tensors = 0;
  std::map<tensor::DType, int64_t> elements;
  for (const model::ManifestEntry& entry : model::manifest(model::release_config())) {
    total += entry.size_bytes();
    ++tensors;
    elements[entry.dtype] += entry.size_bytes() / tensor::dtype_bytes(entry.dtype);
  }
  EXPECT_EQ(total, 510'286'023'000);
  EXPECT_EQ(total, kReleaseTensor_bytes);
  EXPECT_EQ(tensors, 96'085);
  EXPECT_EQ(elements[tensor::DType::i8], 278'585'671'680);
  EXPECT_EQ(elements[tensor::DType::f8_e4m3], 204'015'223'296);
  EXPECT_EQ(elements[tensor::DType::f8_e8m0], 23'563'015'184);
  EXPECT_EQ(elements[tensor::DType::bf16], 1'976'441'856);
  EXPECT_EQ(elements[tensor::DType::f32], 42'307'282);
}

TEST(Release, short_list_has_the_sums_of_the_long_one) {
  EXPECT_EQ(checkpoint_bytes(model::release_config()), kReleaseTensor_bytes);
  EXPECT_EQ(checkpoint_tensors(model::release_config()), 96'085);
  for (const char* name :
       {"synthetic:v41?layers=1&experts=64", "synthetic:v41?layers=4&experts=16&engram-rows=20000",
        "synthetic:v41?layers=0,1,2,3,20,24&experts=16&drafts=1&draft-experts=8&engram-rows=20000",
        "synthetic:v41"}) {
    const auto config = config_of(name);
    ASSERT_TRUE(config.ok()) << config.error().message();
    int64_t total = 0, tensors = 0;
    for (const model::ManifestEntry& entry : model::manifest(*config)) {
      total += entry.size_bytes();
      ++tensors;
    }
    EXPECT_EQ(checkpoint_bytes(*config), total) << name;
    EXPECT_EQ(checkpoint_tensors(*config), tensors) << name;
  }
}

TEST(Release, name_v41_is_the_release_and_a_folder_needs_only_its_config) {
  const auto release = config_of("v41");
  ASSERT_TRUE(release.ok());
  EXPECT_EQ(release->num_hidden_layers, 40);
  const auto tiny = config_of(std::string(RORQUAL_SOURCE_DIR) + "/tests/models/tiny-a");
  ASSERT_TRUE(tiny.ok()) << tiny.error().message();
  const auto missing = config_of("/no/such/folder");
  ASSERT_FALSE(missing.ok());
  EXPECT_EQ(missing.error().code(), Code::not_found);
  EXPECT_NE(missing.error().hint().find("v41"), std::string::npos);
  EXPECT_EQ(config_of("synthetic:v41?layers=99").error().code(), Code::invalid_argument);
}

}  // namespace
}  // namespace rorqual::plan
