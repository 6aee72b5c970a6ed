// SPDX-License-Identifier: Apache-2.0
// Numbers in JSON text: which spellings lie in a range. Digits are limited, so that every number can be read
// back by any client and a model cannot print digits without end.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "base/result.h"
#include "grammar/ebnf.h"

namespace rorqual::grammar {

/// Digits before the point, and after it. 18 fit in 64 bits.
inline constexpr int kMaxDigits = 18;

/// Integers from `min` to `max` (both included; none = as far as kMaxDigits go); -0 is not among them.
/// Errors: invalid_argument (the range is empty).
Result<std::string> integer_grammar(std::optional<int64_t> min, std::optional<int64_t> max);

/// Multiples of `factor` > 0 in the range. Errors: as above; unsupported (a range of many multiples, or,
/// without a range, a factor that does not divide 1000).
Result<std::string> multiple_grammar(int64_t factor, std::optional<int64_t> min, std::optional<int64_t> max);

struct NumberBound {
  double value = 0;
  bool is_included = true;
};

/// Any number, with fraction and exponent (at most two digits) if there are no bounds; within bounds, without
/// exponent. Errors: invalid_argument (empty range); unsupported (bounds beyond 1e15, or of more than 9
/// digits after the point).
Result<std::string> number_grammar(std::optional<NumberBound> min, std::optional<NumberBound> max);

}  // namespace rorqual::grammar
