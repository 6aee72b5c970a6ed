// SPDX-License-Identifier: Apache-2.0
#include "model/rope.h"

#include <gtest/gtest.h>

#include <bit>
#include <cstring>
#include <string>

#include "format/safetensors.h"

namespace rorqual::model {
namespace {

std::vector<float> golden(const std::string& name) {
  const auto file =
      format::open_safetensors(std::string(RORQUAL_SOURCE_DIR) + "/tests/golden/ops/rope.safetensors");
  EXPECT_TRUE(file.ok()) << file.error().message();
  if (!file.ok()) return {};
  const auto bytes = format::read_tensor(**file, name);
  EXPECT_TRUE(bytes.ok()) << bytes.error().message();
  std::vector<float> out(bytes.ok() ? bytes->size() / 4 : 0);
  if (!out.empty()) std::memcpy(out.data(), bytes->data(), bytes->size());
  return out;
}

TEST(RopeInvFreq, EqualsTheReferenceBitForBit) {
  for (const bool compressed : {false, true}) {
    const auto want = golden(compressed ? "compressed.inv_freq" : "swa.inv_freq");
    const auto got = rope_inv_freq(release_config(), compressed);
    ASSERT_EQ(got.size(), want.size());
    for (size_t i = 0; i < want.size(); ++i) {
      EXPECT_EQ(std::bit_cast<uint32_t>(got[i]), std::bit_cast<uint32_t>(want[i])) << "frequency " << i;
    }
  }
}

TEST(RopeInvFreq, InterpolatesOnlyCompressedLayersWithAnOriginalLength) {
  Config config = release_config();
  const auto scaled = rope_inv_freq(config, true);
  config.original_seq_len = 0;
  const auto plain = rope_inv_freq(config, true);
  ASSERT_EQ(plain.size(), 32u);
  EXPECT_EQ(plain[0], 1.0f);
  // The ramp of the release goes from dimension 15 to 25: below it nothing changes, above it the factor
  // is 16.
  for (size_t i = 0; i <= 15; ++i) EXPECT_EQ(scaled[i], plain[i]);
  for (size_t i = 16; i < 25; ++i) {
    EXPECT_LT(scaled[i], plain[i]);
    EXPECT_GT(scaled[i], plain[i] / 16);
  }
  for (size_t i = 25; i < 32; ++i) EXPECT_EQ(scaled[i], plain[i] / 16);
}

}  // namespace
}  // namespace rorqual::model
