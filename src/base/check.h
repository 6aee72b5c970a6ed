// SPDX-License-Identifier: Apache-2.0
// Programmer errors: always-on checks that print the place and abort. Never reachable from user input.
#pragma once

namespace rorqual {
[[noreturn]] void check_failed(const char* condition, const char* file, int line, const char* note);
}  // namespace rorqual

#define RORQUAL_CHECK(condition) \
  ((condition) ? static_cast<void>(0) : ::rorqual::check_failed(#condition, __FILE__, __LINE__, ""))
#define RORQUAL_CHECK_NOTE(condition, note) \
  ((condition) ? static_cast<void>(0) : ::rorqual::check_failed(#condition, __FILE__, __LINE__, note))
