// SPDX-License-Identifier: Apache-2.0
// The disk tier over segment files: an index in memory, a queue, and a thread that appends. Reads open the
// file each time, so that an eviction in between is a miss and nothing else.
#include "prefix/disk_tier.h"

#include <dirent.h>
#include <fcntl.h>
#include <fmt/core.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <filesystem>
#include <mutex>
#include <thread>
#include <unordered_map>
#include <utility>

#include "base/file.h"
#include "prefix/segment_format.h"
#include "prefix/segment_index.h"

namespace rorqual::prefix {

namespace {

// Names that are tried for a new file: some may be taken by things that are not our files.
constexpr int kMaxNameTries = 1000;

// An open descriptor.
class Descriptor {
 public:
  explicit Descriptor(int fd = -1) : fd_(fd) {}

  Descriptor(Descriptor&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}

  Descriptor& operator=(Descriptor&& other) noexcept {
    std::swap(fd_, other.fd_);
    return *this;
  }

  ~Descriptor() { reset(); }

  void reset() {
    if (fd_ >= 0) ::close(fd_);
    fd_ = -1;
  }

  int get() const { return fd_; }

 private:
  int fd_;
};

Error io_error(const std::string& what, const std::string& path, int error) {
  return Error(Code::io,
               fmt::format("prefix cache on disk: cannot {} '{}': {}", what, path, std::strerror(error)),
               "give a folder that this process may write to, or leave the disk tier off");
}

Result<Descriptor> lock_directory(const std::string& directory) {
  std::error_code error;
  std::filesystem::create_directories(directory, error);
  if (error) return io_error("make the folder", directory, error.value());
  const std::string path = directory + "/lock";
  Descriptor lock(::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK, 0600));
  if (lock.get() < 0) return io_error("open", path, errno);
  if (::flock(lock.get(), LOCK_EX | LOCK_NB) != 0) {
    if (errno != EWOULDBLOCK) return io_error("lock", path, errno);
    return Error(Code::unavailable, fmt::format("prefix cache on disk: another process uses '{}'", directory),
                 "give each server a folder of its own");
  }
  return lock;
}

Result<std::vector<uint64_t>> list_segments(const std::string& directory) {
  std::vector<uint64_t> ids;
  std::error_code error;
  std::filesystem::directory_iterator entry(directory, error), end;
  for (; !error && entry != end; entry.increment(error)) {
    const auto id = parse_segment_name(entry->path().filename().string());
    if (id.ok()) ids.push_back(*id);
  }
  if (error) return io_error("list", directory, error.value());
  std::ranges::sort(ids);
  return ids;
}

class SegmentTier final : public DiskTier {
 public:
  SegmentTier(DiskTierOptions options, Descriptor lock)
      : options_(std::move(options)),
        lock_(std::move(lock)),
        identity_(root_key(options_.model_identity, "disk tier")),
        // Small limits need small files, because whole files leave.
        segment_bytes_(std::min(options_.segment_bytes, std::max<int64_t>(1, options_.max_bytes / 4))) {
    if (!options_.write_at) options_.write_at = ::pwrite;
  }

  ~SegmentTier() override {
    {
      const std::lock_guard guard(mutex_);
      is_stopping_ = true;
    }
    work_.notify_all();
    if (writer_.joinable()) writer_.join();
  }

  Status load();

  void start() {
    writer_ = std::thread([this] { write_loop(); });
  }

  Entry find(const PageKey& key) const override;
  size_t touch(std::span<const PageKey> keys) override;
  std::vector<DiskPage> children(const PageKey& parent, int64_t max_count) const override;
  Result<DiskPage> read(const PageKey& key) override;
  bool write(DiskPage page) override;
  void flush() override;
  DiskTierStats stats() const override;

 private:
  using Queued = std::shared_ptr<const DiskPage>;

  std::string path_of(uint64_t id) const { return options_.directory + "/" + segment_name(id); }

  void load_segment(uint64_t id);
  Result<DiskPage> read_record(const PageKey& key, const RecordPlace& place) const;

  // Of the writing thread.
  void write_loop();
  bool append(const DiskPage& page);
  bool evict_segment(uint64_t id);
  bool start_segment();
  bool write_record(std::span<const std::byte> record);
  bool write_bytes(std::span<const std::byte> bytes, int64_t offset);
  void write_index();
  void close_segment();
  void sync();
  void fail(const std::string& what, const std::string& path, int error);
  void report_change();

  DiskTierOptions options_;
  Descriptor lock_;
  const PageKey identity_;
  const int64_t segment_bytes_;

