// SPDX-License-Identifier: Apache-2.0
#include "tools/disk_measure.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <memory>
#include <vector>

#include "tools/machine_measure.h"

namespace rorqual::tools {
namespace {

constexpr int64_t kTemporaryBytes = int64_t{256} << 20;
constexpr int64_t kBlockBytes = int64_t{4} << 20;
constexpr int64_t kPageBytes = 4096;
constexpr int64_t kSequentialBytes = int64_t{128} << 20;  // of one sample
constexpr int kReadersInFlight = 4;
constexpr double kRandomSeconds = 0.12;  // of one sample

double seconds_now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

/// Page-aligned memory, as O_DIRECT wants it.
struct Free {
  void operator()(void* p) const { std::free(p); }
};

using Block = std::unique_ptr<std::byte, Free>;

Block make_block(int64_t size_bytes) {
  return Block(static_cast<std::byte*>(std::aligned_alloc(kPageBytes, static_cast<size_t>(size_bytes))));
}

class OpenedFile {
 public:
  OpenedFile() = default;
  OpenedFile(const OpenedFile&) = delete;
  OpenedFile& operator=(const OpenedFile&) = delete;

  ~OpenedFile() {
    if (fd_ >= 0) ::close(fd_);
    if (!temporary_.empty()) ::unlink(temporary_.c_str());
  }

  Status open_existing(const std::string& path);
  Status make_temporary();

  const std::string& path() const { return path_; }

  bool direct() const { return direct_; }

  int64_t size_bytes() const { return size_bytes_; }

  bool read(int64_t offset, int64_t size_bytes, std::byte* to) const {
    return ::pread(fd_, to, static_cast<size_t>(size_bytes), offset) == size_bytes;
  }

  /// Without O_DIRECT: the next reads come from the disk, as far as the system obeys.
  void drop_pages() const {
    if (!direct_) ::posix_fadvise(fd_, 0, 0, POSIX_FADV_DONTNEED);
  }

 private:
  Status open_for_reading(const std::string& path);

  int fd_ = -1;
  bool direct_ = false;
  int64_t size_bytes_ = 0;
  std::string path_, temporary_;
};

Status OpenedFile::open_for_reading(const std::string& path) {
  path_ = path;
  fd_ = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_DIRECT);
  direct_ = fd_ >= 0;
  if (fd_ < 0) fd_ = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (fd_ < 0) {
    return Error(errno == ENOENT ? Code::not_found : Code::io,
                 fmt::format("cannot open '{}' to measure the disk: {}", path, std::strerror(errno)));
  }

  struct stat info {};

