// SPDX-License-Identifier: Apache-2.0
// `rorqual kl report`: captures to one HTML page.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/result.h"

namespace rorqual::tools {

struct KlReportOptions {
  std::string reference;                // a capture, or a folder with one capture per corpus
  std::vector<std::string> candidates;  // likewise, at least one
  std::vector<std::string> labels;      // names of the candidates; empty = file or folder names
  std::string floor;                    // second run of the reference; empty = none
  std::string tokenizer;             // tokenizer.json, a model folder, "embedded" or "none"; empty = embedded
                                     // for captures of the embedded model, else none
  std::vector<std::string> corpora;  // texts or panels (.json) that captures without window ids come from
  std::string id_set = "both";       // both | candidate | full
  std::string out = "report.html";
  int64_t num_worst = 50;
  bool as_json = false;
};

/// Writes `out` and prints its name with a line per corpus. Errors: those of reading and comparing captures;
/// invalid_argument when nothing can be matched.
Status run_kl_report(const KlReportOptions& options);

}  // namespace rorqual::tools
