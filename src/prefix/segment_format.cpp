// SPDX-License-Identifier: Apache-2.0
#include "prefix/segment_format.h"

#include <fmt/core.h>
#include <xxhash.h>

#include <algorithm>
#include <bit>
#include <charconv>
#include <cstring>

#include "base/check.h"

namespace rorqual::prefix {

static_assert(std::endian::native == std::endian::little, "files are little-endian");

namespace {

constexpr uint64_t kSegmentMagic = 0x310a474553505152;  // "RQPSEG\n1"
constexpr uint64_t kRecordMagic = 0x3145474150505152;   // "RQPPAGE1"

constexpr uint64_t kIndexMagic = 0x3158444e49505152;  // "RQPINDX1"
constexpr int64_t kIndexEntryBytes = 48, kIndexTrailerBytes = 64;

// Places in the headers.
constexpr size_t kSegmentCheck = 56;
constexpr size_t kBodyCheck = 96, kTokensCheck = 112, kHeaderCheck = 120;

template <class T>
void put(std::span<std::byte> bytes, size_t offset, const T& value) {
  std::memcpy(bytes.data() + offset, &value, sizeof(T));
}

template <class T>
T get(std::span<const std::byte> bytes, size_t offset) {
  T value;
  std::memcpy(&value, bytes.data() + offset, sizeof(T));
  return value;
}

uint64_t hash64(std::span<const std::byte> bytes) {
  return XXH3_64bits(bytes.data(), bytes.size());
}

PageKey hash128(std::span<const std::byte> bytes) {
  const XXH128_hash_t hash = XXH3_128bits(bytes.data(), bytes.size());
  return {.low = hash.low64, .high = hash.high64};
}

// Of a record without its three checksums: the header before them, and all after the header.
PageKey body_hash(std::span<const std::byte> record) {
  const XXH128_hash_t head = XXH3_128bits(record.data(), kBodyCheck);
  const auto body = record.subspan(kRecordHeaderBytes);
  const XXH128_hash_t all = XXH3_128bits_withSeed(body.data(), body.size(), head.low64 ^ head.high64);
  return {.low = all.low64, .high = all.high64};
}

int64_t padded(int64_t bytes) {
  return (bytes + kRecordAlignment - 1) / kRecordAlignment * kRecordAlignment;
}

int64_t record_size(int64_t tokens, int64_t block, int64_t window) {
  return padded(kRecordHeaderBytes + 4 * tokens + block + window);
}

}  // namespace

std::string segment_name(uint64_t id) {
  return fmt::format("seg-{:016x}.rqp", id);
}

Result<uint64_t> parse_segment_name(std::string_view name) {
  const bool has_form = name.size() == 24 && name.starts_with("seg-") && name.ends_with(".rqp");
  uint64_t id = 0;
  if (has_form) {
    const std::string_view digits = name.substr(4, 16);
    const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), id, 16);
    if (error == std::errc() && end == digits.data() + digits.size() && segment_name(id) == name) return id;
  }
  return Error(Code::not_found, fmt::format("'{}' is no segment's name", name));
}

std::array<std::byte, kSegmentHeaderBytes> encode_segment_header(const SegmentHeader& header) {
  std::array<std::byte, kSegmentHeaderBytes> bytes{};
  put(bytes, 0, kSegmentMagic);
  put(bytes, 8, kSegmentVersion);
  put(bytes, 16, header.identity.low);
  put(bytes, 24, header.identity.high);
  put(bytes, 32, header.id);
  put(bytes, kSegmentCheck, hash64(std::span(bytes).first(kSegmentCheck)));
  return bytes;
}

Result<SegmentHeader> parse_segment_header(std::span<const std::byte> bytes) {
  if (bytes.size() < static_cast<size_t>(kSegmentHeaderBytes) || get<uint64_t>(bytes, 0) != kSegmentMagic) {
    return Error(Code::corrupt_data, "no segment header");
  }
  if (get<uint64_t>(bytes, kSegmentCheck) != hash64(bytes.first(kSegmentCheck))) {
    return Error(Code::corrupt_data, "segment header: wrong checksum");
  }
  const auto version = get<uint32_t>(bytes, 8);
  if (version != kSegmentVersion) {
    return Error(Code::unsupported,
                 fmt::format("segment of version {}, this program knows {}", version, kSegmentVersion));
  }
  return SegmentHeader{.identity = {.low = get<uint64_t>(bytes, 16), .high = get<uint64_t>(bytes, 24)},
                       .id = get<uint64_t>(bytes, 32)};
}

int64_t record_bytes(const DiskPage& page) {
  return record_size(static_cast<int64_t>(page.tokens.size()), static_cast<int64_t>(page.block.size()),
                     static_cast<int64_t>(page.window.size()));
}