  mutable std::mutex mutex_;
  std::condition_variable work_, idle_;
  SegmentIndex index_;
  std::deque<PageKey> queue_;
  std::unordered_map<PageKey, Queued, PageKeyHash> queued_;  // those of queue_ and `writing_`
  PageKey writing_;
  int64_t queued_bytes_ = 0;
  uint64_t flushes_asked_ = 0, flushes_done_ = 0;
  bool is_stopping_ = false;
  DiskTierStats stats_;

  // Of the writing thread, and of `load` before it runs.
  Descriptor file_;
  uint64_t segment_ = 0;     // that file_ is; 0 = none
  int64_t segment_end_ = 0;  // where the next record goes
  bool needs_sync_ = false;
  bool has_failed_ = false;  // since the last append began
  bool is_reported_failing_ = false;
  std::string last_error_;
  std::chrono::steady_clock::time_point retry_at_{};
  std::thread writer_;
};

// --- opening -----------------------------------------------------------------------------------------------

Status SegmentTier::load() {
  RORQUAL_TRY_ASSIGN(const std::vector<uint64_t> ids, list_segments(options_.directory));
  for (const uint64_t id : ids) {
    if (id != 0) load_segment(id);
  }
  // The newest file is continued if it has room.
  const uint64_t last = index_.last_segment();
  const bool has_room = segment_ != 0 && segment_ == last && segment_end_ < segment_bytes_;
  if (has_room) file_ = Descriptor(::open(path_of(last).c_str(), O_WRONLY | O_CLOEXEC | O_NOFOLLOW));
  if (file_.get() < 0) segment_ = 0;
  while (index_.bytes() > options_.max_bytes) {
    const auto oldest = index_.least_recently_used(segment_);
    if (!oldest || ::unlink(path_of(*oldest).c_str()) != 0) break;
    stats_.evicted_pages += index_.remove_segment(*oldest);
  }
  return Ok{};
}

// Files that are not segments of this form and model keep their place in the sum and leave first; a file that
// ended before its first record is removed.
void SegmentTier::load_segment(uint64_t id) {
  const std::string path = path_of(id);
  const Result<File> file = File::open(path);
  if (!file.ok()) return;
  std::array<std::byte, kSegmentHeaderBytes> bytes{};
  if (file->size_bytes() < kSegmentHeaderBytes && ::unlink(path.c_str()) == 0) return;
  const bool has_header = file->read(0, bytes).ok();
  const auto header = parse_segment_header(bytes);
  const bool is_ours = has_header && header.ok() && header->identity == identity_ && header->id == id;
  index_.add_segment(id, file->size_bytes(), !is_ours);
  if (!is_ours) return;
  const ReadAt read = [&](int64_t offset, std::span<std::byte> out) { return file->read(offset, out); };
  const Result<std::vector<IndexEntry>> index = read_index(read, file->size_bytes(), id);
  if (index.ok()) {
    for (const IndexEntry& entry : *index) {
      index_.add_page(entry.key, entry.parent,
                      {.segment = id,
                       .offset = entry.offset,
                       .bytes = entry.record_bytes,
                       .has_window = entry.has_window});
    }
    return;
  }
  const int64_t end =
      list_records(read, file->size_bytes(), id, [&](int64_t offset, const RecordHeader& record) {
        index_.add_page(record.key, record.parent,
                        {.segment = id,
                         .offset = offset,
                         .bytes = record.record_bytes,
                         .has_window = record.window_bytes > 0});
      });
  if (end == kSegmentHeaderBytes && ::unlink(path.c_str()) == 0) {
    index_.remove_segment(id);
    return;
  }
  const bool is_torn = end < file->size_bytes();
  if (is_torn && ::truncate(path.c_str(), end) != 0) return;
  if (is_torn) index_.set_segment_bytes(id, end);
  segment_ = id;
  segment_end_ = end;
}

// --- any thread --------------------------------------------------------------------------------------------

DiskTier::Entry SegmentTier::find(const PageKey& key) const {
  const std::lock_guard guard(mutex_);
  Entry entry;
  if (const RecordPlace* place = index_.find(key))
    entry = {.is_found = true, .has_window = place->has_window};
  const auto queued = queued_.find(key);
  if (queued != queued_.end()) {
    entry.is_found = true;
    entry.has_window = entry.has_window || !queued->second->window.empty();
  }
  return entry;
}

size_t SegmentTier::touch(std::span<const PageKey> keys) {
  const std::lock_guard guard(mutex_);
  const uint64_t time = index_.tick();
  size_t first_missing = keys.size();
  for (size_t i = 0; i < keys.size(); ++i) {
    if (!index_.use(keys[i], time) && !queued_.contains(keys[i])) first_missing = std::min(first_missing, i);
  }
  return first_missing;
}

std::vector<DiskPage> SegmentTier::children(const PageKey& parent, int64_t max_count) const {
  std::vector<RecordPlace> places;
  {
    const std::lock_guard guard(mutex_);
    for (const PageKey& key : index_.children(parent, max_count)) places.push_back(*index_.find(key));
  }
  std::vector<DiskPage> pages;
  for (const RecordPlace& place : places) {
    const Result<File> file = File::open(path_of(place.segment));
    if (!file.ok()) continue;
    std::vector<std::byte> bytes(static_cast<size_t>(kRecordHeaderBytes));
    if (!file->read(place.offset, bytes).ok()) continue;
    const auto header = parse_record_header(bytes, place.segment);
    if (!header.ok()) continue;
    bytes.resize(static_cast<size_t>(kRecordHeaderBytes + 4 * header->num_tokens));
    if (!file->read(place.offset, bytes).ok()) continue;
    Result<DiskPage> page = decode_tokens(bytes, place.segment);
    if (page.ok() && page->parent == parent) pages.push_back(*std::move(page));
  }
  return pages;
}

Result<DiskPage> SegmentTier::read_record(const PageKey& key, const RecordPlace& place) const {
  RORQUAL_TRY_ASSIGN(const File file, File::open(path_of(place.segment)));
  std::vector<std::byte> bytes(static_cast<size_t>(place.bytes));
  RORQUAL_TRY(file.read(place.offset, bytes));
  RORQUAL_TRY_ASSIGN(DiskPage page, decode_record(bytes, place.segment));
  if (page.key != key) return Error(Code::corrupt_data, "record of another page");
  return page;
}

Result<DiskPage> SegmentTier::read(const PageKey& key) {
  const auto missing = [&] { return Error(Code::not_found, "no page " + to_hex(key) + " on disk"); };
  while (true) {
    RecordPlace place;
    {
      const std::lock_guard guard(mutex_);
      const auto queued = queued_.find(key);
      if (queued != queued_.end()) {
        ++stats_.read_pages;
        stats_.read_bytes += record_bytes(*queued->second);
        return DiskPage(*queued->second);
      }
      const RecordPlace* found = index_.find(key);
      if (found == nullptr) return missing();
      place = *found;
      index_.use(key, index_.tick());
    }
    Result<DiskPage> page = read_record(key, place);
    const std::lock_guard guard(mutex_);
    if (page.ok()) {
      ++stats_.read_pages;
      stats_.read_bytes += place.bytes;
      return page;
    }
    const RecordPlace* now = index_.find(key);
    if (now != nullptr && *now == place) {
      const bool is_gone = page.error().code() != Code::io;
      if (is_gone) index_.forget(key, place);
      if (is_gone) ++stats_.damaged_pages;
      return Error(is_gone ? Code::corrupt_data : Code::io,
                   fmt::format("prefix cache on disk: page {} in '{}' at {}: {}", to_hex(key),
                               path_of(place.segment), place.offset, page.error().message()),
                   "it is computed again; if this repeats, check the disk");
    }
    if (now == nullptr && !queued_.contains(key)) return missing();  // it has just left
  }
}

bool SegmentTier::write(DiskPage page) {
  const int64_t bytes = record_bytes(page);
  std::unique_lock guard(mutex_);
  const bool has_window = !page.window.empty();
  const RecordPlace* place = index_.find(page.key);
  if (place != nullptr && (place->has_window || !has_window)) return true;
  const auto queued = queued_.find(page.key);
  if (queued != queued_.end() && (!queued->second->window.empty() || !has_window)) return true;
  const bool fits = bytes <= kMaxRecordBytes && std::cmp_less_equal(page.tokens.size(), kMaxRecordTokens) &&
                    queued_bytes_ + bytes <= options_.max_queued_bytes && !is_stopping_;
  if (!fits) {
    ++stats_.dropped_pages;
    return false;
  }
  const PageKey key = page.key;
  const bool is_in_queue = queued != queued_.end() && key != writing_;
  if (is_in_queue) queued_bytes_ -= record_bytes(*queued->second);
  if (!is_in_queue) queue_.push_back(key);
  queued_[key] = std::make_shared<const DiskPage>(std::move(page));
  queued_bytes_ += bytes;
  guard.unlock();
  work_.notify_one();
  return true;
}

void SegmentTier::flush() {
  std::unique_lock guard(mutex_);
  const uint64_t ticket = ++flushes_asked_;
  work_.notify_one();
  idle_.wait(guard, [&] { return flushes_done_ >= ticket; });
}

DiskTierStats SegmentTier::stats() const {
  const std::lock_guard guard(mutex_);
  DiskTierStats now = stats_;
  now.pages = index_.pages();
  now.bytes = index_.bytes();
  return now;
}

// --- the writing thread ------------------------------------------------------------------------------------

void SegmentTier::write_loop() {
  std::unique_lock guard(mutex_);
  while (true) {
    work_.wait(guard, [&] { return !queue_.empty() || flushes_asked_ != flushes_done_ || is_stopping_; });
    if (queue_.empty()) {
      const uint64_t asked = flushes_asked_;
      guard.unlock();
      sync();
      report_change();
      guard.lock();
      flushes_done_ = asked;
      idle_.notify_all();
      if (is_stopping_ && queue_.empty()) return;
      continue;
    }
    writing_ = queue_.front();
    queue_.pop_front();
    const Queued page = queued_.at(writing_);
    guard.unlock();
    const bool is_due = std::chrono::steady_clock::now() >= retry_at_;
    has_failed_ = false;
    const bool is_written = is_due && append(*page);
    guard.lock();
    if (is_written) {
      ++stats_.written_pages;
      stats_.written_bytes += record_bytes(*page);
      if (!has_failed_) stats_.is_failing = false;  // else an earlier file could not be finished
    } else {
      ++stats_.dropped_pages;
    }
    queued_bytes_ -= record_bytes(*page);
    const auto now = queued_.find(writing_);
    if (now->second == page) queued_.erase(now);  // else it has got its window meanwhile and is queued again
    writing_ = PageKey{};
    guard.unlock();
    report_change();
    guard.lock();
  }
}

bool SegmentTier::append(const DiskPage& page) {
  const int64_t bytes = record_bytes(page);
  while (true) {
    const bool is_full = segment_end_ > kSegmentHeaderBytes && segment_end_ + bytes > segment_bytes_;
    if (segment_ != 0 && is_full) close_segment();
    const int64_t needed = bytes + (segment_ == 0 ? kSegmentHeaderBytes : 0);
    std::unique_lock guard(mutex_);
    if (index_.bytes() + needed <= options_.max_bytes) break;
    const std::optional<uint64_t> oldest = index_.least_recently_used(segment_);
    guard.unlock();
    if (!oldest && segment_ == 0) return false;  // larger than the limit
    if (!oldest) {
      close_segment();
    } else if (!evict_segment(*oldest)) {
      return false;
    }
  }
  if (segment_ == 0 && !start_segment()) return false;
  if (!write_record(encode_record(page, segment_))) return false;
  const std::lock_guard guard(mutex_);
  index_.set_segment_bytes(segment_, segment_end_ + bytes);
  index_.add_page(
      page.key, page.parent,
      {.segment = segment_, .offset = segment_end_, .bytes = bytes, .has_window = !page.window.empty()});
  segment_end_ += bytes;
  return true;
}

// Removes a file. Pages of it that were used since they were written are queued again, up to a quarter of a
// segment, so that what is in use does not leave with what lies beside it.
bool SegmentTier::evict_segment(uint64_t id) {
  std::vector<SegmentIndex::KeptPage> kept;
  {
    const std::lock_guard guard(mutex_);
    kept = index_.pages_of(id);
  }
  std::vector<DiskPage> rescued;
  int64_t bytes = 0;
  for (const SegmentIndex::KeptPage& old : kept) {
    if (!old.is_used || bytes + old.place.bytes > segment_bytes_ / 4) continue;
    Result<DiskPage> page = read_record(old.key, old.place);
    if (!page.ok()) continue;
    bytes += old.place.bytes;
    rescued.push_back(*std::move(page));
  }
  std::unique_lock guard(mutex_);
  for (DiskPage& page : rescued) {
    const PageKey key = page.key;
    if (queued_.contains(key)) continue;
    queued_bytes_ += record_bytes(page);
    queued_[key] = std::make_shared<const DiskPage>(std::move(page));
    queue_.push_front(key);
  }
  const int64_t file_bytes = index_.segment_bytes(id);
  stats_.evicted_pages += index_.remove_segment(id) - static_cast<int64_t>(rescued.size());
  guard.unlock();  // nobody looks for the file any more
  const std::string path = path_of(id);
  if (::unlink(path.c_str()) == 0 || errno == ENOENT) return true;
  const int error = errno;
  guard.lock();
  index_.add_segment(id, file_bytes, true);
  fail("remove", path, error);
  return false;
}

bool SegmentTier::start_segment() {
  uint64_t id = 0;
  {
    const std::lock_guard guard(mutex_);
    id = index_.last_segment();
  }
  std::string path;
  Descriptor file;
  for (int tries = 0; file.get() < 0 && tries < kMaxNameTries; ++tries) {
    if (++id == 0) ++id;
    path = path_of(id);
    file = Descriptor(::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600));
    if (file.get() < 0 && errno != EEXIST) break;
  }
  if (file.get() < 0) {
    const int error = errno;
    const std::lock_guard guard(mutex_);
    fail("make", path, error);
    return false;
  }
  file_ = std::move(file);
  if (!write_bytes(encode_segment_header({.identity = identity_, .id = id}), 0)) {
    const int error = errno;
    file_.reset();
    ::unlink(path.c_str());
    const std::lock_guard guard(mutex_);
    fail("write", path, error);
    return false;
  }
  segment_ = id;
  segment_end_ = kSegmentHeaderBytes;
  const std::lock_guard guard(mutex_);
  index_.add_segment(id, kSegmentHeaderBytes, false);
  return true;
}

