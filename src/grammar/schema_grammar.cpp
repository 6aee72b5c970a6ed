// SPDX-License-Identifier: Apache-2.0
// Grammars of JSON values.
#include "grammar/schema_grammar.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <set>
#include <utility>

#include "grammar/number_grammar.h"
#include "text/json_text.h"
#include "text/utf8.h"

namespace rorqual::grammar {

namespace {

constexpr const char* kHex = "[0-9a-fA-F]";

constexpr int64_t kMaxEscapedMin = 16;  // characters of a minLength that may be escapes
constexpr int64_t kMaxRawLength = 128;  // of text with a limit outside JSON

/// Characters that stand for themselves in a JSON string.
CodePoints plain_characters() {
  CodePoints special(0, 0x1F);
  special.add(CodePoints::any_of("\"\\"));
  return special.complement();
}

/// What follows a string: settles for the compiler which tokens may contain its end.
constexpr const char* kAfterString = "(=[ \\n,}\\]:])";

/// Patterns of the formats that can be enforced; all ASCII, none needs an escape.
const std::map<std::string, std::string>& format_patterns() {
  static const auto patterns = [] {
    const std::string date = "[0-9]{4}-(0[1-9]|1[0-2])-(0[1-9]|1[0-9]|2[0-8])";  // days that every month has
    const std::string time =
        "([01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](\\.[0-9]{1,9})?(Z|[+-]([01][0-9]|2[0-3]):[0-5][0-9])";
    const std::string byte = "(25[0-5]|2[0-4][0-9]|1[0-9][0-9]|[1-9]?[0-9])";
    const std::string label = "[a-zA-Z0-9]([a-zA-Z0-9-]{0,18}[a-zA-Z0-9])?";
    const std::string host = label + "(\\." + label + "){0,3}";
    const std::string group = "[0-9a-fA-F]{1,4}";
    const std::string few = group + "(:" + group + "){0,2}";
    const std::string ipv6 =
        fmt::format("({0}:){{7}}{0}|::|:(:{0}){{1,7}}|({0}:){{1,7}}:|{1}::{1}", group, few);
    const std::string uri_character = "[a-zA-Z0-9._~!$&'()*+,;=:@/?-]";
    return std::map<std::string, std::string>{
        {"date", date},
        {"time", time},
        {"date-time", date + "T" + time},
        {"duration", "P([0-9]{1,9}W|[0-9]{1,9}D(T[0-9]{1,9}H)?|T([0-9]{1,9}H)?[0-9]{1,9}M|T[0-9]{1,9}[HS])"},
        {"email", "[a-zA-Z0-9_+-]{1,20}(\\.[a-zA-Z0-9_+-]{1,20}){0,2}@" + host},
        {"hostname", host},
        {"ipv4", byte + "(\\." + byte + "){3}"},
        {"ipv6", ipv6},
        {"uri", "[a-z][a-z0-9+.-]{0,30}://" + host + "(:[0-9]{1,5})?(/" + uri_character + "*)?"},
        {"uuid", "[0-9a-fA-F]{8}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{12}"}};
  }();
  return patterns;
}

Result<std::optional<int64_t>> integer_bound(const Json& node, const std::string& key,
                                             const std::string& path) {
  const auto found = node.find(key);
  if (found == node.end()) return std::optional<int64_t>();
  if (!found->is_number())
    return schema_error(Code::invalid_argument, child_path(path, key), "expected a number");
  if (found->is_number_unsigned() && found->get<uint64_t>() > static_cast<uint64_t>(INT64_MAX)) {
    return std::optional<int64_t>(INT64_MAX);
  }
  if (found->is_number_integer()) return std::optional<int64_t>(found->get<int64_t>());
  const bool is_upper = key == "maximum" || key == "exclusiveMaximum";
  const bool is_exclusive = key.starts_with("exclusive");
  // The integer next to a bound between two integers lies on the allowed side; an exclusive bound moves it by
  // one.
  const double value = found->get<double>();
  const double whole = is_upper != is_exclusive ? std::floor(value) : std::ceil(value);
  return std::optional<int64_t>(static_cast<int64_t>(std::clamp(whole, -9e18, 9e18)));
}

struct IntegerRange {
  std::optional<int64_t> min, max;
};

Result<IntegerRange> integer_range(const Json& node, const std::string& path) {
  IntegerRange range;
  RORQUAL_TRY_ASSIGN(range.min, integer_bound(node, "minimum", path));
  RORQUAL_TRY_ASSIGN(range.max, integer_bound(node, "maximum", path));
  RORQUAL_TRY_ASSIGN(const auto above, integer_bound(node, "exclusiveMinimum", path));
  RORQUAL_TRY_ASSIGN(const auto below, integer_bound(node, "exclusiveMaximum", path));
  if (above) range.min = std::max(range.min.value_or(INT64_MIN), std::min(*above, INT64_MAX - 1) + 1);
  if (below) range.max = std::min(range.max.value_or(INT64_MAX), std::max(*below, INT64_MIN + 1) - 1);
  return range;
}

Result<std::optional<NumberBound>> number_bound(const Json& node, bool is_upper, const std::string& path) {
  std::optional<NumberBound> bound;
  for (const bool is_included : {true, false}) {
    const char* key = is_upper ? (is_included ? "maximum" : "exclusiveMaximum")
                               : (is_included ? "minimum" : "exclusiveMinimum");
    const auto found = node.find(key);
    if (found == node.end()) continue;
    if (!found->is_number())
      return schema_error(Code::invalid_argument, child_path(path, key), "expected a number");
    const double value = found->get<double>();
    const bool is_tighter = !bound || (is_upper ? value < bound->value : value > bound->value) ||
                            (value == bound->value && !is_included);
    if (is_tighter) bound = NumberBound{value, is_included};
  }
  return bound;
}

Error at_path(const std::string& path, Error error) {
  return Error(error.code(), path + ": " + error.message(), error.hint());
}

/// Names of a trie's node on; `begin` is the number of characters that all of `names` have in common.
std::string other_names_from(const std::vector<std::u32string>& names, size_t begin,
                             const CodePoints& allowed) {
  std::map<char32_t, std::vector<std::u32string>> next;
  bool ends_here = false;
  CodePoints free = allowed;
  for (const std::u32string& name : names) {
    if (name.size() == begin) {
      ends_here = true;
    } else {
      next[name[begin]].push_back(name);
    }
  }
  for (const auto& [first, rest] : next) free = free.intersection(CodePoints(first, first).complement());
  std::vector<std::string> choices;
  if (!free.empty())
    choices.push_back(fmt::format("{} {}", character(free), repeat(character(allowed), 0, -1)));
  for (const auto& [first, rest] : next) {
    choices.push_back(fmt::format("{} {}", character(CodePoints(first, first)),
                                  other_names_from(rest, begin + 1, allowed)));
  }
  if (!ends_here && begin > 0) choices.emplace_back("\"\"");
  return choice(choices);
}

}  // namespace

std::string other_names(const std::vector<std::string>& names, const CodePoints& allowed) {
  std::vector<std::u32string> spelled;
  for (const std::string& name : names) {
    std::u32string characters;
    bool is_possible = !name.empty();
    for (size_t at = 0; at < name.size();) {
      const text::Utf8Char c = text::decode_utf8(name, at);
      is_possible = is_possible && allowed.contains(c.code_point);
      characters += c.code_point;
      at += c.length;
    }
    if (is_possible) spelled.push_back(std::move(characters));
  }
  return other_names_from(spelled, 0, allowed);
}

Result<std::optional<int64_t>> count_of(const Json& node, const std::string& key, const std::string& path) {
  const auto found = node.find(key);
  if (found == node.end()) return std::optional<int64_t>();
  const bool is_count = found->is_number() && found->get<double>() >= 0 &&
                        std::floor(found->get<double>()) == found->get<double>();
  if (!is_count)
    return schema_error(Code::invalid_argument, child_path(path, key), "expected a whole number >= 0");
  const double value = found->get<double>();
  if (value <= static_cast<double>(kMaxCount)) return std::optional<int64_t>(static_cast<int64_t>(value));
  if (key.starts_with("max")) return std::optional<int64_t>();  // no limit that an answer could reach
  return schema_error(Code::invalid_argument, child_path(path, key),
                      fmt::format("at most {} is possible", kMaxCount));
}

SchemaGrammar::SchemaGrammar(Json root, Unenforced policy, JsonSpace space, Rules& rules)
    : forms_(std::move(root), policy), rules_(rules) {
  if (space == JsonSpace::compact) {
    gap_ = "\"\"";
    after_mark_ = "\" \"?";
  } else {
    gap_ = rules_.add("\" \"? (\"\\n\" [ \\t]*)?");
    after_mark_ = gap_;
  }
}

std::string SchemaGrammar::comma() const {
  return fmt::format("{} \",\" {}", gap_, after_mark_);
}

std::string SchemaGrammar::colon() const {
  return fmt::format("{} \":\" {}", gap_, after_mark_);
}

/// min to max items with commas.
std::string SchemaGrammar::list(const std::string& item, int64_t min, int64_t max) {
  if (max == 0) return "\"\"";
  const std::string rest = rules_.add(fmt::format("{} {}", comma(), item));
  const std::string some =
      fmt::format("{} {}", item, repeat(rest, std::max<int64_t>(min - 1, 0), max < 0 ? -1 : max - 1));
  return min == 0 ? optional(some) : some;
}

/// The rest of a JSON string after its opening quote.
std::string SchemaGrammar::rest_of_string() {
  if (!rest_of_string_.empty()) return rest_of_string_;
  const std::string escape =
      choice({"[\\\"\\\\/bfnrt]", fmt::format("\"u\" [0-9a-ce-fA-CE-F] {0} {0} {0}", kHex),
              fmt::format("\"u\" [dD] [0-7] {0} {0}", kHex),
              fmt::format("\"u\" [dD] [89abAB] {0} {0} \"\\\\u\" [dD] [c-fC-F] {0} {0}", kHex)});
  escape_ = rules_.add(escape);
  rest_of_string_ = rules_.declare();
  rules_.define(rest_of_string_, fmt::format("(\"\\\"\" | {}) {}", one_more(rest_of_string_), kAfterString));
  return rest_of_string_;
}

/// A character of a string, then `rest`. Right recursion keeps a whole token inside one rule.
std::string SchemaGrammar::one_more(const std::string& rest) const {
  return fmt::format("{0} {1} | \"\\\\\" {2} {1}", character(plain_characters()), rest, escape_);
}

std::string SchemaGrammar::any_value() {
  if (!any_value_.empty()) return any_value_;
  any_value_ = rules_.declare();
  const std::string text = rules_.add("\"\\\"\" " + rest_of_string());
  const std::string array = rules_.add(fmt::format("\"[\" {0} {1} {0} \"]\"", gap_, list(any_value_, 0, -1)));
  const std::string member = rules_.add(fmt::format("{} {} {}", text, colon(), any_value_));
  any_object_ = rules_.add(fmt::format("\"{{\" {0} {1} {0} \"}}\"", gap_, list(member, 0, -1)));
  const std::string number = rules_.add(*number_grammar({}, {}));
  any_but_string_ = rules_.add(choice({any_object_, array, number, "\"true\"", "\"false\"", "\"null\""}));
  rules_.define(any_value_, choice({any_but_string_, text}));
  return any_value_;
}

std::string SchemaGrammar::any_but_string() {
  any_value();
  return any_but_string_;
}

std::string SchemaGrammar::any_object() {
  any_value();
  return any_object_;
}

Result<std::string> SchemaGrammar::reference(const std::string& target, const std::string& path) {
  if (std::find(open_references_.begin(), open_references_.end(), target) != open_references_.end()) {
    return schema_error(Code::invalid_argument, path,
                        fmt::format("'{}' is defined by nothing but itself", target));
  }
  const auto known = references_.find(target);
  if (known != references_.end()) return known->second;
  const std::string name = rules_.declare();
  references_[target] = name;
  RORQUAL_TRY_ASSIGN(const Json schema, forms_.target(target, path));
  open_references_.push_back(target);
  auto body = value(schema, target);
  if (!body.ok()) return std::move(body).error();
  open_references_.pop_back();
  rules_.define(name, *body);
  return name;
}

Result<std::string> SchemaGrammar::value(const Json& schema, const std::string& path) {
  if (depth_ >= kMaxSchemaDepth) {
    return schema_error(Code::invalid_argument, path, fmt::format("deeper than {} levels", kMaxSchemaDepth));
  }
  if (rules_.is_too_large() || ++num_values_ > kMaxValues) {
    return schema_error(Code::invalid_argument, path,
                        fmt::format("the schema is too large: more than {} rules", Rules::kMaxRules));
  }
  RORQUAL_TRY_ASSIGN(const Json plain, forms_.plain(schema, path));
  ++depth_;
  auto out = plain_value(plain, path);
  --depth_;
  if (!out.ok()) return std::move(out).error();
  return rules_.add(*out);
}

Result<std::string> SchemaGrammar::plain_value(const Json& plain, const std::string& path) {
  if (plain.empty()) return any_value();
  if (plain.contains("$ref")) return reference(plain["$ref"].get<std::string>(), path);
  if (plain.contains("enum")) {
    std::vector<std::string> choices;
    for (const Json& value : plain["enum"]) choices.push_back(literal(text::json_text(value)));
    return choice(choices);
  }
  if (plain.contains("anyOf")) {
    std::vector<std::string> choices;
    for (const Json& option : plain["anyOf"]) {
      RORQUAL_TRY_ASSIGN(std::string one, value(option, fmt::format("{}.anyOf[{}]", path, choices.size())));
      choices.push_back(std::move(one));
    }
    return choice(choices);
  }
  const std::string type = plain["type"].get<std::string>();
  if (type == "boolean") return choice({"\"true\"", "\"false\""});
  if (type == "null") return literal("null");
  if (type == "integer") return integer(plain, path);
  if (type == "number") return number(plain, path);
  if (type == "string") return json_string(plain, path);
  const std::vector<std::string> open = std::exchange(open_references_, {});
  auto out = type == "array" ? array(plain, path) : object(plain, path);
  open_references_ = open;
  return out;
}

Result<std::string> SchemaGrammar::integer(const Json& plain, const std::string& path) {
  RORQUAL_TRY_ASSIGN(const IntegerRange range, integer_range(plain, path));
  if (plain.contains("multipleOf")) {
    const Json& factor = plain["multipleOf"];
    const bool is_whole = factor.is_number() && factor.get<double>() >= 1 && factor.get<double>() < 1e15 &&
                          std::floor(factor.get<double>()) == factor.get<double>();
    if (!is_whole) {
      RORQUAL_TRY(forms_.unenforced(path, "multipleOf", "only whole numbers from 1 on"));
    } else {
      auto out = multiple_grammar(static_cast<int64_t>(factor.get<double>()), range.min, range.max);
      if (out.ok()) return out;
      if (out.error().code() != Code::unsupported) return at_path(path, std::move(out).error());
      RORQUAL_TRY(forms_.unenforced(path, "multipleOf", out.error().message()));
    }
  }
  auto out = integer_grammar(range.min, range.max);
  if (!out.ok()) return at_path(path, std::move(out).error());
  return out;
}

Result<std::string> SchemaGrammar::number(const Json& plain, const std::string& path) {
  if (plain.contains("multipleOf")) return integer(plain, path);  // integers are numbers
  RORQUAL_TRY_ASSIGN(const auto min, number_bound(plain, false, path));
  RORQUAL_TRY_ASSIGN(const auto max, number_bound(plain, true, path));
  auto out = number_grammar(min, max);
  if (out.ok()) return out;
  if (out.error().code() != Code::unsupported) return at_path(path, std::move(out).error());
  RORQUAL_TRY(forms_.unenforced(path, "minimum, maximum", out.error().message()));
  return number_grammar({}, {});
}

/// Pattern of `pattern` or `format`, if one of them can be enforced.
Result<std::optional<RegexNode>> SchemaGrammar::string_pattern(const Json& plain, const std::string& path) {
  std::optional<RegexNode> pattern;
  for (const char* key : {"pattern", "format"}) {
    if (!plain.contains(key)) continue;
    if (!plain[key].is_string()) {
      return schema_error(Code::invalid_argument, child_path(path, key), "expected a string");
    }
    const std::string given = plain[key].get<std::string>();
    const bool is_format = std::string_view(key) == "format";
    const auto known = format_patterns().find(given);
    if (pattern || (is_format && known == format_patterns().end())) {
      const char* why = pattern ? "it stands beside 'pattern'" : "this format is not known";
      RORQUAL_TRY(forms_.unenforced(path, key, why));
      continue;
    }
    auto node =
        is_format ? parse_regex(known->second, RegexMatch::whole) : parse_regex(given, RegexMatch::anywhere);
    if (node.ok()) {
      pattern = *std::move(node);
    } else if (node.error().code() != Code::unsupported) {
      return at_path(child_path(path, key), std::move(node).error());
    } else {
      RORQUAL_TRY(forms_.unenforced(path, key, node.error().message()));
    }
  }
  return pattern;
}

Result<SchemaGrammar::Lengths> SchemaGrammar::string_lengths(const Json& plain, const std::string& path) {
  RORQUAL_TRY_ASSIGN(const auto min, count_of(plain, "minLength", path));
  RORQUAL_TRY_ASSIGN(const auto max, count_of(plain, "maxLength", path));
  if (min && max && *min > *max) {
    return schema_error(Code::invalid_argument, path, "minLength is above maxLength");
  }
  return Lengths{min.value_or(0), max.value_or(-1)};
}

/// Rule of an automaton; none, and said so, if there is no room for it.
Result<std::optional<std::string>> SchemaGrammar::automaton(const RegexNode& node, RegexText text,
                                                            const std::string& path) {
  const std::string expression = regex_expression(node, text);
  const auto known = automata_.find(expression);
  if (known != automata_.end()) return std::optional<std::string>(known->second);
  if (!rules_.take_positions(num_positions(node))) {
    RORQUAL_TRY(
        forms_.unenforced(path, "pattern, format or length",
                          fmt::format("all patterns together have more than {} characters when their counts "
                                      "are multiplied out",
                                      Rules::kMaxPositions)));
    return std::optional<std::string>();
  }
  return std::optional<std::string>(automata_[expression] = rules_.add(expression));
}

Result<std::string> SchemaGrammar::json_string(const Json& plain, const std::string& path) {
  RORQUAL_TRY_ASSIGN(const Lengths lengths, string_lengths(plain, path));
  RORQUAL_TRY_ASSIGN(const std::optional<RegexNode> pattern, string_pattern(plain, path));
  if (pattern && (lengths.min > 0 || lengths.max >= 0)) {
    RORQUAL_TRY(forms_.unenforced(path, "minLength, maxLength", "they stand beside 'pattern' or 'format'"));
  }
  if (pattern) {
    RORQUAL_TRY_ASSIGN(const auto body, automaton(*pattern, RegexText::json, path));
    if (body) return fmt::format("\"\\\"\" {} \"\\\"\"", *body);
    return "\"\\\"\" " + rest_of_string();
  }
  if (lengths.max >= 0 || lengths.min > kMaxEscapedMin) {
    // Counting is cheap for plain characters only: such a string has no escapes.
    return fmt::format("\"\\\"\" {} \"\\\"\"",
                       repeat(character(plain_characters()), lengths.min, lengths.max));
  }
  std::string rest = rest_of_string();
  for (int64_t i = 0; i < lengths.min; ++i)
    rest = rules_.add(fmt::format("({}) {}", one_more(rest), kAfterString));
  return "\"\\\"\" " + rest;
}

Result<std::string> SchemaGrammar::raw_string(const Json& plain, const std::string& path) {
  RORQUAL_TRY_ASSIGN(Lengths lengths, string_lengths(plain, path));
  RORQUAL_TRY_ASSIGN(std::optional<RegexNode> pattern, string_pattern(plain, path));
  const bool is_limited = lengths.min > 0 || lengths.max >= 0;
  if (is_limited && (pattern || std::max(lengths.min, lengths.max) > kMaxRawLength)) {
    const std::string why = fmt::format("beside 'pattern' or 'format', or above {}", kMaxRawLength);
    RORQUAL_TRY(forms_.unenforced(path, "minLength, maxLength", why));
    lengths = {};
  }
  if (!pattern && (lengths.min > 0 || lengths.max >= 0)) pattern = any_characters(lengths.min, lengths.max);
  if (pattern) {
    RORQUAL_TRY_ASSIGN(const auto body, automaton(*pattern, RegexText::raw, path));
    if (body) return *body;
  }
  return repeat(character(CodePoints::all()), 0, -1);
}

Result<std::string> SchemaGrammar::array(const Json& plain, const std::string& path) {
  Json prefix = Json::array(), items = true;
  if (plain.contains("items")) items = plain["items"];
  if (items.is_array()) {  // drafts before 2020-12
    prefix = items;
    items = plain.contains("additionalItems") ? plain["additionalItems"] : Json(true);
  } else if (plain.contains("prefixItems")) {
    prefix = plain["prefixItems"];
  }
  if (!prefix.is_array() || prefix.size() > kMaxProperties) {
    return schema_error(Code::invalid_argument, path,
                        fmt::format("expected a list of at most {} items", kMaxProperties));
  }
  RORQUAL_TRY_ASSIGN(const auto min_items, count_of(plain, "minItems", path));
  RORQUAL_TRY_ASSIGN(const auto max_items, count_of(plain, "maxItems", path));
  const auto num_fixed = static_cast<int64_t>(prefix.size());
  const int64_t min = min_items.value_or(0);
  int64_t max = max_items.value_or(-1);
  if (items == Json(false)) max = max < 0 ? num_fixed : std::min(max, num_fixed);
  if (max >= 0 && min > max)
    return schema_error(Code::invalid_argument, path, "no number of items is allowed");
  std::string item;
  if (max < 0 || max > num_fixed) {
    RORQUAL_TRY_ASSIGN(item, value(items, child_path(path, "items")));
  }
  std::string body;
  if (num_fixed == 0) {
    body = list(item, min, max);
  } else {
    // From the back: what may follow after the first i items.
    std::string tail = item.empty()
                           ? "\"\""
                           : repeat(fmt::format("{} {}", comma(), item),
                                    std::max<int64_t>(min - num_fixed, 0), max < 0 ? -1 : max - num_fixed);
    for (int64_t i = num_fixed - 1; i >= 0; --i) {
      RORQUAL_TRY_ASSIGN(const std::string one,
                         value(prefix[static_cast<size_t>(i)], fmt::format("{}.prefixItems[{}]", path, i)));
      if (max >= 0 && i >= max) continue;
      tail = rules_.add(fmt::format("{} {} {}", i == 0 ? "\"\"" : comma(), one, tail));
      if (i >= min) tail = optional(tail);
    }
    body = tail;
  }
  return fmt::format("\"[\" {0} {1} {0} \"]\"", gap_, body);
}

Result<std::string> SchemaGrammar::object(const Json& plain, const std::string& path) {
  const bool has_members = plain.contains("properties") && !plain["properties"].empty();
  const bool has_required = plain.contains("required") && !plain["required"].empty();
  if (plain.contains("properties") && !plain["properties"].is_object()) {
    return schema_error(Code::invalid_argument, child_path(path, "properties"), "expected an object");
  }
  RORQUAL_TRY_ASSIGN(const std::string body,
                     has_members || has_required ? members(plain, path) : map_entries(plain, path));
  return fmt::format("\"{{\" {0} {1} {0} \"}}\"", gap_, body);
}

/// Objects with named properties: in the order of the schema, then others where they are allowed.
Result<std::string> SchemaGrammar::members(const Json& plain, const std::string& path) {
  Json properties = plain.contains("properties") ? plain["properties"] : Json::object();
  const Json additional =
      plain.contains("additionalProperties") ? plain["additionalProperties"] : Json(false);
  std::set<std::string> required;
  for (const Json& name : plain.contains("required") ? plain["required"] : Json::array()) {
    if (!name.is_string())
      return schema_error(Code::invalid_argument, child_path(path, "required"), "expected strings");
    required.insert(name.get<std::string>());
    if (properties.contains(name.get<std::string>())) continue;
    if (plain.contains("additionalProperties") && additional == Json(false)) {
      return schema_error(
          Code::invalid_argument, child_path(path, "required"),
          fmt::format("'{}' is required, and 'additionalProperties' forbids it", name.get<std::string>()));
    }
    properties[name.get<std::string>()] = additional == Json(false) ? Json(true) : additional;
  }
  if (properties.size() > kMaxProperties) {
    return schema_error(Code::invalid_argument, path, fmt::format("more than {} properties", kMaxProperties));
  }
  for (const char* key : {"patternProperties", "propertyNames"}) {
    if (plain.contains(key)) RORQUAL_TRY(forms_.unenforced(path, key, "it stands beside 'properties'"));
  }
  const bool is_closed = additional == Json(false);
  RORQUAL_TRY_ASSIGN(const auto min, count_of(plain, "minProperties", path));
  RORQUAL_TRY_ASSIGN(const auto max, count_of(plain, "maxProperties", path));
  const bool is_met = min.value_or(0) <= static_cast<int64_t>(required.size()) &&
                      (!max || (is_closed && *max >= static_cast<int64_t>(properties.size())));
  if (!is_met) {
    RORQUAL_TRY(forms_.unenforced(path, "minProperties, maxProperties", "they stand beside 'properties'"));
  }
  return member_list(properties, required, is_closed ? nullptr : &additional, path);
}

/// All members begin alike, up to the name: so that the way on is not tried for every property at every
/// token.
Result<std::string> SchemaGrammar::member_list(const Json& properties, const std::set<std::string>& required,
                                               const Json* additional, const std::string& path) {
  std::vector<std::string> names;
  for (const auto& [name, schema] : properties.items()) names.push_back(name);
  // From the back. `keys`: a name with its quote and value, and what follows; `next`: the end, or a comma and
  // `keys`.
  std::string keys, next = literal("");
  if (additional != nullptr) {
    RORQUAL_TRY_ASSIGN(const std::string other, value(*additional, child_path(path, "additionalProperties")));
    keys = rules_.declare();
    next = rules_.add(fmt::format("({} \"\\\"\" {})?", comma(), keys));
    // Without escapes, which could spell a known name.
    rules_.define(keys, fmt::format("{} \"\\\"\" {} {} {}", other_names(names, plain_characters()), colon(),
                                    other, next));
  }
  bool may_end = true;
  for (size_t i = names.size(); i-- > 0;) {
    const std::string& name = names[i];
    RORQUAL_TRY_ASSIGN(const std::string one,
                       value(properties[name], child_path(path + ".properties", name)));
    const std::string rest_of_key = literal(text::json_quote(name).substr(1));
    const std::string member = fmt::format("{} {} {} {}", rest_of_key, colon(), one, next);
    const bool is_required = required.contains(name);
    may_end = may_end && !is_required;
    keys = rules_.add(is_required || keys.empty() ? member : choice({member, keys}));
    const std::string more = fmt::format("{} \"\\\"\" {}", comma(), keys);
    next = rules_.add(may_end ? optional(more) : more);
  }
  const std::string some = "\"\\\"\" " + keys;
  return may_end ? optional(some) : some;
}

/// Key of an object without named properties.
Result<std::string> SchemaGrammar::map_key(const Json& plain, const std::string& path) {
  Json key_schema{{"type", "string"}};
  if (plain.contains("propertyNames")) {
    RORQUAL_TRY_ASSIGN(const Json names, forms_.plain(Json{{"allOf", {plain["propertyNames"], key_schema}}},
                                                      child_path(path, "propertyNames")));
    key_schema = names;
  }
  return value(key_schema, child_path(path, "propertyNames"));
}

Result<std::string> SchemaGrammar::map_entries(const Json& plain, const std::string& path) {
  Json additional = plain.contains("additionalProperties") ? plain["additionalProperties"] : Json(true);
  RORQUAL_TRY_ASSIGN(const auto min, count_of(plain, "minProperties", path));
  RORQUAL_TRY_ASSIGN(const auto max, count_of(plain, "maxProperties", path));
  if (min && max && *min > *max)
    return schema_error(Code::invalid_argument, path, "minProperties is above maxProperties");
  std::string key;
  if (plain.contains("patternProperties")) {
    const Json& patterns = plain["patternProperties"];
    const bool is_simple = patterns.is_object() && patterns.size() == 1 && additional == Json(false) &&
                           !plain.contains("propertyNames");
    if (!is_simple) {
      RORQUAL_TRY(forms_.unenforced(path, "patternProperties",
                                    "only one pattern beside additionalProperties: false"));
    } else {
      const Json pattern{{"type", "string"}, {"pattern", patterns.begin().key()}};
      RORQUAL_TRY_ASSIGN(key, value(pattern, child_path(path, "patternProperties")));
      additional = patterns.begin().value();
    }
  }
  if (additional == Json(false)) {
    if (min.value_or(0) > 0)
      return schema_error(Code::invalid_argument, path, "properties are asked for and forbidden");
    return literal("");
  }
  if (key.empty()) {
    RORQUAL_TRY_ASSIGN(key, map_key(plain, path));
  }
  RORQUAL_TRY_ASSIGN(const std::string one, value(additional, child_path(path, "additionalProperties")));
  const std::string entry = rules_.add(fmt::format("{} {} {}", key, colon(), one));
  if (min.value_or(0) > 1) {
    RORQUAL_TRY(forms_.unenforced(path, "minProperties", "a repeated name cannot be excluded"));
  }
  return list(entry, min.value_or(0), max.value_or(-1));
}

}  // namespace rorqual::grammar
