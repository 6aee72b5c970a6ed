// SPDX-License-Identifier: Apache-2.0
// A capture: for every scored position the actual token's log-probability and the K best tokens. Two files
// hold one: .npz (the layout that published reference dumps use) and .safetensors (the same arrays and the
// windows' tokens; room for full logits). docs/fidelity.md#dumps.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/result.h"

namespace rorqual::kl {

/// What the numbers are about. Nothing of when, where and how fast: two captures of the same function are the
/// same bytes (those facts are in the sidecar, kl/run_record.h).
struct DumpInfo {
  std::string model;
  std::string corpus;
  std::string corpus_sha256;   // empty in dumps of other programs
  std::string windows_sha256;  // of all windows' token ids; likewise
  int64_t context = 0;         // tokens of a window; 0 = they differ
  int64_t num_windows = 0;     // "chunks"
  int64_t top_k = 0;           // K
  int64_t first_scored = 0;    // 0 = it differs
  int64_t vocab_size = 0;
  int64_t scored_positions = 0;  // N
};

/// Natural-log probabilities over the full vocabulary. Rows: window by window, position ascending.
struct Dump {
  DumpInfo info;
  std::vector<int32_t> top_ids;      // [N, K], by (log-probability, id) descending
  std::vector<float> top_logprobs;   // [N, K], unused places: -inf
  std::vector<int32_t> token;        // [N] the actual next token
  std::vector<float> token_logprob;  // [N]
  std::vector<int64_t> window_rows;  // [W + 1] rows [window_rows[w], window_rows[w+1]) belong to window w
  // Only in our own format and fresh captures; empty otherwise.
  std::vector<int32_t> window_ids;           // all windows' tokens, one after the other
  std::vector<int64_t> window_begin;         // [W + 1] into window_ids
  std::vector<int64_t> window_first_scored;  // [W]
  std::string logits_path;  // file that holds the tensor "logits" F32 [N, V]; empty = top-K only

  int64_t num_rows() const { return static_cast<int64_t>(token.size()); }
};

/// By the extension: .npz or .safetensors. Checks every shape against the header, ids against the vocabulary
/// and order of rows. Errors: not_found, corrupt_data (which array, got, expected), unsupported (dtype).
Result<Dump> read_dump(const std::string& path);

/// By the extension; the same dump gives the same bytes. .npz keeps the public arrays only. Temp file +
/// rename. Full logits are written by LogitsWriter (kl/full_logits.h), not here.
Status write_dump(const std::string& path, const Dump& dump);

}  // namespace rorqual::kl
