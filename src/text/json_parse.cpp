// SPDX-License-Identifier: Apache-2.0
// JSON in. simdjson reads what it and we understand alike; everything else (errors, numbers beyond 64 bits,
// minus zero, lone surrogates, depth) goes through nlohmann/json behind a strict front, which alone decides.
#include <simdjson.h>

#include <algorithm>
#include <cstddef>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "text/json_text.h"
#include "text/utf8.h"

namespace rorqual::text {

namespace {

using Json = nlohmann::ordered_json;

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

/// Places of the keys of one object, so that the last value of a repeated key takes the first one's place.
class KeyIndex {
 public:
  /// Position of `key` among the members, their number if it is new; it must be added next.
  template <class Members>
  size_t place(std::string_view key, const Members& members) {
    if (members.size() <= kSearchedMembers) {
      const auto found = std::find_if(members.begin(), members.end(),
                                      [&](const auto& member) { return member.first == key; });
      return static_cast<size_t>(found - members.begin());
    }
    if (index_.empty()) {
      for (size_t i = 0; i < members.size(); ++i)
        index_.emplace((members.begin() + static_cast<std::ptrdiff_t>(i))->first, i);
    }
    return index_.emplace(key, members.size()).first->second;
  }

 private:
  static constexpr size_t kSearchedMembers = 16;  // objects up to this size are searched, larger ones indexed

  std::unordered_map<std::string, size_t> index_;
};

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
    problem = "not valid JSON at byte " + std::to_string(position) + ": ";
    // It quotes what it read last, ill-formed bytes too; answers and logs are UTF-8.
    std::string reason(colon == std::string_view::npos ? text : text.substr(colon));
    drain_utf8(reason, problem, true);
    return false;
  }

 private:
  /// An open container. Its node stays where it is: the container that holds it grows only after it is
  /// closed.
  struct Frame {
    Json* node;
    std::string key;
    KeyIndex index;
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
    const size_t at = frame.index.place(frame.key, members);
    if (at < members.size()) {
      members.begin()[static_cast<std::ptrdiff_t>(at)].second = std::move(value);
    } else {
      static_cast<Json::object_t::Container&>(members).emplace_back(frame.key, std::move(value));
    }
    return &members.begin()[static_cast<std::ptrdiff_t>(at)].second;
  }

  std::vector<Frame> frames_;
};

constexpr size_t kKeptBytes = size_t{2} << 20;  // a thread keeps its buffers for texts up to this size

/// A lone surrogate comes out of simdjson as three bytes that no valid UTF-8 has.
bool holds_surrogate(std::string_view text) {
  for (size_t at = text.find('\xED'); at != std::string_view::npos; at = text.find('\xED', at + 1)) {
    if (at + 1 < text.size() && static_cast<uint8_t>(text[at + 1]) >= 0xA0) return true;
  }
  return false;
}

/// A parsed document as our tree. False: the strict parser has to decide.
class FastReader {
 public:
  explicit FastReader(std::string_view text)
      : text_(text), has_unicode_escapes_(text.find("\\u") != std::string_view::npos) {}

  /// Depth is bounded, so recursion is. `out` must be null.
  bool read(const simdjson::dom::element& value, int depth, Json& out) {
    using Type = simdjson::dom::element_type;
    switch (value.type()) {
      case Type::OBJECT:
        return depth < kMaxJsonDepth && read_object(value, depth, out);
      case Type::ARRAY:
        return depth < kMaxJsonDepth && read_array(value, depth, out);
      case Type::STRING: {
        const std::string_view text = value.get_string().value_unsafe();
        out = std::string(text);
        return is_valid(text);
      }
      case Type::INT64: {  // the strict parser calls what is not negative unsigned
        const int64_t number = value.get_int64().value_unsafe();
        if (number == 0 && may_be_minus_zero()) return false;
        if (number < 0) {
          out = number;
        } else {
          out = static_cast<uint64_t>(number);
        }
        return true;
      }
      case Type::UINT64:
        out = value.get_uint64().value_unsafe();
        return true;
      case Type::DOUBLE:
        out = value.get_double().value_unsafe();
        return true;
      case Type::BOOL:
        out = value.get_bool().value_unsafe();
        return true;
      case Type::NULL_VALUE:
        return true;
    }
    return false;
  }

 private:
  bool read_array(const simdjson::dom::element& value, int depth, Json& out) {
    const simdjson::dom::array array = value.get_array().value_unsafe();
    out = Json::array();
    auto& items = out.get_ref<Json::array_t&>();
    items.reserve(array.size());
    for (const simdjson::dom::element item : array) {
      if (!read(item, depth + 1, items.emplace_back())) return false;
    }
    return true;
  }

  bool read_object(const simdjson::dom::element& value, int depth, Json& out) {
    const simdjson::dom::object object = value.get_object().value_unsafe();
    out = Json::object();
    auto& members = static_cast<Json::object_t::Container&>(out.get_ref<Json::object_t&>());
    members.reserve(object.size());
    KeyIndex index;
    for (const simdjson::dom::key_value_pair field : object) {
      if (!is_valid(field.key)) return false;
      const size_t at = index.place(field.key, members);
      if (at == members.size()) {
        members.emplace_back(std::string(field.key), Json());
      } else {
        members[at].second = Json();
      }
      if (!read(field.value, depth + 1, members[at].second)) return false;
    }
    return true;
  }

  bool is_valid(std::string_view text) const { return !has_unicode_escapes_ || !holds_surrogate(text); }

  /// simdjson drops the sign of an integer zero. Looked for only where there is one.
  bool may_be_minus_zero() {
    if (!has_minus_zero_) has_minus_zero_ = text_.find("-0") != text_.npos && prescan(text_).has_minus_zero;
    return *has_minus_zero_;
  }

  const std::string_view text_;
  const bool has_unicode_escapes_;
  std::optional<bool> has_minus_zero_;
};

bool parse_fast(std::string_view text, Json& root) {
  if (text.empty() || text.starts_with("\xEF\xBB\xBF")) return false;

  struct Buffers {
    simdjson::dom::parser parser;
    std::string padded;
  };

  thread_local Buffers kept;
  Buffers fresh;
  Buffers& buffers = text.size() <= kKeptBytes ? kept : fresh;
  buffers.padded.assign(text);
  buffers.padded.resize(text.size() + simdjson::SIMDJSON_PADDING);
  simdjson::dom::element document;
  const auto error = buffers.parser.parse(buffers.padded.data(), text.size(), false).get(document);
  if (error != simdjson::SUCCESS) return false;
  return FastReader(text).read(document, 0, root);
}

/// Decides alone what is valid; slower.
std::optional<Json> parse_strict(std::string_view text, std::string* message) {
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

}  // namespace

std::optional<Json> parse_json(std::string_view text, std::string* message) {
  Json root;
  if (parse_fast(text, root)) return root;
  return parse_strict(text, message);
}

std::optional<Json> parse_json_strict(std::string_view text, std::string* message) {
  return parse_strict(text, message);
}

}  // namespace rorqual::text
