// SPDX-License-Identifier: Apache-2.0
// Parser of regular expressions, and their grammars.
#include "grammar/regex.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <utility>

#include "grammar/ebnf.h"
#include "text/utf8.h"

namespace rorqual::grammar {

namespace {

using Kind = RegexNode::Kind;

RegexNode of_set(CodePoints set) {
  return {Kind::set, std::move(set), {}, 0, -1};
}

RegexNode of_kind(Kind kind, std::vector<RegexNode> children = {}) {
  return {kind, {}, std::move(children), 0, -1};
}

CodePoints digits() {
  return CodePoints('0', '9');
}

CodePoints word() {
  CodePoints set('a', 'z');
  set.add('A', 'Z');
  set.add('0', '9');
  set.add('_', '_');
  return set;
}

CodePoints space() {
  CodePoints set(0x09, 0x0D);
  for (const auto& [first, last] : {std::pair<char32_t, char32_t>{0x20, 0x20},
                                    {0xA0, 0xA0},
                                    {0x1680, 0x1680},
                                    {0x2000, 0x200A},
                                    {0x2028, 0x2029},
                                    {0x202F, 0x202F},
                                    {0x205F, 0x205F},
                                    {0x3000, 0x3000},
                                    {0xFEFF, 0xFEFF}}) {
    set.add(first, last);
  }
  return set;
}

CodePoints not_line_end() {
  CodePoints ends = CodePoints::any_of("\n\r");
  ends.add(0x2028, 0x2029);
  return ends.complement();
}

/// \d \D \w \W \s \S.
std::optional<CodePoints> class_escape(char32_t letter) {
  switch (letter) {
    case 'd':
      return digits();
    case 'D':
      return digits().complement();
    case 'w':
      return word();
    case 'W':
      return word().complement();
    case 's':
      return space();
    case 'S':
      return space().complement();
    default:
      return std::nullopt;
  }
}

class Parser {
 public:
  explicit Parser(std::string_view pattern) {
    for (size_t at = 0; at < pattern.size();) {
      const text::Utf8Char c = text::decode_utf8(pattern, at);
      text_.push_back(c.code_point);
      at += c.length;
    }
  }

  Result<RegexNode> parse() {
    RORQUAL_TRY_ASSIGN(RegexNode node, alternatives(0));
    if (at_ < text_.size()) return syntax("')' without '('");
    return node;
  }

 private:
  Error syntax(const std::string& what) const {
    return Error(Code::invalid_argument, fmt::format("at character {}: {}", at_ + 1, what));
  }

  Error unsupported(const std::string& what) const {
    return Error(Code::unsupported, fmt::format("at character {}: {} cannot be enforced", at_ + 1, what));
  }

  bool at_end() const { return at_ >= text_.size(); }

  char32_t peek(size_t ahead = 0) const { return at_ + ahead < text_.size() ? text_[at_ + ahead] : 0; }

  bool take(char32_t c) {
    if (at_end() || text_[at_] != c) return false;
    ++at_;
    return true;
  }

  Result<RegexNode> alternatives(int depth) {
    if (depth > kMaxRegexDepth)
      return syntax(fmt::format("more than {} groups in each other", kMaxRegexDepth));
    RegexNode out = of_kind(Kind::choice);
    do {
      RORQUAL_TRY_ASSIGN(RegexNode branch, sequence(depth));
      out.children.push_back(std::move(branch));
    } while (take('|'));
    if (out.children.size() > 1) return out;
    RegexNode only = std::move(out.children.front());
    return only;
  }

  Result<RegexNode> sequence(int depth) {
    RegexNode out = of_kind(Kind::sequence);
    while (!at_end() && peek() != '|' && peek() != ')') {
      RORQUAL_TRY_ASSIGN(RegexNode item, atom(depth));
      RORQUAL_TRY_ASSIGN(item, quantified(std::move(item)));
      out.children.push_back(std::move(item));
    }
    return out;
  }

  Result<RegexNode> atom(int depth) {
    const char32_t c = peek();
    if (c == '(') return group(depth);
    if (c == '[') return character_class();
    if (c == '\\') return escaped();
    if (c == '*' || c == '+' || c == '?') return syntax("nothing to repeat");
    ++at_;
    if (c == '.') return of_set(not_line_end());
    if (c == '^') return of_kind(Kind::begin);
    if (c == '$') return of_kind(Kind::end);
    return of_set(CodePoints(c, c));
  }

