// SPDX-License-Identifier: Apache-2.0
// Scores a corpus with an engine: in this process or behind a URL, the same function of the same tokens.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "base/result.h"
#include "kl/corpus.h"
#include "kl/dump.h"
#include "runtime/engine.h"

namespace rorqual::kl {

struct CaptureOptions {
  int64_t top_k = 512;  // lowered to the vocabulary
  int64_t streams = 1;  // windows in flight; 1 with full logits, whose file is written in order
  /// Also write full logits there (.safetensors). Engines without logits: unsupported.
  std::string logits_path = {};
  /// Folder that keeps each finished window until the caller removes it, so that a capture which was killed
  /// goes on where it was. Empty = none; not used with full logits.
  std::string parts_path = {};
  std::string parts_identity = {};  // of model, build and place: parts of another one are not taken
  bool discards_parts = false;      // begin anew where parts of something else lie
};

/// Rows done, rows in all.
using CaptureProgress = std::function<void(int64_t done, int64_t total)>;

/// Prompt-only requests with prompt log-probabilities. Errors: those of the engine; unavailable and
/// corrupt_data when positions are missing or shifted (each row's token must be the window's token).
Result<Dump> capture(runtime::Engine& engine, const Corpus& corpus, const CaptureOptions& options,
                     const CaptureProgress& progress = {});

}  // namespace rorqual::kl
