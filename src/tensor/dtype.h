// SPDX-License-Identifier: Apache-2.0
// Element types of tensors on disk, by their safetensors names.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

namespace rorqual::tensor {

enum class DType : uint8_t { f32, f16, bf16, f8_e4m3, f8_e5m2, f8_e8m0, i8, u8, i16, i32, i64, boolean };

/// Bytes of one element.
int64_t dtype_bytes(DType dtype);

/// safetensors spelling: "F32", "BF16", "F8_E4M3", "F8_E8M0", "I8", …
std::string_view dtype_name(DType dtype);
std::optional<DType> dtype_from_name(std::string_view name);

}  // namespace rorqual::tensor
