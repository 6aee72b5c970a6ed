// SPDX-License-Identifier: Apache-2.0
#include "format/safetensors_writer.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <map>

#include "base/check.h"
#include "base/checked.h"
#include "format/safetensors.h"

namespace rorqual::format {
namespace {

/// JSON string literal of UTF-8 text.
std::string quoted(std::string_view text) {
  std::string out = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') {
      out += '\\';
      out += c;
    } else if (static_cast<unsigned char>(c) < 0x20) {
      out += fmt::format("\\u{:04x}", static_cast<unsigned>(c));
    } else {
      out += c;
    }
  }
  out += '"';
  return out;
}

Result<int64_t> declared_bytes(const TensorDeclaration& tensor) {
  const auto elements = product_checked(tensor.shape);
  const auto bytes = elements ? mul_checked(*elements, tensor::dtype_bytes(tensor.dtype)) : std::nullopt;
  if (!bytes || tensor.shape.size() > kMaxTensorRank) {
    return Error(Code::invalid_argument, fmt::format("tensor '{}' has the impossible shape [{}]", tensor.name,
                                                     fmt::join(tensor.shape, ", ")));
  }
  return *bytes;
}

Status check_names(const std::vector<TensorDeclaration>& tensors) {
  std::vector<std::string_view> names;
  for (const TensorDeclaration& tensor : tensors) {
    if (!is_valid_tensor_name(tensor.name)) {
      return Error(Code::invalid_argument, "tensor name is empty, too long or has control characters");
    }
    names.push_back(tensor.name);
  }
  std::sort(names.begin(), names.end());
  const auto twice = std::adjacent_find(names.begin(), names.end());
  if (twice == names.end()) return Ok{};
  return Error(Code::invalid_argument, fmt::format("tensor '{}' is declared twice", *twice));
}

}  // namespace

SafetensorsWriter::SafetensorsWriter(AtomicFile file, std::vector<TensorDeclaration> tensors)
    : file_(std::move(file)), tensors_(std::move(tensors)) {}

Result<SafetensorsWriter> SafetensorsWriter::create(const std::string& path,
                                                    std::vector<TensorDeclaration> tensors,
                                                    const Metadata& metadata) {
  RORQUAL_TRY(check_names(tensors));
  std::string header = "{";
  const auto add = [&header](std::string_view key, std::string_view value) {
    if (header.size() > 1) header += ',';
    header += quoted(key);
    header += ':';
    header += value;
  };
  if (!metadata.empty()) {
    std::string pairs;
    for (const auto& [key, value] : metadata) {
      pairs += fmt::format("{}{}:{}", pairs.empty() ? "" : ",", quoted(key), quoted(value));
    }
    add("__metadata__", "{" + pairs + "}");
  }
  std::vector<int64_t> ends;
  int64_t end = 0;
  for (const TensorDeclaration& tensor : tensors) {
    RORQUAL_TRY_ASSIGN(const int64_t bytes, declared_bytes(tensor));
    const auto next = add_checked(end, bytes);
    if (!next) return Error(Code::invalid_argument, fmt::format("'{}' would be too large", path));
    add(tensor.name, fmt::format(R"({{"dtype":"{}","shape":[{}],"data_offsets":[{},{}]}})",
                                 tensor::dtype_name(tensor.dtype), fmt::join(tensor.shape, ","), end, *next));
    end = *next;
    ends.push_back(end);
  }
  header += '}';
  header.resize((header.size() + 7) / 8 * 8, ' ');  // the data section starts aligned for every element type

  RORQUAL_TRY_ASSIGN(AtomicFile file, AtomicFile::create(path));
  const uint64_t header_bytes = header.size();
  std::array<std::byte, 8> length{};
  std::memcpy(length.data(), &header_bytes, length.size());
  RORQUAL_TRY(file.append(length));
  RORQUAL_TRY(file.append(std::as_bytes(std::span(header))));
  SafetensorsWriter writer(std::move(file), std::move(tensors));
  writer.data_ends_ = std::move(ends);
  writer.data_bytes_ = end;
  writer.file_bytes_ = writer.file_.size_bytes() + end;
  return writer;
}

Status SafetensorsWriter::append(std::span<const std::byte> bytes) {
  RORQUAL_CHECK(static_cast<int64_t>(bytes.size()) <= data_bytes_ - written_bytes_);
  RORQUAL_TRY(file_.append(bytes));
  written_bytes_ += static_cast<int64_t>(bytes.size());
  return Ok{};
}

Status SafetensorsWriter::append_tensor(std::string_view name, std::span<const std::byte> bytes) {
  // Tensors written in parts by append() are passed over here; the next whole one must start where they end.
  while (current_ < data_ends_.size() && data_ends_[current_] <= written_bytes_ &&
         tensors_[current_].name != name) {
    ++current_;
  }
  RORQUAL_CHECK(current_ < tensors_.size() && tensors_[current_].name == name);
  RORQUAL_CHECK(data_ends_[current_] - written_bytes_ == static_cast<int64_t>(bytes.size()));
  ++current_;
  return append(bytes);
}

Status SafetensorsWriter::finish() {
  RORQUAL_CHECK(written_bytes_ == data_bytes_);
  return file_.commit();
}

Status write_shard_index(const std::string& directory, std::span<const ShardContents> shards) {
  std::map<std::string_view, std::string_view> weight_map;
  int64_t total_bytes = 0;
  for (const ShardContents& shard : shards) {
    for (const TensorDeclaration& tensor : shard.tensors) {
      RORQUAL_TRY_ASSIGN(const int64_t bytes, declared_bytes(tensor));
      const auto sum = add_checked(total_bytes, bytes);
      if (!sum) return Error(Code::invalid_argument, "the checkpoint would be too large");
      total_bytes = *sum;
      if (!weight_map.emplace(tensor.name, shard.file_name).second) {
        return Error(Code::invalid_argument, fmt::format("tensor '{}' is in two shards", tensor.name));
      }
    }
  }
  std::string text =
      fmt::format("{{\n  \"metadata\": {{\"total_size\": {}}},\n  \"weight_map\": {{", total_bytes);
  const char* separator = "\n";
  for (const auto& [name, file] : weight_map) {
    text += fmt::format("{}    {}: {}", separator, quoted(name), quoted(file));
    separator = ",\n";
  }
  text += "\n  }\n}\n";
  return write_text_file(directory + "/" + std::string(kIndexFileName), text);
}

std::string shard_file_name(int64_t shard, int64_t num_shards) {
  return fmt::format("model-{:05}-of-{:05}.safetensors", shard, num_shards);
}

}  // namespace rorqual::format
