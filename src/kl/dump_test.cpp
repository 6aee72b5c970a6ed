// SPDX-License-Identifier: Apache-2.0
#include "kl/dump.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <limits>
#include <random>

#include "base/file.h"
#include "base/sha256.h"
#include "kl/npz.h"
#include "kl/sample_dump.h"

namespace rorqual::kl {
namespace {

using ::testing::HasSubstr;

std::string temporary(const std::string& name) {
  const auto folder = std::filesystem::path(::testing::TempDir()) / "rorqual-kl-dump";
  std::filesystem::create_directories(folder);
  return (folder / name).string();
}

using sample::random_dump;

void add_windows(Dump& dump, int64_t first) {
  dump.window_begin = {0};
  for (size_t w = 0; w + 1 < dump.window_rows.size(); ++w) {
    for (int64_t i = 0; i < first; ++i) dump.window_ids.push_back(static_cast<int32_t>(i % 7));
    for (int64_t row = dump.window_rows[w]; row < dump.window_rows[w + 1]; ++row)
      dump.window_ids.push_back(dump.token[static_cast<size_t>(row)]);
    dump.window_begin.push_back(static_cast<int64_t>(dump.window_ids.size()));
    dump.window_first_scored.push_back(first);
  }
}

void expect_equal(const Dump& a, const Dump& b) {
  EXPECT_EQ(a.info.model, b.info.model);
  EXPECT_EQ(a.info.corpus, b.info.corpus);
  EXPECT_EQ(a.info.corpus_sha256, b.info.corpus_sha256);
  EXPECT_EQ(a.info.windows_sha256, b.info.windows_sha256);
  EXPECT_EQ(a.info.context, b.info.context);
  EXPECT_EQ(a.info.num_windows, b.info.num_windows);
  EXPECT_EQ(a.info.first_scored, b.info.first_scored);
  EXPECT_EQ(a.info.vocab_size, b.info.vocab_size);
  EXPECT_EQ(a.top_ids, b.top_ids);
  EXPECT_EQ(a.top_logprobs, b.top_logprobs);
  EXPECT_EQ(a.token, b.token);
  EXPECT_EQ(a.token_logprob, b.token_logprob);
  EXPECT_EQ(a.window_rows, b.window_rows);
}

std::string hash_of(const std::string& path) {
  auto hash = sha256_of_file(path);
  return hash.ok() ? *hash : hash.error().message();
}

Error error_of(const std::string& path) {
  auto dump = read_dump(path);
  return dump.ok() ? Error(Code::internal, "accepted") : dump.error();
}

/// Writes `dump` as .npz and returns the reader's error.
Error error_of_dump(const Dump& dump) {
  const std::string path = temporary("bad.npz");
  const auto status = write_dump(path, dump);
  EXPECT_TRUE(status.ok());
  return error_of(path);
}

TEST(Dumps, RoundTripThroughBothLayoutsGivesTheSameBytes) {
  for (uint32_t seed = 1; seed <= 4; ++seed) {
    SCOPED_TRACE(seed);
    Dump dump = random_dump(
        seed, seed % 2 == 0 ? std::vector<int64_t>{5, 5, 5} : std::vector<int64_t>{3, 1, 9}, 6, 40);
    dump.info.model = "m\xc3\xb6t";
    dump.info.corpus_sha256 = std::string(64, 'a');
    dump.info.windows_sha256 = std::string(64, 'b');
    const auto first = temporary("first.npz"), middle = temporary("middle.safetensors"),
               last = temporary("last.npz");
    ASSERT_TRUE(write_dump(first, dump).ok());
    auto read = read_dump(first);
    ASSERT_TRUE(read.ok()) << read.error().message();
    expect_equal(*read, dump);
    ASSERT_TRUE(write_dump(middle, *read).ok());
    auto again = read_dump(middle);
    ASSERT_TRUE(again.ok()) << again.error().message();
    expect_equal(*again, dump);
    EXPECT_TRUE(again->logits_path.empty());
    ASSERT_TRUE(write_dump(last, *again).ok());
    EXPECT_EQ(hash_of(first), hash_of(last));
  }
}

TEST(Dumps, KeepTheWindowsTokensInOurOwnLayout) {
  Dump dump = random_dump(9, {4, 4}, 3, 20);
  add_windows(dump, 4);
  const auto path = temporary("windows.safetensors");
  ASSERT_TRUE(write_dump(path, dump).ok());
  auto read = read_dump(path);
  ASSERT_TRUE(read.ok()) << read.error().message();
  EXPECT_EQ(read->window_ids, dump.window_ids);
  EXPECT_EQ(read->window_begin, dump.window_begin);
  EXPECT_EQ(read->window_first_scored, dump.window_first_scored);

  dump.window_ids[5] = (dump.window_ids[5] + 1) % 20;
  ASSERT_TRUE(write_dump(path, dump).ok());
  EXPECT_THAT(error_of(path).message(), HasSubstr("row 1: tok_id is"));
}

TEST(Dumps, WithEqualLogProbabilitiesPutTheLargerIdFirst) {
  Dump dump = random_dump(3, {2}, 4, 10);
  const float lp = std::log(0.1f);
  for (size_t i = 0; i < 8; ++i) {
    dump.top_ids[i] = static_cast<int32_t>(i % 4);
    dump.top_logprobs[i] = lp;
  }
  dump.token_logprob = {lp, lp};
  auto path = temporary("ties.npz");
  ASSERT_TRUE(write_dump(path, dump).ok());
  auto read = read_dump(path);
  ASSERT_TRUE(read.ok()) << read.error().message();
  EXPECT_THAT(read->top_ids, ::testing::ElementsAre(3, 2, 1, 0, 3, 2, 1, 0));
}

TEST(Dumps, AllowUnusedPlacesAtTheEndOfARow) {
  Dump dump = random_dump(4, {2}, 4, 10);
  dump.top_logprobs[3] = -std::numeric_limits<float>::infinity();
  dump.top_ids[3] = -1;
  const auto path = temporary("unused.npz");
  ASSERT_TRUE(write_dump(path, dump).ok());
  auto read = read_dump(path);
  ASSERT_TRUE(read.ok()) << read.error().message();
  EXPECT_EQ(read->top_ids[3], -1);
}

TEST(Dumps, WithBadValuesNameTheRow) {
  const Dump good = random_dump(5, {3, 3}, 4, 30);
  const auto with = [&](auto change) {
    Dump dump = good;
    change(dump);
    const Error error = error_of_dump(dump);
    EXPECT_EQ(error.code(), Code::corrupt_data) << error.message();
    return error.message();
  };
  EXPECT_THAT(with([](Dump& d) { d.top_logprobs[9] = NAN; }), HasSubstr("row 2: top_lps[1] is nan"));
  EXPECT_THAT(with([](Dump& d) { d.top_logprobs[4] = 0.5f; }), HasSubstr("row 1: top_lps[0] is 0.5"));
  EXPECT_THAT(with([](Dump& d) { std::swap(d.top_logprobs[0], d.top_logprobs[2]); }),
              HasSubstr("not descending"));
  EXPECT_THAT(with([](Dump& d) { d.top_ids[5] = 30; }),
              HasSubstr("row 1: top_ids[1] is 30, expected 0 to 29"));
  EXPECT_THAT(with([](Dump& d) { d.top_ids[5] = -7; }), HasSubstr("row 1: top_ids[1] is -7"));
  EXPECT_THAT(with([](Dump& d) { d.top_ids[5] = d.top_ids[4]; }), HasSubstr("twice"));
  EXPECT_THAT(with([](Dump& d) { d.token[3] = 30; }), HasSubstr("row 3: tok_id is 30"));
  EXPECT_THAT(with([](Dump& d) { d.token_logprob[3] = NAN; }), HasSubstr("row 3: tok_lp is nan"));
  EXPECT_THAT(with([](Dump& d) { d.token_logprob[3] = -std::numeric_limits<float>::infinity(); }),
              HasSubstr("row 3: tok_lp is -inf"));
  EXPECT_THAT(with([](Dump& d) {
                d.token[2] = d.top_ids[8];
                d.token_logprob[2] = d.top_logprobs[8] - 1;
              }),
              HasSubstr("shifted against each other"));
}

TEST(Dumps, ThatAreInconsistentAreNotWritten) {
  Dump dump = random_dump(6, {3, 3}, 4, 30);
  dump.token.pop_back();
  const auto status = write_dump(temporary("never.npz"), dump);
  ASSERT_FALSE(status.ok());
  EXPECT_THAT(status.error().message(), HasSubstr("tok_id has 5 elements, expected 6"));
  const auto wrong_name = write_dump(temporary("never.bin"), dump);
  ASSERT_FALSE(wrong_name.ok());
  EXPECT_EQ(wrong_name.error().code(), Code::invalid_argument);
}

TEST(Dumps, ThatAreTruncatedAnywhereAreRefused) {
  for (const char* name : {"whole.npz", "whole.safetensors"}) {
    const auto path = temporary(name);
    ASSERT_TRUE(write_dump(path, random_dump(7, {3, 3}, 4, 30)).ok());
    auto bytes = read_text_file(path, 1 << 20);
    ASSERT_TRUE(bytes.ok());
    const auto cut = temporary(std::string("cut-") + name);
    for (size_t size = 0; size < bytes->size(); size += 37) {
      ASSERT_TRUE(write_text_file(cut, bytes->substr(0, size)).ok());
      EXPECT_EQ(error_of(cut).code(), Code::corrupt_data) << name << " cut to " << size;
    }
  }
}

TEST(Dumps, NeverCrashOnDamagedBytes) {
  const uint32_t seed = std::random_device()();
  SCOPED_TRACE("seed " + std::to_string(seed));
  std::mt19937 random(seed);
  for (const char* name : {"damage.npz", "damage.safetensors"}) {
    const auto path = temporary(name);
    ASSERT_TRUE(write_dump(path, random_dump(8, {2, 2}, 3, 12)).ok());
    auto bytes = read_text_file(path, 1 << 20);
    ASSERT_TRUE(bytes.ok());
    for (int round = 0; round < 300; ++round) {
      std::string damaged = *bytes;
      for (int i = 0; i < 3; ++i) damaged[random() % damaged.size()] = static_cast<char>(random());
      ASSERT_TRUE(write_text_file(path, damaged).ok());
      auto dump = read_dump(path);
      if (dump.ok()) {
        EXPECT_EQ(dump->num_rows(), dump->info.scored_positions);
        continue;
      }
      EXPECT_FALSE(dump.error().message().empty());
      EXPECT_NE(dump.error().code(), Code::internal);
    }
  }
}

// ---- archives made member by member ----

struct Members {
  std::vector<int32_t> ids = {2, 1, 0, 1};
  std::vector<float> lps = {-0.5f, -1.5f, -0.25f, -2.0f};
  std::vector<int32_t> token = {2, 0};
  std::vector<float> token_lp = {-0.5f, -0.25f};
  std::string meta =
      R"({"model": "m", "corpus": "code", "ctx": 4, "chunks": 1, "topk": 2, "first_scored": 2, "vocab": 3, "scored_positions": 2})";

