// SPDX-License-Identifier: Apache-2.0
// What a benchmark asks a server before it begins, and how it waits for its end.
#pragma once

#include <optional>
#include <string>

#include "base/result.h"
#include "tools/http_client.h"
#include "tools/load_metrics.h"

namespace rorqual::tools {

struct ServerFacts {
  std::string model;             // the name to ask for
  std::string version = "null";  // the JSON of /version, if the server has it
};

/// `wanted`: the model's name, empty = the first that the server lists. Errors: unavailable, corrupt_data.
Result<ServerFacts> ask_server(const HttpClient& client, const std::string& wanted);

/// Waits until nothing runs or waits there: the sample that shows it, or nothing after 20 s or without
/// metrics.
std::optional<MetricsSample> wait_until_drained(const HttpClient& client);

}  // namespace rorqual::tools
