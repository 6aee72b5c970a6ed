// SPDX-License-Identifier: Apache-2.0
// Arithmetic on sizes that come from files and sockets: overflow is an answer, not undefined behaviour.
#pragma once

#include <cstdint>
#include <optional>
#include <span>

namespace rorqual {

/// a * b, or nothing when the product does not fit int64.
constexpr std::optional<int64_t> mul_checked(int64_t a, int64_t b) {
  int64_t product = 0;
  if (__builtin_mul_overflow(a, b, &product)) return std::nullopt;
  return product;
}

/// a + b, or nothing when the sum does not fit int64.
constexpr std::optional<int64_t> add_checked(int64_t a, int64_t b) {
  int64_t sum = 0;
  if (__builtin_add_overflow(a, b, &sum)) return std::nullopt;
  return sum;
}

/// Product of all factors (1 when empty), or nothing when it does not fit int64 or a factor is negative.
constexpr std::optional<int64_t> product_checked(std::span<const int64_t> factors) {
  int64_t product = 1;
  for (const int64_t factor : factors) {
    if (factor < 0 || __builtin_mul_overflow(product, factor, &product)) return std::nullopt;
  }
  return product;
}

}  // namespace rorqual
