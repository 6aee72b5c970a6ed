// SPDX-License-Identifier: Apache-2.0
// The pre-tokenizer's regular expressions, hand-written: numbers by three, then runs of Han and kana, then
// words, punctuation and white space. Each stage sees only its own stretch of text, so look-ahead stops at
// stretch ends.
#include "text/pretokenizer.h"

#include <cstdint>

#include "text/unicode.h"
#include "text/utf8.h"

namespace rorqual::text {

namespace {

struct Char {
  char32_t code_point;
  uint32_t length;
  CharClass cls;
};

bool is_newline(char32_t c) {
  return c == '\r' || c == '\n';
}

bool is_ascii_letter(char32_t c) {
  return (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z');
}

bool is_ascii_punctuation(char32_t c) {
  return (c >= '!' && c <= '/') || (c >= ':' && c <= '@') || (c >= '[' && c <= '`') || (c >= '{' && c <= '~');
}

bool is_han_or_kana(char32_t c) {
  return (c >= 0x4E00 && c <= 0x9FA5) || (c >= 0x3040 && c <= 0x30FF);
}

bool is_word(CharClass cls) {
  return cls == CharClass::letter || cls == CharClass::mark;
}

bool is_sign(CharClass cls) {
  return cls == CharClass::punctuation || cls == CharClass::symbol;
}

/// Third expression on one stretch: text without numbers, Han and kana, or a run of Han and kana.
class WordScanner {
 public:
  WordScanner(std::string_view text, std::vector<std::string_view>& pieces) : text_(text), pieces_(pieces) {}

  void run() {
    size_t gap_begin = 0;
    size_t pos = 0;
    while (pos < text_.size()) {
      const size_t end = match_end(pos);
      if (end == pos) {  // no alternative matches here: the character joins the gap
        pos += at(pos).length;
        continue;
      }
      emit(gap_begin, pos);
      emit(pos, end);
      pos = gap_begin = end;
    }
    emit(gap_begin, text_.size());
  }

 private:
  Char at(size_t pos) const {
    if (pos >= text_.size()) return {0, 0, CharClass::other};
    const auto byte = static_cast<uint8_t>(text_[pos]);
    if (byte < 0x80) return {byte, 1, char_class(byte)};
    const Utf8Char c = decode_utf8(text_, pos);
    return {c.code_point, c.length, char_class(c.code_point)};
  }

  void emit(size_t begin, size_t end) {
    if (end > begin) pieces_.push_back(text_.substr(begin, end - begin));
  }

  template <class Predicate>
  size_t skip(size_t pos, const Predicate& predicate) const {
    while (pos < text_.size()) {
      const Char c = at(pos);
      if (!predicate(c)) break;
      pos += c.length;
    }
    return pos;
  }

  size_t skip_word(size_t pos) const {
    return skip(pos, [](const Char& c) { return is_word(c.cls); });
  }

  /// End of the match that starts at `pos`, or `pos`.
  size_t match_end(size_t pos) const {
    const Char c = at(pos);
    const size_t next_pos = pos + c.length;
    const Char next = at(next_pos);
    if (is_ascii_punctuation(c.code_point) && is_ascii_letter(next.code_point)) {
      return skip(next_pos, [](const Char& x) { return is_ascii_letter(x.code_point); });
    }
    if (c.cls == CharClass::letter) return skip_word(pos);
    if (!is_newline(c.code_point) && !is_sign(c.cls)) {  // one leading character of any other kind
      if (next.length > 0 && is_word(next.cls)) return skip_word(next_pos);
      if (c.cls == CharClass::mark) return next_pos;
    }
    const bool is_spaced_sign = c.code_point == ' ' && next.length > 0 && is_sign(next.cls);
    if (is_spaced_sign || is_sign(c.cls)) {
      const size_t end = skip(is_spaced_sign ? next_pos : pos, [](const Char& x) { return is_sign(x.cls); });
      return skip(end, [](const Char& x) { return is_newline(x.code_point); });
    }
    return c.cls == CharClass::space ? space_end(pos) : pos;
  }

  /// White space: up to its last line end; else all but the last character before a word, at least one.
  size_t space_end(size_t begin) const {
    size_t after_newline = begin;
    size_t last = begin;
    size_t pos = begin;
    while (pos < text_.size()) {
      const Char c = at(pos);
      if (c.cls != CharClass::space) break;
      last = pos;
      pos += c.length;
      if (is_newline(c.code_point)) after_newline = pos;
    }
    if (after_newline > begin) return after_newline;
    if (pos == text_.size() || last == begin) return pos;
    return last;
  }

  std::string_view text_;
  std::vector<std::string_view>& pieces_;
};

enum class Stretch : uint8_t { words, number, han, ill_formed };

Stretch stretch_of(const Utf8Char& c) {
  if (!c.is_valid) return Stretch::ill_formed;
  if (c.code_point < 0x80)
    return c.code_point >= '0' && c.code_point <= '9' ? Stretch::number : Stretch::words;
  if (char_class(c.code_point) == CharClass::number) return Stretch::number;
  return is_han_or_kana(c.code_point) ? Stretch::han : Stretch::words;
}

void split_numbers(std::string_view text, std::vector<std::string_view>& pieces) {
  size_t begin = 0;
  int count = 0;
  for (size_t pos = 0; pos < text.size();) {
    pos += decode_utf8(text, pos).length;
    if (++count == 3 || pos == text.size()) {
      pieces.push_back(text.substr(begin, pos - begin));
      begin = pos;
      count = 0;
    }
  }
}

void split_stretch(Stretch kind, std::string_view text, std::vector<std::string_view>& pieces) {
  switch (kind) {
    case Stretch::words:
    case Stretch::han:  // kana blocks hold marks, signs and unassigned characters, so words are cut here, too
      WordScanner(text, pieces).run();
      break;
    case Stretch::number:
      split_numbers(text, pieces);
      break;
    case Stretch::ill_formed:
      for (size_t i = 0; i < text.size(); ++i) pieces.push_back(text.substr(i, 1));
      break;
  }
}

}  // namespace

void split_pieces(std::string_view text, std::vector<std::string_view>& pieces) {
  size_t begin = 0;
  Stretch kind = Stretch::words;
  for (size_t pos = 0; pos < text.size();) {
    const Utf8Char c = decode_utf8(text, pos);
    const Stretch here = stretch_of(c);
    if (here != kind && pos > begin) {
      split_stretch(kind, text.substr(begin, pos - begin), pieces);
      begin = pos;
    }
    kind = here;
    pos += c.length;
  }
  if (begin < text.size()) split_stretch(kind, text.substr(begin), pieces);
}

}  // namespace rorqual::text
