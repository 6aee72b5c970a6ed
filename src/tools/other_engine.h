// SPDX-License-Identifier: Apache-2.0
// Engines of `serve --engine` that compute nothing here: a script, for tests of everything above the engine,
// and another server, which gets this one's API, tokenizer and metrics.
#pragma once

#include <cstdint>
#include <string>

#include "base/result.h"
#include "tools/open_model.h"

namespace rorqual::tools {

struct OtherEngineOptions {
  std::string name;                     // script:FILE or a URL
  std::string api_key, upstream_model;  // of a URL
  int64_t connections = 8;
  int64_t max_num_queued_reqs = 0;
  int64_t max_logprobs = 20;
};

/// Reads tokenizer and config of `open.model`, no weights. Lines of a script (runtime/scripted_engine.h) may
/// give "text" in place of "tokens"; control tokens are recognised in it. Errors: invalid_argument (neither
/// form), those of open_source, the script and RemoteEngine::connect.
Result<OpenedEngine> open_other_engine(const OtherEngineOptions& options, const OpenOptions& open);

}  // namespace rorqual::tools
