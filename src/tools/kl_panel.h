// SPDX-License-Identifier: Apache-2.0
// `rorqual kl panel`: the chat prompts of the panel with an engine's own greedy continuations.
#pragma once

#include <cstdint>
#include <string>

#include "base/result.h"
#include "text/prompt_compat.h"
#include "tools/kl_engine.h"

namespace rorqual::tools {

struct KlPanelOptions {
  KlEngineOptions engine;
  std::string out;      // .json
  std::string prompts;  // file: a JSON list of strings, or one prompt per line; empty = the built-in 100
  int64_t max_tokens = 64;
  int64_t num_prompts = 0;  // only the first ones; 0 = all
  text::PromptCompat prompt_compat;
  bool as_json = false;
};

/// Errors: those of loading and of the engine; a URL needs a tokenizer (invalid_argument).
Status run_kl_panel(const KlPanelOptions& options);

}  // namespace rorqual::tools
