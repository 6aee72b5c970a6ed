// SPDX-License-Identifier: Apache-2.0
// kl compare, kl gate, kl table: numbers from captures. Nothing here runs a model.
#pragma once

#include <string>
#include <vector>

#include "base/result.h"
#include "kl/compare.h"

namespace rorqual::tools {

struct KlCompareOptions {
  std::string reference, candidate;
  std::string second;  // B of a paired comparison; empty = none
  kl::IdSet id_set = kl::IdSet::both_top_k;
  bool by_class = false;  // split by token class with the tokenizer of `tokenizer`
  std::string tokenizer;  // tokenizer.json, a model folder, or empty for the embedded model's
  bool force = false;     // compare even captures whose records say that a cache or drafts were on
  bool as_json = false;
};

/// Fills `out` with what to print. Errors: those of reading and comparing.
Status run_kl_compare(const KlCompareOptions& options, std::string& out);

struct KlGateOptions {
  std::vector<std::string> references, old_side, new_side, old_again;  // files, folders or patterns
  std::string numbers;      // a file of numbers instead of captures
  double tail_percent = 0;  // gate p95 and p99 too; 0 = show only
  double max_kl = 0;        // and the largest position; 0 = show only
  bool force_pair = false;  // skip the checks of the run records
  bool as_json = false;
};

/// Fills `out` also when the gate is not met, which is an error (gate).
Status run_kl_gate(const KlGateOptions& options, std::string& out);

struct KlTableOptions {
  std::vector<std::string> references;  // files, folders or patterns
  std::vector<std::string> rows;        // "NAME=PATH[,PATH…]"
  std::string noise_floor;          // captures of the reference configuration's second run; empty = no row
  std::string format = "markdown";  // markdown | csv | text
  bool as_json = false;
};

Status run_kl_table(const KlTableOptions& options, std::string& out);

}  // namespace rorqual::tools
