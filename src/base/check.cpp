// SPDX-License-Identifier: Apache-2.0
#include "base/check.h"

#include <cstdio>
#include <cstdlib>

namespace rorqual {

void check_failed(const char* condition, const char* file, int line, const char* note) {
  std::fprintf(stderr, "fatal: %s:%d: check failed: %s %s\n  this is a bug in rorqual; please report it\n",
               file, line, condition, note);
  std::abort();
}

}  // namespace rorqual