// Sets errno.
bool SegmentTier::write_bytes(std::span<const std::byte> bytes, int64_t offset) {
  while (!bytes.empty()) {
    const ssize_t count = options_.write_at(file_.get(), bytes.data(), bytes.size(), offset);
    if (count < 0 && errno == EINTR) continue;
    if (count == 0) errno = ENOSPC;
    if (count <= 0) return false;
    bytes = bytes.subspan(static_cast<size_t>(count));
    offset += count;
  }
  return true;
}

// A record or nothing: what was written of it is cut off again. Where that fails the file is left alone.
bool SegmentTier::write_record(std::span<const std::byte> record) {
  needs_sync_ = true;
  if (write_bytes(record, segment_end_)) return true;
  const int error = errno;
  const bool is_cut = ::ftruncate(file_.get(), segment_end_) == 0;
  const std::lock_guard guard(mutex_);
  fail("write", path_of(segment_), error);

  struct stat info {};

  if (!is_cut && ::fstat(file_.get(), &info) == 0) index_.set_segment_bytes(segment_, info.st_size);
  if (!is_cut) {
    file_.reset();
    segment_ = 0;
  }
  return false;
}

// The index saves reading every record's header when the folder is opened; without it that is done.
void SegmentTier::write_index() {
  std::vector<IndexEntry> entries;
  std::unique_lock guard(mutex_);
  for (const SegmentIndex::KeptPage& page : index_.pages_of(segment_)) {
    entries.push_back({.key = page.key,
                       .parent = page.parent,
                       .offset = page.place.offset,
                       .record_bytes = page.place.bytes,
                       .has_window = page.place.has_window});
  }
  const std::vector<std::byte> bytes = encode_index(entries, segment_end_, segment_);
  const auto size = static_cast<int64_t>(bytes.size());
  if (index_.bytes() + size > options_.max_bytes) return;
  guard.unlock();
  if (!write_record(bytes)) return;
  guard.lock();
  segment_end_ += size;
  index_.set_segment_bytes(segment_, segment_end_);
}

