// SPDX-License-Identifier: Apache-2.0
#include "cli/values.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <charconv>
#include <cmath>

#include "base/check.h"
#include "base/units.h"

namespace rorqual::cli {

std::string_view origin_name(Origin origin) {
  switch (origin) {
    case Origin::built_in:
      return "built-in default";
    case Origin::config_file:
      return "config file";
    case Origin::environment:
      return "environment";
    case Origin::command_line:
      return "command line";
  }
  return "";
}

const Value& Values::at(std::string_view name) const {
  static const Value kNone;
  RORQUAL_CHECK(command_.find(name) != nullptr);
  const auto found = values_.find(name);
  return found == values_.end() ? kNone : found->second;
}

void Values::set(std::string_view name, Value value) {
  RORQUAL_CHECK(command_.find(name) != nullptr);
  values_.insert_or_assign(std::string(name), std::move(value));
}

bool Values::flag(std::string_view name) const {
  const auto& items = at(name).items;
  return !items.empty() && items.front() == "on";
}

const std::string& Values::text(std::string_view name) const {
  static const std::string kEmpty;
  const auto& items = at(name).items;
  return items.empty() ? kEmpty : items.front();
}

int64_t Values::integer(std::string_view name) const {
  const auto value = number(name);
  RORQUAL_CHECK(value.has_value());
  return *value;
}

double Values::real(std::string_view name) const {
  const auto value = parse_real(text(name));
  RORQUAL_CHECK(value.has_value());
  return *value;
}

std::optional<int64_t> Values::number(std::string_view name) const {
  return has(name) ? parse_size(text(name)) : std::nullopt;
}

std::optional<int64_t> parse_integer(std::string_view text) {
  int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return value;
}

std::optional<double> parse_real(std::string_view text) {
  double value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || !std::isfinite(value)) return std::nullopt;
  return value;
}

std::optional<int64_t> parse_size(std::string_view text) {
  if (const auto whole = parse_integer(text)) return whole;
  auto count = parse_count(text);
  if (!count.ok()) return std::nullopt;
  return *count;
}

std::optional<bool> parse_switch(std::string_view text) {
  std::string lower(text);
  std::transform(lower.begin(), lower.end(), lower.begin(),
                 [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  for (const auto* word : {"on", "true", "yes", "1", "enabled"}) {
    if (lower == word) return true;
  }
  for (const auto* word : {"off", "false", "no", "0", "disabled"}) {
    if (lower == word) return false;
  }
  return std::nullopt;
}

std::vector<std::string> split_list(std::string_view text) {
  std::vector<std::string> parts;
  for (size_t begin = 0; begin <= text.size();) {
    const size_t end = std::min(text.find(',', begin), text.size());
    if (end > begin) parts.emplace_back(text.substr(begin, end - begin));
    begin = end + 1;
  }
  return parts;
}

Result<std::vector<int64_t>> parse_numbers(std::string_view option, std::string_view text, int64_t most) {
  const std::string example = fmt::format("--{} 1,8,32", option);
  std::vector<int64_t> numbers;
  for (const std::string& part : split_list(text)) {
    const auto number = parse_size(part);
    if (!number || *number < 1 || *number > most) {
      return Error(Code::invalid_argument,
                   fmt::format("--{}: got '{}', expected numbers 1 to {}", option, text, most), example);
    }
    numbers.push_back(*number);
  }
  if (numbers.empty())
    return Error(Code::invalid_argument, fmt::format("--{}: got nothing", option), example);
  return numbers;
}

}  // namespace rorqual::cli
