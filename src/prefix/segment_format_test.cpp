// SPDX-License-Identifier: Apache-2.0
#include "prefix/segment_format.h"

#include <gtest/gtest.h>

#include <algorithm>
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
      std::copy_n(bytes.begin() + offset, out.size(), out.begin());
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

// A file of records and an index, as a full segment is.
struct IndexedFile {
  std::vector<std::byte> bytes;
  std::vector<IndexEntry> entries;

  Status read(int64_t offset, std::span<std::byte> out) const {
    if (offset < 0 || offset + static_cast<int64_t>(out.size()) > static_cast<int64_t>(bytes.size())) {
      return Error(Code::corrupt_data, "short");
    }
    std::copy_n(bytes.begin() + offset, out.size(), out.begin());
    return Ok{};
  }

  Result<std::vector<IndexEntry>> index() const {
    return read_index([this](int64_t offset, std::span<std::byte> out) { return read(offset, out); },
                      static_cast<int64_t>(bytes.size()), 5);
  }
};

IndexedFile indexed_file(uint64_t count) {
  IndexedFile file;
  const auto header = encode_segment_header({.identity = {1, 2}, .id = 5});
  file.bytes.assign(header.begin(), header.end());
  for (uint64_t i = 0; i < count; ++i) {
    const DiskPage page = some_page(i, 4, 30 + 50 * i, i % 2 * 100);
    const auto record = encode_record(page, 5);
    file.entries.push_back({.key = page.key,
                            .parent = page.parent,
                            .offset = static_cast<int64_t>(file.bytes.size()),
                            .record_bytes = static_cast<int64_t>(record.size()),
                            .has_window = i % 2 == 1});
    file.bytes.insert(file.bytes.end(), record.begin(), record.end());
  }
  const auto index = encode_index(file.entries, static_cast<int64_t>(file.bytes.size()), 5);
  file.bytes.insert(file.bytes.end(), index.begin(), index.end());
  return file;
}

TEST(SegmentFormat, TheIndexOfAFullSegmentNamesItsRecords) {
  for (const uint64_t count : {0u, 1u, 4u, 9u}) {
    const IndexedFile file = indexed_file(count);
    EXPECT_EQ(file.bytes.size() % kRecordAlignment, 0u);
    const auto index = file.index();
    ASSERT_TRUE(index.ok()) << index.error().message();
    EXPECT_EQ(*index, file.entries);
  }
}

TEST(SegmentFormat, ADamagedIndexIsRefusedAndTheRecordsAreStillListed) {
  const IndexedFile file = indexed_file(5);
  const auto records_end = static_cast<size_t>(file.entries.back().offset + file.entries.back().record_bytes);
  for (size_t i = records_end; i < file.bytes.size(); ++i) {
    IndexedFile bad = file;
    bad.bytes[i] ^= std::byte{4};
    ASSERT_FALSE(bad.index().ok()) << i;
    int64_t count = 0;
    const int64_t end = list_records(
        [&](int64_t offset, std::span<std::byte> out) { return bad.read(offset, out); },
        static_cast<int64_t>(bad.bytes.size()), 5, [&](int64_t, const RecordHeader&) { ++count; });
    ASSERT_EQ(count, 5);
    ASSERT_EQ(end, static_cast<int64_t>(records_end));
  }
  for (size_t size = 64; size < file.bytes.size(); size += 8) {
    IndexedFile cut = file;
    cut.bytes.resize(size);
    ASSERT_FALSE(cut.index().ok()) << size;
  }
}

}  // namespace
}  // namespace rorqual::prefix
