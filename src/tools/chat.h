// SPDX-License-Identifier: Apache-2.0
// `rorqual chat`: a terminal client. Without --url it starts an engine and a private server of its own, so
// that both ways behave alike.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "base/result.h"
#include "text/prompt_compat.h"
#include "tools/open_model.h"

namespace rorqual::tools {

struct ChatOptions {
  OpenOptions open;  // without url
  ReuseOptions reuse;
  runtime::EngineOptions engine;
  text::PromptCompat prompt_compat;  // without url
  std::string url;                   // a running OpenAI-compatible server instead of a model
  std::string api_key;               // for url
  std::string model;                 // name to ask for; empty = the server's first
  std::string prompt;                // ask this once and exit; empty = dialogue
  std::string system;
  bool thinking = true;
  bool show_thinking = true;
  bool stats = false;
  bool as_json = false;  // with prompt: one object with answer, usage and times
  std::optional<int64_t> max_tokens, seed;
  std::optional<double> temperature, top_p;
};

/// The answer goes to standard output, all else to standard error. Ctrl-C stops an answer; in the dialogue a
/// second one at the prompt ends the program. Errors: those of loading and of the server; cancelled.
Status run_chat(const ChatOptions& options);

}  // namespace rorqual::tools
