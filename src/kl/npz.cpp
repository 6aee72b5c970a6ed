// SPDX-License-Identifier: Apache-2.0
// Reading goes through libzip; the writer needs stored members only and writes them itself, so that its bytes
// do not depend on a library's version. Zip64 records appear where 32 bits do not suffice (PKWARE
// APPNOTE 4.3, 4.5.3).
#include "kl/npz.h"

#include <fmt/format.h>
#include <zip.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <map>
#include <mutex>
#include <optional>

#include "base/check.h"
#include "base/file.h"

namespace rorqual::kl {
namespace {

constexpr zip_int64_t kMaxMembers = 1 << 17;
constexpr int64_t kMaxDeflateRatio = 1040;  // no deflate stream expands more than 1032 times
constexpr std::string_view kSuffix = ".npy";

struct ZipCloser {
  void operator()(zip_t* archive) const { zip_discard(archive); }
};

struct ZipFileCloser {
  void operator()(zip_file_t* file) const { zip_fclose(file); }
};

Error corrupt(const std::string& path, std::string_view name, std::string message) {
  return Error(Code::corrupt_data, fmt::format("{}: array '{}': {}", path, name, message),
               "the file is damaged or incomplete; copy or capture it again");
}

}  // namespace

struct NpzFile::State {
  std::string path;
  std::vector<std::string> names;
  std::map<std::string, uint64_t, std::less<>> index;
  std::mutex mutex;
  std::unique_ptr<zip_t, ZipCloser> archive;
  // The member that was read last; reading on needs no new start.
  std::unique_ptr<zip_file_t, ZipFileCloser> stream;
  uint64_t stream_index = 0;
  int64_t stream_position = 0;

  std::string reason() const { return zip_strerror(archive.get()); }

  /// Puts the stream at `position` of member `member`, in bytes of the whole .npy file.
  Status seek(uint64_t member, int64_t position) {
    if (stream == nullptr || stream_index != member || stream_position > position) {
      stream.reset(zip_fopen_index(archive.get(), member, 0));
      if (stream == nullptr) return Error(Code::corrupt_data, "cannot be opened: " + reason());
      stream_index = member;
      stream_position = 0;
      if (position > 0 && zip_fseek(stream.get(), position, SEEK_SET) == 0) {  // stored members only
        stream_position = position;
        return Ok();
      }
      zip_error_clear(archive.get());
      zip_file_error_clear(stream.get());
    }
    std::vector<std::byte> skipped(
        static_cast<size_t>(std::min<int64_t>(position - stream_position, 1 << 20)));
    while (stream_position < position) {
      const auto part = std::min<int64_t>(position - stream_position, static_cast<int64_t>(skipped.size()));
      RORQUAL_TRY(fill(std::span(skipped).first(static_cast<size_t>(part))));
    }
    return Ok();
  }

  Status fill(std::span<std::byte> dst) {
    while (!dst.empty()) {
      const zip_int64_t got = zip_fread(stream.get(), dst.data(), dst.size());
      if (got <= 0) {
        const std::string why = got < 0 ? zip_file_strerror(stream.get()) : "it ends early";
        stream.reset();
        return Error(Code::corrupt_data,
                     fmt::format("cannot be read past byte {}: {}", stream_position, why));
      }
      stream_position += got;
      dst = dst.subspan(static_cast<size_t>(got));
    }
    return Ok();
  }

