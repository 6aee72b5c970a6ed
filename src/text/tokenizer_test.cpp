// SPDX-License-Identifier: Apache-2.0
#include "text/tokenizer.h"

#include <gtest/gtest.h>

#include <fstream>
#include <random>
#include <sstream>

#include "text/token_map.h"
#include "text/utf8.h"

namespace rorqual::text {
namespace {

std::string read_text(const std::string& path) {
  std::ifstream file(std::string(RORQUAL_SOURCE_DIR) + "/" + path, std::ios::binary);
  std::ostringstream out;
  out << file.rdbuf();
  return std::move(out).str();
}

Tokenizer load(const std::string& path) {
  auto tokenizer = Tokenizer::from_json(read_text(path));
  EXPECT_TRUE(tokenizer.ok()) << (tokenizer.ok() ? "" : tokenizer.error().message());
  return *std::move(tokenizer);
}

const Tokenizer& mini() {
  static const Tokenizer tokenizer = load("models/mini/tokenizer.json");
  return tokenizer;
}

/// FNV-1a over the little-endian ids.
uint64_t checksum(const std::vector<int32_t>& ids) {
  uint64_t hash = 0xcbf29ce484222325u;
  for (const int32_t id : ids) {
    for (int shift = 0; shift < 32; shift += 8) {
      hash ^= (static_cast<uint32_t>(id) >> shift) & 0xFFu;
      hash *= 0x100000001b3u;
    }
  }
  return hash;
}

TEST(Tokenizer, EncodesAndDecodesEveryKindOfText) {
  for (const std::string text : {"", " ", "Hello, world!\n\n", "12345 67", "héllo 世界 アイ・ウ",
                                 "\U0001F600\u200d\U0001F468", "a\r\n\tb  c", "한국어 \u0301\u0301x"}) {
    for (const EncodeMode mode : {EncodeMode::plain, EncodeMode::with_added}) {
      EXPECT_EQ(mini().decode(mini().encode(text, mode), false), text);
    }
  }
}

TEST(Tokenizer, TreatsSpelledControlTokensAsTextInPlainMode) {
  const auto user = mini().added_token("<｜User｜>");
  ASSERT_TRUE(user.has_value());
  EXPECT_EQ(mini().encode("<｜User｜>", EncodeMode::with_added), std::vector<int32_t>{*user});
  const auto plain = mini().encode("<｜User｜>", EncodeMode::plain);
  EXPECT_GT(plain.size(), 1u);
  for (const int32_t id : plain) EXPECT_FALSE(mini().is_added(id));
}

TEST(Tokenizer, EncodesInvalidUtf8ByteByByte) {
  const std::string broken = "a\xE4\xB8z\xFF";
  const auto ids = mini().encode(broken, EncodeMode::plain);
  std::string bytes;
  for (const int32_t id : ids) bytes += mini().token_bytes(id);
  EXPECT_EQ(bytes, broken);
  EXPECT_EQ(mini().decode(ids, false), "a\uFFFDz\uFFFD");
}

TEST(Tokenizer, EncodesLongPiecesLikeShortOnes) {
  // A long piece goes through another algorithm; unmergeable borders let it be compared with its parts.
  std::string word;
  std::mt19937 random(7);
  RecordProperty("seed", 7);
  for (int i = 0; i < 4000; ++i) word += static_cast<char>('a' + random() % 6);
  const auto whole = mini().encode(word, EncodeMode::plain);
  EXPECT_EQ(mini().decode(whole, false), word);
  std::string spaced;
  std::vector<int32_t> parts;
  for (size_t begin = 0; begin < 20 * 20; begin += 20) {
    const std::string part = " " + word.substr(begin, 19);
    const auto ids = mini().encode(part, EncodeMode::plain);
    parts.insert(parts.end(), ids.begin(), ids.end());
    spaced += part;
  }
  EXPECT_EQ(mini().encode(spaced, EncodeMode::plain), parts);
}

TEST(Tokenizer, NeedsNearLinearTimeOnHostileText) {
  for (const std::string& unit : {std::string("a"), std::string("\n"), std::string(" "), std::string("1"),
                                  std::string("\u0301"), std::string("<｜")}) {
    std::string text;
    while (text.size() < 1'000'000) text += unit;
    EXPECT_EQ(mini().decode(mini().encode(text, EncodeMode::with_added), false), text);
  }
}

TEST(Detokenizer, NeverSplitsACharacter) {
  const std::string text = "x\U0001F600y世é";
  for (const EncodeMode mode : {EncodeMode::plain}) {
    Detokenizer stream(mini(), false);
    std::string out;
    for (const int32_t id : mini().encode(text, mode)) {
      const std::string piece = stream.push(id);
      EXPECT_TRUE(is_valid_utf8(piece));
      EXPECT_EQ(piece.find("\uFFFD"), std::string::npos);
      out += piece;
    }
    EXPECT_EQ(out + stream.flush(), text);
  }
}

TEST(Detokenizer, ReplacesInvalidBytesAndGoesOn) {
  Detokenizer stream(mini(), false);
  std::string out;
  for (const int32_t id : mini().encode("\xFF ok", EncodeMode::plain)) out += stream.push(id);
  EXPECT_EQ(out + stream.flush(), "\uFFFD ok");
}

TEST(Detokenizer, LeavesOutTokensFlaggedSpecial) {
  Detokenizer stream(mini(), true);
  EXPECT_EQ(stream.push(1), "");
  EXPECT_EQ(stream.push(*mini().added_token("<think>")), "<think>");
}

TEST(TokenMap, EqualsTheReferenceForEveryMiniature) {
  struct Expected {
    const char* path;
    int32_t count;
    uint64_t checksum;
  };

  for (const Expected& e : {Expected{"models/mini/tokenizer.json", 3231, 0xb4956f57f3950a60u},
                            Expected{"tests/models/tiny-a/tokenizer.json", 1343, 0x4f465cfac49c1c9bu},
                            Expected{"tests/models/tiny-b/tokenizer.json", 1146, 0x85a1550c1bca747fu},
                            Expected{"tests/models/tiny-c/tokenizer.json", 769, 0xc5ad440b57fa41c6u}}) {
    const TokenMap map = engram_token_map(load(e.path));
    EXPECT_EQ(map.num_compressed, e.count) << e.path;
    EXPECT_EQ(checksum(map.compressed), e.checksum) << e.path;
  }
}

/// A small valid file with one replaced part.
std::string edited(const std::string& from, const std::string& to) {
  std::string json = read_text("tests/models/tiny-c/tokenizer.json");
  const size_t pos = json.find(from);
  EXPECT_NE(pos, std::string::npos) << from;
  return json.replace(pos, from.size(), to);
}

std::string refusal(const std::string& json) {
  const auto tokenizer = Tokenizer::from_json(json);
  EXPECT_FALSE(tokenizer.ok());
  return tokenizer.ok() ? "" : tokenizer.error().message();
}

TEST(TokenizerJson, RefusesWhatItCannotRepresent) {
  EXPECT_NE(refusal("{").find("not valid JSON"), std::string::npos);
  EXPECT_NE(refusal("[]").find("not a JSON object"), std::string::npos);
  EXPECT_NE(refusal("{}").find("pre_tokenizer"), std::string::npos);
  EXPECT_NE(refusal(edited("{1,3}", "{1,4}")).find("stage 1"), std::string::npos);
  EXPECT_NE(refusal(edited("\"BPE\"", "\"Unigram\"")).find("expected BPE"), std::string::npos);
  EXPECT_NE(refusal(edited("\"byte_fallback\": false", "\"byte_fallback\": true")).find("byte_fallback"),
            std::string::npos);
  EXPECT_NE(refusal(edited("\"lstrip\": false", "\"lstrip\": true")).find("lstrip"), std::string::npos);
}

TEST(TokenizerJson, RefusesBrokenIdsAndMerges) {
  EXPECT_NE(refusal(edited("\"id\": 0,", "\"id\": -1,")).find("id"), std::string::npos);
  EXPECT_NE(refusal(edited("\"id\": 1008,", "\"id\": 99999999,")).find("id"), std::string::npos);
  EXPECT_NE(refusal(edited("\"id\": 1009,", "\"id\": 1008,")).find("1008"), std::string::npos);
  EXPECT_NE(refusal(edited("\"merges\": [", "\"merges\": [[\"\", \"a\"],")).find("merges[0]"),
            std::string::npos);
  EXPECT_NE(refusal(edited("\"merges\": [", "\"merges\": [[\"a\"],")).find("merges[0]"), std::string::npos);
}

}  // namespace
}  // namespace rorqual::text