  if (::fstat(fd_, &info) != 0 || !S_ISREG(info.st_mode)) {
    return Error(Code::invalid_argument, fmt::format("'{}' is not a regular file", path));
  }
  size_bytes_ = info.st_size / kBlockBytes * kBlockBytes;
  if (size_bytes_ == 0) {
    return Error(Code::invalid_argument, fmt::format("'{}' is too small to measure a disk with", path),
                 "give a file of at least 4 MiB, or none");
  }
  return Ok();
}

/// The file itself, or the largest one of a folder.
Status OpenedFile::open_existing(const std::string& path) {
  std::error_code error;
  if (!std::filesystem::is_directory(path, error)) return open_for_reading(path);
  std::string largest;
  uintmax_t size = 0;
  for (const auto& entry : std::filesystem::directory_iterator(path, error)) {
    std::error_code ignored;
    if (!entry.is_regular_file(ignored)) continue;
    if (entry.file_size(ignored) < size) continue;
    size = entry.file_size(ignored);
    largest = entry.path().string();
  }
  if (largest.empty()) return Error(Code::not_found, fmt::format("the folder '{}' holds no file", path));
  return open_for_reading(largest);
}

Status OpenedFile::make_temporary() {
  char name[] = "rorqual-disk-XXXXXX";
  const int fd = ::mkstemp(name);
  if (fd < 0) {
    return Error(Code::io, fmt::format("no temporary file in the working folder: {}", std::strerror(errno)),
                 "give a file to read with --disk, or change to a folder that can be written");
  }
  temporary_ = name;
  const Block block = make_block(kBlockBytes);
  std::memset(block.get(), 0x5A, static_cast<size_t>(kBlockBytes));
  bool is_written = true;
  for (int64_t at = 0; is_written && at < kTemporaryBytes; at += kBlockBytes) {
    std::memcpy(block.get(), &at, sizeof(at));  // no two blocks are equal
    is_written = ::write(fd, block.get(), static_cast<size_t>(kBlockBytes)) == kBlockBytes;
  }
  is_written = is_written && ::fsync(fd) == 0;
  const int reason = errno;
  ::close(fd);
  if (!is_written) {
    return Error(Code::io, fmt::format("cannot write a temporary file of 256 MiB: {}", std::strerror(reason)),
                 "give a file to read with --disk");
  }
  return open_for_reading(temporary_);
}

/// Reads `kSequentialBytes` from `begin` on, kReadersInFlight blocks at a time. Negative if a read failed.
double sequential_rate(const OpenedFile& file, int64_t begin) {
  ThreadPool readers(kReadersInFlight);
  std::vector<Block> blocks;
  for (int i = 0; i < kReadersInFlight; ++i) blocks.push_back(make_block(kBlockBytes));
  const int64_t count = std::min(kSequentialBytes, file.size_bytes()) / kBlockBytes;
  const int64_t blocks_in_file = file.size_bytes() / kBlockBytes;
  std::atomic<bool> failed{false};
  const double start = seconds_now();
  readers.parallel_for(count, [&](int64_t i, int thread) {
    const int64_t block = (begin + i) % blocks_in_file;
    if (!file.read(block * kBlockBytes, kBlockBytes, blocks[static_cast<size_t>(thread)].get())) {
      failed = true;
    }
  });
  return failed ? -1 : static_cast<double>(count * kBlockBytes) / (seconds_now() - start);
}

double random_rate(const OpenedFile& file, ThreadPool& pool, uint64_t seed) {
  const int threads = pool.num_threads();
  const int64_t pages = file.size_bytes() / kPageBytes;
  std::atomic<int64_t> reads{0};
  std::atomic<bool> failed{false};
  const double start = seconds_now();
  pool.parallel_for(threads, [&](int64_t chunk, int) {
    const Block page = make_block(kPageBytes);
    uint64_t state = seed + static_cast<uint64_t>(chunk) * 0x9E3779B97F4A7C15U;
    while (!failed && seconds_now() - start < kRandomSeconds) {
      state = state * 6364136223846793005U + 1442695040888963407U;
      const auto at = static_cast<int64_t>((state >> 20) % static_cast<uint64_t>(pages));
      if (!file.read(at * kPageBytes, kPageBytes, page.get())) failed = true;
      ++reads;
    }
  });
  return failed ? -1 : static_cast<double>(reads) / (seconds_now() - start);
}

}  // namespace

Result<DiskMeasure> measure_disk(ThreadPool& pool, const std::string& path) {
  OpenedFile file;
  RORQUAL_TRY(path.empty() ? file.make_temporary() : file.open_existing(path));
  DiskMeasure measure;
  measure.path = file.path();
  measure.direct = file.direct();
  measure.is_model = !path.empty();
  std::vector<double> sequential, random;
  for (int i = 0; i < kMeasureRepeats; ++i) {
    file.drop_pages();
    sequential.push_back(sequential_rate(file, i * kSequentialBytes / kBlockBytes));
    file.drop_pages();
    random.push_back(random_rate(file, pool, static_cast<uint64_t>(i + 1)));
    if (sequential.back() < 0 || random.back() < 0) {
      return Error(Code::io, fmt::format("reading '{}' failed: {}", file.path(), std::strerror(errno)));
    }
  }
  measure.sequential = rate_of(std::move(sequential));
  measure.random = rate_of(std::move(random));
  return measure;
}

}  // namespace rorqual::tools