  /// Reading to the end is what makes libzip compare the checksum.
  Status check_end() {
    std::byte more{};
    const zip_int64_t got = zip_fread(stream.get(), &more, 1);
    const std::string why = got < 0 ? zip_file_strerror(stream.get()) : "";
    stream.reset();
    if (got != 0) return Error(Code::corrupt_data, got > 0 ? "longer than its directory says" : why);
    return Ok();
  }
};

NpzFile::NpzFile(std::unique_ptr<State> state) : state_(std::move(state)) {}

NpzFile::~NpzFile() = default;

const std::string& NpzFile::path() const {
  return state_->path;
}

const std::vector<std::string>& NpzFile::names() const {
  return state_->names;
}

bool NpzFile::has(std::string_view name) const {
  return state_->index.contains(name);
}

Result<std::unique_ptr<NpzFile>> NpzFile::open(const std::string& path) {
  RORQUAL_TRY_ASSIGN(const File file, File::open(path));  // refuses what is no regular file
  auto state = std::make_unique<State>();
  state->path = path;
  int code = 0;
  state->archive.reset(zip_open(path.c_str(), ZIP_RDONLY, &code));
  if (state->archive == nullptr) {
    zip_error_t error;
    zip_error_init_with_code(&error, code);
    const std::string why = zip_error_strerror(&error);
    zip_error_fini(&error);
    return Error(Code::corrupt_data,
                 fmt::format("{}: not a numpy archive ({} bytes): {}", path, file.size_bytes(), why),
                 "a .npz file is what numpy.savez writes; is the copy complete?");
  }
  const zip_int64_t count = zip_get_num_entries(state->archive.get(), 0);
  if (count > kMaxMembers)
    return Error(Code::corrupt_data,
                 fmt::format("{}: {} members, expected at most {}", path, count, kMaxMembers));
  for (zip_int64_t i = 0; i < count; ++i) {
    const auto member = static_cast<uint64_t>(i);
    const char* raw = zip_get_name(state->archive.get(), member, 0);
    const std::string_view name = raw == nullptr ? std::string_view() : std::string_view(raw);
    if (!name.ends_with(kSuffix)) continue;
    state->index.emplace(name.substr(0, name.size() - kSuffix.size()), member);
  }
  for (const auto& [name, member] : state->index) state->names.push_back(name);
  return std::unique_ptr<NpzFile>(new NpzFile(std::move(state)));
}

Result<NpzArray> NpzFile::find(std::string_view name) const {
  const auto found = state_->index.find(name);
  if (found == state_->index.end()) {
    std::string there;
    for (size_t i = 0; i < std::min<size_t>(state_->names.size(), 12); ++i)
      there += (i == 0 ? "" : ", ") + state_->names[i];
    return Error(Code::not_found, fmt::format("{}: no array '{}'", path(), name),
                 there.empty() ? "it holds no array" : "it holds: " + there);
  }
  const std::lock_guard lock(state_->mutex);
  zip_stat_t stat;
  zip_stat_init(&stat);
  if (zip_stat_index(state_->archive.get(), found->second, 0, &stat) != 0 ||
      (stat.valid & ZIP_STAT_SIZE) == 0)
    return corrupt(path(), name, "has no size");
  const auto total = static_cast<int64_t>(stat.size);
  const auto compressed = static_cast<int64_t>(stat.comp_size);
  if (total < 0 || compressed < 0 || (total - 1024) / kMaxDeflateRatio > compressed) {
    return corrupt(
        path(), name,
        fmt::format("claims {} bytes from {} compressed ones, which is impossible", total, compressed));
  }
  const auto named = [&](Status status) -> Status {
    if (status.ok()) return status;
    return corrupt(path(), name, status.error().message());
  };
  std::vector<std::byte> header(kNpyPreamble_bytes);
  if (total < static_cast<int64_t>(header.size()))
    return corrupt(path(), name, fmt::format("has {} bytes, which is no array", total));
  RORQUAL_TRY(named(state_->seek(found->second, 0)));
  RORQUAL_TRY(named(state_->fill(header)));
  auto offset = npy_data_offset(header);
  if (!offset.ok()) return std::move(offset).error().at(fmt::format("{}: array '{}'", path(), name));
  if (*offset > total) return corrupt(path(), name, "ends inside its header");
  const size_t have = header.size();
  if (*offset > static_cast<int64_t>(have)) {
    header.resize(static_cast<size_t>(*offset));
    RORQUAL_TRY(named(state_->fill(std::span(header).subspan(have))));
  }
  auto parsed = parse_npy_header(header, total);
  if (!parsed.ok()) return std::move(parsed).error().at(fmt::format("{}: array '{}'", path(), name));
  return NpzArray{std::string(name), *std::move(parsed), found->second};
}

Status NpzFile::read(const NpzArray& array, int64_t offset, std::span<std::byte> dst) const {
  const auto size = static_cast<int64_t>(dst.size());
  RORQUAL_CHECK(offset >= 0 && size <= array.header.data_bytes && offset <= array.header.data_bytes - size);
  const std::lock_guard lock(state_->mutex);
  auto status = state_->seek(array.index, array.header.data_offset + offset);
  if (status.ok()) status = state_->fill(dst);
  if (status.ok() && offset + size == array.header.data_bytes) status = state_->check_end();
  if (!status.ok()) return corrupt(path(), array.name, status.error().message());
  return Ok();
}

// ---- writing ----

namespace {

constexpr std::array<uint32_t, 256> make_crc_table() {
  std::array<uint32_t, 256> table{};
  for (uint32_t i = 0; i < 256; ++i) {
    uint32_t value = i;
    for (int bit = 0; bit < 8; ++bit) value = (value >> 1) ^ ((value & 1) != 0 ? 0xedb88320u : 0u);
    table[i] = value;
  }
  return table;
}

uint32_t crc32(uint32_t crc, std::span<const std::byte> bytes) {
  static constexpr auto kTable = make_crc_table();
  crc = ~crc;
  for (const std::byte b : bytes) crc = kTable[(crc ^ static_cast<uint32_t>(b)) & 0xff] ^ (crc >> 8);
  return ~crc;
}

/// Little-endian record under construction.
class Record {
 public:
  Record& u16(uint64_t value) { return put(value, 2); }

