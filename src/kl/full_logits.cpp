// SPDX-License-Identifier: Apache-2.0
// A .safetensors file whose first tensor is the logits. They arrive before anything else is known, so the
// writer leaves room for the header and fills it in at the end; the format allows spaces after the JSON.
#include "kl/full_logits.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <bit>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "base/check.h"
#include "base/checked.h"
#include "format/safetensors.h"
#include "kl/dump_rows.h"

namespace rorqual::kl {
namespace {

constexpr int64_t kHeader_bytes = 1 << 14;  // length field and JSON; names and hashes need about 1.5 KB
constexpr int64_t kDumpReserve_bytes = 1 << 20;

Error io_error(const std::string& path, const char* what) {
  return Error(Code::io, fmt::format("{}: cannot {}: {}", path, what, std::strerror(errno)));
}

/// Free bytes where `path` will be; -1 = unknown.
int64_t free_bytes(const std::string& path) {
  const auto parent = std::filesystem::path(path).parent_path();

  struct statvfs info {};

  if (::statvfs(parent.empty() ? "." : parent.c_str(), &info) != 0) return -1;
  return static_cast<int64_t>(info.f_bavail) * static_cast<int64_t>(info.f_frsize);
}

std::string header_json(const Dump& dump) {
  nlohmann::ordered_json header;
  for (const auto& [key, value] : dump_metadata(dump)) header["__metadata__"][key] = value;
  int64_t offset = 0;
  for (const auto& tensor : dump_tensors(dump, true)) {
    const auto items = product_checked(tensor.shape);
    RORQUAL_CHECK(items.has_value());
    const int64_t end = offset + *items * tensor::dtype_bytes(tensor.dtype);
    header[tensor.name] = {{"dtype", tensor::dtype_name(tensor.dtype)},
                           {"shape", tensor.shape},
                           {"data_offsets", {offset, end}}};
    offset = end;
  }
  return header.dump();
}

class Writer final : public LogitsWriter {
 public:
  Writer(int fd, std::string path, std::string temporary, std::pair<int64_t, int64_t> shape)
      : fd_(fd),
        path_(std::move(path)),
        temporary_(std::move(temporary)),
        rows_(shape.first),
        vocab_(shape.second) {}

  Writer(const Writer&) = delete;
  Writer& operator=(const Writer&) = delete;

  ~Writer() override {
    if (fd_ < 0) return;
    ::close(fd_);
    ::unlink(temporary_.c_str());
  }

  Status append(std::span<const float> row) override {
    RORQUAL_CHECK(static_cast<int64_t>(row.size()) == vocab_ && written_rows_ < rows_);
    RORQUAL_TRY(put(std::as_bytes(row)));
    ++written_rows_;
    return Ok();
  }

  Status finish(const Dump& dump) override {
    RORQUAL_TRY(check_dump_shapes(dump));
    if (written_rows_ != rows_ || dump.num_rows() != rows_ || dump.info.vocab_size != vocab_) {
      return Error(Code::internal,
                   fmt::format("{}: {} of {} logit rows of {} written, the dump has {} of {}", path_,
                               written_rows_, rows_, vocab_, dump.num_rows(), dump.info.vocab_size));
    }
    RORQUAL_TRY(for_each_dump_array(
        dump, [&](std::string_view, std::span<const std::byte> bytes) { return put(bytes); }));
    std::string json = header_json(dump);
    if (static_cast<int64_t>(json.size()) > kHeader_bytes - 8)
      return Error(Code::internal, fmt::format("{}: the header needs {} bytes", path_, json.size()));
    json.resize(static_cast<size_t>(kHeader_bytes - 8), ' ');
    position_ = 0;
    const uint64_t length = json.size();
    static_assert(std::endian::native == std::endian::little);
    RORQUAL_TRY(put(std::as_bytes(std::span(&length, 1))));
    RORQUAL_TRY(put(std::as_bytes(std::span(json))));
    return commit();
  }

