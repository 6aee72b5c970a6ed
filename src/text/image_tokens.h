// SPDX-License-Identifier: Apache-2.0
// How many tokens an image takes in the prompt. docs/text.md#images.
#pragma once

#include <cstdint>

#include "base/result.h"

namespace rorqual::text {

/// Length of an image's span (delimiters included) for a picture of width x height pixels as it reaches the
/// model's own size plan. Errors: invalid_argument for a side below 1.
Result<int32_t> image_token_count(int64_t width, int64_t height);

}  // namespace rorqual::text
