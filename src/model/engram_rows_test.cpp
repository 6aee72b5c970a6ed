// SPDX-License-Identifier: Apache-2.0
// Rows read from disk are those of the table, whatever is asked for and in whatever order; errors reach the
// request that they belong to, and a batch that is given up leaves nothing running.
#include "model/engram_rows.h"

#include <gtest/gtest.h>

#include <atomic>
#include <random>

namespace rorqual::model {
namespace {

constexpr int64_t kDim = 64, kRows = 5000;

uint8_t byte_at(const std::string& tensor, int64_t offset) {
  return static_cast<uint8_t>((offset * 131 + offset / 97 + static_cast<int64_t>(tensor.size()) * 29) & 0xFF);
}

/// Bytes are a function of the offset. Reads that touch `bad` fail.
class FakeSource final : public format::TensorSource {
 public:
  FakeSource() {
    add("values", kRows * kDim);
    add("scale", kRows * kDim / 32);
  }

  const std::vector<format::TensorInfo>& tensors() const override { return tensors_; }

  Status read(const format::TensorInfo& tensor, int64_t offset, std::span<std::byte> dst) const override {
    ++reads;
    const auto end = offset + static_cast<int64_t>(dst.size());
    EXPECT_LE(end, tensor.size_bytes);
    if (tensor.name == bad_tensor && bad >= offset && bad < end) return Error(Code::io, "the disk is gone");
    for (size_t i = 0; i < dst.size(); ++i) {
      dst[i] = static_cast<std::byte>(byte_at(tensor.name, offset + static_cast<int64_t>(i)));
    }
    return Ok{};
  }

  Result<std::string> read_text(std::string_view) const override { return Error(Code::not_found, "none"); }

  std::string name() const override { return "fake"; }

  EngramTable table() const {
    EngramTable table;
    table.rows = kRows;
    table.head_dim = kDim;
    table.source = this;
    table.values_info = &tensors_[0];
    table.scales_info = &tensors_[1];
    return table;
  }

  mutable std::atomic<int64_t> reads{0};
  std::string bad_tensor;
  int64_t bad = -1;

 private:
  void add(const std::string& name, int64_t size) {
    format::TensorInfo info;
    info.name = name;
    info.size_bytes = size;
    tensors_.push_back(info);
  }

