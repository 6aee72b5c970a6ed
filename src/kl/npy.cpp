// SPDX-License-Identifier: Apache-2.0
#include "kl/npy.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <cstring>

#include "base/check.h"
#include "base/checked.h"

namespace rorqual::kl {
namespace {

constexpr std::string_view kMagic("\x93NUMPY", 6);
constexpr size_t kMaxRank = 8;

Error broken(std::string message) {
  return Error(Code::corrupt_data, "npy header: " + std::move(message));
}

/// Reads the Python dictionary of a header: three keys, literal values only.
class HeaderText {
 public:
  explicit HeaderText(std::string_view text) : text_(text) {}

  bool take(char c) {
    skip_spaces();
    if (pos_ >= text_.size() || text_[pos_] != c) return false;
    ++pos_;
    return true;
  }

  bool take_word(std::string_view word) {
    skip_spaces();
    if (text_.substr(pos_, word.size()) != word) return false;
    pos_ += word.size();
    return true;
  }

  bool take_string(std::string& out) {
    skip_spaces();
    if (pos_ >= text_.size() || (text_[pos_] != '\'' && text_[pos_] != '"')) return false;
    const size_t end = text_.find(text_[pos_], pos_ + 1);
    if (end == std::string_view::npos) return false;
    out = text_.substr(pos_ + 1, end - pos_ - 1);
    pos_ = end + 1;
    return true;
  }

  bool take_shape(std::vector<int64_t>& shape) {
    shape.clear();
    if (!take('(')) return false;
    while (!take(')')) {
      int64_t size = 0;
      if (shape.size() == kMaxRank || !take_integer(size)) return false;
      shape.push_back(size);
      if (!take(',') && !peek(')')) return false;
    }
    return true;
  }

  bool at_end() {
    skip_spaces();
    return pos_ == text_.size();
  }

  bool peek(char c) {
    skip_spaces();
    return pos_ < text_.size() && text_[pos_] == c;
  }

 private:
  void skip_spaces() {
    while (pos_ < text_.size() && (text_[pos_] == ' ' || text_[pos_] == '\n')) ++pos_;
  }

  bool take_integer(int64_t& value) {
    skip_spaces();
    const char* end = text_.data() + text_.size();
    const auto [next, error] = std::from_chars(text_.data() + pos_, end, value);
    if (error != std::errc() || value < 0) return false;
    pos_ = static_cast<size_t>(next - text_.data());
    if (peek('L')) ++pos_;  // numpy on Python 2
    return true;
  }

