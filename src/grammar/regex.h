// SPDX-License-Identifier: Apache-2.0
// Regular expressions of clients as grammars: the dialect of ECMA-262 as far as it is regular. Everything
// else is refused by name, at its position.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "grammar/code_points.h"

namespace rorqual::grammar {

inline constexpr size_t kMaxRegexBytes = 4096;
inline constexpr int64_t kMaxRegexCount = 160;      // of one repetition
inline constexpr int64_t kMaxRegexPositions = 160;  // characters, with repetitions multiplied out
inline constexpr int kMaxRegexDepth = 64;           // groups in groups

struct RegexNode {
  enum class Kind : uint8_t { set, sequence, choice, repeat, begin, end };
  Kind kind = Kind::sequence;       // an empty sequence matches nothing but ""
  CodePoints set;                   // set
  std::vector<RegexNode> children;  // sequence, choice; repeat has one
  int64_t min = 0, max = -1;        // repeat; max -1 = without end
};

/// Where the pattern may match: `whole` text (constraints) or somewhere in it (JSON Schema's `pattern`).
enum class RegexMatch : uint8_t { whole, anywhere };

/// What the text stands in: itself, or between the quotes of a JSON string, where some characters are
/// escaped.
enum class RegexText : uint8_t { raw, json };

/// Anchors are resolved: none is left in the tree. Errors: invalid_argument (syntax, limits), unsupported
/// (look-around, back-references, \b, \p, flags, anchors inside the pattern); all say at which character.
Result<RegexNode> parse_regex(std::string_view pattern, RegexMatch match);

/// Expression of the grammar (grammar/ebnf.h): one automaton, with repetitions written out. In json, special
/// characters are spelled as escapes of the short form, or \u00XX.
std::string regex_expression(const RegexNode& node, RegexText text);

/// Characters of the pattern with its repetitions multiplied out: the size of the automaton, about.
int64_t num_positions(const RegexNode& node);

/// Any characters, from `min` to `max` of them.
RegexNode any_characters(int64_t min, int64_t max);

}  // namespace rorqual::grammar
