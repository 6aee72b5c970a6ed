// SPDX-License-Identifier: Apache-2.0
#include "tools/check_ops_vectors.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include "base/check.h"
#include "format/safetensors.h"
#include "num/formats.h"

namespace rorqual::tools {
namespace {

template <class T>
std::vector<T> elements(const std::vector<std::byte>& bytes) {
  std::vector<T> values(bytes.size() / sizeof(T));
  if (!values.empty()) std::memcpy(values.data(), bytes.data(), values.size() * sizeof(T));
  return values;
}

template <class T>
void fill_integers(OpsTensor& tensor, const std::vector<std::byte>& bytes) {
  for (const T value : elements<T>(bytes)) tensor.integers.push_back(static_cast<int64_t>(value));
}

Status fill_tensor(OpsTensor& tensor, tensor::DType dtype, const std::vector<std::byte>& bytes) {
  switch (dtype) {
    case tensor::DType::f32:
      tensor.floats = elements<float>(bytes);
      return Ok{};
    case tensor::DType::bf16:
      for (const uint16_t code : elements<uint16_t>(bytes)) tensor.floats.push_back(num::bf16_decode(code));
      return Ok{};
    case tensor::DType::u8:
      fill_integers<uint8_t>(tensor, bytes);
      return Ok{};
    case tensor::DType::i32:
      fill_integers<int32_t>(tensor, bytes);
      return Ok{};
    case tensor::DType::i64:
      fill_integers<int64_t>(tensor, bytes);
      return Ok{};
    default:
      return Error(Code::unsupported,
                   fmt::format("dtype {} does not occur in operator vectors", tensor::dtype_name(dtype)));
  }
}

std::string shape_text(const std::vector<int64_t>& shape) {
  return fmt::format("[{}]", fmt::join(shape, ", "));
}

std::string value_text(float value) {
  return fmt::format("{:.9g} (0x{:08x})", value, num::bits_of(value));
}

}  // namespace

int64_t OpsTensor::count() const {
  int64_t product = 1;
  for (const int64_t size : shape) product *= size;
  return product;
}

std::vector<uint8_t> OpsTensor::bytes() const {
  std::vector<uint8_t> result;
  result.reserve(integers.size());
  for (const int64_t value : integers) result.push_back(static_cast<uint8_t>(value));
  return result;
}

Result<OpsVectors> OpsVectors::open(const std::string& path) {
  RORQUAL_TRY_ASSIGN(auto file, format::open_safetensors(path));
  OpsVectors result;
  result.path_ = path;
  for (const format::TensorInfo& info : file->tensors()) {
    RORQUAL_TRY_ASSIGN(const auto bytes, format::read_tensor(*file, info.name));
    OpsTensor tensor;
    tensor.shape = info.shape;
    if (Status status = fill_tensor(tensor, info.dtype, bytes); !status.ok()) {
      return std::move(status).error().at(path + ", tensor '" + info.name + "'");
    }
    result.tensors_.emplace(info.name, std::move(tensor));
  }
  return result;
}

Result<const OpsTensor*> OpsVectors::need(const std::string& name, int rank) const {
  const auto found = tensors_.find(name);
  if (found == tensors_.end()) {
    return Error(Code::corrupt_data, fmt::format("{}: no tensor '{}'", path_, name),
                 "the files of operator vectors have the tensors that tests/golden/ops has");
  }
  const std::vector<int64_t>& shape = found->second.shape;
  if (rank >= 0 && shape.size() != static_cast<size_t>(rank)) {
    return Error(Code::corrupt_data, fmt::format("{}: tensor '{}' has shape {}, expected {} dimensions",
                                                 path_, name, shape_text(shape), rank));
  }
  return &found->second;
}

Result<const OpsTensor*> OpsVectors::need_shape(const std::string& name,
                                                const std::vector<int64_t>& shape) const {
  RORQUAL_TRY_ASSIGN(const OpsTensor* tensor, need(name));
  if (tensor->shape != shape) {
    return Error(Code::corrupt_data, fmt::format("{}: tensor '{}' has shape {}, expected {}", path_, name,
                                                 shape_text(tensor->shape), shape_text(shape)));
  }
  return tensor;
}

std::string OpsCheck::place(const std::string& label) const {
  return fmt::format("{} [{}] {}", vectors.path(), ops.name, label);
}

bool OpsCheck::expect_bits(const std::string& label, const std::vector<float>& want,
                           const std::vector<float>& got) {
  const auto differs = [&](size_t i) {
    return num::bits_of(want[i]) != num::bits_of(got[i]) && !(num::is_nan(want[i]) && num::is_nan(got[i]));
  };
  if (want.size() != got.size()) {
    report_.add_failure(fmt::format("{}: expected {} values, got {}", place(label), want.size(), got.size()));
    return false;
  }
  size_t wrong = 0;
  size_t first = 0;
  for (size_t i = want.size(); i-- > 0;) {
    if (!differs(i)) continue;
    ++wrong;
    first = i;
  }
  return report_.expect(wrong == 0, [&] {
    return fmt::format("{}: {} of {} values differ; index {}: expected {}, got {}", place(label), wrong,
                       want.size(), first, value_text(want[first]), value_text(got[first]));
  });
}

bool OpsCheck::expect_within(const std::string& label, const std::vector<float>& want,
                             const std::vector<float>& got, const std::function<double(size_t)>& bound) {
  if (want.size() != got.size()) {
    report_.add_failure(fmt::format("{}: expected {} values, got {}", place(label), want.size(), got.size()));
    return false;
  }
  const auto outside = [&](size_t i) {
    if (num::is_nan(want[i]) || num::is_nan(got[i])) return num::is_nan(want[i]) != num::is_nan(got[i]);
    if (std::isinf(want[i]) || std::isinf(got[i])) return want[i] != got[i];
    return std::abs(static_cast<double>(want[i]) - static_cast<double>(got[i])) > bound(i);
  };
  size_t wrong = 0;
  size_t first = 0;
  for (size_t i = want.size(); i-- > 0;) {
    if (!outside(i)) continue;
    ++wrong;
    first = i;
  }
  return report_.expect(wrong == 0, [&] {
    return fmt::format(
        "{}: {} of {} values outside the bound; index {}: expected {}, got {}, allowed difference {:.3g}",
        place(label), wrong, want.size(), first, value_text(want[first]), value_text(got[first]),
        bound(first));
  });
}

bool OpsCheck::expect_integers(const std::string& label, const std::vector<int64_t>& want,
                               const std::vector<int64_t>& got) {
  if (want.size() != got.size()) {
    report_.add_failure(fmt::format("{}: expected {} values, got {}", place(label), want.size(), got.size()));
    return false;
  }
  const auto [w, g] = std::mismatch(want.begin(), want.end(), got.begin());
  return report_.expect(w == want.end(), [&] {
    return fmt::format("{}: index {}: expected {} (0x{:x}), got {} (0x{:x})", place(label), w - want.begin(),
                       *w, *w, *g, *g);
  });
}

void OpsMatrix::pack(kernels::WeightFormat format, int64_t rows, int64_t cols, const std::byte* source,
                     const uint8_t* scales) {
  auto data = tensor::Buffer::allocate(kernels::packed_data_bytes(format, rows, cols));
  auto packed_scales = tensor::Buffer::allocate(kernels::packed_scale_bytes(format, rows, cols));
  RORQUAL_CHECK(data.ok() && packed_scales.ok());
  data_ = *std::move(data);
  scales_ = *std::move(packed_scales);
  view_ = kernels::pack_matrix(format, rows, cols, source, scales, data_.data(),
                               reinterpret_cast<uint8_t*>(scales_.data()));
}

OpsMatrix::OpsMatrix(kernels::WeightFormat format, int64_t rows, int64_t cols,
                     const std::vector<uint8_t>& source, const std::vector<uint8_t>& scales) {
  pack(format, rows, cols, reinterpret_cast<const std::byte*>(source.data()), scales.data());
}

OpsMatrix::OpsMatrix(kernels::WeightFormat format, const OpsTensor& tensor) {
  RORQUAL_CHECK(tensor.shape.size() == 2);
  if (format == kernels::WeightFormat::f32) {
    pack(format, tensor.dim(0), tensor.dim(1), reinterpret_cast<const std::byte*>(tensor.floats.data()),
         nullptr);
    return;
  }
  RORQUAL_CHECK(format == kernels::WeightFormat::bf16);
  std::vector<uint16_t> codes;
  codes.reserve(tensor.floats.size());
  for (const float value : tensor.floats) codes.push_back(num::bf16_encode(value));
  pack(format, tensor.dim(0), tensor.dim(1), reinterpret_cast<const std::byte*>(codes.data()), nullptr);
}

std::vector<float> ops_linear(const kernels::OperatorTable& ops, const kernels::Matrix& weight,
                              const std::vector<float>& x, int64_t num_rows, bool round_bf16) {
  const int64_t stride = weight.num_blocks() * kernels::kBlockCols;
  std::vector<float> padded(static_cast<size_t>(num_rows * stride), 0.0f);
  for (int64_t row = 0; row < num_rows; ++row) {
    std::copy_n(x.begin() + row * weight.cols, weight.cols, padded.begin() + row * stride);
  }
  std::vector<float> y(static_cast<size_t>(num_rows * weight.rows));
  ops.linear({.weight = &weight,
              .panel_begin = 0,
              .panel_end = weight.num_panels(),
              .num_rows = num_rows,
              .x = padded.data(),
              .x_stride = stride,
              .y = y.data(),
              .y_stride = weight.rows,
              .round_bf16 = round_bf16});
  return y;
}

double bf16_step(double value) {
  if (value == 0 || !std::isfinite(value)) return 0x1p-133;
  return std::exp2(std::max(std::ilogb(value), -126) - 7);
}

}  // namespace rorqual::tools
