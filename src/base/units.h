// SPDX-License-Identifier: Apache-2.0
// Sizes and counts as people write and read them.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "base/result.h"

namespace rorqual {

/// "512 B", "1.5 KiB", "12.4 GiB": one decimal above bytes.
std::string format_bytes(int64_t bytes);

/// "96,085".
std::string format_count(int64_t count);

/// "131072", "1k" = 1000, "25.6k" = 25600, "1K" = 1024, "256K", "1M" = 2^20, "1m" = 10^6; likewise g/G and
/// t/T. Fractions only with decimal suffixes and only when the result is whole. Never negative. Errors:
/// invalid_argument.
Result<int64_t> parse_count(std::string_view text);

}  // namespace rorqual
