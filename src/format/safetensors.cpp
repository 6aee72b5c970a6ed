// SPDX-License-Identifier: Apache-2.0
// A single safetensors file as a tensor source.
#include "format/safetensors.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "format/byte_file.h"
#include "format/shard.h"

namespace rorqual::format {
namespace {

class SingleFile final : public SafetensorsFile {
 public:
  SingleFile(std::string path, std::unique_ptr<ByteFile> file, SafetensorsHeader header)
      : path_(std::move(path)), file_(std::move(file)), header_(std::move(header)) {
    for (TensorInfo& tensor : header_.tensors) tensor.file = path_;
  }

  const std::vector<TensorInfo>& tensors() const override { return header_.tensors; }

  Status read(const TensorInfo& tensor, int64_t offset, std::span<std::byte> dst) const override {
    RORQUAL_CHECK(is_inside(tensor, offset, dst.size()));
    return file_->read(tensor.file_offset + offset, dst);
  }

  Result<std::string> read_text(std::string_view file_name) const override {
    return Error(Code::not_found, fmt::format("'{}' has no file '{}' beside it", path_, file_name));
  }

  std::string name() const override { return path_; }

  std::string_view metadata(std::string_view key) const override {
    for (const auto& [name, value] : header_.metadata) {
      if (name == key) return value;
    }
    return {};
  }

 private:
  std::string path_;
  std::unique_ptr<ByteFile> file_;
  SafetensorsHeader header_;
};

}  // namespace

Result<SafetensorsHeader> read_safetensors_header(const ByteFile& file, EmptyTensors empty) {
  std::byte prefix[8];
  const auto available = static_cast<size_t>(std::min<int64_t>(file.size_bytes(), 8));
  RORQUAL_TRY(file.read(0, std::span(prefix, available)));
  RORQUAL_TRY_ASSIGN(const int64_t header_bytes,
                     safetensors_header_bytes(std::span(prefix, available), file.size_bytes()));
  std::string json(static_cast<size_t>(header_bytes), '\0');
  RORQUAL_TRY(file.read(8, std::as_writable_bytes(std::span(json))));
  return parse_safetensors_header(json, file.size_bytes(), empty);
}

bool is_inside(const TensorInfo& tensor, int64_t offset, size_t count_bytes) {
  return offset >= 0 && offset <= tensor.size_bytes &&
         count_bytes <= static_cast<uint64_t>(tensor.size_bytes - offset);
}

Result<std::unique_ptr<SafetensorsFile>> open_safetensors(const std::string& path, EmptyTensors empty) {
  RORQUAL_TRY_ASSIGN(auto file, open_disk_file(path));
  auto header = read_safetensors_header(*file, empty);
  if (!header.ok()) return std::move(header).error().at(fmt::format("'{}'", path));
  return std::unique_ptr<SafetensorsFile>(
      std::make_unique<SingleFile>(path, std::move(file), *std::move(header)));
}

Result<std::vector<std::byte>> read_tensor(const TensorSource& source, std::string_view name) {
  const TensorInfo* info = source.find(name);
  if (info == nullptr) {
    return Error(Code::not_found, fmt::format("there is no tensor '{}' in '{}'", name, source.name()));
  }
  std::vector<std::byte> bytes(static_cast<size_t>(info->size_bytes));
  RORQUAL_TRY(source.read(*info, 0, bytes));
  return bytes;
}

}  // namespace rorqual::format
