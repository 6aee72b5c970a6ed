// SPDX-License-Identifier: Apache-2.0
// JSON out: our own printing (the library prints numbers and escapes differently from the prompt format).
#include "text/json_text.h"

#include <charconv>
#include <cmath>
#include <nlohmann/json.hpp>

#include "base/check.h"
#include "text/utf8.h"

namespace rorqual::text {

namespace {

using Json = nlohmann::ordered_json;

/// Shortest digits and decimal exponent: value = 0.d1d2d3… * 10^point.
struct Decimal {
  bool is_negative = false;
  std::string digits;
  int point = 0;
};

Decimal shortest_decimal(double value) {
  char buffer[40];
  const auto end = std::to_chars(buffer, buffer + sizeof buffer, value, std::chars_format::scientific).ptr;
  Decimal out;
  const char* p = buffer;
  if (*p == '-') {
    out.is_negative = true;
    ++p;
  }
  for (; p != end && *p != 'e'; ++p) {
    if (*p != '.') out.digits += *p;
  }
  int exponent = 0;
  if (p != end) {
    ++p;
    if (*p == '+') ++p;
    std::from_chars(p, end, exponent);
  }
  while (out.digits.size() > 1 && out.digits.back() == '0') out.digits.pop_back();
  out.point = exponent + 1;
  return out;
}

std::string fixed_point(const Decimal& d) {
  const auto count = static_cast<int>(d.digits.size());
  if (d.point <= 0) return "0." + std::string(static_cast<size_t>(-d.point), '0') + d.digits;
  if (d.point >= count) return d.digits + std::string(static_cast<size_t>(d.point - count), '0') + ".0";
  return d.digits.substr(0, static_cast<size_t>(d.point)) + "." +
         d.digits.substr(static_cast<size_t>(d.point));
}

std::string mantissa(const Decimal& d) {
  return d.digits.size() == 1 ? d.digits : d.digits.substr(0, 1) + "." + d.digits.substr(1);
}

/// Shortest form as the compact style has it: no plus sign and no zero in the exponent.
std::string compact_float(double value) {
  const Decimal d = shortest_decimal(value);
  const std::string sign = d.is_negative ? "-" : "";
  if (d.point > -5 && d.point <= 16) return sign + fixed_point(d);
  return sign + mantissa(d) + "e" + std::to_string(d.point - 1);
}

/// Of one character that JSON text may not hold as it is.
void append_escape(std::string& out, unsigned char byte) {
  constexpr char kHex[] = "0123456789abcdef";
  constexpr std::string_view kShort = "\bb\ff\nn\rr\tt\"\"\\\\";  // character, its letter
  for (size_t i = 0; i < kShort.size(); i += 2) {
    if (static_cast<unsigned char>(kShort[i]) != byte) continue;
    out += '\\';
    out += kShort[i + 1];
    return;
  }
  out += "\\u00";
  out += kHex[byte >> 4];
  out += kHex[byte & 15];
}

class Printer {
 public:
  Printer(std::string& out, JsonStyle style) : out_(out), style_(style) {}

  void print(const Json& value) {
    switch (value.type()) {
      case Json::value_t::object:
        print_object(value);
        break;
      case Json::value_t::array:
        print_array(value);
        break;
      case Json::value_t::string:
        print_string(value.get_ref<const std::string&>());
        break;
      case Json::value_t::boolean:
        out_ += value.get<bool>() ? "true" : "false";
        break;
      case Json::value_t::number_integer:
        out_ += std::to_string(value.get<int64_t>());
        break;
      case Json::value_t::number_unsigned:
        out_ += std::to_string(value.get<uint64_t>());
        break;
      case Json::value_t::number_float:
        out_ += style_ == JsonStyle::spaced ? python_float(value.get<double>())
                                            : compact_float(value.get<double>());
        break;
      default:
        out_ += "null";
    }
  }

 private:
  void print_string(std::string_view text) {
    out_ += '"';
    append_json_escaped(out_, text);
    out_ += '"';
  }

  const char* comma() const { return style_ == JsonStyle::spaced ? ", " : ","; }

  void print_object(const Json& value) {
    out_ += '{';
    bool is_first = true;
    for (const auto& [key, item] : value.items()) {
      if (!is_first) out_ += comma();
      is_first = false;
      print_string(key);
      out_ += style_ == JsonStyle::spaced ? ": " : ":";
      print(item);
    }
    out_ += '}';
  }

  void print_array(const Json& value) {
    out_ += '[';
    bool is_first = true;
    for (const auto& item : value) {
      if (!is_first) out_ += comma();
      is_first = false;
      print(item);
    }
    out_ += ']';
  }

  std::string& out_;
  JsonStyle style_;
};

}  // namespace

std::string json_text(const Json& value, JsonStyle style) {
  std::string out;
  Printer(out, style).print(value);
  return out;
}

void append_json_escaped(std::string& out, std::string_view text) {
  size_t begin = 0;
  for (size_t i = 0; i < text.size(); ++i) {
    const auto byte = static_cast<unsigned char>(text[i]);
    if (byte >= 0x20 && byte != '"' && byte != '\\') continue;
    out.append(text, begin, i - begin);
    begin = i + 1;
    append_escape(out, byte);
  }
  out.append(text, begin);
}

std::string json_quote(std::string_view text) {
  std::string out = "\"";
  append_json_escaped(out, text);
  return out += '"';
}

std::string python_float(double value) {
  RORQUAL_CHECK(std::isfinite(value));
  const Decimal d = shortest_decimal(value);
  const std::string sign = d.is_negative ? "-" : "";
  if (d.point > -4 && d.point <= 16) return sign + fixed_point(d);
  const int exponent = d.point - 1;
  const std::string digits = std::to_string(std::abs(exponent));
  return sign + mantissa(d) + (exponent < 0 ? "e-" : "e+") + (digits.size() < 2 ? "0" : "") + digits;
}

bool is_json_object(std::string_view text) {
  const auto value = parse_json(text);
  return value && value->is_object();
}

}  // namespace rorqual::text
