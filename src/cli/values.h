// SPDX-License-Identifier: Apache-2.0
// The resolved options of one run: each value with its origin. Made by cli/resolve.h, which has checked kinds
// and ranges, so the getters cannot fail; asking for an option that the command does not have is a programmer
// error.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "cli/option.h"

namespace rorqual::cli {

/// In rising precedence.
enum class Origin : uint8_t { built_in, config_file, environment, command_line };

/// "built-in default", "environment", …
std::string_view origin_name(Origin origin);

struct Value {
  std::vector<std::string> items;  // empty = no value; a flag holds "on" or "off"
  Origin origin = Origin::built_in;
};

class Values {
 public:
  explicit Values(const CommandSpec& command) : command_(command) {}

  const CommandSpec& command() const { return command_; }

  const Value& at(std::string_view name) const;
  void set(std::string_view name, Value value);

  bool is_given(std::string_view name) const { return at(name).origin != Origin::built_in; }

  bool has(std::string_view name) const { return !at(name).items.empty(); }

  bool flag(std::string_view name) const;
  /// Empty string if there is no value.
  const std::string& text(std::string_view name) const;

  const std::vector<std::string>& list(std::string_view name) const { return at(name).items; }

  int64_t integer(std::string_view name) const;
  double real(std::string_view name) const;
  /// Integer or size; nothing if there is no value or one of the option's words ("auto").
  std::optional<int64_t> number(std::string_view name) const;

 private:
  const CommandSpec& command_;
  std::map<std::string, Value, std::less<>> values_;
};

/// An integer, or a size as base/units.h reads it ("256K" = 262144, "25.6k" = 25600). Nothing if it is
/// neither.
std::optional<int64_t> parse_size(std::string_view text);

/// on/off, true/false, yes/no, 1/0, enabled/disabled; any case.
std::optional<bool> parse_switch(std::string_view text);

/// Nothing unless all of `text` is one number.
std::optional<int64_t> parse_integer(std::string_view text);
std::optional<double> parse_real(std::string_view text);

/// The parts between commas, empty ones left out.
std::vector<std::string> split_list(std::string_view text);

/// "1,8,32": at least one number, each from 1 to `most`. Errors: invalid_argument with the option's name.
Result<std::vector<int64_t>> parse_numbers(std::string_view option, std::string_view text, int64_t most);

}  // namespace rorqual::cli
