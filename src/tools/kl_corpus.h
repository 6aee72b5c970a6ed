// SPDX-License-Identifier: Apache-2.0
// `rorqual kl corpus`: builds a text to measure fidelity on, says whether it is the recorded one and how long
// it is in tokens.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/result.h"

namespace rorqual::tools {

struct KlCorpusOptions {
  std::string kind;                     // neutral | code | agentic; empty with `list`: all
  std::string out;                      // file to write; empty = only check and count
  std::string root = "/";               // where the packages' files are
  int64_t bytes = 0;                    // 0 = the recorded size
  std::vector<std::string> tokenizers;  // as load_tokenizer takes them; the embedded one is always counted
  bool list = false;                    // print packages, versions and licences; build nothing
  bool as_json = false;                 // schema "rorqual.kl.corpus/1"
};

/// Prints a summary. A text that differs from the recorded one is said, with the packages, but no error: its
/// hash travels with every capture. Errors: invalid_argument, not_found (packages), corrupt_data, io.
Status run_kl_corpus(const KlCorpusOptions& options);

}  // namespace rorqual::tools
