// SPDX-License-Identifier: Apache-2.0
// The table of limits on what clients may send: docs/limits.md, `serve --limits`. Values come from the
// constants and options that the code itself uses, so that the page cannot drift from the program.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "server/server.h"

namespace rorqual::server {

struct LimitRow {
  const char* name;    // snake case: the key of the JSON form
  int64_t value;       // -1 or 0 as the row's option says
  const char* unit;    // "bytes", "ms", or what is counted
  const char* beyond;  // what happens beyond it: a status and words
  const char* option;  // of serve, or ""
};

std::vector<LimitRow> limit_rows(const ServerOptions& options);

/// The page, with a table. `options` as started: their defaults give docs/limits.md.
std::string limits_markdown(const ServerOptions& options);

/// {"name": value, …} and a line feed.
std::string limits_json(const ServerOptions& options);

}  // namespace rorqual::server
