// SPDX-License-Identifier: Apache-2.0
// The small trained checkpoint that ships inside the program (models/mini): what `serve` and `chat` use
// without MODEL. It is a demonstration of the architecture, not an assistant.
#pragma once

#include <memory>
#include <string_view>

#include "base/result.h"
#include "format/tensor_source.h"

namespace rorqual::tools {

/// Name shown in /v1/models and in the banner.
inline constexpr std::string_view kEmbeddedModelName = "rorqual-mini";

/// Opens the checkpoint in read-only memory of the program. Errors only if the program file itself is
/// damaged.
Result<std::unique_ptr<format::TensorSource>> open_embedded_model();

}  // namespace rorqual::tools
