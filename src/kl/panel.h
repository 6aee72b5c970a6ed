// SPDX-License-Identifier: Apache-2.0
// The panel: chat prompts with a model's own greedy continuations. Scored by teacher forcing (kl/capture.h),
// replayed by `kl agree`. One JSON file, schema rorqual.kl.panel/1. docs/fidelity.md#panel.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "kl/corpus.h"
#include "runtime/engine.h"
#include "text/prompt_compat.h"
#include "text/tokenizer.h"

namespace rorqual::kl {

struct PanelCase {
  std::string id;                     // "case_000"
  std::string message;                // the user's text
  std::string reply;                  // the continuation as text, for the reader
  std::vector<int32_t> prompt;        // rendered, BOS first
  std::vector<int32_t> continuation;  // greedy, without the token that ended it; may be empty
  std::vector<float> logprobs;        // of the continuation's tokens
  std::vector<float> gaps;            // log-probability of the best minus that of the second best token
  std::string finish;                 // "stop" or "length"
};

struct Panel {
  std::string model, numerics, switches;  // of the engine that wrote the continuations
  std::string prompt_compat;              // switches the prompts were rendered with; empty = none
  int64_t vocab_size = 0;
  int64_t max_tokens = 0;
  std::string sha256;  // panel_sha256; checked when a file is read
  std::vector<PanelCase> cases;
};

struct PanelOptions {
  int64_t max_tokens = 64;
  int64_t streams = 8;  // requests in flight; no effect on the result
  text::PromptCompat prompt_compat = {};
};

/// Cases done, cases in all.
using PanelProgress = std::function<void(int64_t done, int64_t total)>;

/// Renders each prompt as one user message with thinking disabled and lets the engine continue greedily.
/// Errors: those of the engine; unsupported when the tokenizer lacks a control token.
Result<Panel> make_panel(runtime::Engine& engine, const text::Tokenizer& tokenizer,
                         std::span<const std::string_view> prompts, const PanelOptions& options,
                         const PanelProgress& progress = {});

/// Over the token ids of all cases, in order.
std::string panel_sha256(const Panel& panel);

/// The same panel gives the same bytes. Replaces the file in one step.
Status write_panel(const std::string& path, const Panel& panel);

/// Errors: not_found; corrupt_data (which case, which field, the hash); ids are checked against vocab_size.
Result<Panel> read_panel_file(const std::string& path);

/// One window per case with a continuation; its tokens are scored.
Corpus panel_corpus(const Panel& panel);

}  // namespace rorqual::kl