 private:
  Status put(std::span<const std::byte> bytes) {
    while (!bytes.empty()) {
      const ssize_t done = ::pwrite(fd_, bytes.data(), bytes.size(), position_);
      if (done < 0 && errno == EINTR) continue;
      if (done <= 0) return io_error(path_, fmt::format("write at byte {}", position_).c_str());
      position_ += done;
      bytes = bytes.subspan(static_cast<size_t>(done));
    }
    return Ok();
  }

  Status commit() {
    if (::fsync(fd_) != 0) return io_error(path_, "sync");
    ::close(fd_);
    fd_ = -1;
    if (::rename(temporary_.c_str(), path_.c_str()) != 0) {
      const Error error = io_error(path_, "rename to its final name");
      ::unlink(temporary_.c_str());
      return error;
    }
    return Ok();
  }

  int fd_;
  std::string path_, temporary_;
  int64_t rows_, vocab_;
  int64_t written_rows_ = 0;
  int64_t position_ = kHeader_bytes;
};

class TensorRows final : public LogitRows {
 public:
  TensorRows(std::unique_ptr<format::SafetensorsFile> file, const format::TensorInfo& tensor)
      : file_(std::move(file)), tensor_(tensor) {}

  int64_t num_rows() const override { return tensor_.shape[0]; }

  int64_t vocab_size() const override { return tensor_.shape[1]; }

  Status read(int64_t row, std::span<float> out) const override {
    RORQUAL_CHECK(row >= 0 && row < num_rows() && static_cast<int64_t>(out.size()) == vocab_size());
    return file_->read(tensor_, row * vocab_size() * 4, std::as_writable_bytes(out));
  }

 private:
  std::unique_ptr<format::SafetensorsFile> file_;
  const format::TensorInfo tensor_;
};

}  // namespace

Result<std::unique_ptr<LogitsWriter>> LogitsWriter::create(const std::string& path, int64_t num_rows,
                                                           int64_t vocab_size) {
  if (std::filesystem::path(path).extension() != ".safetensors") {
    return Error(Code::invalid_argument, fmt::format("'{}': full logits need a .safetensors file", path),
                 "numpy archives hold the top K only");
  }
  const auto items = mul_checked(num_rows, vocab_size);
  const auto bytes = items ? mul_checked(*items, 4) : std::nullopt;
  if (num_rows < 1 || vocab_size < 1 || !bytes) {
    return Error(Code::invalid_argument,
                 fmt::format("'{}': {} rows of {} logits", path, num_rows, vocab_size));
  }
  const int64_t available = free_bytes(path);
  if (available >= 0 && available < *bytes + kDumpReserve_bytes) {
    return Error(Code::io,
                 fmt::format("{}: {} rows of {} logits are {} bytes, the disk has {} free", path, num_rows,
                             vocab_size, *bytes, available),
                 "capture the top K only, or fewer windows");
  }
  std::string temporary = fmt::format("{}.tmp-{}", path, ::getpid());
  const int fd = ::open(temporary.c_str(), O_CREAT | O_TRUNC | O_WRONLY | O_CLOEXEC, 0644);
  if (fd < 0) return io_error(path, "create");
  return std::unique_ptr<LogitsWriter>(
      std::make_unique<Writer>(fd, path, std::move(temporary), std::pair(num_rows, vocab_size)));
}

Result<std::unique_ptr<LogitRows>> open_logits(const Dump& dump) {
  if (dump.logits_path.empty()) {
    return Error(Code::unsupported, fmt::format("the capture of '{}' has no full logits", dump.info.corpus),
                 "rorqual kl capture --logits writes them");
  }
  RORQUAL_TRY_ASSIGN(auto file, format::open_safetensors(dump.logits_path));
  const auto* tensor = file->find("logits");
  if (tensor == nullptr || tensor->dtype != tensor::DType::f32 || tensor->shape.size() != 2 ||
      tensor->shape[0] != dump.num_rows() || tensor->shape[1] != dump.info.vocab_size) {
    return Error(Code::corrupt_data, fmt::format("{}: tensor 'logits' is not F32 [{}, {}]", dump.logits_path,
                                                 dump.num_rows(), dump.info.vocab_size));
  }
  const format::TensorInfo info = *tensor;
  return std::unique_ptr<LogitRows>(std::make_unique<TensorRows>(std::move(file), info));
}

}  // namespace rorqual::kl