  Result<RegexNode> group(int depth) {
    const size_t open = at_;
    ++at_;
    if (peek() == '?') {
      const char32_t kind = peek(1);
      if (kind == ':') {
        at_ += 2;
      } else if (kind == '=' || kind == '!') {
        return unsupported("look-ahead");
      } else if (kind == '<' && (peek(2) == '=' || peek(2) == '!')) {
        return unsupported("look-behind");
      } else if (kind == '<' || (kind == 'P' && peek(2) == '<')) {
        while (!at_end() && peek() != '>') ++at_;
        if (!take('>')) return syntax("the name of a group does not end");
      } else {
        return unsupported("this kind of group");
      }
    }
    RORQUAL_TRY_ASSIGN(RegexNode inside, alternatives(depth + 1));
    if (!take(')')) {
      at_ = open;
      return syntax("'(' without ')'");
    }
    return inside;
  }

  Result<RegexNode> quantified(RegexNode item) {
    int64_t min = 0, max = -1;
    const size_t begin = at_;
    if (take('*')) {
    } else if (take('+')) {
      min = 1;
    } else if (take('?')) {
      max = 1;
    } else if (peek() != '{' || !counts(min, max)) {
      at_ = begin;
      return item;
    }
    if (item.kind == Kind::begin || item.kind == Kind::end) return syntax("an anchor cannot be repeated");
    if (peek() == '+') return unsupported("a possessive repetition");
    take('?');  // lazy: the same texts match
    if (peek() == '*' || peek() == '+' || peek() == '?') return syntax("a repetition of a repetition");
    if (max >= 0 && max < min) return syntax("a repetition whose largest count is below its smallest");
    if (std::max(min, max) > kMaxRegexCount) return syntax(fmt::format("a count above {}", kMaxRegexCount));
    RegexNode out = of_kind(Kind::repeat, {std::move(item)});
    out.min = min;
    out.max = max;
    return out;
  }

  /// {m}, {m,} or {m,n}; false: the brace is an ordinary character.
  bool counts(int64_t& min, int64_t& max) {
    ++at_;
    const auto number = [&](int64_t& out) {
      const size_t begin = at_;
      for (out = 0; peek() >= '0' && peek() <= '9'; ++at_) {
        out = std::min<int64_t>(out * 10 + (peek() - '0'), kMaxRegexCount + 1);
      }
      return at_ > begin;
    };
    if (!number(min)) return false;
    max = min;
    if (take(',') && !number(max)) max = -1;
    return take('}');
  }

  Result<RegexNode> escaped() {
    const char32_t c = peek(1);
    if (const auto set = class_escape(c)) {
      at_ += 2;
      return of_set(*set);
    }
    if (c == 'b' || c == 'B') return unsupported("a word boundary");
    if (c == 'A' || c == 'Z' || c == 'z')
      return unsupported(fmt::format("the anchor \\{}", static_cast<char>(c)));
    RORQUAL_TRY_ASSIGN(const char32_t one, escaped_character());
    return of_set(CodePoints(one, one));
  }

