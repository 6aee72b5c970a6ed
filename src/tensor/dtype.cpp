// SPDX-License-Identifier: Apache-2.0
#include "tensor/dtype.h"

#include <array>
#include <utility>

namespace rorqual::tensor {
namespace {

struct Row {
  DType dtype;
  std::string_view name;
  int64_t bytes;
};

constexpr std::array kRows = {
    Row{DType::f32, "F32", 4},         Row{DType::f16, "F16", 2},         Row{DType::bf16, "BF16", 2},
    Row{DType::f8_e4m3, "F8_E4M3", 1}, Row{DType::f8_e5m2, "F8_E5M2", 1}, Row{DType::f8_e8m0, "F8_E8M0", 1},
    Row{DType::i8, "I8", 1},           Row{DType::u8, "U8", 1},           Row{DType::i16, "I16", 2},
    Row{DType::i32, "I32", 4},         Row{DType::i64, "I64", 8},         Row{DType::boolean, "BOOL", 1},
};

const Row& row_of(DType dtype) {
  return kRows[static_cast<size_t>(dtype)];
}

}  // namespace

int64_t dtype_bytes(DType dtype) {
  return row_of(dtype).bytes;
}

std::string_view dtype_name(DType dtype) {
  return row_of(dtype).name;
}

std::optional<DType> dtype_from_name(std::string_view name) {
  for (const Row& row : kRows) {
    if (row.name == name) return row.dtype;
  }
  return std::nullopt;
}

}  // namespace rorqual::tensor
