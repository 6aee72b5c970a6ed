// SPDX-License-Identifier: Apache-2.0
#include "kl/corpus_build_extract.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <charconv>

#include "text/utf8.h"

namespace rorqual::kl {
namespace {

bool is_blank(char c) {
  return c == ' ' || c == '\t' || c == '\n' || c == '\r';
}

/// Appends what an entity such as "amp" or "#8212" stands for; unknown ones become a blank.
void append_entity(std::string& out, std::string_view name) {
  struct Named {
    std::string_view name, text;
  };

  static constexpr Named kNamed[] = {
      {"amp", "&"},    {"lt", "<"},     {"gt", ">"},     {"quot", "\""}, {"apos", "'"},  {"nbsp", " "},
      {"mdash", "—"},  {"ndash", "–"},  {"hellip", "…"}, {"copy", "©"},  {"reg", "®"},   {"eacute", "é"},
      {"egrave", "è"}, {"agrave", "à"}, {"auml", "ä"},   {"ouml", "ö"},  {"uuml", "ü"},  {"szlig", "ß"},
      {"ccedil", "ç"}, {"ntilde", "ñ"}, {"ldquo", "“"},  {"rdquo", "”"}, {"lsquo", "‘"}, {"rsquo", "’"},
      {"laquo", "«"},  {"raquo", "»"},  {"rarr", "→"},   {"times", "×"}};
  if (name.starts_with('#')) {
    const bool is_hex = name.size() > 1 && (name[1] == 'x' || name[1] == 'X');
    const auto digits = name.substr(is_hex ? 2 : 1);
    uint32_t value = 0;
    const auto parsed =
        std::from_chars(digits.data(), digits.data() + digits.size(), value, is_hex ? 16 : 10);
    const bool is_scalar = value < 0x110000 && (value < 0xD800 || value > 0xDFFF) && value >= 0x20;
    if (parsed.ec == std::errc() && is_scalar) {
      text::append_utf8(out, value == 0xA0 ? U' ' : static_cast<char32_t>(value));
    } else {
      out += ' ';
    }
    return;
  }
  const auto* found = std::find_if(std::begin(kNamed), std::end(kNamed),
                                   [&](const Named& entry) { return entry.name == name; });
  out += found == std::end(kNamed) ? std::string_view(" ") : found->text;
}

/// Runs of blanks, no-break and zero-width characters become one space; none at the ends.
std::string collapse(std::string_view text) {
  std::string out;
  bool gap = false;
  for (size_t i = 0; i < text.size();) {
    const auto c = text::decode_utf8(text, i);
    const bool blank = c.code_point == 0xA0 || c.code_point == 0x200B || c.code_point == 0xFEFF ||
                       (c.code_point < 0x80 && is_blank(static_cast<char>(c.code_point)));
    if (blank) {
      gap = true;
    } else {
      if (gap && !out.empty()) out += ' ';
      gap = false;
      out += text.substr(i, c.length);
    }
    i += c.length;
  }
  return out;
}

struct Tag {
  std::string_view name;  // without prefix ("mal:"), lower case in the sources
  bool closes = false, is_empty = false;
  size_t end = 0;  // index after '>'
};

/// The tag, comment or declaration at text[pos] == '<'.
Tag read_tag(std::string_view text, size_t pos) {
  Tag tag;
  if (text.substr(pos).starts_with("<!--")) {
    const auto end = text.find("-->", pos);
    tag.end = end == std::string_view::npos ? text.size() : end + 3;
    return tag;
  }
  const auto close = text.find('>', pos);
  tag.end = close == std::string_view::npos ? text.size() : close + 1;
  auto inside = text.substr(pos + 1, tag.end - pos - 2);
  tag.closes = inside.starts_with('/');
  if (tag.closes) inside.remove_prefix(1);
  tag.is_empty = inside.ends_with('/') || inside.starts_with('?') || inside.starts_with('!');
  const auto length = static_cast<size_t>(
      std::find_if(inside.begin(), inside.end(), [](char c) { return is_blank(c) || c == '/'; }) -
      inside.begin());
  tag.name = inside.substr(0, length);
  if (const auto colon = tag.name.find(':'); colon != std::string_view::npos)
    tag.name.remove_prefix(colon + 1);
  return tag;
}

bool one_of(std::string_view name, std::initializer_list<std::string_view> names) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

uint32_t little_endian_32(std::string_view bytes, size_t at) {
  uint32_t value = 0;
  for (size_t i = 4; i-- > 0;) value = value << 8 | static_cast<unsigned char>(bytes[at + i]);
  return value;
}

/// The string that the table of a catalog describes at `at`.
Result<std::string_view> catalog_string(std::string_view file, size_t at) {
  if (at + 8 > file.size()) {
    return Error(Code::corrupt_data, "the catalog's table lies outside the file",
                 "install the package again");
  }
  const size_t length = little_endian_32(file, at), offset = little_endian_32(file, at + 4);
  if (offset > file.size() || length > file.size() - offset) {
    return Error(Code::corrupt_data,
                 fmt::format("a catalog's string at {} of {} bytes lies outside the file of {} bytes", offset,
                             length, file.size()),
                 "install the package again");
  }
  return file.substr(offset, length);
}

bool is_plain_message(std::string_view message) {
  if (message.find_first_of(std::string_view("\0\4%<{_|=", 8)) != std::string_view::npos) return false;
  return !holds_address(message);
}

bool starts_comment(std::string_view line) {
  return one_of(line.substr(0, 2), {"//", "/*", "--", ";;", "#!", "# ", "*/"}) || line.starts_with('*') ||
         line.starts_with(";") || line == "#" || line.starts_with("<?php");
}

/// A comment at the very top is a licence in nearly every file: it would be the most repeated text.
std::string_view without_leading_comment(std::string_view text) {
  bool in_block = false;
  size_t pos = 0;
  while (pos < text.size()) {
    const auto end = std::min(text.find('\n', pos), text.size());
    const auto line = text.substr(pos, end - pos);
    const auto first = std::min(line.find_first_not_of(" \t\r"), line.size());
    const auto body = line.substr(first);
    if (!in_block && !body.empty() && !starts_comment(body)) return text.substr(pos);
    if (body.starts_with("/*")) in_block = true;
    if (body.find("*/") != std::string_view::npos) in_block = false;
    pos = end + 1;
  }
  return {};
}

bool names_an_author(std::string_view line) {
  std::string lower(line);
  std::transform(lower.begin(), lower.end(), lower.begin(),
                 [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  for (const std::string_view word :
       {"copyright", "author", "(c) 20", "(c) 19", "contributor", "maintainer", "thanks to", "written by",
        "all rights reserved", "@license", "license:"}) {
    if (lower.find(word) != std::string::npos) return true;
  }
  return false;
}

/// Tables of numbers and one-line programs are not what people write.
bool looks_generated(std::string_view text) {
  int64_t digits = 0, lines = 1;
  for (const char c : text) {
    digits += c >= '0' && c <= '9';
    lines += c == '\n';
  }
  const auto size = static_cast<int64_t>(text.size());
  return size / lines > 100 || digits * 6 > size;
}

}  // namespace

std::vector<std::string> markup_paragraphs(std::string_view page, ExtractKind kind) {
  const bool is_mallard = kind == ExtractKind::mallard;
  std::vector<std::string> paragraphs;
  std::string current;
  bool in_paragraph = false;
  size_t skipped_until = 0;  // inside an element whose text nobody reads
  for (size_t pos = 0; pos < page.size();) {
    if (page[pos] == '<') {
      const auto tag = read_tag(page, pos);
      const bool ignored = one_of(tag.name, {"info", "comment", "media", "code", "screen", "pre", "script",
                                             "style", "head", "table", "email"}) &&
                           !(tag.name == "code" && in_paragraph);
      if (ignored && !tag.closes && !tag.is_empty) {
        const auto end = page.find(fmt::format("</{}>", tag.name), tag.end);
        skipped_until = end == std::string_view::npos ? page.size() : end;
        pos = skipped_until;
        continue;
      }
      if (tag.name == "p" || (is_mallard && tag.name == "title")) {
        auto text = collapse(current);
        if (in_paragraph && !text.empty()) paragraphs.push_back(std::move(text));
        current.clear();
        in_paragraph = !tag.closes && !tag.is_empty;
      }
      pos = std::max(tag.end, pos + 1);
    } else if (page[pos] == '&') {
      const auto end = page.find(';', pos);
      const bool is_entity = end != std::string_view::npos && end - pos <= 10;
      if (in_paragraph) {
        if (is_entity) {
          append_entity(current, page.substr(pos + 1, end - pos - 1));
        } else {
          current += '&';
        }
      }
      pos = is_entity ? end + 1 : pos + 1;
    } else {
      if (in_paragraph) current += page[pos];
      ++pos;
    }
  }
  return paragraphs;
}

Result<std::vector<std::string>> catalog_messages(std::string_view file, size_t min_bytes) {
  if (file.size() < 28 || little_endian_32(file, 0) != 0x950412DEU) {
    return Error(Code::corrupt_data, "this is no little-endian message catalog", "install the package again");
  }
  const size_t count = little_endian_32(file, 8);
  const size_t originals = little_endian_32(file, 12), translations = little_endian_32(file, 16);
  if (count > file.size() / 8) {
    return Error(Code::corrupt_data,
                 fmt::format("a catalog of {} bytes claims {} messages", file.size(), count),
                 "install the package again");
  }
  std::vector<std::string> messages;
  for (size_t i = 0; i < count; ++i) {
    RORQUAL_TRY_ASSIGN(const auto original, catalog_string(file, originals + 8 * i));
    RORQUAL_TRY_ASSIGN(const auto translation, catalog_string(file, translations + 8 * i));
    if (original.size() < min_bytes || original == translation || !is_plain_message(translation)) continue;
    if (text::is_valid_utf8(translation)) messages.push_back(collapse(translation));
  }
  return messages;
}

std::string clean_source(std::string_view file) {
  if (!text::is_valid_utf8(file) || looks_generated(file)) return {};
  const auto body = without_leading_comment(file);
  std::string out;
  for (size_t pos = 0; pos < body.size();) {
    const auto end = std::min(body.find('\n', pos), body.size());
    auto line = body.substr(pos, end - pos);
    if (line.ends_with('\r')) line.remove_suffix(1);
    if (!names_an_author(line) && !holds_address(line)) {
      out += line;
      out += '\n';
    }
    pos = end + 1;
  }
  return out;
}

bool is_in_script(std::string_view text, Script script) {
  int64_t letters = 0, matching = 0, kana = 0;
  for (size_t i = 0; i < text.size();) {
    const auto c = text::decode_utf8(text, i);
    i += c.length;
    const auto found = script_of(c.code_point);
    if (found == Script::other) continue;
    ++letters;
    kana += found == Script::kana;
    matching += found == script || (script == Script::kana && found == Script::han);
  }
  if (letters == 0 || 2 * matching < letters) return false;
  return script != Script::kana || 5 * kana >= letters;
}

bool holds_address(std::string_view text) {
  if (text.find("://") != std::string_view::npos || text.find("www.") != std::string_view::npos) return true;
  for (auto at = text.find('@'); at != std::string_view::npos; at = text.find('@', at + 1)) {
    const auto is_word = [](char c) { return std::isalnum(static_cast<unsigned char>(c)) != 0; };
    const auto rest = text.substr(at + 1);
    const auto length = static_cast<size_t>(
        std::find_if(rest.begin(), rest.end(), [&](char c) { return !is_word(c) && c != '-'; }) -
        rest.begin());
    // "name@host.tld"; decorators and format marks have no word before or no dot after.
    if (at > 0 && is_word(text[at - 1]) && length > 0 && rest.substr(length).starts_with('.')) return true;
  }
  return false;
}

}  // namespace rorqual::kl