  std::string write(const std::string& name, const std::vector<int64_t>& ids_shape = {2, 2},
                    const std::string& lps_type = "<f4") const {
    const auto path = temporary(name);
    const NpzMember members[] = {
        {"top_ids", "<i4", ids_shape, std::as_bytes(std::span(ids))},
        {"top_lps", lps_type, {2, 2}, std::as_bytes(std::span(lps))},
        {"tok_id", "<i4", {2}, std::as_bytes(std::span(token))},
        {"tok_lp", "<f4", {2}, std::as_bytes(std::span(token_lp))},
        {"meta", "|S" + std::to_string(meta.size()), {}, std::as_bytes(std::span(meta))}};
    EXPECT_TRUE(write_npz(path, members).ok());
    return path;
  }
};

TEST(Archives, WithMetaAsBytesAreRead) {
  auto dump = read_dump(Members().write("bytes.npz"));
  ASSERT_TRUE(dump.ok()) << dump.error().message();
  EXPECT_EQ(dump->info.corpus, "code");
  EXPECT_THAT(dump->window_rows, ::testing::ElementsAre(0, 2));
}

TEST(Archives, WithAnotherShapeOrTypeSayGotAndExpected) {
  Members members;
  EXPECT_THAT(error_of(members.write("shape.npz", {4, 1})).message(),
              HasSubstr("array 'top_ids' is [4, 1], expected [2, 2]"));
  const Error type = error_of(members.write("type.npz", {2, 2}, "<i4"));
  EXPECT_EQ(type.code(), Code::unsupported);
  EXPECT_THAT(type.message(), HasSubstr("array 'top_lps' is '<i4', expected '<f4'"));
}

TEST(Archives, WithBadFactsSayWhich) {
  const auto with = [](const std::string& from, const std::string& to) {
    Members members;
    const size_t place = members.meta.find(from);
    members.meta.replace(place, from.size(), to);
    const Error error = error_of(members.write("meta.npz"));
    EXPECT_EQ(error.code(), Code::corrupt_data);
    return error.message();
  };
  EXPECT_THAT(with("\"ctx\": 4, ", ""), HasSubstr("no field 'ctx'"));
  EXPECT_THAT(with("\"topk\": 2", "\"topk\": \"2\""),
              HasSubstr("field 'topk' is \"2\", expected an integer"));
  EXPECT_THAT(with("\"topk\": 2", "\"topk\": 20"), HasSubstr("topk 20 is larger than the vocabulary of 3"));
  EXPECT_THAT(with("\"topk\": 2", "\"topk\": 3"), HasSubstr("array 'top_ids' is [2, 2], expected [2, 3]"));
  EXPECT_THAT(with("\"vocab\": 3", "\"vocab\": 1e300"), HasSubstr("field 'vocab'"));
  EXPECT_THAT(with("\"vocab\": 3", "\"vocab\": 2000000000"), HasSubstr("at most 16777216"));
  EXPECT_THAT(with("\"ctx\": 4", "\"ctx\": 5"),
              HasSubstr("windows of 5 tokens scored from 2 have 3 positions"));
  EXPECT_THAT(with("\"chunks\": 1", "\"chunks\": 7"), HasSubstr("7 windows for 2 scored positions"));
  EXPECT_THAT(with("{\"model\"", "[\"model\""), HasSubstr("not a JSON object"));
  EXPECT_THAT(with("code", "\\u001b[31m"), HasSubstr("control characters"));
}

TEST(Archives, ThatClaimMoreThanTheyHoldAreRefusedBeforeAllocating) {
  // A member header with a shape of terabytes, and zip directory entries with sizes of terabytes.
  Members members;
  const auto path = members.write("bomb.npz");
  auto bytes = read_text_file(path, 1 << 20);
  ASSERT_TRUE(bytes.ok());
  std::string shape = *bytes;
  const size_t place = shape.find("(2, 2), }");
  ASSERT_NE(place, std::string::npos);
  shape.replace(place, 22, "(99999999999, 2), }   ");
  ASSERT_TRUE(write_text_file(path, shape).ok());
  EXPECT_THAT(error_of(path).message(), HasSubstr("needs 799999999992 bytes, the array has 16"));
  std::string size = *bytes;
  const size_t directory = size.find("PK\x01\x02");
  ASSERT_NE(directory, std::string::npos);
  std::memcpy(&size[directory + 24], "\xff\xff\xff\x7f", 4);
  ASSERT_TRUE(write_text_file(path, size).ok());
  EXPECT_EQ(error_of(path).code(), Code::corrupt_data);
}

TEST(Archives, WithWrongChecksumsAreRefused) {
  const auto path = temporary("checksum.npz");
  ASSERT_TRUE(write_dump(path, random_dump(11, {3, 3}, 4, 30)).ok());
  auto bytes = read_text_file(path, 1 << 20);
  ASSERT_TRUE(bytes.ok());
  (*bytes)[30 + 11 + 128 + 3] ^= 1;  // in the data of the first member
  ASSERT_TRUE(write_text_file(path, *bytes).ok());
  EXPECT_EQ(error_of(path).code(), Code::corrupt_data);
}

TEST(ArrayHeaders, OfAllVersionsAreParsed) {
  const auto parse = [](int version, std::string text, int64_t data) {
    std::string bytes("\x93NUMPY", 6);
    bytes += static_cast<char>(version);
    bytes += '\0';
    bytes += static_cast<char>(text.size());
    bytes += '\0';
    if (version > 1) bytes += std::string(2, '\0');
    bytes += text;
    return parse_npy_header(std::as_bytes(std::span(bytes)), static_cast<int64_t>(bytes.size()) + data);
  };
  for (int version = 1; version <= 3; ++version) {
    auto header = parse(version, "{'descr': '<f4', 'fortran_order': False, 'shape': (3, 4), }\n", 48);
    ASSERT_TRUE(header.ok()) << header.error().message();
    EXPECT_THAT(header->shape, ::testing::ElementsAre(3, 4));
    EXPECT_EQ(header->item_bytes, 4);
  }
  EXPECT_TRUE(parse(1, "{\"shape\": (3L,), 'fortran_order': True, 'descr': '<i8'}", 24).ok());
  const auto message = [&](std::string text, int64_t data) {
    auto header = parse(1, std::move(text), data);
    return header.ok() ? "accepted" : header.error().message();
  };
  EXPECT_THAT(message("{'descr': '>f4', 'fortran_order': False, 'shape': (1,)}", 4), HasSubstr("'>f4'"));
  EXPECT_THAT(message("{'descr': '|O', 'fortran_order': False, 'shape': (1,)}", 8), HasSubstr("'|O'"));
  EXPECT_THAT(message("{'descr': [('a', '<f4')], 'fortran_order': False, 'shape': (1,)}", 4),
              HasSubstr("structure"));
  EXPECT_THAT(message("{'descr': '<f4', 'fortran_order': True, 'shape': (2, 2)}", 16), HasSubstr("Fortran"));
  EXPECT_THAT(message("{'descr': '<f4', 'fortran_order': False, 'shape': (-1,)}", 4),
              HasSubstr("three fields"));
  EXPECT_THAT(message("{'descr': '<f4', 'fortran_order': False}", 4), HasSubstr("three fields"));
  EXPECT_THAT(
      message("{'descr': '<f4', 'fortran_order': False, 'shape': (4611686018427387904, 4611686018427387904)}",
              4),
      HasSubstr("more than 2^63"));
  EXPECT_THAT(message("", 0), HasSubstr("npy header"));
}

}  // namespace
}  // namespace rorqual::kl
