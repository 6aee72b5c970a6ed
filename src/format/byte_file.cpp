// SPDX-License-Identifier: Apache-2.0
#include "format/byte_file.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <system_error>
#include <utility>

#include "base/check.h"
#include "base/file.h"

namespace rorqual::format {
namespace {

class DiskFile final : public ByteFile {
 public:
  explicit DiskFile(File file) : file_(std::move(file)) {}

  int64_t size_bytes() const override { return file_.size_bytes(); }

  Status read(int64_t offset, std::span<std::byte> dst) const override { return file_.read(offset, dst); }

 private:
  File file_;
};

class MemoryBytes final : public ByteFile {
 public:
  explicit MemoryBytes(std::span<const std::byte> bytes) : bytes_(bytes) {}

  int64_t size_bytes() const override { return static_cast<int64_t>(bytes_.size()); }

  Status read(int64_t offset, std::span<std::byte> dst) const override {
    RORQUAL_CHECK(offset >= 0 && static_cast<size_t>(offset) <= bytes_.size());
    RORQUAL_CHECK(dst.size() <= bytes_.size() - static_cast<size_t>(offset));
    if (!dst.empty()) std::memcpy(dst.data(), bytes_.data() + offset, dst.size());
    return Ok{};
  }

 private:
  std::span<const std::byte> bytes_;
};

bool lies_in(std::string_view path, std::string_view folder) {
  return path.size() > folder.size() + 1 && path.substr(0, folder.size()) == folder &&
         path[folder.size()] == '/';
}

class DiskFolder final : public Folder {
 public:
  DiskFolder(std::string path, std::string real_path)
      : path_(std::move(path)), real_path_(std::move(real_path)) {
    // The download cache of the Hugging Face tools: <repository>/snapshots/<revision>/x links to
    // <repository>/blobs/y.
    const std::filesystem::path real = real_path_;
    if (real.parent_path().filename() == "snapshots") {
      blobs_path_ = (real.parent_path().parent_path() / "blobs").string();
    }
  }

  std::string name() const override { return path_; }

  bool contains(std::string_view file_name) const override {
    std::error_code error;
    return is_plain_file_name(file_name) &&
           std::filesystem::symlink_status(path_of(file_name), error).type() !=
               std::filesystem::file_type::not_found;
  }

  Result<std::unique_ptr<ByteFile>> open(std::string_view file_name) const override {
    if (!is_plain_file_name(file_name)) {
      return Error(Code::corrupt_data, "it is not a plain file name of this folder");
    }
    RORQUAL_TRY_ASSIGN(File file, File::open(path_of(file_name)));
    RORQUAL_TRY_ASSIGN(const std::string real, file.real_path());
    if (!lies_in(real, real_path_) && (blobs_path_.empty() || !lies_in(real, blobs_path_))) {
      return Error(Code::corrupt_data,
                   fmt::format("it is a link that leads out of the folder, to '{}'", real),
                   "replace the link by the file");
    }
    return std::unique_ptr<ByteFile>(std::make_unique<DiskFile>(std::move(file)));
  }

  std::vector<std::string> list() const override {
    constexpr size_t kMaxListed = 10'000;
    std::vector<std::string> names;
    std::error_code error;
    std::filesystem::directory_iterator it(path_, error);
    for (const std::filesystem::directory_iterator end; !error && it != end && names.size() < kMaxListed;
         it.increment(error)) {
      names.push_back(it->path().filename().string());
    }
    std::sort(names.begin(), names.end());
    return names;
  }

 private:
  std::string path_of(std::string_view file_name) const { return fmt::format("{}/{}", path_, file_name); }

  std::string path_, real_path_, blobs_path_;
};

class MemoryFolder final : public Folder {
 public:
  MemoryFolder(std::string name, std::vector<MemoryFile> files)
      : name_(std::move(name)), files_(std::move(files)) {}

  std::string name() const override { return name_; }

  bool contains(std::string_view file_name) const override { return find(file_name) != nullptr; }

  Result<std::unique_ptr<ByteFile>> open(std::string_view file_name) const override {
    const MemoryFile* file = find(file_name);
    if (file == nullptr) return Error(Code::not_found, "no such file");
    return std::unique_ptr<ByteFile>(std::make_unique<MemoryBytes>(file->bytes));
  }

  std::vector<std::string> list() const override {
    std::vector<std::string> names;
    for (const MemoryFile& file : files_) names.push_back(file.name);
    std::sort(names.begin(), names.end());
    return names;
  }

 private:
  const MemoryFile* find(std::string_view file_name) const {
    const auto it = std::find_if(files_.begin(), files_.end(),
                                 [&](const MemoryFile& file) { return file.name == file_name; });
    return it == files_.end() ? nullptr : &*it;
  }

  std::string name_;
  std::vector<MemoryFile> files_;
};

}  // namespace

bool is_plain_file_name(std::string_view name) {
  constexpr size_t kMaxFileName_bytes = 255;
  if (name.empty() || name.size() > kMaxFileName_bytes || name == "." || name == "..") return false;
  return std::none_of(name.begin(), name.end(), [](char c) {
    return static_cast<unsigned char>(c) < 0x20 || c == 0x7f || c == '/' || c == '\\';
  });
}

Result<std::unique_ptr<Folder>> open_disk_folder(const std::string& path) {
  auto real = resolve_path(path);
  if (!real.ok()) {
    return Error(real.error().code(), fmt::format("cannot open model '{}': no such folder", path),
                 "give the folder that holds config.json, the *.safetensors files and tokenizer.json");
  }
  if (!is_directory(*real)) {
    return Error(Code::invalid_argument,
                 fmt::format("cannot open model '{}': it is a file, expected a folder", path),
                 "give the folder that holds config.json, the *.safetensors files and tokenizer.json");
  }
  return std::unique_ptr<Folder>(std::make_unique<DiskFolder>(path, *std::move(real)));
}

std::unique_ptr<Folder> memory_folder(std::string name, std::vector<MemoryFile> files) {
  return std::make_unique<MemoryFolder>(std::move(name), std::move(files));
}

Result<std::unique_ptr<ByteFile>> open_disk_file(const std::string& path) {
  RORQUAL_TRY_ASSIGN(File file, File::open(path));
  return std::unique_ptr<ByteFile>(std::make_unique<DiskFile>(std::move(file)));
}

std::string shown(std::string_view text) {
  constexpr size_t kShown_bytes = 100;
  std::string out;
  for (const char c : text.substr(0, kShown_bytes))
    out += static_cast<unsigned char>(c) < 0x20 || c == 0x7f ? '?' : c;
  if (text.size() > kShown_bytes) out += fmt::format("... ({} bytes)", text.size());
  return out;
}

Result<std::string> read_all_text(const ByteFile& file, int64_t max_bytes) {
  if (file.size_bytes() > max_bytes) {
    return Error(Code::corrupt_data,
                 fmt::format("it has {} bytes, expected at most {}", file.size_bytes(), max_bytes));
  }
  std::string text(static_cast<size_t>(file.size_bytes()), '\0');
  RORQUAL_TRY(file.read(0, std::as_writable_bytes(std::span(text))));
  return text;
}

}  // namespace rorqual::format
