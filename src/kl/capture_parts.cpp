// SPDX-License-Identifier: Apache-2.0
#include "kl/capture_parts.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "base/file.h"
#include "format/safetensors.h"
#include "format/safetensors_writer.h"

namespace rorqual::kl {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kIdentityFile = "identity.txt";
constexpr std::string_view kWindowPrefix = "window-";
constexpr int64_t kMaxIdentity_bytes = int64_t{1} << 20;

/// The rows of one window within the arrays of a dump.
struct Rows {
  size_t begin, count, width;

  Rows(const Dump& dump, int64_t window)
      : begin(static_cast<size_t>(dump.window_rows[static_cast<size_t>(window)])),
        count(static_cast<size_t>(dump.window_rows[static_cast<size_t>(window) + 1]) - begin),
        width(static_cast<size_t>(dump.info.top_k)) {}

  template <class Values>
  auto top(Values& values) const {
    return std::span(values).subspan(begin * width, count * width);
  }

  template <class Values>
  auto single(Values& values) const {
    return std::span(values).subspan(begin, count);
  }
};

template <class T>
bool read_rows(const format::TensorSource& source, std::string_view name, std::span<T> values) {
  auto bytes = format::read_tensor(source, name);
  if (!bytes.ok() || bytes->size() != values.size_bytes()) return false;
  std::copy(bytes->begin(), bytes->end(), std::as_writable_bytes(values).begin());
  return true;
}

bool is_window(const fs::path& file) {
  return file.filename().string().starts_with(kWindowPrefix);
}

/// Files that captures make, half-written ones among them.
std::vector<fs::path> files_of(const std::string& folder) {
  std::error_code ignored;
  std::vector<fs::path> ours;
  for (const auto& entry : fs::directory_iterator(folder, ignored)) {
    const fs::path& file = entry.path();
    if (is_window(file) || file.filename().string().starts_with(kIdentityFile)) ours.push_back(file);
  }
  return ours;
}

/// Held until the last copy is gone. File systems without locks are used without one.
Result<std::shared_ptr<const int>> lock_folder(const std::string& path) {
  const int fd = ::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (fd < 0)
    return Error(Code::io, fmt::format("cannot open the folder '{}': {}", path, std::strerror(errno)));
  const std::shared_ptr<const int> held(new int(fd), [](const int* value) {
    ::close(*value);
    delete value;
  });
  if (::flock(fd, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK) {
    return Error(Code::io, fmt::format("'{}': another capture writes this dump now", path),
                 "wait for it, or choose another --out");
  }
  return held;
}

}  // namespace

Result<CaptureParts> CaptureParts::open(std::string path, const std::string& identity, bool discards) {
  const std::string identity_path = fmt::format("{}/{}", path, kIdentityFile);
  std::error_code error;
  fs::create_directories(path, error);
  if (error) return Error(Code::io, fmt::format("cannot make the folder '{}': {}", path, error.message()));
  RORQUAL_TRY_ASSIGN(auto lock, lock_folder(path));
  if (const auto ours = files_of(path); !ours.empty()) {
    auto found = read_text_file(identity_path, kMaxIdentity_bytes);
    if (found.ok() && *found == identity) return CaptureParts(std::move(path), std::move(lock));
    if (!discards && found.ok() && std::any_of(ours.begin(), ours.end(), is_window)) {
      return Error(
          Code::invalid_argument,
          fmt::format("'{}' holds windows of a capture with another model, corpus, program or options", path),
          "--force discards them; or choose another --out");
    }
    for (const auto& file : ours) fs::remove(file, error);
  }
  RORQUAL_TRY(write_text_file(identity_path, identity));
  return CaptureParts(std::move(path), std::move(lock));
}

std::string CaptureParts::file(int64_t window) const {
  return fmt::format("{}/{}{:05}.safetensors", path_, kWindowPrefix, window);
}

bool CaptureParts::load(int64_t window, Dump& dump) const {
  auto source = format::open_safetensors(file(window));
  if (!source.ok()) return false;
  const Rows rows(dump, window);
  return read_rows(**source, "top_ids", rows.top(dump.top_ids)) &&
         read_rows(**source, "top_logprobs", rows.top(dump.top_logprobs)) &&
         read_rows(**source, "token_logprob", rows.single(dump.token_logprob));
}

Status CaptureParts::store(int64_t window, const Dump& dump) const {
  using tensor::DType;
  const Rows rows(dump, window);
  const auto count = static_cast<int64_t>(rows.count);
  RORQUAL_TRY_ASSIGN(auto writer, format::SafetensorsWriter::create(
                                      file(window), {{"top_ids", DType::i32, {count, dump.info.top_k}},
                                                     {"top_logprobs", DType::f32, {count, dump.info.top_k}},
                                                     {"token_logprob", DType::f32, {count}}}));
  RORQUAL_TRY(writer.append_tensor("top_ids", std::as_bytes(rows.top(dump.top_ids))));
  RORQUAL_TRY(writer.append_tensor("top_logprobs", std::as_bytes(rows.top(dump.top_logprobs))));
  RORQUAL_TRY(writer.append_tensor("token_logprob", std::as_bytes(rows.single(dump.token_logprob))));
  return writer.finish();
}

void remove_parts(const std::string& path) {
  std::error_code ignored;
  for (const auto& file : files_of(path)) fs::remove(file, ignored);
  fs::remove(path, ignored);  // stays if it holds anything else
}

}  // namespace rorqual::kl
