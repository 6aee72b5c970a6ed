// SPDX-License-Identifier: Apache-2.0
// `rorqual convert --synthesize v41 … OUT`: writes a synthetic model as a checkpoint in the official format,
// with the same bytes that "synthetic:v41?…" serves from memory. docs/synthetic.md.
#pragma once

#include <cstdint>
#include <cstdio>
#include <string>

#include "base/result.h"
#include "model/synthetic_spec.h"

namespace rorqual::tools {

struct SynthesizeOptions {
  std::string family = "v41";
  model::SyntheticSpec
      spec;              // spec.tokenizer: folder whose tokenizer.json and tokenizer_config.json are copied
  std::string output;    // folder, made if needed
  bool force = false;    // replace the model that `output` holds; other files there stay
  bool dry_run = false;  // only say what would be written
  int num_threads = 0;   // 0 = all that this process may use
  int64_t shard_bytes =
      10'000'000'000;  // shards other than those of the Engram tables stay below, if they can
};

/// What was written, or would be.
struct SynthesizeSummary {
  std::string model;  // its synthetic:v41?… name
  int64_t tensors = 0, bytes = 0, shards = 0;
};

/// Writes shards, tokenizer, index and last config.json; a run that fails or is killed leaves no config.json
/// behind, so that nothing takes the folder for a model. Messages and progress go to `log` (null = silent),
/// figures to `summary` (null = not wanted).
/// Errors: invalid_argument (spec; output not empty; tokenizer does not fit the vocabulary), not_found
/// (tokenizer), io (also when the disk has not enough room, before anything is written).
Status run_synthesize(const SynthesizeOptions& options, std::FILE* log, SynthesizeSummary* summary = nullptr);

}  // namespace rorqual::tools
