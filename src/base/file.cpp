// SPDX-License-Identifier: Apache-2.0
#include "base/file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <climits>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <utility>

#include "base/check.h"

namespace rorqual {
namespace {

std::string reason(int error_number) {
  char text[128];
  return ::strerror_r(error_number, text, sizeof text);
}

const char* kind_name(mode_t mode) {
  if (S_ISDIR(mode)) return "a folder";
  if (S_ISFIFO(mode)) return "a FIFO";
  if (S_ISCHR(mode) || S_ISBLK(mode)) return "a device";
  if (S_ISSOCK(mode)) return "a socket";
  return "not a regular file";
}

Error open_error(const std::string& path, int error_number) {
  if (error_number == ENOENT || error_number == ENOTDIR) {
    return Error(Code::not_found, fmt::format("cannot open '{}': no such file", path));
  }
  return Error(Code::io, fmt::format("cannot open '{}': {}", path, reason(error_number)));
}

Error kind_error(const std::string& path, mode_t mode) {
  return Error(Code::invalid_argument,
               fmt::format("cannot read '{}': it is {}, expected a regular file", path, kind_name(mode)));
}

int close_quietly(int fd) {
  return fd >= 0 ? ::close(fd) : 0;
}

Status sync_folder_of(const std::string& path) {
  const size_t slash = path.rfind('/');
  const std::string folder = slash == std::string::npos ? "." : slash == 0 ? "/" : path.substr(0, slash);
  const int fd = ::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (fd < 0) return open_error(folder, errno);
  const int result = ::fsync(fd);
  const int error_number = errno;
  close_quietly(fd);
  // Some network and FUSE file systems cannot sync folders; the rename has happened all the same.
  if (result != 0 && error_number != EINVAL && error_number != ENOTSUP) {
    return Error(Code::io, fmt::format("cannot sync folder '{}': {}", folder, reason(error_number)));
  }
  return Ok{};
}

}  // namespace

File::File(File&& other) noexcept
    : fd_(std::exchange(other.fd_, -1)), size_bytes_(other.size_bytes_), path_(std::move(other.path_)) {}

File& File::operator=(File&& other) noexcept {
  std::swap(fd_, other.fd_);
  std::swap(size_bytes_, other.size_bytes_);
  std::swap(path_, other.path_);
  return *this;
}

File::~File() {
  close_quietly(fd_);
}

Result<File> File::open(const std::string& path) {
  // Looked at before opening, because opening alone can have effects on devices; and again on the descriptor,
  // because the name may have changed its meaning in between. O_NONBLOCK: a FIFO without a writer must not
  // block us.
  struct stat info {};

  if (path.find('\0') != std::string::npos) return open_error(path, ENOENT);
  if (::stat(path.c_str(), &info) != 0) return open_error(path, errno);
  if (!S_ISREG(info.st_mode)) return kind_error(path, info.st_mode);
  File file;
  file.fd_ = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
  if (file.fd_ < 0) return open_error(path, errno);
  if (::fstat(file.fd_, &info) != 0) return open_error(path, errno);
  if (!S_ISREG(info.st_mode)) return kind_error(path, info.st_mode);
  file.size_bytes_ = info.st_size;
  file.path_ = path;
  return file;
}

Status File::read(int64_t offset, std::span<std::byte> dst) const {
  RORQUAL_CHECK(fd_ >= 0 && offset >= 0);
  size_t done = 0;
  while (done < dst.size()) {
    const int64_t position = offset + static_cast<int64_t>(done);
    const ssize_t got = ::pread(fd_, dst.data() + done, dst.size() - done, position);
    if (got > 0) {
      done += static_cast<size_t>(got);
    } else if (got == 0) {
      return Error(Code::corrupt_data,
                   fmt::format("'{}' ends at byte {}, {} more bytes expected (it had {} bytes when opened)",
                               path_, position, dst.size() - done, size_bytes_),
                   "the file was cut short; copy it again");
    } else if (errno != EINTR) {
      return Error(Code::io, fmt::format("cannot read '{}' at byte {}: {}", path_, position, reason(errno)));
    }
  }
  return Ok{};
}

Result<std::string> File::real_path() const {
  RORQUAL_CHECK(fd_ >= 0);
  char target[PATH_MAX];
  const std::string link = fmt::format("/proc/self/fd/{}", fd_);
  const ssize_t length = ::readlink(link.c_str(), target, sizeof target);
  if (length <= 0 || static_cast<size_t>(length) >= sizeof target) return resolve_path(path_);
  return std::string(target, static_cast<size_t>(length));
}

AtomicFile::AtomicFile(int fd, std::string path, std::string temporary_path)
    : fd_(fd), path_(std::move(path)), temporary_path_(std::move(temporary_path)) {}

AtomicFile::AtomicFile(AtomicFile&& other) noexcept
    : fd_(std::exchange(other.fd_, -1)),
      size_bytes_(other.size_bytes_),
      path_(std::move(other.path_)),
      temporary_path_(std::move(other.temporary_path_)) {}

AtomicFile::~AtomicFile() {
  if (fd_ < 0) return;
  close_quietly(fd_);
  ::unlink(temporary_path_.c_str());
}

Result<AtomicFile> AtomicFile::create(const std::string& path) {
  static std::atomic<int> counter{0};
  constexpr int kAttempts = 100;
  for (int attempt = 0; attempt < kAttempts; ++attempt) {
    std::string temporary = fmt::format("{}.tmp-{}-{}", path, ::getpid(), counter.fetch_add(1));
    const int fd = ::open(temporary.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0666);
    if (fd >= 0) return AtomicFile(fd, path, std::move(temporary));
    if (errno != EEXIST) return Error(Code::io, fmt::format("cannot create '{}': {}", path, reason(errno)));
  }
  return Error(Code::io, fmt::format("cannot create a temporary file beside '{}'", path),
               "remove old files named *.tmp-*");
}

Status AtomicFile::append(std::span<const std::byte> bytes) {
  RORQUAL_CHECK(fd_ >= 0);
  size_t done = 0;
  while (done < bytes.size()) {
    const ssize_t written = ::write(fd_, bytes.data() + done, bytes.size() - done);
    if (written >= 0) {
      done += static_cast<size_t>(written);
      size_bytes_ += written;
    } else if (errno != EINTR) {
      return Error(Code::io,
                   fmt::format("cannot write '{}' at byte {}: {}", path_, size_bytes_, reason(errno)),
                   errno == ENOSPC ? "free disk space or choose another folder" : "");
    }
  }
  return Ok{};
}

Status AtomicFile::commit() {
  RORQUAL_CHECK(fd_ >= 0);
  const int fd = std::exchange(fd_, -1);
  const bool synced = ::fsync(fd) == 0;
  const int sync_error = errno;
  const bool closed = ::close(fd) == 0;
  if (!synced || !closed || ::rename(temporary_path_.c_str(), path_.c_str()) != 0) {
    const int error_number = synced ? errno : sync_error;
    ::unlink(temporary_path_.c_str());
    return Error(Code::io, fmt::format("cannot finish '{}': {}", path_, reason(error_number)));
  }
  return sync_folder_of(path_);
}

Result<std::string> read_text_file(const std::string& path, int64_t max_bytes) {
  RORQUAL_TRY_ASSIGN(const File file, File::open(path));
  if (file.size_bytes() > max_bytes) {
    return Error(Code::corrupt_data,
                 fmt::format("'{}' has {} bytes, expected at most {}", path, file.size_bytes(), max_bytes));
  }
  std::string text(static_cast<size_t>(file.size_bytes()), '\0');
  RORQUAL_TRY(file.read(0, std::as_writable_bytes(std::span(text))));
  return text;
}

Status write_text_file(const std::string& path, std::string_view text) {
  RORQUAL_TRY_ASSIGN(AtomicFile file, AtomicFile::create(path));
  RORQUAL_TRY(file.append(std::as_bytes(std::span(text))));
  return file.commit();
}

bool is_directory(const std::string& path) {
  struct stat info {};

  return ::stat(path.c_str(), &info) == 0 && S_ISDIR(info.st_mode);
}

Result<std::string> resolve_path(const std::string& path) {
  const std::unique_ptr<char, decltype(&std::free)> resolved(::realpath(path.c_str(), nullptr), &std::free);
  if (resolved == nullptr) return open_error(path, errno);
  return std::string(resolved.get());
}

}  // namespace rorqual
