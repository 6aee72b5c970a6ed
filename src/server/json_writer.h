// SPDX-License-Identifier: Apache-2.0
// Writes compact JSON text front to back, with the keys in the order written: answers are built without a
// tree. Log-probabilities are printed so that reading them back as float32 gives the same bits.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>

namespace rorqual::server {

/// One document. Nesting must be balanced by the caller; commas are placed by the writer.
class JsonWriter {
 public:
  JsonWriter& begin_object() { return open('{'); }

  JsonWriter& end_object() { return shut('}'); }

  JsonWriter& begin_array() { return open('['); }

  JsonWriter& end_array() { return shut(']'); }

  JsonWriter& key(std::string_view name);

  JsonWriter& string(std::string_view text);  // invalid UTF-8 becomes U+FFFD
  JsonWriter& integer(int64_t value);
  JsonWriter& boolean(bool value);
  JsonWriter& null();
  /// Fewest digits that give the same double; not finite: null.
  JsonWriter& number(double value);
  /// Fewest digits that give the same float, also when read as a double first. Minus infinity and NaN:
  /// -9999.0, as JSON has no word for them and clients expect a number.
  JsonWriter& logprob(float value);
  /// Text that is JSON already.
  JsonWriter& raw(std::string_view json);

  /// key + value in one.
  JsonWriter& field(std::string_view name, std::string_view text) { return key(name).string(text); }

  JsonWriter& field(std::string_view name, const char* text) { return key(name).string(text); }

  JsonWriter& field(std::string_view name, int64_t value) { return key(name).integer(value); }

  JsonWriter& null_field(std::string_view name) { return key(name).null(); }

  std::string take() { return std::move(out_); }

  size_t size() const { return out_.size(); }

 private:
  JsonWriter& open(char c);
  JsonWriter& shut(char c);
  void separate();

  std::string out_;
  bool needs_comma_ = false;
};

/// The number as JsonWriter::logprob prints it.
std::string logprob_text(float value);

/// Number of code points of valid UTF-8.
int64_t count_code_points(std::string_view text);

}  // namespace rorqual::server