void SegmentTier::close_segment() {
  write_index();
  sync();
  file_.reset();
  segment_ = 0;
}

void SegmentTier::sync() {
  if (segment_ == 0 || !needs_sync_) return;
  needs_sync_ = false;
  if (::fdatasync(file_.get()) == 0) return;
  const int error = errno;
  const std::lock_guard guard(mutex_);
  fail("sync", path_of(segment_), error);
}

// With the mutex held.
void SegmentTier::fail(const std::string& what, const std::string& path, int error) {
  has_failed_ = true;
  stats_.is_failing = true;
  last_error_ = fmt::format("cannot {} '{}': {}", what, path, std::strerror(error));
  retry_at_ = std::chrono::steady_clock::now() + std::chrono::milliseconds(options_.retry_ms);
}

// Without the mutex, which whoever is told may need.
void SegmentTier::report_change() {
  const bool was_failing = is_reported_failing_;
  {
    const std::lock_guard guard(mutex_);
    is_reported_failing_ = stats_.is_failing;
  }
  if (is_reported_failing_ == was_failing || !options_.on_change) return;
  options_.on_change(is_reported_failing_ ? last_error_ : std::string());
}

}  // namespace

Result<std::unique_ptr<DiskTier>> DiskTier::open(DiskTierOptions options) {
  RORQUAL_TRY_ASSIGN(Descriptor lock, lock_directory(options.directory));
  auto tier = std::make_unique<SegmentTier>(std::move(options), std::move(lock));
  RORQUAL_TRY(tier->load());
  tier->start();
  return std::unique_ptr<DiskTier>(std::move(tier));
}

}  // namespace rorqual::prefix