  std::string_view text_;
  size_t pos_ = 0;
};

struct Fields {
  std::string dtype;
  std::vector<int64_t> shape;
  bool is_fortran = false;
  bool is_structured = false;
};

bool read_field(HeaderText& text, const std::string& key, Fields& fields) {
  if (key == "descr") {
    fields.is_structured = text.peek('[');
    return fields.is_structured || text.take_string(fields.dtype);
  }
  if (key == "fortran_order") {
    fields.is_fortran = text.take_word("True");
    return fields.is_fortran || text.take_word("False");
  }
  return key == "shape" && text.take_shape(fields.shape);
}

/// All three keys exactly once, in any order.
bool read_fields(std::string_view header, Fields& fields) {
  HeaderText text(header);
  std::vector<std::string> seen;
  if (!text.take('{')) return false;
  while (!text.take('}')) {
    std::string key;
    if (!text.take_string(key) || !text.take(':')) return false;
    if (std::find(seen.begin(), seen.end(), key) != seen.end()) return false;
    seen.push_back(key);
    if (!read_field(text, key, fields)) return false;
    if (fields.is_structured) return true;
    if (!text.take(',') && !text.peek('}')) return false;
  }
  return seen.size() == 3 && text.at_end();
}

/// Bytes of one element of a plain type, or 0.
int64_t item_bytes_of(std::string_view dtype) {
  if (dtype.size() < 3 || (dtype[0] != '<' && dtype[0] != '|')) return 0;
  int64_t size = 0;
  const auto [next, error] = std::from_chars(dtype.data() + 2, dtype.data() + dtype.size(), size);
  if (error != std::errc() || next != dtype.data() + dtype.size() || size <= 0 || size > (1 << 24)) return 0;
  const char kind = dtype[1];
  if (kind == 'U') return dtype[0] == '<' ? 4 * size : 0;
  if (kind == 'S') return size;
  const bool is_number = kind == 'i' || kind == 'u' || kind == 'f' || kind == 'b';
  if (!is_number || (size != 1 && size != 2 && size != 4 && size != 8)) return 0;
  return dtype[0] == '<' || size == 1 ? size : 0;
}

}  // namespace

Result<int64_t> npy_data_offset(std::span<const std::byte> preamble) {
  if (preamble.size() < kNpyPreamble_bytes)
    return broken(fmt::format("only {} bytes, expected at least {}", preamble.size(), kNpyPreamble_bytes));
  if (std::memcmp(preamble.data(), kMagic.data(), kMagic.size()) != 0)
    return broken("does not begin with \\x93NUMPY; this is no numpy array");
  const auto byte = [&](size_t i) { return static_cast<int64_t>(preamble[i]); };
  const int64_t version = byte(6);
  if (version < 1 || version > 3)
    return Error(Code::unsupported, fmt::format("npy header: version {}, expected 1 to 3", version));
  const int64_t length =
      version == 1 ? byte(8) | byte(9) << 8 : byte(8) | byte(9) << 8 | byte(10) << 16 | byte(11) << 24;
  const int64_t offset = (version == 1 ? 10 : 12) + length;
  if (length > kMaxNpyHeader_bytes)
    return broken(fmt::format("{} bytes long, expected at most {}", length, kMaxNpyHeader_bytes));
  return offset;
}

Result<NpyHeader> parse_npy_header(std::span<const std::byte> header, int64_t total_bytes) {
  RORQUAL_TRY_ASSIGN(const int64_t offset, npy_data_offset(header));
  if (static_cast<int64_t>(header.size()) < offset || total_bytes < offset)
    return broken(fmt::format("{} bytes long, but the array has {} bytes", offset, total_bytes));
  const size_t begin = static_cast<int>(header[6]) == 1 ? 10 : 12;
  std::string text(static_cast<size_t>(offset) - begin, '\0');
  std::memcpy(text.data(), header.data() + begin, text.size());
  Fields fields;
  if (!read_fields(text, fields)) return broken("not the three fields descr, fortran_order and shape");
  if (fields.is_structured || fields.dtype.find('O') != std::string::npos) {
    return Error(Code::unsupported,
                 fmt::format("npy header: element type {}, expected plain numbers or text",
                             fields.is_structured ? "is a structure" : "'" + fields.dtype + "'"),
                 "objects are pickles and are never read; save plain arrays");
  }
  NpyHeader out;
  out.dtype = fields.dtype;
  out.item_bytes = item_bytes_of(fields.dtype);
  out.shape = fields.shape;
  out.data_offset = offset;
  if (out.item_bytes == 0) {
    return Error(Code::unsupported,
                 fmt::format("npy header: element type '{}', expected a little-endian plain type",
                             fields.dtype.substr(0, 40)));
  }
  if (fields.is_fortran && fields.shape.size() > 1)
    return Error(Code::unsupported, "npy header: Fortran order, expected C order",
                 "save numpy.ascontiguousarray(x)");
  const auto items = product_checked(out.shape);
  const auto bytes = items ? mul_checked(*items, out.item_bytes) : std::nullopt;
  if (!bytes || *bytes != total_bytes - offset) {
    return broken(fmt::format("shape {} of '{}' needs {} bytes, the array has {}", shape_text(out.shape),
                              out.dtype, bytes ? std::to_string(*bytes) : "more than 2^63",
                              total_bytes - offset));
  }
  out.data_bytes = *bytes;
  return out;
}

std::string make_npy_header(std::string_view dtype, std::span<const int64_t> shape) {
  std::string sizes = fmt::format("{}", fmt::join(shape, ", "));
  if (shape.size() == 1) sizes += ",";
  std::string text = fmt::format("{{'descr': '{}', 'fortran_order': False, 'shape': ({}), }}", dtype, sizes);
  const size_t unpadded = 10 + text.size() + 1;
  text.append((64 - unpadded % 64) % 64, ' ');
  text += '\n';
  RORQUAL_CHECK(text.size() < (1 << 16));
  std::string out(kMagic);
  out += '\x01';
  out += '\0';
  out += static_cast<char>(text.size() & 0xff);
  out += static_cast<char>(text.size() >> 8);
  return out + text;
}

std::string shape_text(std::span<const int64_t> shape) {
  return fmt::format("[{}]", fmt::join(shape, ", "));
}

}  // namespace rorqual::kl
