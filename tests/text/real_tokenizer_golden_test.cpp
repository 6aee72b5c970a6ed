// SPDX-License-Identifier: Apache-2.0
// The published tokenizer: size, control tokens, Engram's map (checksum from the Python reference), hostile
// lengths.
#include <gtest/gtest.h>

#include <fstream>
#include <memory>
#include <sstream>

#include "text/token_map.h"
#include "text/tokenizer.h"

namespace rorqual::text {
namespace {

class RealTokenizer : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    std::ifstream file(RORQUAL_REAL_TOKENIZER, std::ios::binary);
    ASSERT_TRUE(file) << RORQUAL_REAL_TOKENIZER << " is missing: run scripts/setup --test";
    std::ostringstream json;
    json << file.rdbuf();
    auto loaded = Tokenizer::from_json(json.str());
    ASSERT_TRUE(loaded.ok()) << loaded.error().message();
    tokenizer = std::make_unique<Tokenizer>(*std::move(loaded));
  }

  static void TearDownTestSuite() { tokenizer.reset(); }

  void SetUp() override { ASSERT_NE(tokenizer, nullptr); }

  static std::unique_ptr<Tokenizer> tokenizer;
};

std::unique_ptr<Tokenizer> RealTokenizer::tokenizer;

TEST_F(RealTokenizer, HasTheDocumentedControlTokens) {
  EXPECT_EQ(tokenizer->vocab_size(), 129280);
  EXPECT_EQ(tokenizer->added_token("<｜System｜>"), 128799);
  EXPECT_EQ(tokenizer->added_token("</think>"), 128822);
  EXPECT_EQ(tokenizer->added_token("<｜deepseek_image｜>"), 129264);
  EXPECT_EQ(tokenizer->encode("<｜User｜>", EncodeMode::plain),
            (std::vector<int32_t>{30, 28217, 6756, 28217, 32}));
}

TEST_F(RealTokenizer, GivesTheReferencesEngramMap) {
  const TokenMap map = engram_token_map(*tokenizer);
  EXPECT_EQ(map.num_compressed, 99092);
  uint64_t hash = 0xcbf29ce484222325u;
  for (const int32_t id : map.compressed) {
    for (int shift = 0; shift < 32; shift += 8) {
      hash ^= (static_cast<uint32_t>(id) >> shift) & 0xFFu;
      hash *= 0x100000001b3u;
    }
  }
  EXPECT_EQ(hash, 0x6b5cfa68a5f57ba6u);
}

TEST_F(RealTokenizer, EncodesMegabytesWithoutSpaces) {
  for (const std::string& unit :
       {std::string("a"), std::string(" "), std::string("\n"), std::string("中文字")}) {
    std::string text;
    while (text.size() < 2'000'000) text += unit;
    const auto ids = tokenizer->encode(text, EncodeMode::with_added);
    EXPECT_LT(ids.size(), text.size() / 3);
    EXPECT_EQ(tokenizer->decode(ids, false), text);
  }
}

}  // namespace
}  // namespace rorqual::text
