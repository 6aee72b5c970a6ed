// SPDX-License-Identifier: Apache-2.0
// Set-up of the log: lines to standard error (or a file), as text or one JSON object per line.
#pragma once

#include <string>

#include "base/result.h"

namespace rorqual::tools {

struct LogOptions {
  std::string level = "info";   // trace | debug | info | warn | error | off
  std::string format = "text";  // text | json
  std::string file = {};        // empty = standard error
  std::string color = "auto";   // auto | always | never; auto honours NO_COLOR
  bool is_held = false;         // lines wait for release_log; if it never comes, they are lost
};

/// Replaces spdlog's default logger. Text lines are `07:58:12.345 info  message`; JSON lines have the keys
/// time (UTC), level, message. Errors: io (file).
Status set_up_log(const LogOptions& options);

/// Writes what a held log has kept, and from now on every line at once.
void release_log();

}  // namespace rorqual::tools
