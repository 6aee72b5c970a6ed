// SPDX-License-Identifier: Apache-2.0
#include "model/engram_hash.h"

#include <gtest/gtest.h>

#include <cstring>
#include <numeric>

#include "format/safetensors.h"

namespace rorqual::model {
namespace {

std::unique_ptr<format::SafetensorsFile> golden() {
  auto file =
      format::open_safetensors(std::string(RORQUAL_SOURCE_DIR) + "/tests/golden/ops/hashing.safetensors");
  EXPECT_TRUE(file.ok()) << file.error().message();
  return file.ok() ? *std::move(file) : nullptr;
}

std::vector<int64_t> values(const format::TensorSource& source, std::string_view name) {
  const auto bytes = format::read_tensor(source, name);
  EXPECT_TRUE(bytes.ok()) << bytes.error().message();
  std::vector<int64_t> out(bytes.ok() ? bytes->size() / 8 : 0);
  if (!out.empty()) std::memcpy(out.data(), bytes->data(), bytes->size());
  return out;
}

TEST(EngramHash, tells_primes_from_composites) {
  EXPECT_FALSE(is_prime(0));
  EXPECT_FALSE(is_prime(1));
  int count = 0;
  for (uint64_t value = 0; value < 100'000; ++value) count += is_prime(value) ? 1 : 0;
  EXPECT_EQ(count, 9592);
  for (const uint64_t carmichael : {561ULL, 41041ULL, 825265ULL, 321197185ULL})
    EXPECT_FALSE(is_prime(carmichael));
  EXPECT_FALSE(is_prime(3215031751ULL));           // strong pseudoprime to bases 2, 3, 5, 7
  EXPECT_FALSE(is_prime(3825123056546413051ULL));  // and to all bases up to 23
  EXPECT_TRUE(is_prime(18446744073709551557ULL));  // largest prime below 2^64
  EXPECT_FALSE(is_prime(18446744073709551615ULL));
}

TEST(EngramHash, lays_out_the_primes_of_the_released_model) {
  const auto file = golden();
  ASSERT_NE(file, nullptr);
  const auto expected = values(*file, "release.primes");  // [layers, n-gram sizes, heads]
  const auto layout = prime_layout(2, 24, 16'000'000);
  std::vector<int64_t> flat = layout[0];
  flat.insert(flat.end(), layout[1].begin(), layout[1].end());
  EXPECT_EQ(flat, expected);
  EXPECT_EQ(std::accumulate(layout[0].begin(), layout[0].end(), int64_t{0}), 384006168);
  EXPECT_EQ(std::accumulate(layout[1].begin(), layout[1].end(), int64_t{0}), 384016682);
}

TEST(EngramHash, draws_the_multipliers_that_numpy_draws) {
  const auto file = golden();
  ASSERT_NE(file, nullptr);
  auto released = hash_multipliers(1, 4, 99092);
  const auto second = hash_multipliers(14, 4, 99092);
  released.insert(released.end(), second.begin(), second.end());
  EXPECT_EQ(released, values(*file, "release.multipliers"));
  EXPECT_EQ(hash_multipliers(0, 5, 700), values(*file, "multipliers.layer0.vocab700"));
  EXPECT_EQ(hash_multipliers(3, 5, 1000), values(*file, "multipliers.layer3.vocab1000"));
  EXPECT_EQ(hash_multipliers(25, 5, 120000), values(*file, "multipliers.layer25.vocab120000"));
}

class ReleaseHash : public ::testing::Test {
 protected:
  void SetUp() override {
    file_ = golden();
    ASSERT_NE(file_, nullptr);
    for (const int64_t id : values(*file_, "release.compressed_ids"))
      history_.push_back(static_cast<int32_t>(id));
    // Any map with the right number of ids will do: the history is compressed already. map[pad] = 2 as in the
    // release.
    std::vector<int32_t> token_map(129280);
    for (size_t i = 0; i < token_map.size(); ++i)
      token_map[i] = static_cast<int32_t>(std::min<size_t>(i, 99091));
    auto hasher = NgramHasher::create(release_config(), token_map);
    ASSERT_TRUE(hasher.ok()) << hasher.error().message();
    hasher_ = *std::move(hasher);
  }

  std::vector<int64_t> hash(int64_t start, int64_t count) const {
    std::vector<int64_t> rows(static_cast<size_t>(count * 48));
    hasher_.hash(history_, start, count, rows.data());
    return rows;
  }

  std::unique_ptr<format::SafetensorsFile> file_;
  std::vector<int32_t> history_;
  NgramHasher hasher_;
};

TEST_F(ReleaseHash, gives_the_golden_rows) {
  EXPECT_EQ(hasher_.num_layers(), 2);
  EXPECT_EQ(hasher_.columns(), 24);
  EXPECT_EQ(hash(0, 50), values(*file_, "release.hash"));
  EXPECT_EQ(hash(30, 20), values(*file_, "release.hash_from_30"));
}

TEST_F(ReleaseHash, does_not_depend_on_chunk_edges) {
  const auto whole = hash(0, 50);
  std::vector<int64_t> pieces;
  for (const auto& [start, count] : {std::pair<int64_t, int64_t>{0, 1}, {1, 2}, {3, 0}, {3, 40}, {43, 7}}) {
    const auto part = hash(start, count);
    pieces.insert(pieces.end(), part.begin(), part.end());
  }
  EXPECT_EQ(pieces, whole);
}

TEST_F(ReleaseHash, hides_everything_older_than_a_dead_position) {
  for (size_t i = 17; i <= 20; ++i) history_[i] = static_cast<int32_t>(100 + i);
  const auto before = hash(20, 1);
  history_[19] = -1;
  const auto with_gap = hash(20, 1);
  EXPECT_NE(with_gap, before);
  history_[18] = 77;  // behind the gap: must not matter
  EXPECT_EQ(hash(20, 1), with_gap);
}

TEST(EngramHash, refuses_a_tokenizer_of_another_model) {
  const std::vector<int32_t> few(10, 0);
  const auto hasher = NgramHasher::create(release_config(), few);
  ASSERT_FALSE(hasher.ok());
  EXPECT_EQ(hasher.error().code(), Code::corrupt_data);
  const std::vector<int32_t> wrong(129280, 5);
  const auto second = NgramHasher::create(release_config(), wrong);
  ASSERT_FALSE(second.ok());
  EXPECT_NE(second.error().message().find("6 n-gram ids, config.json says 99092"), std::string::npos)
      << second.error().message();
}

TEST(EngramHash, uses_original_layer_ids_for_slices) {
  Config slice = release_config();
  slice.engram_layer_ids = {2};
  slice.engram_num_embeddings = {384016682};
  slice.layer_origin.resize(40);
  std::iota(slice.layer_origin.begin(), slice.layer_origin.end(), 12);  // layer 2 was layer 14
  std::vector<int32_t> token_map(129280);
  for (size_t i = 0; i < token_map.size(); ++i)
    token_map[i] = static_cast<int32_t>(std::min<size_t>(i, 99091));
  const auto full = NgramHasher::create(release_config(), token_map);
  const auto part = NgramHasher::create(slice, token_map);
  ASSERT_TRUE(full.ok() && part.ok()) << part.error().message();
  const std::vector<int32_t> history = {5, 99, 2077, 98000, 3};
  std::vector<int64_t> all(5 * 48);
  std::vector<int64_t> mine(5 * 24);
  full->hash(history, 0, 5, all.data());
  part->hash(history, 0, 5, mine.data());
  for (size_t row = 0; row < 5; ++row) {
    for (size_t column = 0; column < 24; ++column)
      EXPECT_EQ(mine[row * 24 + column], all[row * 48 + 24 + column]);
  }
}

}  // namespace
}  // namespace rorqual::model
