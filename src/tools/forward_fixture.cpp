// SPDX-License-Identifier: Apache-2.0
#include "tools/forward_fixture.h"

#include <fmt/format.h>

#include <cstring>

#include "format/safetensors.h"

namespace rorqual::tools {
namespace {

using tensor::DType;

float read_float(DType dtype, const std::byte* at) {
  uint32_t bits = 0;
  if (dtype == DType::bf16) {
    uint16_t half = 0;
    std::memcpy(&half, at, 2);
    bits = static_cast<uint32_t>(half) << 16;
  } else {
    std::memcpy(&bits, at, 4);
  }
  float value = 0;
  std::memcpy(&value, &bits, 4);
  return value;
}

template <class T>
int64_t read_as(const std::byte* at) {
  T value{};
  std::memcpy(&value, at, sizeof(T));
  return static_cast<int64_t>(value);
}

int64_t read_int(DType dtype, const std::byte* at) {
  switch (dtype) {
    case DType::u8:
      return read_as<uint8_t>(at);
    case DType::i8:
      return read_as<int8_t>(at);
    case DType::i16:
      return read_as<int16_t>(at);
    case DType::i32:
      return read_as<int32_t>(at);
    default:
      return read_as<int64_t>(at);
  }
}

bool is_float(DType dtype) {
  return dtype == DType::f32 || dtype == DType::bf16;
}

void add_tensor(ForwardFixture& fixture, const format::TensorInfo& info,
                const std::vector<std::byte>& bytes) {
  const int64_t element = tensor::dtype_bytes(info.dtype);
  const auto count = static_cast<size_t>(info.size_bytes / element);
  if (is_float(info.dtype)) {
    FloatTensor& out = fixture.floats[info.name];
    out.shape = info.shape;
    out.values.resize(count);
    for (size_t i = 0; i < count; ++i) {
      out.values[i] = read_float(info.dtype, bytes.data() + i * static_cast<size_t>(element));
    }
    return;
  }
  IntTensor& out = fixture.ints[info.name];
  out.shape = info.shape;
  out.values.resize(count);
  for (size_t i = 0; i < count; ++i) {
    out.values[i] = read_int(info.dtype, bytes.data() + i * static_cast<size_t>(element));
  }
}

}  // namespace

const FloatTensor* ForwardFixture::find_float(const std::string& name) const {
  const auto it = floats.find(name);
  return it == floats.end() ? nullptr : &it->second;
}

const IntTensor* ForwardFixture::find_int(const std::string& name) const {
  const auto it = ints.find(name);
  return it == ints.end() ? nullptr : &it->second;
}

Result<ForwardFixture> load_forward_fixture(const std::string& path) {
  RORQUAL_TRY_ASSIGN(auto file, format::open_safetensors(path));
  ForwardFixture fixture;
  fixture.path = path;
  fixture.mode = std::string(file->metadata("mode"));
  fixture.model = std::string(file->metadata("model"));
  fixture.is_text = !file->metadata("text").empty();
  if (fixture.mode.empty()) {  // files of the official code carry no mode: they have one numerics only
    fixture.mode = "official";
    fixture.is_official_code = true;
  }
  for (const format::TensorInfo& info : file->tensors()) {
    RORQUAL_TRY_ASSIGN(const auto bytes, format::read_tensor(*file, info.name));
    add_tensor(fixture, info, bytes);
  }
  const IntTensor* ids = fixture.find_int("ids");
  const IntTensor* rows = fixture.find_int("logit_rows");
  const FloatTensor* logits = fixture.find_float("logits");
  if (ids == nullptr || rows == nullptr || logits == nullptr || logits->rows() != rows->rows()) {
    return Error(
        Code::corrupt_data,
        fmt::format("'{}' is not a golden forward run: ids, logit_rows and logits are needed", path));
  }
  return fixture;
}

}  // namespace rorqual::tools
