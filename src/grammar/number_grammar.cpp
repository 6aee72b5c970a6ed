// SPDX-License-Identifier: Apache-2.0
// Ranges of decimal numbers as grammars, digit by digit.
#include "grammar/number_grammar.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <string_view>
#include <vector>

namespace rorqual::grammar {

namespace {

constexpr int64_t kMaxInteger = 999'999'999'999'999'999;  // kMaxDigits nines
constexpr int64_t kMaxListedMultiples = 1000;
constexpr int kMaxLastDigits = 3;
constexpr int kExactDigits = 15;  // that a double holds: clients divide
constexpr double kMaxBound = 1e15;
constexpr int kMaxFractionDigits = 9;

std::string digits(int64_t min, int64_t max) {
  if (max == 0) return "\"\"";
  return repeat("[0-9]", min, max);
}

std::string digit_range(char low, char high) {
  return low == high ? fmt::format("\"{}\"", low) : fmt::format("[{}-{}]", low, high);
}

/// Numbers of the same number of digits from `low` to `high`.
std::string same_length(std::string_view low, std::string_view high) {
  if (low.empty()) return "\"\"";
  const auto length = static_cast<int64_t>(low.size());
  if (low.find_first_not_of('0') == std::string_view::npos &&
      high.find_first_not_of('9') == std::string_view::npos) {
    return digits(length, length);
  }
  const char a = low[0], b = high[0];
  if (a == b) return fmt::format("\"{}\" {}", a, same_length(low.substr(1), high.substr(1)));
  const std::string nines(low.size() - 1, '9'), zeros(low.size() - 1, '0');
  std::vector<std::string> choices{fmt::format("\"{}\" {}", a, same_length(low.substr(1), nines)),
                                   fmt::format("\"{}\" {}", b, same_length(zeros, high.substr(1)))};
  if (b - a > 1) {
    choices.push_back(fmt::format("{} {}", digit_range(static_cast<char>(a + 1), static_cast<char>(b - 1)),
                                  digits(length - 1, length - 1)));
  }
  return choice(choices);
}

/// 0 <= low <= high.
std::string natural_range(int64_t low, int64_t high) {
  std::vector<std::string> choices;
  const std::string a = fmt::to_string(low), b = fmt::to_string(high);
  for (size_t length = a.size(); length <= b.size(); ++length) {
    const std::string first = length == a.size() ? a : "1" + std::string(length - 1, '0');
    const std::string last = length == b.size() ? b : std::string(length, '9');
    choices.push_back(same_length(first, last));
  }
  return choice(choices);
}

struct Decimal {
  bool is_negative = false;
  int64_t whole = 0;
  std::string fraction;  // without zeros at the end
};

Result<Decimal> decimal(double value) {
  const std::string text = fmt::format("{:.{}f}", std::fabs(value), kMaxFractionDigits);
  const size_t point = text.find('.');
  Decimal out{value < 0, 0, text.substr(point + 1)};
  while (!out.fraction.empty() && out.fraction.back() == '0') out.fraction.pop_back();
  if (std::fabs(value) > kMaxBound || std::stod(text) != std::fabs(value)) {
    return Error(Code::unsupported, fmt::format("the bound {} has more digits than can be enforced", value),
                 "use bounds up to 1e15 with at most 9 digits after the point");
  }
  out.whole = std::stoll(text.substr(0, point));
  return out;
}

/// Digits after the point that make at least `bound` (or more than it).
std::string fraction_from(std::string_view bound, bool is_included, int room) {
  if (bound.empty()) {
    return is_included ? digits(0, room)
                       : fmt::format("{} [1-9] {}", repeat("\"0\"", 0, room - 1), digits(0, room - 1));
  }
  std::vector<std::string> choices{
      fmt::format("\"{}\" {}", bound[0], fraction_from(bound.substr(1), is_included, room - 1))};
  if (bound[0] < '9') {
    choices.push_back(
        fmt::format("{} {}", digit_range(static_cast<char>(bound[0] + 1), '9'), digits(0, room - 1)));
  }
  return choice(choices);
}

/// Digits after the point, possibly none, that make at most `bound` (or less than it). `bound` is not empty
/// unless it is included.
std::string fraction_to(std::string_view bound, bool is_included, int room) {
  if (bound.empty()) return repeat("\"0\"", 0, room);
  std::vector<std::string> choices{
      "\"\""};  // what is left out counts as zeros, and `bound` ends with another digit
  if (bound[0] > '0') {
    choices.push_back(
        fmt::format("{} {}", digit_range('0', static_cast<char>(bound[0] - 1)), digits(0, room - 1)));
  }
  if (bound.size() > 1 || is_included) {
    choices.push_back(
        fmt::format("\"{}\" {}", bound[0], fraction_to(bound.substr(1), is_included, room - 1)));
  }
  return choice(choices);
}

struct Edge {
  Decimal at;
  bool is_included = true;
};

/// Spellings of one whole part with the fractions that `low` and `high` leave; "" = none.
std::string at_whole(int64_t whole, const Edge* low, const Edge* high) {
  const auto number = fmt::format("\"{}\"", whole);
  if (low != nullptr && high != nullptr) {
    // Both edges cut this whole part: for every number of digits, as integers.
    std::vector<std::string> choices;
    for (size_t width = 1; width <= kMaxFractionDigits + 1; ++width) {
      const auto scaled = [&](const Edge& edge) {
        return std::stoll((edge.at.fraction + std::string(width, '0')).substr(0, width));
      };
      const bool cuts_low = low->at.fraction.size() > width, cuts_high = high->at.fraction.size() > width;
      const int64_t first = scaled(*low) + (cuts_low || !low->is_included ? 1 : 0);
      const int64_t last = scaled(*high) - (!cuts_high && !high->is_included ? 1 : 0);
      if (first > last) continue;
      choices.push_back(
          fmt::format("{} \".\" {}", number,
                      same_length(fmt::format("{:0{}}", first, width), fmt::format("{:0{}}", last, width))));
    }
    if (low->at.fraction.empty() && low->is_included) choices.push_back(number);
    return choices.empty() ? std::string() : choice(choices);
  }
  if (low != nullptr) {
    const std::string shown =
        fmt::format("{} \".\" {}", number, fraction_from(low->at.fraction, low->is_included, kMaxDigits));
    return low->at.fraction.empty() && low->is_included
               ? fmt::format("{} (\".\" {})?", number, digits(1, kMaxDigits))
               : shown;
  }
  if (high->at.fraction.empty() && !high->is_included) return {};
  if (high->at.fraction.empty()) return fmt::format("{} (\".\" {})?", number, repeat("\"0\"", 1, kMaxDigits));
  // A point needs a digit after it: the empty fraction is the number without point.
  std::vector<std::string> choices{number};
  const std::string_view bound = high->at.fraction;
  if (bound[0] > '0') {
    choices.push_back(fmt::format("{} \".\" {} {}", number, digit_range('0', static_cast<char>(bound[0] - 1)),
                                  digits(0, kMaxDigits - 1)));
  }
  if (bound.size() > 1 || high->is_included) {
    choices.push_back(fmt::format("{} \".\" \"{}\" {}", number, bound[0],
                                  fraction_to(bound.substr(1), high->is_included, kMaxDigits - 1)));
  }
  return choice(choices);
}

/// Magnitudes from `low` to `high`; no high = without end. Empty = none.
std::vector<std::string> magnitudes(const Edge& low, const Edge* high) {
  std::vector<std::string> choices;
  const auto add = [&](std::string spelling) {
    if (!spelling.empty()) choices.push_back(std::move(spelling));
  };
  const int64_t a = low.at.whole;
  if (high != nullptr && high->at.whole == a) {
    add(at_whole(a, &low, high));
    return choices;
  }
  add(at_whole(a, &low, nullptr));
  const int64_t last = high == nullptr ? kMaxInteger : high->at.whole - 1;
  if (a + 1 <= last) add(fmt::format("{} (\".\" {})?", natural_range(a + 1, last), digits(1, kMaxDigits)));
  if (high != nullptr) add(at_whole(high->at.whole, nullptr, high));
  return choices;
}

Error empty_range() {
  return Error(Code::invalid_argument, "no number lies in the range", "check minimum and maximum");
}

}  // namespace

Result<std::string> integer_grammar(std::optional<int64_t> min, std::optional<int64_t> max) {
  const int64_t low = std::max(min.value_or(-kMaxInteger), -kMaxInteger);
  const int64_t high = std::min(max.value_or(kMaxInteger), kMaxInteger);
  if (low > high) return empty_range();
  std::vector<std::string> choices;
  if (high >= 0) choices.push_back(natural_range(std::max<int64_t>(low, 0), high));
  if (low < 0) choices.push_back("\"-\" " + natural_range(std::max<int64_t>(-high, 1), -low));
  return choice(choices);
}

Result<std::string> multiple_grammar(int64_t factor, std::optional<int64_t> min, std::optional<int64_t> max) {
  if (min && max) {
    const int64_t low = std::max(*min, -kMaxInteger), high = std::min(*max, kMaxInteger);
    const auto up = static_cast<int64_t>(low / factor + (low % factor > 0 ? 1 : 0));
    const auto down = static_cast<int64_t>(high / factor - (high % factor < 0 ? 1 : 0));
    if (up > down) return empty_range();
    if (down - up < kMaxListedMultiples) {
      std::vector<std::string> choices;
      for (int64_t k = up; k <= down; ++k) choices.push_back(fmt::format("\"{}\"", k * factor));
      return choice(choices);
    }
  }
  // The last digits decide, if the factor divides a power of ten.
  int64_t power = 1;
  int num_last = 0;
  for (; power % factor != 0 && num_last < kMaxLastDigits; ++num_last) power *= 10;
  if (min || max || power % factor != 0) {
    return Error(
        Code::unsupported, fmt::format("multiples of {} in this range cannot be enforced", factor),
        fmt::format("give a minimum and a maximum with at most {} multiples between them, or no bounds "
                    "and a factor of 1000",
                    kMaxListedMultiples));
  }
  std::vector<std::string> small, last;
  for (int64_t value = 0; value < power; value += factor) {
    if (value > 0) small.push_back(fmt::format("\"{}\"", value));
    if (num_last > 0) last.push_back(fmt::format("\"{:0{}}\"", value, num_last));
  }
  small.push_back(
      fmt::format("[1-9] {} {}", digits(0, kExactDigits - 1 - num_last), last.empty() ? "" : choice(last)));
  return fmt::format("(\"0\" | \"-\"? {})", choice(small));
}

Result<std::string> number_grammar(std::optional<NumberBound> min, std::optional<NumberBound> max) {
  if (!min && !max) {
    return fmt::format("\"-\"? (\"0\" | [1-9] {}) (\".\" {})? ([eE] [+\\-]? {})?", digits(0, kMaxDigits - 1),
                       digits(1, kMaxDigits), digits(1, 2));
  }
  std::optional<Edge> low, high;
  if (min) {
    RORQUAL_TRY_ASSIGN(Decimal at, decimal(min->value));
    low = Edge{std::move(at), min->is_included};
  }
  if (max) {
    RORQUAL_TRY_ASSIGN(Decimal at, decimal(max->value));
    high = Edge{std::move(at), max->is_included};
  }
  if (min && max &&
      (min->value > max->value || (min->value == max->value && !(min->is_included && max->is_included)))) {
    return empty_range();
  }
  const Edge zero{{}, true}, above_zero{{}, false};
  std::vector<std::string> choices;
  if (!max || max->value >= 0) {
    const Edge& from = low && !low->at.is_negative ? *low : zero;
    for (std::string& spelling : magnitudes(from, high ? &*high : nullptr))
      choices.push_back(std::move(spelling));
  }
  if (!min || min->value < 0) {
    const Edge& from = high && high->at.is_negative ? *high : above_zero;
    for (const std::string& spelling : magnitudes(from, low ? &*low : nullptr))
      choices.push_back("\"-\" " + spelling);
  }
  if (choices.empty()) return empty_range();
  return choice(choices);
}

}  // namespace rorqual::grammar
