// SPDX-License-Identifier: Apache-2.0
// `rorqual kl capture`: a corpus or a panel through an engine into a dump with its run record.
#pragma once

#include <cstdint>
#include <string>

#include "base/result.h"
#include "tools/kl_engine.h"

namespace rorqual::tools {

struct KlCaptureOptions {
  KlEngineOptions engine;
  std::string corpus;  // text file, or a panel (.json)
  std::string out;     // .npz or .safetensors
  std::string logits;  // .safetensors for full logits; empty = none
  int64_t context = 4096, windows = 24, top_k = 512;
  bool force = false;  // discard parts of another capture
  bool as_json = false;
};

/// Finished windows lie in "<out>.part/" until the dump is written; the same command goes on from there.
/// Errors: those of loading, of the corpus and of the engine; unsupported for --logits behind a URL.
Status run_kl_capture(const KlCaptureOptions& options);

}  // namespace rorqual::tools
