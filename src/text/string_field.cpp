// SPDX-License-Identifier: Apache-2.0
// Decoding of JSON string escapes, character by character.
#include "text/string_field.h"

#include <cstdint>
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <utility>

#include "text/json_text.h"

namespace rorqual::text {

namespace {

constexpr size_t kUnicodeEscapeBytes = 5;  // u and four digits

void append_utf8(std::string& out, uint32_t c) {
  const auto add = [&out](uint32_t byte) { out += static_cast<char>(byte); };
  if (c < 0x80) {
    add(c);
  } else if (c < 0x800) {
    add(0xC0 | c >> 6);
    add(0x80 | (c & 0x3F));
  } else if (c < 0x10000) {
    add(0xE0 | c >> 12);
    add(0x80 | (c >> 6 & 0x3F));
    add(0x80 | (c & 0x3F));
  } else {
    add(0xF0 | c >> 18);
    add(0x80 | (c >> 12 & 0x3F));
    add(0x80 | (c >> 6 & 0x3F));
    add(0x80 | (c & 0x3F));
  }
}

char simple_escape(char c) {
  switch (c) {
    case 'n':
      return '\n';
    case 't':
      return '\t';
    case 'r':
      return '\r';
    case 'b':
      return '\b';
    case 'f':
      return '\f';
    default:
      return c;
  }
}

}  // namespace

void StringField::decode(char c, std::string& out) {
  if (escape_.empty()) {
    if (c == '"') {
      state_ = State::closed;
    } else if (c == '\\') {
      escape_.push_back('\\');
    } else {
      out += c;
    }
    return;
  }
  escape_ += c;
  const size_t length = escape_.size() - 1;
  if (escape_[1] == 'u' && length < kUnicodeEscapeBytes) return;
  if (escape_[1] != 'u') {
    out += simple_escape(c);
  } else {
    const auto unit = static_cast<unsigned>(std::strtoul(escape_.c_str() + 2, nullptr, 16));
    const bool is_low = unit >= 0xDC00 && unit < 0xE000;
    if (unit >= 0xD800 && unit < 0xDC00) {
      high_surrogate_ = unit;
    } else if (is_low && high_surrogate_ != 0) {
      append_utf8(out, 0x10000 + ((std::exchange(high_surrogate_, 0) - 0xD800) << 10) + (unit - 0xDC00));
    } else {
      append_utf8(out, is_low ? 0xFFFD : unit);
    }
  }
  escape_.clear();
}

std::string StringField::push(std::string_view json) {
  std::string out;
  for (const char c : json) {
    if (state_ == State::opening || state_ == State::other) all_ += c;
    switch (state_) {
      case State::opening:
        if (c != opening_[all_.size() - 1]) {
          state_ = State::other;
        } else if (all_.size() == opening_.size()) {
          state_ = State::text;
        }
        break;
      case State::text:
        decode(c, out);
        break;
      case State::closed:
      case State::other:
        break;
    }
  }
  return out;
}

std::string StringField::finish() const {
  if (state_ == State::text || state_ == State::closed) return {};
  const auto value = parse_json(all_);
  if (value && value->is_object()) {
    const auto field = value->find(name_);
    if (field != value->end() && field->is_string()) return field->get<std::string>();
  }
  return all_;
}

}  // namespace rorqual::text
