// SPDX-License-Identifier: Apache-2.0
// The engine that the kl commands ask: a model loaded into this process, or a server behind a URL, with what
// a run record says of it.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "base/result.h"
#include "kl/run_record.h"
#include "runtime/engine.h"
#include "tools/open_model.h"
#include "tools/remote_engine.h"

namespace rorqual::tools {

struct KlEngineOptions {
  OpenOptions open;      // without a URL; max_model_len 0 = what the caller needs
  RemoteOptions remote;  // used if its url is not empty
  int64_t streams = 1;   // requests in flight
};

struct KlEngine {
  OpenedEngine local;  // outlives nothing: the engine inside goes first
  std::unique_ptr<RemoteEngine> remote;
  kl::RunRecord record;  // everything but times and the dump's hash

  runtime::Engine& engine() { return remote ? static_cast<runtime::Engine&>(*remote) : *local.engine; }
};

/// `needed_len`: tokens of the longest sequence, for the context when none was asked for; `option` is the one
/// that it comes from, for the hint of an error. Draws a progress
/// bar of loading on a terminal. Errors: those of open_engine and RemoteEngine::connect.
Result<KlEngine> open_kl_engine(KlEngineOptions options, int64_t needed_len, std::string_view option = {});

/// The tokenizer of --tokenizer, or of the model; null for a URL without --tokenizer.
Result<std::unique_ptr<text::Tokenizer>> open_kl_tokenizer(const KlEngineOptions& options);

/// "2026-11-30T14:05:09Z".
std::string utc_now();

}  // namespace rorqual::tools