std::vector<std::byte> encode_record(const DiskPage& page, uint64_t segment) {
  RORQUAL_CHECK(std::cmp_less_equal(page.tokens.size(), kMaxRecordTokens));
  const int64_t size = record_bytes(page);
  RORQUAL_CHECK(size <= kMaxRecordBytes);
  std::vector<std::byte> bytes(static_cast<size_t>(size));
  put(bytes, 0, kRecordMagic);
  put(bytes, 8, kSegmentVersion);
  put(bytes, 12, static_cast<uint32_t>(page.tokens.size()));
  put(bytes, 16, static_cast<uint64_t>(size));
  put(bytes, 24, static_cast<uint64_t>(page.block.size()));
  put(bytes, 32, static_cast<uint64_t>(page.window.size()));
  put(bytes, 40, page.key.low);
  put(bytes, 48, page.key.high);
  put(bytes, 56, page.parent.low);
  put(bytes, 64, page.parent.high);
  put(bytes, 72, segment);
  const auto tokens = std::as_bytes(std::span(page.tokens));
  auto place = std::ranges::copy(tokens, bytes.begin() + kRecordHeaderBytes).out;
  place = std::ranges::copy(page.block, place).out;
  std::ranges::copy(page.window, place);
  const PageKey body = body_hash(bytes);
  put(bytes, kBodyCheck, body.low);
  put(bytes, kBodyCheck + 8, body.high);
  put(bytes, kTokensCheck, hash64(tokens));
  put(bytes, kHeaderCheck, hash64(std::span(bytes).first(kHeaderCheck)));
  return bytes;
}

Result<RecordHeader> parse_record_header(std::span<const std::byte> bytes, uint64_t segment) {
  if (bytes.size() < static_cast<size_t>(kRecordHeaderBytes) || get<uint64_t>(bytes, 0) != kRecordMagic) {
    return Error(Code::corrupt_data, "no record header");
  }
  if (get<uint64_t>(bytes, kHeaderCheck) != hash64(bytes.first(kHeaderCheck))) {
    return Error(Code::corrupt_data, "record header: wrong checksum");
  }
  const auto tokens = get<uint32_t>(bytes, 12);
  const auto size = get<uint64_t>(bytes, 16), block = get<uint64_t>(bytes, 24),
             window = get<uint64_t>(bytes, 32);
  const auto limit = static_cast<uint64_t>(kMaxRecordBytes);
  const bool has_form = get<uint32_t>(bytes, 8) == kSegmentVersion && get<uint64_t>(bytes, 72) == segment &&
                        tokens <= kMaxRecordTokens && size <= limit && block <= limit && window <= limit;
  if (!has_form || std::cmp_not_equal(size, record_size(tokens, static_cast<int64_t>(block),
                                                        static_cast<int64_t>(window)))) {
    return Error(Code::corrupt_data, "record header: sizes contradict each other");
  }
  return RecordHeader{.key = {.low = get<uint64_t>(bytes, 40), .high = get<uint64_t>(bytes, 48)},
                      .parent = {.low = get<uint64_t>(bytes, 56), .high = get<uint64_t>(bytes, 64)},
                      .num_tokens = tokens,
                      .block_bytes = static_cast<int64_t>(block),
                      .window_bytes = static_cast<int64_t>(window),
                      .record_bytes = static_cast<int64_t>(size)};
}

Result<DiskPage> decode_tokens(std::span<const std::byte> bytes, uint64_t segment) {
  RORQUAL_TRY_ASSIGN(const RecordHeader header, parse_record_header(bytes, segment));
  const auto size = static_cast<size_t>(4 * header.num_tokens);
  if (bytes.size() < kRecordHeaderBytes + size) return Error(Code::corrupt_data, "record ends in its tokens");
  const auto tokens = bytes.subspan(kRecordHeaderBytes, size);
  if (get<uint64_t>(bytes, kTokensCheck) != hash64(tokens)) {
    return Error(Code::corrupt_data, "record: wrong checksum of the tokens");
  }
  DiskPage page{.key = header.key, .parent = header.parent, .tokens = {}, .block = {}, .window = {}};
  page.tokens.resize(static_cast<size_t>(header.num_tokens));
  if (size > 0) std::memcpy(page.tokens.data(), tokens.data(), size);
  return page;
}

Result<DiskPage> decode_record(std::span<const std::byte> bytes, uint64_t segment) {
  RORQUAL_TRY_ASSIGN(const RecordHeader header, parse_record_header(bytes, segment));
  if (std::cmp_not_equal(bytes.size(), header.record_bytes)) {
    return Error(Code::corrupt_data,
                 fmt::format("record of {} bytes, got {}", header.record_bytes, bytes.size()));
  }
  const PageKey body{.low = get<uint64_t>(bytes, kBodyCheck), .high = get<uint64_t>(bytes, kBodyCheck + 8)};
  if (body != body_hash(bytes)) return Error(Code::corrupt_data, "record: wrong checksum");
  RORQUAL_TRY_ASSIGN(DiskPage page, decode_tokens(bytes, segment));
  const auto content = bytes.subspan(static_cast<size_t>(kRecordHeaderBytes + 4 * header.num_tokens));
  const auto block = content.first(static_cast<size_t>(header.block_bytes));
  const auto window = content.subspan(block.size(), static_cast<size_t>(header.window_bytes));
  page.block.assign(block.begin(), block.end());
  page.window.assign(window.begin(), window.end());
  return page;
}

