// SPDX-License-Identifier: Apache-2.0
// Counts the values of a JSON text before it is parsed: a byte or two of text can become fifty in memory.
#pragma once

#include <cstddef>
#include <string_view>

namespace rorqual::api {

/// Does `json` hold more than `max` values, objects and arrays included (empty ones count twice)? One pass
/// over the bytes, and none where the text is too short to do so. For texts that are no JSON the answer is of
/// no use, but bounded.
bool has_more_values(std::string_view json, size_t max);

}  // namespace rorqual::api
