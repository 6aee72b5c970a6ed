// SPDX-License-Identifier: Apache-2.0
#include "prefix/segment_format.h"

#include <gtest/gtest.h>

#include <cstring>
#include <random>

namespace rorqual::prefix {
namespace {

DiskPage some_page(uint64_t seed, size_t tokens = 64, size_t block = 500, size_t window = 700) {
  std::mt19937_64 random(seed);
  DiskPage page{
      .key = {random(), random()}, .parent = {random(), random()}, .tokens = {}, .block = {}, .window = {}};
  page.tokens.resize(tokens);
  for (auto& token : page.tokens) token = static_cast<int32_t>(random() % 130000);
  page.block.resize(block);
  page.window.resize(window);
  for (auto& byte : page.block) byte = static_cast<std::byte>(random());
  for (auto& byte : page.window) byte = static_cast<std::byte>(random());
  return page;
}

void expect_equal(const DiskPage& a, const DiskPage& b) {
  EXPECT_EQ(a.key, b.key);
  EXPECT_EQ(a.parent, b.parent);
  EXPECT_EQ(a.tokens, b.tokens);
  EXPECT_EQ(a.block, b.block);
  EXPECT_EQ(a.window, b.window);
}

TEST(SegmentFormat, RecordsComeBackAsTheyWere) {
  for (const auto& [tokens, block, window] : std::vector<std::array<size_t, 3>>{
           {64, 500, 700}, {64, 500, 0}, {2, 1, 0}, {0, 0, 0}, {64, 64, 64}, {1, 59, 1}}) {
    const DiskPage page = some_page(tokens + block + window, tokens, block, window);
    const auto bytes = encode_record(page, 7);
    EXPECT_EQ(static_cast<int64_t>(bytes.size()), record_bytes(page));
    EXPECT_EQ(bytes.size() % kRecordAlignment, 0u);
    const auto back = decode_record(bytes, 7);
    ASSERT_TRUE(back.ok()) << back.error().message();
    expect_equal(*back, page);
    const auto start =
        decode_tokens(std::span(bytes).first(static_cast<size_t>(kRecordHeaderBytes) + 4 * tokens), 7);
    ASSERT_TRUE(start.ok());
    EXPECT_EQ(start->tokens, page.tokens);
    EXPECT_TRUE(start->block.empty());
  }
}

TEST(SegmentFormat, AnyChangedByteOfARecordIsRefused) {
  const auto good = encode_record(some_page(1, 16, 90, 150), 3);
  for (size_t i = 0; i < good.size(); ++i) {
    for (const int bit : {0, 3, 7}) {
      auto bad = good;
      bad[i] ^= static_cast<std::byte>(1 << bit);
      const auto page = decode_record(bad, 3);
      ASSERT_FALSE(page.ok()) << "byte " << i;
      EXPECT_EQ(page.error().code(), Code::corrupt_data);
    }
  }
  EXPECT_TRUE(decode_record(good, 3).ok());
  EXPECT_FALSE(decode_record(good, 4).ok()) << "a record belongs to its file";
}

TEST(SegmentFormat, AnyOtherLengthOfARecordIsRefused) {
  const auto good = encode_record(some_page(2, 8, 40, 0), 3);
  for (size_t size = 0; size < good.size(); ++size)
    EXPECT_FALSE(decode_record(std::span(good).first(size), 3).ok());
  auto longer = good;
  longer.resize(good.size() + 64);
  EXPECT_FALSE(decode_record(longer, 3).ok());
}

TEST(SegmentFormat, HeadersOfSegmentsNameTheirModelAndNumber) {
  const SegmentHeader header{.identity = {11, 22}, .id = 33};
  const auto bytes = encode_segment_header(header);
  const auto back = parse_segment_header(bytes);
  ASSERT_TRUE(back.ok());
  EXPECT_EQ(back->identity, header.identity);
  EXPECT_EQ(back->id, header.id);
  for (size_t i = 0; i < bytes.size(); ++i) {
    auto bad = bytes;
    bad[i] ^= std::byte{0x40};
    EXPECT_FALSE(parse_segment_header(bad).ok()) << i;
  }
}

TEST(SegmentFormat, NamesAreExactlyOfOneForm) {
  EXPECT_EQ(segment_name(0xabc), "seg-0000000000000abc.rqp");
  for (const uint64_t id : {uint64_t{1}, uint64_t{0xffffffffffffffff}})
    EXPECT_EQ(*parse_segment_name(segment_name(id)), id);
  for (const char* name :
       {"", "seg-.rqp", "seg-0000000000000ABC.rqp", "seg-0000000000000abg.rqp", "seg-000000000000abc.rqp",
        "seg-+000000000000abc.rqp", "seg-0000000000000abc.rqp.tmp", "lock"}) {
    EXPECT_FALSE(parse_segment_name(name).ok()) << name;
  }
}

TEST(SegmentFormat, ListsRecordsUpToTheFirstTornOne) {
  std::vector<std::byte> file;
  const auto header = encode_segment_header({.identity = {1, 2}, .id = 5});
  file.insert(file.end(), header.begin(), header.end());
  std::vector<int64_t> ends{kSegmentHeaderBytes};
  for (uint64_t i = 0; i < 5; ++i) {
    const auto record = encode_record(some_page(i, 4, 30 + 50 * i, i % 2 * 100), 5);
    file.insert(file.end(), record.begin(), record.end());
    ends.push_back(static_cast<int64_t>(file.size()));
  }
  const auto count_in = [&](const std::vector<std::byte>& bytes, int64_t& end) {
    size_t count = 0;
    const ReadAt read = [&](int64_t offset, std::span<std::byte> out) -> Status {
      if (offset + static_cast<int64_t>(out.size()) > static_cast<int64_t>(bytes.size()))
        return Error(Code::corrupt_data, "short");
      std::memcpy(out.data(), bytes.data() + offset, out.size());
      return Ok{};
    };
    end = list_records(read, static_cast<int64_t>(bytes.size()), 5, [&](int64_t offset, const RecordHeader&) {
      EXPECT_EQ(offset, ends[count]);
      ++count;
    });
    return count;
  };
  int64_t end = 0;
  for (size_t size = static_cast<size_t>(kSegmentHeaderBytes); size <= file.size(); size += 7) {
    const std::vector<std::byte> cut(file.begin(), file.begin() + static_cast<ptrdiff_t>(size));
    const size_t count = count_in(cut, end);
    EXPECT_EQ(end, ends[count]);
    EXPECT_LE(end, static_cast<int64_t>(size));
    EXPECT_TRUE(count == 5 || ends[count + 1] > static_cast<int64_t>(size));
  }
  auto damaged = file;
  damaged[static_cast<size_t>(ends[2]) + 9] ^= std::byte{1};
  EXPECT_EQ(count_in(damaged, end), 2u);
}

}  // namespace
}  // namespace rorqual::prefix
