// SPDX-License-Identifier: Apache-2.0
// `rorqual inspect`: what a model or a single safetensors file holds, and whether its bytes are sound.
#pragma once

#include <cstdint>
#include <string>

#include "base/result.h"
#include "format/tensor_source.h"

namespace rorqual::tools {

struct InspectOptions {
  std::string
      path;  // model folder, one *.safetensors file, "synthetic:v41?...", or empty for the embedded model
  bool as_json = false;       // one object, schema "rorqual.inspect/1"
  bool list_tensors = false;  // every tensor, not only the groups
  bool verify = false;        // read every byte: NaN counts and SHA-256
};

/// Appends the report to `out`, also when it returns an error about what the report shows. Errors: those of
/// opening; corrupt_data when the tensors do not match config.json or, with `verify`, when values are not
/// finite.
Status run_inspect(const InspectOptions& options, std::string& out);

/// What reading all bytes of one tensor found.
struct TensorScan {
  int64_t not_finite =
      0;  // NaN or infinite values: E8M0 255, E4M3 0x7f and 0xff, exponent all ones in BF16 and F32
  int64_t zero_scales = 0;  // E8M0 bytes 0 (2^-127); counted, not an error
  std::string sha256;       // of the tensor's data
};

/// Reads the tensor in pieces. Errors: io, corrupt_data.
Result<TensorScan> scan_tensor(const format::TensorSource& source, const format::TensorInfo& tensor);

}  // namespace rorqual::tools