  /// The character that an escape stands for, in and outside classes.
  Result<char32_t> escaped_character() {
    const size_t begin = at_++;
    const char32_t c = peek();
    const auto fail = [&](Error (Parser::*make)(const std::string&) const, const std::string& what) {
      at_ = begin;
      return (this->*make)(what);
    };
    if (at_end()) return fail(&Parser::syntax, "'\\' at the end");
    ++at_;
    switch (c) {
      case 't':
        return U'\t';
      case 'n':
        return U'\n';
      case 'r':
        return U'\r';
      case 'f':
        return U'\f';
      case 'v':
        return U'\v';
      case 'x':
      case 'u':
        return hex_escape(begin, c == 'x' ? 2 : 4);
      case '0':
        if (peek() < '0' || peek() > '9') return U'\0';
        return fail(&Parser::unsupported, "an octal escape");
      case 'p':
      case 'P':
        return fail(&Parser::unsupported, "a Unicode property");
      case 'k':
        return fail(&Parser::unsupported, "a back-reference");
      default:
        break;
    }
    if (c >= '1' && c <= '9') return fail(&Parser::unsupported, "a back-reference");
    if ((c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z')) {
      return fail(&Parser::syntax, fmt::format("'\\{}' is no escape", static_cast<char>(c)));
    }
    return c;
  }

  Result<char32_t> hex_escape(size_t begin, size_t count) {
    const bool braces = count == 4 && take('{');
    char32_t value = 0;
    size_t num_digits = 0;
    const auto digit = [](char32_t c) -> int {
      if (c >= '0' && c <= '9') return static_cast<int>(c - '0');
      if (c >= 'a' && c <= 'f') return static_cast<int>(c - 'a') + 10;
      return c >= 'A' && c <= 'F' ? static_cast<int>(c - 'A') + 10 : -1;
    };
    for (; num_digits < (braces ? 6 : count) && digit(peek()) >= 0; ++at_, ++num_digits) {
      value = value * 16 + static_cast<char32_t>(digit(peek()));
    }
    const bool is_whole = braces ? num_digits > 0 && take('}') : num_digits == count;
    if (is_whole && CodePoints::all().contains(value)) return value;
    at_ = begin;
    return syntax("an escape that is no character");
  }

  Result<RegexNode> character_class() {
    const size_t open = at_;
    ++at_;
    const bool is_negated = take('^');
    CodePoints set;
    while (!at_end() && peek() != ']') {
      RORQUAL_TRY(class_item(set));
    }
    if (!take(']')) {
      at_ = open;
      return syntax("'[' without ']'");
    }
    if (is_negated) set = set.complement();
    if (!set.empty()) return of_set(std::move(set));
    at_ = open;
    return syntax("a class without characters");
  }

  Status class_item(CodePoints& set) {
    if (peek() == '\\') {
      if (const auto named = class_escape(peek(1))) {
        at_ += 2;
        set.add(*named);
        return Ok{};
      }
    }
    RORQUAL_TRY_ASSIGN(const char32_t first, class_character());
    const bool is_range = peek() == '-' && at_ + 1 < text_.size() && peek(1) != ']' &&
                          !(peek(1) == '\\' && class_escape(peek(2)));
    if (!is_range) {
      set.add(first, first);
      return Ok{};
    }
    ++at_;
    RORQUAL_TRY_ASSIGN(const char32_t last, class_character());
    if (last < first) return syntax("a range whose end is before its begin");
    set.add(CodePoints(first, last).intersection(CodePoints::all()));
    return Ok{};
  }

  Result<char32_t> class_character() {
    if (peek() != '\\') return text_[at_++];
    if (peek(1) == 'b') {  // in a class: backspace
      at_ += 2;
      return U'\b';
    }
    return escaped_character();
  }

  std::vector<char32_t> text_;
  size_t at_ = 0;
};

bool has_anchor(const RegexNode& node) {
  return node.kind == Kind::begin || node.kind == Kind::end ||
         std::any_of(node.children.begin(), node.children.end(), has_anchor);
}

/// Takes the anchors at the ends of `node`'s branches away; with `anywhere`, any text may stand where there
/// is none.
Result<RegexNode> resolve_anchors(RegexNode node, RegexMatch match) {
  if (node.kind == Kind::choice) {
    for (RegexNode& branch : node.children) {
      RORQUAL_TRY_ASSIGN(branch, resolve_anchors(std::move(branch), match));
    }
    return node;
  }
  if (node.kind != Kind::sequence) node = of_kind(Kind::sequence, {std::move(node)});
  const bool is_one_group = node.children.size() == 1 && (node.children[0].kind == Kind::choice ||
                                                          node.children[0].kind == Kind::sequence);
  if (is_one_group) {
    RegexNode inside = std::move(node.children[0]);
    return resolve_anchors(std::move(inside), match);
  }
  auto& items = node.children;
  const auto is = [](Kind kind) { return [kind](const RegexNode& item) { return item.kind == kind; }; };
  const auto first = std::find_if_not(items.begin(), items.end(), is(Kind::begin));
  const bool is_begun = first != items.begin();
  items.erase(items.begin(), first);
  const auto last = std::find_if_not(items.rbegin(), items.rend(), is(Kind::end)).base();
  const bool is_ended = last != items.end();
  items.erase(last, items.end());
  if (has_anchor(node)) {
    return Error(Code::unsupported, "'^' or '$' inside the pattern cannot be enforced",
                 "put them at the begin and the end of the pattern or of its alternatives");
  }
  if (match == RegexMatch::whole) return node;
  if (!is_begun) items.insert(items.begin(), any_characters(0, -1));
  if (!is_ended) items.push_back(any_characters(0, -1));
  return node;
}

/// A class in the engine's notation.
std::string spelled_class(const CodePoints& set) {
  std::string out = "[";
  for (const CodePoints::Range& range : set.ranges()) {
    out += fmt::format("\\u{{{:X}}}", static_cast<uint32_t>(range.first));
    if (range.last > range.first) out += fmt::format("-\\u{{{:X}}}", static_cast<uint32_t>(range.last));
  }
  return out + "]";
}

/// Escapes of JSON for the control characters of `set`.
void append_control_escapes(const CodePoints& set, std::vector<std::string>& choices) {
  constexpr std::pair<char32_t, char> kShort[] = {
      {'\b', 'b'}, {'\f', 'f'}, {'\n', 'n'}, {'\r', 'r'}, {'\t', 't'}};
  std::string letters;
  for (const auto& [code_point, letter] : kShort) {
    if (set.contains(code_point)) letters += letter;
  }
  if (!letters.empty()) choices.push_back("\\\\" + spelled_class(CodePoints::any_of(letters)));
  for (char32_t high = 0; high < 0x20; high += 0x10) {
    std::string low_digits;
    for (char32_t low = 0; low < 0x10; ++low) {
      const bool is_short = std::any_of(std::begin(kShort), std::end(kShort),
                                        [&](const auto& entry) { return entry.first == high + low; });
      if (!is_short && set.contains(high + low)) low_digits += "0123456789abcdef"[low];
    }
    if (low_digits.empty()) continue;
    choices.push_back(
        fmt::format("\\\\u00{}{}", high == 0 ? '0' : '1', spelled_class(CodePoints::any_of(low_digits))));
  }
}

std::string spelled_set(const CodePoints& set, RegexText text) {
  if (text == RegexText::raw) return spelled_class(set);
  CodePoints escaped(0, 0x1F);
  escaped.add(CodePoints::any_of("\"\\"));
  std::vector<std::string> choices;
  const CodePoints plain = set.intersection(escaped.complement());
  if (!plain.empty()) choices.push_back(spelled_class(plain));
  std::string signs;
  for (const char sign : {'"', '\\'}) {
    if (set.contains(static_cast<char32_t>(sign))) signs += sign;
  }
  if (!signs.empty()) choices.push_back("\\\\" + spelled_class(CodePoints::any_of(signs)));
  append_control_escapes(set, choices);
  return choices.size() == 1 ? choices.front() : fmt::format("(?:{})", fmt::join(choices, "|"));
}

/// The engine counts repetitions beside its automaton if it is left to it, which makes masks slow.
std::string spelled_repeat(const std::string& one, int64_t min, int64_t max) {
  std::string out;
  for (int64_t i = 0; i < min; ++i) out += one;
  if (max < 0) return out + fmt::format("(?:{})*", one);
  std::string tail;
  for (int64_t i = min; i < max; ++i) tail = fmt::format("(?:{}{})?", one, tail);
  return out + tail;
}

/// In the engine's notation; "" for what matches only the empty text.
std::string spelled(const RegexNode& node, RegexText text) {
  if (node.kind == Kind::set) return spelled_set(node.set, text);
  std::vector<std::string> parts;
  for (const RegexNode& child : node.children) parts.push_back(spelled(child, text));
  if (node.kind == Kind::repeat) return parts[0].empty() ? "" : spelled_repeat(parts[0], node.min, node.max);
  if (node.kind == Kind::sequence) return fmt::format("{}", fmt::join(parts, ""));
  const auto is_empty = [](const std::string& part) { return part.empty(); };
  const bool may_be_empty = std::any_of(parts.begin(), parts.end(), is_empty);
  parts.erase(std::remove_if(parts.begin(), parts.end(), is_empty), parts.end());
  if (parts.empty()) return "";
  return fmt::format("(?:{}){}", fmt::join(parts, "|"), may_be_empty ? "?" : "");
}

}  // namespace

Result<RegexNode> parse_regex(std::string_view pattern, RegexMatch match) {
  if (pattern.size() > kMaxRegexBytes) {
    return Error(Code::invalid_argument,
                 fmt::format("the regular expression has {} bytes, at most {} are possible", pattern.size(),
                             kMaxRegexBytes));
  }
  RORQUAL_TRY_ASSIGN(RegexNode node, Parser(pattern).parse());
  RORQUAL_TRY_ASSIGN(node, resolve_anchors(std::move(node), match));
  if (num_positions(node) > kMaxRegexPositions) {
    return Error(
        Code::invalid_argument,
        fmt::format("the regular expression has more than {} characters when its counts are multiplied out",
                    kMaxRegexPositions),
        "use smaller counts, or * and +");
  }
  return node;
}

RegexNode any_characters(int64_t min, int64_t max) {
  RegexNode node = of_kind(Kind::repeat, {of_set(CodePoints::all())});
  node.min = min;
  node.max = max;
  return node;
}

int64_t num_positions(const RegexNode& node) {
  int64_t sum = node.kind == Kind::set ? 1 : 0;
  for (const RegexNode& child : node.children) sum += num_positions(child);
  if (node.kind == Kind::repeat) sum *= std::max<int64_t>({node.min, node.max, 1});
  return std::min<int64_t>(sum, kMaxRegexPositions + 1);
}

std::string regex_expression(const RegexNode& node, RegexText text) {
  const std::string pattern = spelled(node, text);
  return pattern.empty() ? literal("") : fmt::format("Regex({})", literal(pattern));
}

}  // namespace rorqual::grammar
