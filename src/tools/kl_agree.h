// SPDX-License-Identifier: Apache-2.0
// `rorqual kl agree PANEL.json [MODEL | --url URL]`: identical outputs and teacher-forced agreement with the
// configuration that wrote the panel.
#pragma once

#include <string>

#include "base/result.h"
#include "tools/kl_engine.h"

namespace rorqual::tools {

struct KlAgreeOptions {
  std::string panel;
  KlEngineOptions engine;  // configuration B; a URL cannot force tokens, only outputs are compared then
  std::string require;     // "identical", "99.5%" of forced tokens, or empty
  bool as_json = false;
};

/// Prints the result to standard output (schema rorqual.kl.agree/1 with as_json). Errors: those of reading
/// the panel, opening and running the model; gate when `require` is not met.
Status run_kl_agree(const KlAgreeOptions& options);

}  // namespace rorqual::tools
