// SPDX-License-Identifier: Apache-2.0
// The text of the one field of a JSON object, while the object's text is still arriving: custom tools take
// text, the model gives it as {"input": "…"}.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace rorqual::text {

/// One thread, one object. Linear time; holds back an incomplete escape only.
class StringField {
 public:
  explicit StringField(std::string_view name) : opening_("{\"" + std::string(name) + "\": \""), name_(name) {}

  /// More of the object's text, as OutputParser prints it; returns what became certain of the field's
  /// text.
  std::string push(std::string_view json);

  /// The object is complete: what push() could not give, because the object has another form. If it is no
  /// object with that field of type string, all of its text.
  std::string finish() const;

 private:
  enum class State : uint8_t { opening, text, closed, other };

  void decode(char c, std::string& out);

  std::string opening_, name_;
  std::string all_;  // what has come, unless it began as expected
  std::string escape_;
  unsigned high_surrogate_ = 0;
  State state_ = State::opening;
};

}  // namespace rorqual::text
