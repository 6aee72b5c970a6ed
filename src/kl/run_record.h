// SPDX-License-Identifier: Apache-2.0
// The sidecar of a dump, "<dump>.run.json": how, where and when it was made. The gate reads it.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/result.h"

namespace rorqual::kl {

struct RunRecord {
  std::string version, commit;  // of the program that made the logits; empty = unknown (other engines)
  std::string engine;           // "local" or the URL without credentials
  std::string model_sha256;     // of config.json and the weights' index; empty = unknown
  std::string numerics, kernels;
  std::string switches;            // "lm-head=fp8"; empty = none
  std::string prompt_compat;       // switches that the prompts were rendered with; empty = none
  std::string tokenizer_sha256;    // of tokenizer.json; empty = unknown
  std::string checkpoint_encoder;  // file and digest, if the checkpoint has one
  std::string machine;             // CPU name and count, memory
  int64_t threads = 0, streams = 0, max_model_len = 0;
  bool speculation = false, prefix_cache = false;
  std::string started_at, finished_at;  // ISO 8601, UTC
  double seconds = 0;
  std::string dump_sha256;
};

/// "x.npz" -> "x.npz.run.json".
std::string run_record_path(const std::string& dump_path);
Status write_run_record(const std::string& dump_path, const RunRecord& record);

/// not_found when the dump has none (published dumps).
Result<RunRecord> read_run_record(const std::string& dump_path);

}  // namespace rorqual::kl
