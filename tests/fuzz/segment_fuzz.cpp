// SPDX-License-Identifier: Apache-2.0
// Segment files of the prefix cache's disk tier: whatever they hold, listed records lie inside the file one
// after the other, and a decoded page encodes to the same bytes. The first byte says whether the headers'
// checksums are made right first, since chance would never pass them.
#include <xxhash.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <span>
#include <vector>

#include "prefix/segment_format.h"

namespace {

using namespace rorqual;
using namespace rorqual::prefix;

constexpr uint64_t kSegment = 5;

void put_u64(std::vector<std::byte>& bytes, size_t offset, uint64_t value) {
  std::memcpy(bytes.data() + offset, &value, sizeof value);
}

// Magic, version, number and checksum of a record header as they should be; sizes stay as they came.
void repair_header(std::vector<std::byte>& file, size_t offset) {
  const auto model = encode_record(DiskPage{}, kSegment);
  std::memcpy(file.data() + offset, model.data(), 12);
  put_u64(file, offset + 72, kSegment);
  put_u64(file, offset + 120, XXH3_64bits(file.data() + offset, 120));
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  std::vector<std::byte> file(static_cast<size_t>(kSegmentHeaderBytes));
  const auto bytes = std::as_bytes(std::span(data, size)).subspan(1);
  file.insert(file.end(), bytes.begin(), bytes.end());
  const bool repairs = data[0] % 2 == 1;
  const size_t step = static_cast<size_t>(kRecordAlignment) * (1 + data[0] / 2 % 8);
  for (size_t at = 64; repairs && at + 128 <= file.size(); at += step) repair_header(file, at);

  const auto file_bytes = static_cast<int64_t>(file.size());
  const ReadAt read = [&](int64_t offset, std::span<std::byte> out) -> Status {
    if (offset < 0 || offset > file_bytes - static_cast<int64_t>(out.size())) std::abort();
    std::copy_n(file.begin() + offset, out.size(), out.begin());
    return Ok{};
  };
  int64_t next = kSegmentHeaderBytes;
  const int64_t end =
      list_records(read, file_bytes, kSegment, [&](int64_t offset, const RecordHeader& header) {
        if (offset != next || header.record_bytes <= 0 || header.record_bytes > file_bytes - offset)
          std::abort();
        next = offset + header.record_bytes;
        const auto record =
            std::span(file).subspan(static_cast<size_t>(offset), static_cast<size_t>(header.record_bytes));
        const auto page = decode_record(record, kSegment);
        if (page.ok() && !std::equal(record.begin(), record.end(), encode_record(*page, kSegment).begin()))
          std::abort();
        static_cast<void>(decode_tokens(record, kSegment));
      });
  if (end != next) std::abort();
  if (repairs && file_bytes >= 128) {  // the last 64 bytes as the end of an index
    std::memcpy(file.data() + file.size() - 64, encode_index({}, 64, kSegment).data(), 16);
    put_u64(file, file.size() - 8, XXH3_64bits(file.data() + file.size() - 64, 56));
  }
  const auto index = read_index(read, file_bytes, kSegment);
  if (!index.ok()) return 0;
  for (const IndexEntry& entry : *index) {
    if (entry.offset < kSegmentHeaderBytes || entry.record_bytes > file_bytes - entry.offset) std::abort();
  }
  static_cast<void>(parse_segment_header(bytes));
  return 0;
}
