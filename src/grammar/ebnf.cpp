// SPDX-License-Identifier: Apache-2.0
// Text of grammars.
#include "grammar/ebnf.h"

#include <fmt/format.h>

#include "text/utf8.h"

namespace rorqual::grammar {

std::string literal(std::string_view text) {
  std::string out = "\"";
  for (size_t at = 0; at < text.size();) {
    const text::Utf8Char c = text::decode_utf8(text, at);
    const bool is_plain =
        c.code_point >= 0x20 && c.code_point < 0x7F && c.code_point != '"' && c.code_point != '\\';
    if (is_plain) {
      out += static_cast<char>(c.code_point);
    } else {
      out += fmt::format("\\U{:08X}", static_cast<uint32_t>(c.code_point));
    }
    at += c.length;
  }
  return out + "\"";
}

std::string character(const CodePoints& set) {
  // The engine counts repetitions of a class without a slow detour if it is spelled by what is not in it.
  const bool is_open = set.contains(0x10FFFF);
  CodePoints listed = is_open ? set.complement() : set;
  if (is_open) listed.add(0xD800, 0xDFFF);
  std::string out = is_open ? "[^" : "[";
  for (const CodePoints::Range& range : listed.ranges()) {
    out += fmt::format("\\U{:08X}", static_cast<uint32_t>(range.first));
    if (range.last > range.first) out += fmt::format("-\\U{:08X}", static_cast<uint32_t>(range.last));
  }
  return out + "]";
}

std::string choice(const std::vector<std::string>& choices) {
  if (choices.size() == 1) return choices.front();
  return fmt::format("({})", fmt::join(choices, " | "));
}

std::string repeat(const std::string& expression, int64_t min, int64_t max) {
  if (min == 1 && max == 1) return expression;
  if (max == 0) return "\"\"";
  if (max < 0)
    return fmt::format("({}){}", expression, min == 0 ? "*" : min == 1 ? "+" : fmt::format("{{{},}}", min));
  if (min == 0 && max == 1) return fmt::format("({})?", expression);
  return fmt::format("({}){{{},{}}}", expression, min, max);
}

std::string token(int32_t id) {
  return fmt::format("Token({})", id);
}

std::string Rules::add(const std::string& body) {
  const auto known = names_.find(body);
  if (known != names_.end()) return known->second;
  const std::string name = declare();
  names_.emplace(body, name);
  define(name, body);
  return name;
}

std::string Rules::declare() {
  return fmt::format("r{}", num_rules_++);
}

void Rules::define(const std::string& name, const std::string& body) {
  if (!is_too_large()) text_ += fmt::format("{} ::= {}\n", name, body);
}

bool Rules::take_positions(int64_t count) {
  if (num_positions_ + count > kMaxPositions) return false;
  num_positions_ += count;
  return true;
}

std::string Rules::text(const std::string& root) const {
  return fmt::format("root ::= {}\n{}", root, text_);
}

}  // namespace rorqual::grammar
