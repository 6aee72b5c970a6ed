// SPDX-License-Identifier: Apache-2.0
// JSON Schema to a grammar of the JSON texts it allows. Every text of the grammar is valid JSON and satisfies
// the schema; the grammar may be narrower (docs/constraints.md: order of properties, no unknown properties
// unless asked for, number of digits).
#pragma once

#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "grammar/ebnf.h"
#include "grammar/regex.h"
#include "grammar/schema_form.h"

namespace rorqual::grammar {

inline constexpr int kMaxSchemaDepth = 64;
inline constexpr size_t kMaxProperties = 400;  // of one object: beyond, compiling takes seconds
inline constexpr int64_t kMaxValues = 50'000;  // places of a schema, each counted as often as it is reached
inline constexpr int64_t kMaxCount = 100'000;  // minLength, maxItems, …

/// White space between the parts of JSON.
enum class JsonSpace : uint8_t {
  any,      // a space, or a line end with indentation
  compact,  // at most one space after ',' and ':'
};

/// Expressions for values of one schema. Rules go to `rules`; a place that occurs twice becomes one rule.
class SchemaGrammar {
 public:
  SchemaGrammar(Json root, Unenforced policy, JsonSpace space, Rules& rules);

  /// JSON text of a value of `schema`, which is part of the root. Errors: as SchemaForms::plain, and
  /// invalid_argument for limits.
  Result<std::string> value(const Json& schema, const std::string& path);

  /// The root schema's values.
  Result<std::string> root_value() { return value(forms_.root(), "$"); }

  /// Texts of a plain string schema as they are, outside JSON.
  Result<std::string> raw_string(const Json& plain, const std::string& path);

  /// Any JSON value, any value but a string, any object.
  std::string any_value();
  std::string any_but_string();
  std::string any_object();

  SchemaForms& forms() { return forms_; }

 private:
  struct Lengths {
    int64_t min = 0, max = -1;  // max -1 = without end
  };

  Result<std::string> plain_value(const Json& plain, const std::string& path);
  Result<std::string> integer(const Json& plain, const std::string& path);
  Result<std::string> number(const Json& plain, const std::string& path);
  Result<std::string> json_string(const Json& plain, const std::string& path);
  Result<std::optional<RegexNode>> string_pattern(const Json& plain, const std::string& path);
  static Result<Lengths> string_lengths(const Json& plain, const std::string& path);
  Result<std::optional<std::string>> automaton(const RegexNode& node, RegexText text,
                                               const std::string& path);
  std::string rest_of_string();
  std::string one_more(const std::string& rest) const;
  Result<std::string> array(const Json& plain, const std::string& path);
  Result<std::string> object(const Json& plain, const std::string& path);
  Result<std::string> members(const Json& plain, const std::string& path);
  Result<std::string> member_list(const Json& properties, const std::set<std::string>& required,
                                  const Json* additional, const std::string& path);
  Result<std::string> map_entries(const Json& plain, const std::string& path);
  Result<std::string> map_key(const Json& plain, const std::string& path);
  Result<std::string> reference(const std::string& target, const std::string& path);
  std::string comma() const;
  std::string colon() const;
  std::string list(const std::string& item, int64_t min, int64_t max);

  SchemaForms forms_;
  Rules& rules_;
  std::string gap_, after_mark_;                   // rules of white space: anywhere; after ',' and ':'
  std::map<std::string, std::string> references_;  // target -> rule
  std::vector<std::string> open_references_;       // entered since the last character
  std::map<std::string, std::string> automata_;    // expression -> rule
  std::string any_value_, any_but_string_, any_object_, rest_of_string_, escape_;
  int depth_ = 0;
  int64_t num_values_ = 0;
};

/// A whole number >= 0 of `node`, if given. Errors: invalid_argument.
Result<std::optional<int64_t>> count_of(const Json& node, const std::string& key, const std::string& path);

/// Names that are none of `names`: characters of `allowed`, at least one.
std::string other_names(const std::vector<std::string>& names, const CodePoints& allowed);

}  // namespace rorqual::grammar
