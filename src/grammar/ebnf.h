// SPDX-License-Identifier: Apache-2.0
// Grammars as text, in the notation of the matcher: `name ::= expression` with literals, classes, groups,
// alternatives and repetition. Expressions here are strings that may stand in a sequence as they are.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "grammar/code_points.h"

namespace rorqual::grammar {

/// Literal that matches exactly `text` (UTF-8).
std::string literal(std::string_view text);

/// One character of `set`; `set` is not empty.
std::string character(const CodePoints& set);

/// (a | b | …); the only one alone. `choices` is not empty.
std::string choice(const std::vector<std::string>& choices);

/// From min to max times; max -1 = without end. `expression` is made a group.
std::string repeat(const std::string& expression, int64_t min, int64_t max);

inline std::string optional(const std::string& expression) {
  return repeat(expression, 0, 1);
}

/// The token `id`, which no text matches.
std::string token(int32_t id);

/// Rules of one grammar. Bounded: beyond the limits add() still works, and is_too_large() turns true.
class Rules {
 public:
  static constexpr size_t kMaxRules = 8'000;
  static constexpr size_t kMaxBytes = 4u << 20;

  /// Adds a rule with a fresh name and returns the name. Equal bodies share a rule.
  std::string add(const std::string& body);

  /// A name whose body follows by define(), for recursion.
  std::string declare();
  void define(const std::string& name, const std::string& body);

  /// The whole grammar, with `root` as the body of the start rule.
  std::string text(const std::string& root) const;

  static constexpr int64_t kMaxPositions = 320;

  /// Room for `count` more positions of automata (num_positions); every one costs the compiler milliseconds.
  bool take_positions(int64_t count);

  bool is_too_large() const { return num_rules_ > kMaxRules || text_.size() > kMaxBytes; }

 private:
  std::map<std::string, std::string> names_;  // body -> name
  std::string text_;
  size_t num_rules_ = 0;
  int64_t num_positions_ = 0;
};

}  // namespace rorqual::grammar
