// SPDX-License-Identifier: Apache-2.0
// JSON in and out: a strict front to nlohmann/json, and our own printing (the library prints numbers and
// escapes differently from the prompt format).
#include "text/json_text.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstddef>
#include <nlohmann/json.hpp>
#include <unordered_map>
#include <utility>
#include <vector>

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
        out_ += json_quote(value.get_ref<const std::string&>());
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
  const char* comma() const { return style_ == JsonStyle::spaced ? ", " : ","; }

  void print_object(const Json& value) {
    out_ += '{';
    bool is_first = true;
    for (const auto& [key, item] : value.items()) {
      if (!is_first) out_ += comma();
      is_first = false;
      out_ += json_quote(key);
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

/// What the library does not check or keeps differently: byte order mark, depth, and "-0", which must stay a
/// float.
struct Prescan {
  std::string problem;
  bool has_minus_zero = false;
};

Prescan prescan(std::string_view text) {
  Prescan result;
  if (text.starts_with("\xEF\xBB\xBF")) result.problem = "byte order mark at byte 0";
  int depth = 0;
  bool in_string = false;
  for (size_t i = 0; i < text.size() && result.problem.empty(); ++i) {
    const char c = text[i];
    if (in_string) {
      if (c == '\\') ++i;
      if (c == '"') in_string = false;
      continue;
    }
    if (c == '"') in_string = true;
    if (c == ']' || c == '}') --depth;
    if ((c == '[' || c == '{') && ++depth > kMaxJsonDepth) {
      result.problem =
          "nesting deeper than " + std::to_string(kMaxJsonDepth) + " at byte " + std::to_string(i);
    }
    if (c == '-' && i + 1 < text.size() && text[i + 1] == '0') result.has_minus_zero = true;
  }
  return result;
}

/// "-0" as "-0.0", outside of strings.
std::string keep_minus_zero(std::string_view text) {
  std::string out;
  bool in_string = false;
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    out += c;
    if (in_string) {
      if (c == '\\' && i + 1 < text.size()) out += text[++i];
      if (c == '"') in_string = false;
      continue;
    }
    if (c == '"') in_string = true;
    const bool is_zero_after_minus =
        c == '0' && i > 0 && text[i - 1] == '-' && (i < 2 || (text[i - 2] | 0x20) != 'e');
    const char next = i + 1 < text.size() ? text[i + 1] : ' ';
    if (is_zero_after_minus && next != '.' && (next | 0x20) != 'e' && (next < '0' || next > '9')) out += ".0";
  }
  return out;
}

/// Builds the tree in one pass. The library's own builder searches all members of an ordered object for every
/// key, which is quadratic: one hostile body could keep a thread busy for hours.
class TreeBuilder : public nlohmann::json_sax<Json> {
 public:
  Json root;
  std::string problem = "not valid JSON";

  bool null() override { return add(nullptr); }

  bool boolean(bool value) override { return add(value); }

  bool number_integer(number_integer_t value) override { return add(value); }

  bool number_unsigned(number_unsigned_t value) override { return add(value); }

  bool number_float(number_float_t value, const string_t&) override { return add(value); }

  bool string(string_t& value) override { return add(std::move(value)); }

  bool binary(binary_t&) override { return false; }

  bool start_object(size_t) override { return open(Json::object()); }

  bool key(string_t& name) override {
    frames_.back().key = std::move(name);
    return true;
  }

  bool end_object() override { return close(); }

  bool start_array(size_t) override { return open(Json::array()); }

  bool end_array() override { return close(); }

  bool parse_error(size_t position, const std::string&, const nlohmann::detail::exception& error) override {
    const std::string_view text = error.what();
    const size_t colon = text.find("syntax error");
    problem = "not valid JSON at byte " + std::to_string(position) + ": " +
              std::string(colon == std::string_view::npos ? text : text.substr(colon));
    return false;
  }

 private:
  static constexpr size_t kSearchedMembers = 16;  // objects up to this size are searched, larger ones indexed

  /// An open container. Its node stays where it is: the container that holds it grows only after it is
  /// closed.
  struct Frame {
    Json* node;
    std::string key;
    std::unordered_map<std::string, size_t> index;  // member of each key, once there are many
  };

  bool add(Json value) {
    place(std::move(value));
    return true;
  }

  bool open(Json container) {
    Json* node = place(std::move(container));
    frames_.push_back({node, {}, {}});
    return true;
  }

  bool close() {
    frames_.pop_back();
    return true;
  }

  Json* place(Json value) {
    if (frames_.empty()) {
      root = std::move(value);
      return &root;
    }
    Frame& frame = frames_.back();
    if (frame.node->is_array()) {
      frame.node->push_back(std::move(value));
      return &frame.node->back();
    }
    auto& members = frame.node->get_ref<Json::object_t&>();
    const size_t at = member(frame, members);
    if (at < members.size()) {
      members.begin()[static_cast<std::ptrdiff_t>(at)].second = std::move(value);
    } else {
      static_cast<Json::object_t::Container&>(members).emplace_back(frame.key, std::move(value));
    }
    return &members.begin()[static_cast<std::ptrdiff_t>(at)].second;
  }

  /// Position of the frame's key among the members, their number if it is new (then the index takes it up).
  static size_t member(Frame& frame, const Json::object_t& members) {
    if (members.size() <= kSearchedMembers) {
      const auto found = std::find_if(members.begin(), members.end(),
                                      [&](const auto& member) { return member.first == frame.key; });
      return static_cast<size_t>(found - members.begin());
    }
    if (frame.index.empty()) {
      for (size_t i = 0; i < members.size(); ++i) {
        frame.index.emplace(members.begin()[static_cast<std::ptrdiff_t>(i)].first, i);
      }
    }
    return frame.index.emplace(frame.key, members.size()).first->second;
  }

  std::vector<Frame> frames_;
};

}  // namespace

std::string json_text(const Json& value, JsonStyle style) {
  std::string out;
  Printer(out, style).print(value);
  return out;
}

void append_json_escaped(std::string& out, std::string_view text) {
  constexpr char kHex[] = "0123456789abcdef";
  for (const char c : text) {
    switch (c) {
      case '"':
        out += "\\\"";
        break;
      case '\\':
        out += "\\\\";
        break;
      case '\b':
        out += "\\b";
        break;
      case '\f':
        out += "\\f";
        break;
      case '\n':
        out += "\\n";
        break;
      case '\r':
        out += "\\r";
        break;
      case '\t':
        out += "\\t";
        break;
      default:
        if (static_cast<unsigned char>(c) < 0x20) {
          out += "\\u00";
          out += kHex[static_cast<unsigned char>(c) >> 4];
          out += kHex[static_cast<unsigned char>(c) & 15];
        } else {
          out += c;
        }
    }
  }
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

std::optional<Json> parse_json(std::string_view text, std::string* message) {
  const Prescan scan = prescan(text);
  if (!scan.problem.empty()) {
    if (message != nullptr) *message = scan.problem;
    return std::nullopt;
  }
  const std::string patched = scan.has_minus_zero ? keep_minus_zero(text) : std::string();
  const std::string_view source = scan.has_minus_zero ? std::string_view(patched) : text;
  TreeBuilder builder;
  if (Json::sax_parse(source.begin(), source.end(), &builder)) return std::move(builder.root);
  if (message != nullptr) *message = builder.problem;
  return std::nullopt;
}

bool is_json_object(std::string_view text) {
  const auto value = parse_json(text);
  return value && value->is_object();
}

}  // namespace rorqual::text
