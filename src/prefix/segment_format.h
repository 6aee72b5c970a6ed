// SPDX-License-Identifier: Apache-2.0
// Bytes of the disk tier's files: a segment is a header and records, each a page with checksums over every
// byte of it. Little-endian. Readers take nothing for granted: the files may come from anywhere.
//
// segment header, 64 bytes:  magic "RQPSEG\n1", u32 version, u32 0, identity[16], u64 id, 16 bytes 0,
//                            u64 XXH3 of the bytes before
// record, a multiple of 64:  magic "RQPPAGE1", u32 version, u32 tokens, u64 record bytes, u64 block bytes,
//                            u64 window bytes, key[16], parent[16], u64 segment id, 16 bytes 0,
//                            u128 XXH3 of the bytes before and of all from the tokens on,
//                            u64 XXH3 of the tokens, u64 XXH3 of the bytes before;
//                            then tokens i32[], block, window, zeros to the end
// index of a full segment:   for each record key[16], parent[16], u64 offset, u64 2 * bytes + has window;
//                            zeros to a multiple of 64; then 64 bytes: magic "RQPINDX1", u64 segment id,
//                            u64 records, u64 offset of the index, u128 XXH3 of the index, u64 0,
//                            u64 XXH3 of those before
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "base/result.h"
#include "prefix/disk_tier.h"
#include "prefix/page_key.h"

namespace rorqual::prefix {

inline constexpr uint32_t kSegmentVersion = 1;
inline constexpr int64_t kSegmentHeaderBytes = 64;
inline constexpr int64_t kRecordHeaderBytes = 128;
inline constexpr int64_t kRecordAlignment = 64;

/// Most tokens and content bytes of a record that a reader accepts.
inline constexpr int64_t kMaxRecordTokens = 65536;
inline constexpr int64_t kMaxRecordBytes = int64_t{1} << 31;

struct SegmentHeader {
  PageKey identity;  // of model, numerics and layout
  uint64_t id = 0;
};

/// What a record says of itself, checked against itself.
struct RecordHeader {
  PageKey key, parent;
  int64_t num_tokens = 0;
  int64_t block_bytes = 0, window_bytes = 0;
  int64_t record_bytes = 0;
};

/// "seg-0123456789abcdef.rqp".
std::string segment_name(uint64_t id);

/// The id in a name of that form, or not_found.
Result<uint64_t> parse_segment_name(std::string_view name);

std::array<std::byte, kSegmentHeaderBytes> encode_segment_header(const SegmentHeader& header);

/// Errors: corrupt_data; unsupported for another version.
Result<SegmentHeader> parse_segment_header(std::span<const std::byte> bytes);

/// Bytes that the page's record has in all.
int64_t record_bytes(const DiskPage& page);

std::vector<std::byte> encode_record(const DiskPage& page, uint64_t segment);

/// Of the first kRecordHeaderBytes of a record. Errors: corrupt_data.
Result<RecordHeader> parse_record_header(std::span<const std::byte> bytes, uint64_t segment);

/// The whole record, every byte checked. Errors: corrupt_data.
Result<DiskPage> decode_record(std::span<const std::byte> bytes, uint64_t segment);

/// Key, parent and tokens of a record whose content was not read: `bytes` up to the end of the tokens.
Result<DiskPage> decode_tokens(std::span<const std::byte> bytes, uint64_t segment);

/// Reads bytes of a file at a place.
using ReadAt = std::function<Status(int64_t offset, std::span<std::byte> out)>;

/// One record in a segment's index.
struct IndexEntry {
  PageKey key, parent;
  int64_t offset = 0, record_bytes = 0;
  bool has_window = false;
  bool operator==(const IndexEntry&) const = default;
};

/// What is appended to a full segment, whose records end at `offset`, so that it opens with two reads.
std::vector<std::byte> encode_index(std::span<const IndexEntry> entries, int64_t offset, uint64_t segment);

/// The index at the end of a segment file of that size. Errors: not_found when there is none, corrupt_data;
/// list_records then tells what is there.
Result<std::vector<IndexEntry>> read_index(const ReadAt& read, int64_t file_bytes, uint64_t segment);

/// Calls `found` for each record of a segment file of that size; content is not read. Returns where the last
/// whole record ends: what follows is torn or damaged. The segment header was checked before.
int64_t list_records(const ReadAt& read, int64_t file_bytes, uint64_t segment,
                     const std::function<void(int64_t offset, const RecordHeader&)>& found);

}  // namespace rorqual::prefix