std::vector<std::byte> encode_index(std::span<const IndexEntry> entries, int64_t offset, uint64_t segment) {
  const auto count = static_cast<int64_t>(entries.size());
  const auto index_bytes = static_cast<size_t>(padded(kIndexEntryBytes * count));
  std::vector<std::byte> bytes(index_bytes + static_cast<size_t>(kIndexTrailerBytes));
  size_t at = 0;
  for (const IndexEntry& entry : entries) {
    put(bytes, at, entry.key.low);
    put(bytes, at + 8, entry.key.high);
    put(bytes, at + 16, entry.parent.low);
    put(bytes, at + 24, entry.parent.high);
    put(bytes, at + 32, entry.offset);
    put(bytes, at + 40, 2 * entry.record_bytes + (entry.has_window ? 1 : 0));
    at += static_cast<size_t>(kIndexEntryBytes);
  }
  const auto trailer = std::span(bytes).subspan(index_bytes);
  const PageKey check = hash128(std::span(bytes).first(index_bytes));
  put(trailer, 0, kIndexMagic);
  put(trailer, 8, segment);
  put(trailer, 16, count);
  put(trailer, 24, offset);
  put(trailer, 32, check.low);
  put(trailer, 40, check.high);
  put(trailer, kSegmentCheck, hash64(trailer.first(kSegmentCheck)));
  return bytes;
}

Result<std::vector<IndexEntry>> read_index(const ReadAt& read, int64_t file_bytes, uint64_t segment) {
  const int64_t trailer_at = file_bytes - kIndexTrailerBytes;
  if (trailer_at < kSegmentHeaderBytes) return Error(Code::not_found, "no index");
  std::array<std::byte, kIndexTrailerBytes> trailer{};
  RORQUAL_TRY(read(trailer_at, trailer));
  if (get<uint64_t>(trailer, 0) != kIndexMagic || get<uint64_t>(trailer, 8) != segment ||
      get<uint64_t>(trailer, kSegmentCheck) != hash64(std::span(trailer).first(kSegmentCheck))) {
    return Error(Code::not_found, "no index");
  }
  const auto count = get<int64_t>(trailer, 16), offset = get<int64_t>(trailer, 24);
  const bool has_form = offset >= kSegmentHeaderBytes && offset <= trailer_at && count >= 0 &&
                        count <= (trailer_at - offset) / kIndexEntryBytes &&
                        padded(kIndexEntryBytes * count) == trailer_at - offset;
  if (!has_form) return Error(Code::corrupt_data, "index: sizes contradict each other");
  std::vector<std::byte> bytes(static_cast<size_t>(trailer_at - offset));
  RORQUAL_TRY(read(offset, bytes));
  const PageKey check{.low = get<uint64_t>(trailer, 32), .high = get<uint64_t>(trailer, 40)};
  if (hash128(bytes) != check) return Error(Code::corrupt_data, "index: wrong checksum");
  std::vector<IndexEntry> entries(static_cast<size_t>(count));
  size_t at = 0;
  for (IndexEntry& entry : entries) {
    const auto size = get<int64_t>(bytes, at + 40);
    entry = {.key = {.low = get<uint64_t>(bytes, at), .high = get<uint64_t>(bytes, at + 8)},
             .parent = {.low = get<uint64_t>(bytes, at + 16), .high = get<uint64_t>(bytes, at + 24)},
             .offset = get<int64_t>(bytes, at + 32),
             .record_bytes = size / 2,
             .has_window = size % 2 != 0};
    at += static_cast<size_t>(kIndexEntryBytes);
    const bool is_inside = entry.offset >= kSegmentHeaderBytes && entry.offset <= offset &&
                           entry.record_bytes >= kRecordHeaderBytes &&
                           entry.record_bytes <= std::min(kMaxRecordBytes, offset - entry.offset);
    if (!is_inside) return Error(Code::corrupt_data, "index: a record outside the file");
  }
  return entries;
}

int64_t list_records(const ReadAt& read, int64_t file_bytes, uint64_t segment,
                     const std::function<void(int64_t, const RecordHeader&)>& found) {
  std::array<std::byte, kRecordHeaderBytes> bytes{};
  int64_t offset = kSegmentHeaderBytes;
  while (file_bytes - offset >= kRecordHeaderBytes) {
    if (!read(offset, bytes).ok()) break;
    const auto header = parse_record_header(bytes, segment);
    if (!header.ok() || header->record_bytes > file_bytes - offset) break;
    found(offset, *header);
    offset += header->record_bytes;
  }
  return std::min(offset, file_bytes);
}

}  // namespace rorqual::prefix
