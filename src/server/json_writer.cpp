// SPDX-License-Identifier: Apache-2.0
// JSON text and number spelling.
#include "server/json_writer.h"

#include <charconv>
#include <cmath>

namespace rorqual::server {

namespace {

constexpr std::string_view kReplacement = "\xEF\xBF\xBD";

/// Length of the valid UTF-8 sequence at the start of `text`, 0 if there is none (RFC 3629: shortest form, no
/// surrogates, at most U+10FFFF).
size_t sequence_length(std::string_view text) {
  const auto byte = [text](size_t i) { return static_cast<unsigned char>(text[i]); };
  const auto follows = [&](size_t i, unsigned low = 0x80, unsigned high = 0xBF) {
    return i < text.size() && byte(i) >= low && byte(i) <= high;
  };
  const unsigned char b = byte(0);
  if (b < 0x80) return 1;
  if (b >= 0xC2 && b <= 0xDF) return follows(1) ? 2 : 0;
  if (b >= 0xE0 && b <= 0xEF) {
    const unsigned low = b == 0xE0 ? 0xA0 : 0x80, high = b == 0xED ? 0x9F : 0xBF;
    return follows(1, low, high) && follows(2) ? 3 : 0;
  }
  if (b >= 0xF0 && b <= 0xF4) {
    const unsigned low = b == 0xF0 ? 0x90 : 0x80, high = b == 0xF4 ? 0x8F : 0xBF;
    return follows(1, low, high) && follows(2) && follows(3) ? 4 : 0;
  }
  return 0;
}

/// Number of bytes at the start that go out as they are: ASCII without quotes, backslashes and controls.
size_t plain_length(std::string_view text) {
  size_t length = 0;
  while (length < text.size()) {
    const auto c = static_cast<unsigned char>(text[length]);
    if (c < 0x20 || c >= 0x80 || c == '"' || c == '\\') break;
    ++length;
  }
  return length;
}

void append_escape(std::string& out, char c) {
  static constexpr char kDigits[] = "0123456789abcdef";
  switch (c) {
    case '"':
      out += "\\\"";
      return;
    case '\\':
      out += "\\\\";
      return;
    case '\n':
      out += "\\n";
      return;
    case '\r':
      out += "\\r";
      return;
    case '\t':
      out += "\\t";
      return;
    case '\b':
      out += "\\b";
      return;
    case '\f':
      out += "\\f";
      return;
    default:
      out += "\\u00";
      out += kDigits[(c >> 4) & 15];
      out += kDigits[c & 15];
  }
}

template <class T>
std::string shortest(T value) {
  char text[64];
  const auto end = std::to_chars(text, text + sizeof text, value).ptr;
  return {text, end};
}

}  // namespace

std::string logprob_text(float value) {
  if (!std::isfinite(value)) return "-9999.0";
  std::string text = shortest(value);
  double read = 0;
  std::from_chars(text.data(), text.data() + text.size(), read);
  // Rounding to double and then to float can differ from rounding once; then the exact value is printed
  // instead.
  if (static_cast<float>(read) != value) text = shortest(static_cast<double>(value));
  if (text.find_first_of(".e") == std::string::npos) text += ".0";
  return text;
}

int64_t count_code_points(std::string_view text) {
  int64_t count = 0;
  for (const char c : text) count += (static_cast<unsigned char>(c) & 0xC0) != 0x80 ? 1 : 0;
  return count;
}

void JsonWriter::separate() {
  if (needs_comma_) out_ += ',';
}

JsonWriter& JsonWriter::open(char c) {
  separate();
  out_ += c;
  needs_comma_ = false;
  return *this;
}

JsonWriter& JsonWriter::shut(char c) {
  out_ += c;
  needs_comma_ = true;
  return *this;
}

JsonWriter& JsonWriter::key(std::string_view name) {
  string(name);
  out_ += ':';
  needs_comma_ = false;
  return *this;
}

JsonWriter& JsonWriter::string(std::string_view text) {
  separate();
  out_ += '"';
  while (!text.empty()) {
    if (const size_t plain = plain_length(text); plain > 0) {
      out_.append(text.substr(0, plain));
      text.remove_prefix(plain);
      continue;
    }
    const size_t length = sequence_length(text);
    if (length == 0) {
      out_ += kReplacement;
      text.remove_prefix(1);
      continue;
    }
    const char c = text[0];
    if (length == 1 && (c == '"' || c == '\\' || static_cast<unsigned char>(c) < 0x20)) {
      append_escape(out_, c);
    } else {
      out_.append(text.substr(0, length));
    }
    text.remove_prefix(length);
  }
  out_ += '"';
  needs_comma_ = true;
  return *this;
}

JsonWriter& JsonWriter::raw(std::string_view json) {
  separate();
  out_.append(json);
  needs_comma_ = true;
  return *this;
}

JsonWriter& JsonWriter::integer(int64_t value) {
  return raw(shortest(value));
}

JsonWriter& JsonWriter::boolean(bool value) {
  return raw(value ? "true" : "false");
}

JsonWriter& JsonWriter::null() {
  return raw("null");
}

JsonWriter& JsonWriter::number(double value) {
  return raw(std::isfinite(value) ? shortest(value) : "null");
}

JsonWriter& JsonWriter::logprob(float value) {
  return raw(logprob_text(value));
}

}  // namespace rorqual::server
