// SPDX-License-Identifier: Apache-2.0
// The JSON header of a safetensors file: parsing and every check that needs no data.
#include <fmt/format.h>
#include <simdjson.h>

#include <algorithm>
#include <cstring>
#include <optional>

#include "base/check.h"
#include "base/checked.h"
#include "format/byte_file.h"
#include "format/safetensors.h"

namespace rorqual::format {
namespace {

constexpr int64_t kPrefix_bytes = 8;

Error corrupt(std::string message) {
  return Error(Code::corrupt_data, std::move(message));
}

Error tensor_error(std::string_view name, std::string_view what) {
  return corrupt(fmt::format("tensor '{}': {}", name, what));
}

struct Entry {
  std::optional<std::string_view> dtype;
  std::optional<simdjson::dom::array> shape;
  std::optional<simdjson::dom::array> offsets;
};

/// Fields of one tensor's object. Unknown fields are ignored, double ones refused.
Result<Entry> entry_fields(std::string_view name, simdjson::dom::element value) {
  simdjson::dom::object object;
  if (value.get(object) != simdjson::SUCCESS) return tensor_error(name, "entry is not an object");
  Entry entry;
  for (const auto field : object) {
    const bool is_dtype = field.key == "dtype";
    const bool is_shape = field.key == "shape";
    if (!is_dtype && !is_shape && field.key != "data_offsets") continue;
    const bool is_double = is_dtype   ? entry.dtype.has_value()
                           : is_shape ? entry.shape.has_value()
                                      : entry.offsets.has_value();
    if (is_double) return tensor_error(name, fmt::format("field '{}' is given twice", field.key));
    std::string_view text;
    simdjson::dom::array array;
    if (is_dtype ? field.value.get(text) != simdjson::SUCCESS : field.value.get(array) != simdjson::SUCCESS) {
      return tensor_error(name,
                          fmt::format("field '{}' is not {}", field.key, is_dtype ? "a string" : "a list"));
    }
    if (is_dtype) {
      entry.dtype = text;
    } else {
      (is_shape ? entry.shape : entry.offsets) = array;
    }
  }
  if (!entry.dtype) return tensor_error(name, "field 'dtype' is missing");
  if (!entry.shape) return tensor_error(name, "field 'shape' is missing");
  if (!entry.offsets) return tensor_error(name, "field 'data_offsets' is missing");
  return entry;
}

/// Integers in [0, 2^63); at most max_count of them.
Result<std::vector<int64_t>> non_negative_list(std::string_view name, const char* field,
                                               simdjson::dom::array array, size_t max_count) {
  std::vector<int64_t> values;
  for (const auto element : array) {
    int64_t value = 0;
    if (element.get(value) != simdjson::SUCCESS || value < 0) {
      return tensor_error(name, fmt::format("{} has {}, expected an integer from 0 to 2^63 - 1", field,
                                            shown(simdjson::minify(element))));
    }
    if (values.size() == max_count) {
      return tensor_error(name, fmt::format("{} has more than {} values", field, max_count));
    }
    values.push_back(value);
  }
  return values;
}

Result<TensorInfo> parse_entry(std::string_view name, const Entry& entry, int64_t data_begin,
                               int64_t data_bytes, EmptyTensors empty) {
  TensorInfo info;
  info.name = name;
  // Offsets first: they are checked whatever the type is.
  RORQUAL_TRY_ASSIGN(const auto offsets, non_negative_list(name, "data_offsets", *entry.offsets, 2));
  if (offsets.size() != 2) {
    return tensor_error(name, fmt::format("data_offsets has {} values, expected 2", offsets.size()));
  }
  if (offsets[0] > offsets[1]) {
    return tensor_error(name, fmt::format("data_offsets run backwards: [{}, {}]", offsets[0], offsets[1]));
  }
  if (offsets[1] > data_bytes) {
    return tensor_error(name, fmt::format("data ends at byte {}, the file has {} bytes of data ({} missing)",
                                          offsets[1], data_bytes, offsets[1] - data_bytes));
  }
  RORQUAL_TRY_ASSIGN(info.shape, non_negative_list(name, "shape", *entry.shape, kMaxTensorRank));
  if (empty == EmptyTensors::refused &&
      std::find(info.shape.begin(), info.shape.end(), 0) != info.shape.end()) {
    return tensor_error(name, fmt::format("shape [{}] has a zero dimension", fmt::join(info.shape, ", ")));
  }
  const auto dtype = tensor::dtype_from_name(*entry.dtype);
  if (!dtype) return tensor_error(name, fmt::format("unknown dtype '{}'", shown(*entry.dtype)));
  info.dtype = *dtype;
  const auto elements = product_checked(info.shape);
  const auto bytes = elements ? mul_checked(*elements, tensor::dtype_bytes(*dtype)) : std::nullopt;
  const int64_t span_bytes = offsets[1] - offsets[0];
  if (!bytes || *bytes != span_bytes) {
    return tensor_error(name, fmt::format("{} [{}] needs {} bytes, data_offsets give {}", *entry.dtype,
                                          fmt::join(info.shape, ", "),
                                          bytes ? fmt::format("{}", *bytes) : "over 2^63", span_bytes));
  }
  info.size_bytes = span_bytes;
  info.file_offset = data_begin + offsets[0];
  return info;
}

Status parse_metadata(simdjson::dom::element value,
                      std::vector<std::pair<std::string, std::string>>& metadata) {
  simdjson::dom::object object;
  if (value.get(object) != simdjson::SUCCESS) return corrupt("'__metadata__' is not an object");
  for (const auto field : object) {
    std::string_view text;
    if (field.value.get(text) != simdjson::SUCCESS) {
      return corrupt(fmt::format("'__metadata__' value of '{}' is not a string", shown(field.key)));
    }
    metadata.emplace_back(field.key, text);
  }
  return Ok{};
}

/// Sorted by name on return. Ranges must follow each other without a gap from the first data byte to the
/// last.
Status check_layout(std::vector<TensorInfo>& tensors, int64_t data_begin, int64_t file_bytes) {
  std::sort(tensors.begin(), tensors.end(), [](const TensorInfo& a, const TensorInfo& b) {
    return a.file_offset != b.file_offset ? a.file_offset < b.file_offset : a.size_bytes < b.size_bytes;
  });
  int64_t position = data_begin;
  const TensorInfo* before = nullptr;
  for (const TensorInfo& tensor : tensors) {
    if (tensor.file_offset < position) {
      return tensor_error(tensor.name, fmt::format("data overlaps that of tensor '{}' by {} bytes",
                                                   before->name, position - tensor.file_offset));
    }
    if (tensor.file_offset > position) {
      return tensor_error(tensor.name, fmt::format("{} bytes before its data belong to no tensor",
                                                   tensor.file_offset - position));
    }
    position += tensor.size_bytes;
    before = &tensor;
  }
  if (position != file_bytes) {
    return corrupt(fmt::format("the last {} bytes of the file belong to no tensor", file_bytes - position));
  }
  std::sort(tensors.begin(), tensors.end(),
            [](const TensorInfo& a, const TensorInfo& b) { return a.name < b.name; });
  const auto twice =
      std::adjacent_find(tensors.begin(), tensors.end(),
                         [](const TensorInfo& a, const TensorInfo& b) { return a.name == b.name; });
  if (twice != tensors.end()) return tensor_error(twice->name, "the name is given twice");
  return Ok{};
}

}  // namespace

bool is_valid_tensor_name(std::string_view name) {
  if (name.empty() || name.size() > kMaxTensorName_bytes) return false;
  return std::none_of(name.begin(), name.end(),
                      [](char c) { return static_cast<unsigned char>(c) < 0x20 || c == 0x7f; });
}

Result<int64_t> safetensors_header_bytes(std::span<const std::byte> prefix, int64_t file_bytes) {
  constexpr std::string_view kLfsMagic =
      "version ";  // a Git LFS pointer starts with "version https://git-lfs..."
  if (file_bytes == 0) return corrupt("the file is empty");
  if (prefix.size() < kPrefix_bytes || file_bytes < kPrefix_bytes) {
    return corrupt(fmt::format("the file has {} bytes, too few for a safetensors header", file_bytes));
  }
  if (std::memcmp(prefix.data(), kLfsMagic.data(), kLfsMagic.size()) == 0) {
    return Error(Code::corrupt_data, "it is a Git LFS pointer, not the weights",
                 "fetch the files with `git lfs pull`");
  }
  uint64_t length = 0;
  std::memcpy(&length, prefix.data(), sizeof length);
  // "{}" is the shortest header that can be right; the comparison is unsigned, so no value wraps.
  if (length < 2 || length > static_cast<uint64_t>(kMaxHeader_bytes)) {
    return corrupt(fmt::format("header length is {}, expected 2 to {}", length, kMaxHeader_bytes));
  }
  const auto header_bytes = static_cast<int64_t>(length);
  if (header_bytes > file_bytes - kPrefix_bytes) {
    return corrupt(fmt::format("header length is {}, but only {} bytes follow ({} missing)", header_bytes,
                               file_bytes - kPrefix_bytes, header_bytes - (file_bytes - kPrefix_bytes)));
  }
  return header_bytes;
}

Result<SafetensorsHeader> parse_safetensors_header(std::string_view json, int64_t file_bytes,
                                                   EmptyTensors empty) {
  const int64_t data_begin = kPrefix_bytes + static_cast<int64_t>(json.size());
  RORQUAL_CHECK(data_begin <= file_bytes);
  if (json.empty() || json.front() != '{')
    return corrupt("the header is not JSON: it does not start with '{'");
  simdjson::dom::parser parser;
  simdjson::dom::object root;
  if (const auto error = parser.parse(json.data(), json.size()).get(root); error != simdjson::SUCCESS) {
    return corrupt(fmt::format("the header is not valid JSON: {}", simdjson::error_message(error)));
  }
  SafetensorsHeader header;
  bool has_metadata = false;
  for (const auto field : root) {
    if (field.key == "__metadata__") {
      if (has_metadata) return corrupt("'__metadata__' is given twice");
      has_metadata = true;
      RORQUAL_TRY(parse_metadata(field.value, header.metadata));
      continue;
    }
    if (!is_valid_tensor_name(field.key)) {
      return corrupt(fmt::format("tensor name '{}' is empty, longer than {} bytes or has control characters",
                                 shown(field.key), kMaxTensorName_bytes));
    }
    if (static_cast<int64_t>(header.tensors.size()) == kMaxTensors) {
      return corrupt(fmt::format("more than {} tensors", kMaxTensors));
    }
    RORQUAL_TRY_ASSIGN(const Entry entry, entry_fields(field.key, field.value));
    RORQUAL_TRY_ASSIGN(TensorInfo info,
                       parse_entry(field.key, entry, data_begin, file_bytes - data_begin, empty));
    header.tensors.push_back(std::move(info));
  }
  RORQUAL_TRY(check_layout(header.tensors, data_begin, file_bytes));
  return header;
}

}  // namespace rorqual::format
