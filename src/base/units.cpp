// SPDX-License-Identifier: Apache-2.0
#include "base/units.h"

#include <fmt/format.h>

#include <array>

#include "base/checked.h"

namespace rorqual {
namespace {

struct Suffix {
  char letter;
  int64_t factor;
  bool binary;
};

constexpr std::array kSuffixes = {
    Suffix{'k', 1'000, false},           Suffix{'m', 1'000'000, false},
    Suffix{'g', 1'000'000'000, false},   Suffix{'t', 1'000'000'000'000, false},
    Suffix{'K', int64_t{1} << 10, true}, Suffix{'M', int64_t{1} << 20, true},
    Suffix{'G', int64_t{1} << 30, true}, Suffix{'T', int64_t{1} << 40, true},
};

bool is_digit(char c) {
  return c >= '0' && c <= '9';
}

Error count_error(std::string_view text, std::string_view why) {
  return Error(Code::invalid_argument, fmt::format("'{}' is not a count: {}", text, why),
               "write 131072, 128K (K, M, G, T: powers of 1024) or 25.6k (k, m, g, t: powers of 1000)");
}

/// Adds a decimal digit to `value`; false on overflow.
bool push_digit(int64_t& value, char digit) {
  const auto scaled = mul_checked(value, 10);
  const auto sum = scaled ? add_checked(*scaled, digit - '0') : std::nullopt;
  if (sum) value = *sum;
  return sum.has_value();
}

}  // namespace

std::string format_bytes(int64_t bytes) {
  constexpr std::array kNames = {"KiB", "MiB", "GiB", "TiB", "PiB"};
  if (bytes < 1024) return fmt::format("{} B", bytes);
  double value = static_cast<double>(bytes) / 1024.0;
  size_t unit = 0;
  // 1023.95 would print as 1024.0: go to the next unit a little earlier.
  while (value >= 1023.95 && unit + 1 < kNames.size()) {
    value /= 1024.0;
    ++unit;
  }
  return fmt::format("{:.1f} {}", value, kNames[unit]);
}

std::string format_count(int64_t count) {
  std::string digits = fmt::format("{}", count);
  const size_t sign = count < 0 ? 1 : 0;
  for (size_t place = digits.size(); place > sign + 3;) {
    place -= 3;
    digits.insert(place, 1, ',');
  }
  return digits;
}

Result<int64_t> parse_count(std::string_view text) {
  size_t at = 0;
  int64_t value = 0;
  int64_t divisor = 1;
  while (at < text.size() && is_digit(text[at])) {
    if (!push_digit(value, text[at++])) return count_error(text, "too large");
  }
  if (at == 0) return count_error(text, "it must start with a digit");
  const bool has_fraction = at < text.size() && text[at] == '.';
  if (has_fraction) {
    const size_t first = ++at;
    while (at < text.size() && is_digit(text[at])) {
      if (divisor >= 1'000'000'000'000 || !push_digit(value, text[at++]))
        return count_error(text, "too many digits");
      divisor *= 10;
    }
    if (at == first) return count_error(text, "no digit after the point");
  }
  if (at == text.size()) {
    if (has_fraction) return count_error(text, "a fraction needs one of the suffixes k, m, g, t");
    return value;
  }
  for (const Suffix& suffix : kSuffixes) {
    if (text[at] != suffix.letter || at + 1 != text.size()) continue;
    if (has_fraction && suffix.binary) return count_error(text, "K, M, G and T need a whole number");
    const auto scaled = mul_checked(value, suffix.factor);
    if (!scaled) return count_error(text, "too large");
    if (*scaled % divisor != 0) return count_error(text, "the result is not a whole number");
    return *scaled / divisor;
  }
  return count_error(text, fmt::format("unknown suffix '{}'", text.substr(at)));
}

}  // namespace rorqual
