// SPDX-License-Identifier: Apache-2.0
// Status and Result<T>: expected failures as values. Programmer errors use base/check.h instead.
// The table code -> exit code -> HTTP status is docs/errors.md.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <variant>

namespace rorqual {

enum class Code : uint8_t {
  invalid_argument,  // the caller asked for something impossible: exit 2, HTTP 400
  not_found,         // exit 3, HTTP 404
  corrupt_data,      // a file contradicts itself or its neighbours: exit 4, HTTP 500
  unsupported,       // valid, but not on this build or machine: exit 5, HTTP 400
  out_of_memory,     // exit 6, HTTP 503
  io,                // disk, port, device: exit 7, HTTP 500
  device,            // exit 7, HTTP 500
  unavailable,       // loading, draining, queue full: exit 8, HTTP 503 or 429
  deadline,          // exit 9, HTTP 408 or 504
  gate,              // a gate or comparison was not met, items failed: exit 1
  cancelled,         // exit 130
  internal,          // a bug: exit 70, HTTP 500
};

/// Process exit code of `code`, as documented in docs/errors.md.
int exit_code(Code code);

/// Stable lower-case name ("corrupt_data"), used in JSON output.
const char* code_name(Code code);

/// The limit that refused, where a caller acts on which one it was.
enum class Limit : uint8_t {
  none,
  queued_reqs,    // unfinished requests of an engine
  queued_tokens,  // prompt tokens that wait in an engine
  model_len,      // tokens of one sequence
};

/// What failed, on what, got and expected (`message`), and what to do about it (`hint`, may be empty).
class Error {
 public:
  Error(Code code, std::string message, std::string hint = {})
      : code_(code), message_(std::move(message)), hint_(std::move(hint)) {}

  Code code() const { return code_; }

  const std::string& message() const { return message_; }

  const std::string& hint() const { return hint_; }

  Limit limit() const { return limit_; }

  /// Adds the place outward: error.at("pack 'a'") gives "pack 'a': message".
  Error at(const std::string& where) && {
    message_ = where + ": " + message_;
    return std::move(*this);
  }

  /// Names the limit that was met.
  Error by(Limit limit) && {
    limit_ = limit;
    return std::move(*this);
  }

 private:
  Code code_;
  Limit limit_ = Limit::none;
  std::string message_;
  std::string hint_;
};

template <class T>
class [[nodiscard]] Result {
 public:
  Result(T value) : value_(std::in_place_index<0>, std::move(value)) {}

  Result(Error error) : value_(std::in_place_index<1>, std::move(error)) {}

  bool ok() const { return value_.index() == 0; }

  T& operator*() & { return std::get<0>(value_); }

  const T& operator*() const& { return std::get<0>(value_); }

  T&& operator*() && { return std::get<0>(std::move(value_)); }

  T* operator->() { return &std::get<0>(value_); }

  const T* operator->() const { return &std::get<0>(value_); }

  const Error& error() const& { return std::get<1>(value_); }

  Error&& error() && { return std::get<1>(std::move(value_)); }

 private:
  std::variant<T, Error> value_;
};

struct Ok {};

template <>
class [[nodiscard]] Result<void> {
 public:
  Result() = default;

  Result(Ok) {}

  Result(Error error) : value_(std::in_place_index<1>, std::move(error)) {}

  bool ok() const { return value_.index() == 0; }

  const Error& error() const& { return std::get<1>(value_); }

  Error&& error() && { return std::get<1>(std::move(value_)); }

 private:
  std::variant<Ok, Error> value_;
};

using Status = Result<void>;

#define RORQUAL_CONCAT_2(a, b) a##b
#define RORQUAL_CONCAT(a, b) RORQUAL_CONCAT_2(a, b)

/// Returns the error of `expr` from the enclosing function, if it has one.
#define RORQUAL_TRY(expr)                                                       \
  do {                                                                          \
    auto rorqual_try_status = (expr);                                           \
    if (!rorqual_try_status.ok()) return std::move(rorqual_try_status).error(); \
  } while (0)

/// RORQUAL_TRY_ASSIGN(auto x, f()): declares x with the value, or returns the error.
#define RORQUAL_TRY_ASSIGN(declaration, expr)                         \
  auto RORQUAL_CONCAT(rorqual_try_, __LINE__) = (expr);               \
  if (!RORQUAL_CONCAT(rorqual_try_, __LINE__).ok())                   \
    return std::move(RORQUAL_CONCAT(rorqual_try_, __LINE__)).error(); \
  declaration = *std::move(RORQUAL_CONCAT(rorqual_try_, __LINE__))

}  // namespace rorqual