  Record& u32(uint64_t value) { return put(value, 4); }

  Record& u64(uint64_t value) { return put(value, 8); }

  Record& text(std::string_view value) {
    bytes_ += value;
    return *this;
  }

  std::span<const std::byte> bytes() const { return std::as_bytes(std::span(bytes_)); }

 private:
  Record& put(uint64_t value, int count) {
    for (int i = 0; i < count; ++i) bytes_ += static_cast<char>(value >> (8 * i) & 0xff);
    return *this;
  }

  std::string bytes_;
};

constexpr uint64_t kFull32 = 0xffffffff;
constexpr uint64_t kDate = 1 << 5 | 1;  // 1980-01-01, the first day of the format

struct WrittenMember {
  std::string file_name;
  uint64_t size = 0, offset = 0;
  uint32_t crc = 0;

  bool is_large() const { return size >= kFull32; }
};

Record local_header(const WrittenMember& member) {
  Record out;
  out.u32(0x04034b50).u16(member.is_large() ? 45 : 20).u16(0).u16(0).u16(0).u16(kDate).u32(member.crc);
  const uint64_t size = member.is_large() ? kFull32 : member.size;
  out.u32(size).u32(size).u16(member.file_name.size()).u16(member.is_large() ? 20 : 0).text(member.file_name);
  if (member.is_large()) out.u16(1).u16(16).u64(member.size).u64(member.size);
  return out;
}

void add_central_header(Record& out, const WrittenMember& member) {
  const bool far = member.offset >= kFull32;
  const uint64_t extra = (member.is_large() ? 16u : 0u) + (far ? 8u : 0u);
  const uint64_t version = extra > 0 ? 45 : 20;
  const uint64_t size = member.is_large() ? kFull32 : member.size;
  out.u32(0x02014b50).u16(version).u16(version).u16(0).u16(0).u16(0).u16(kDate).u32(member.crc);
  out.u32(size).u32(size).u16(member.file_name.size()).u16(extra > 0 ? extra + 4 : 0).u16(0).u16(0).u16(0);
  out.u32(0).u32(far ? kFull32 : member.offset).text(member.file_name);
  if (extra == 0) return;
  out.u16(1).u16(extra);
  if (member.is_large()) out.u64(member.size).u64(member.size);
  if (far) out.u64(member.offset);
}

Record directory(std::span<const WrittenMember> members, uint64_t offset) {
  Record out;
  for (const auto& member : members) add_central_header(out, member);
  const uint64_t size = out.bytes().size();
  const uint64_t count = members.size();
  const bool is_large = offset >= kFull32 || count >= 0xffff;
  if (is_large) {
    out.u32(0x06064b50).u64(44).u16(45).u16(45).u32(0).u32(0).u64(count).u64(count).u64(size).u64(offset);
    out.u32(0x07064b50).u32(0).u64(offset + size).u32(1);
  }
  const uint64_t short_count = std::min<uint64_t>(count, 0xffff);
  out.u32(0x06054b50).u16(0).u16(0).u16(short_count).u16(short_count).u32(size);
  out.u32(is_large ? kFull32 : offset).u16(0);
  return out;
}

}  // namespace

Status write_npz(const std::string& path, std::span<const NpzMember> members) {
  RORQUAL_TRY_ASSIGN(AtomicFile file, AtomicFile::create(path));
  std::vector<WrittenMember> written;
  for (const auto& member : members) {
    const std::string header = make_npy_header(member.dtype, member.shape);
    const auto header_bytes = std::as_bytes(std::span(header));
    WrittenMember entry;
    entry.file_name = member.name + std::string(kSuffix);
    entry.size = header_bytes.size() + member.bytes.size();
    entry.offset = static_cast<uint64_t>(file.size_bytes());
    entry.crc = crc32(crc32(0, header_bytes), member.bytes);
    RORQUAL_TRY(file.append(local_header(entry).bytes()));
    RORQUAL_TRY(file.append(header_bytes));
    RORQUAL_TRY(file.append(member.bytes));
    written.push_back(std::move(entry));
  }
  RORQUAL_TRY(file.append(directory(written, static_cast<uint64_t>(file.size_bytes())).bytes()));
  return file.commit();
}

}  // namespace rorqual::kl
