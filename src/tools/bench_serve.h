// SPDX-License-Identifier: Apache-2.0
// `rorqual bench serve`: load on a running server, or on one that is started for it, with the server's own
// counters sampled beside and gates that say whether the run counts. docs/load.md.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/result.h"
#include "tools/load_prompts.h"
#include "tools/load_report.h"
#include "tools/load_run.h"

namespace rorqual::tools {

struct BenchServeOptions {
  std::string url, api_key;
  std::string model;                         // to ask for; empty = the first that the server lists
  std::vector<std::string> serve_arguments;  // of that server

  std::vector<int64_t> streams = {1};
  int runs = 1;
  LoadPlan plan;           // streams and seed are set per run
  double timeout_s = 600;  // of silence

  std::string prompts_file;              // JSON lines; else random prompts
  std::optional<int64_t> prompt_tokens;  // of random prompts
  bool is_chat = false;                  // random prompts as chats
  bool has_unique_prefix = false;        // before the prompts of the file
  std::string tokenizer;                 // tokenizer.json for random prompts; empty = the server's /tokenize
  LoadBody body;                         // model is filled in

  bool has_counters = true;
  double sample_interval_s = 1;
  LoadGates gates;

  std::string profile, label;  // columns of the CSV; empty profile = by the length of the answers
  std::string csv_file, requests_file;
  bool as_json = false;
};

/// Prints the report. Errors: gate when a run does not count (after the report); unavailable,
/// invalid_argument, unsupported and those of files.
Status run_bench_serve(const BenchServeOptions& options);

}  // namespace rorqual::tools
