// SPDX-License-Identifier: Apache-2.0
// What the single-file and the checkpoint reader share. Private to src/format.
#pragma once

#include "format/byte_file.h"
#include "format/safetensors.h"

namespace rorqual::format {

/// Reads and checks the header of an open file. Errors do not name the file.
Result<SafetensorsHeader> read_safetensors_header(const ByteFile& file, EmptyTensors empty);

/// True if [offset, offset + count_bytes) lies in the tensor's data.
bool is_inside(const TensorInfo& tensor, int64_t offset, size_t count_bytes);

}  // namespace rorqual::format