  std::vector<format::TensorInfo> tensors_;
};

/// One request with its buffers.
struct Wanted {
  std::vector<int32_t> tokens;
  std::vector<int64_t> rows;  // [tokens, 2 layers, columns]
  std::vector<uint8_t> values, scales;
  EngramRows request;
};

constexpr int64_t kColumns = 6;

void make_wanted(Wanted& wanted, const EngramTable& table, int64_t num_tokens, int64_t layer,
                 std::mt19937_64& random) {
  const int64_t range = random() % 2 == 0 ? kRows : 40;  // far apart, or many equal ones
  for (int64_t t = 0; t < num_tokens; ++t) {
    if (random() % 4 != 0) wanted.tokens.push_back(static_cast<int32_t>(t));
    for (int64_t c = 0; c < 2 * kColumns; ++c) {
      wanted.rows.push_back(static_cast<int64_t>(random() % static_cast<uint64_t>(range)));
    }
  }
  const size_t records = wanted.tokens.size() * kColumns;
  wanted.values.resize(records * kDim);
  wanted.scales.resize(records * kDim / 32);
  wanted.request = {&table,
                    wanted.tokens,
                    wanted.rows.data() + layer * kColumns,
                    2 * kColumns,
                    kColumns,
                    wanted.values.data(),
                    wanted.scales.data()};
}

void expect_right(const Wanted& wanted) {
  size_t at = 0;
  for (const int32_t token : wanted.tokens) {
    for (int64_t c = 0; c < kColumns; ++c, ++at) {
      const int64_t row = wanted.request.rows[token * wanted.request.stride + c];
      for (int64_t i = 0; i < kDim; ++i) {
        ASSERT_EQ(wanted.values[at * kDim + static_cast<size_t>(i)], byte_at("values", row * kDim + i));
      }
      for (int64_t i = 0; i < kDim / 32; ++i) {
        ASSERT_EQ(wanted.scales[at * kDim / 32 + static_cast<size_t>(i)],
                  byte_at("scale", row * kDim / 32 + i));
      }
    }
  }
}

TEST(EngramReader, GivesTheRowsOfTheTableInAnyOrder) {
  const uint64_t seed = std::random_device{}();
  SCOPED_TRACE(testing::Message() << "seed " << seed);
  std::mt19937_64 random(seed);
  const FakeSource source;
  const EngramTable table = source.table();
  EngramReader reader(3);
  for (int round = 0; round < 60; ++round) {
    Wanted wanted[2];
    for (int64_t layer = 0; layer < 2; ++layer) {
      make_wanted(wanted[layer], table, static_cast<int64_t>(random() % 200), layer, random);
    }
    const EngramRows requests[] = {wanted[0].request, wanted[1].request};
    const auto batch = reader.start(requests);
    for (size_t i = 0; i < 2; ++i) {
      ASSERT_TRUE(batch->wait(i).ok());
      expect_right(wanted[i]);
      if (HasFatalFailure()) return;
    }
  }
}

TEST(EngramReader, ReadsEqualRowsOnceAndNeighboursTogether) {
  const FakeSource source;
  const EngramTable table = source.table();
  EngramReader reader(2);
  std::mt19937_64 random(1);
  Wanted wanted;
  make_wanted(wanted, table, 300, 0, random);
  for (int64_t& row : wanted.rows) row %= 40;
  const auto batch = reader.start(std::span(&wanted.request, 1));
  ASSERT_TRUE(batch->wait(0).ok());
  expect_right(wanted);
  EXPECT_EQ(source.reads, 2) << "40 rows lie side by side: one read of values, one of scales";
}

TEST(EngramReader, AnErrorReachesItsOwnRequestAndTheNextBatchWorks) {
  FakeSource source;
  const EngramTable table = source.table();
  EngramReader reader(4);
  std::mt19937_64 random(2);
  for (const char* tensor : {"values", "scale"}) {
    Wanted wanted[2];
    for (int64_t layer = 0; layer < 2; ++layer) make_wanted(wanted[layer], table, 100, layer, random);
    for (size_t i = 0; i < wanted[1].rows.size(); ++i) wanted[1].rows[i] = wanted[1].rows[i] % 4000;
    wanted[0].rows.assign(wanted[0].rows.size(), 4999);
    source.bad_tensor = tensor;
    source.bad = (tensor == std::string("values") ? kDim : kDim / 32) * 4999;
    const EngramRows requests[] = {wanted[0].request, wanted[1].request};
    {
      const auto batch = reader.start(requests);
      const Status status = batch->wait(0);
      ASSERT_FALSE(status.ok());
      EXPECT_EQ(status.error().code(), Code::io);
      EXPECT_TRUE(batch->wait(1).ok());
      expect_right(wanted[1]);
    }
    source.bad = -1;
    const auto batch = reader.start(requests);
    EXPECT_TRUE(batch->wait(0).ok());
    expect_right(wanted[0]);
  }
}

TEST(EngramReader, ABatchMayBeGivenUpAtAnyTime) {
  const FakeSource source;
  const EngramTable table = source.table();
  EngramReader reader(3);
  std::mt19937_64 random(3);
  for (int round = 0; round < 200; ++round) {
    Wanted wanted;
    make_wanted(wanted, table, static_cast<int64_t>(random() % 300), 0, random);
    const auto batch = reader.start(std::span(&wanted.request, 1));
    if (round % 3 == 0) {
      EXPECT_TRUE(batch->wait(0).ok());
    }
  }
}

}  // namespace
}  // namespace rorqual::model
