// SPDX-License-Identifier: Apache-2.0
// The page of `rorqual kl report`: comparisons of one or more candidates with a reference as tables, plots
// and the worst positions in their context. docs/fidelity.md#report.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/result.h"
#include "kl/compare.h"
#include "kl/corpus.h"
#include "kl/dump.h"
#include "report/page.h"
#include "text/tokenizer.h"

namespace rorqual::kl {

/// One candidate on one corpus. `dump` outlives the report.
struct ReportCandidate {
  const Dump* dump = nullptr;
  Comparison comparison;
};

/// Candidate `candidate` against candidate 0: d = candidate - candidate 0.
struct ReportPair {
  size_t candidate = 0;
  double mean_difference = 0, relative_change = 0, probability_greater = 0;
  Interval difference_ci, relative_ci;
};

struct ReportCorpus {
  const Dump* reference = nullptr;
  std::vector<ReportCandidate> candidates;  // as many as labels, in their order
  std::vector<ReportPair> pairs;            // empty with one candidate
  std::optional<Summary> floor;             // the reference's second run, scored like a candidate
};

struct ReportInput {
  std::string reference_label;
  std::vector<std::string> labels;  // of the candidates
  std::vector<ReportCorpus> corpora;
  std::vector<std::pair<std::string, std::string>> facts;  // build, machine, options: for the head block
  const text::Tokenizer* tokenizer = nullptr;              // null: ids instead of text, no token classes
  int64_t num_worst = 50;
};

/// Gives a dump of the public layout the windows it was captured from, for the context before the scored
/// positions. Error: corrupt_data when the corpus does not give the dump's scored tokens (another text or
/// tokenizer).
Status add_window_ids(Dump& dump, const Corpus& corpus);

/// Dumps and comparisons must belong together (compare() has checked them).
report::Page kl_report(const ReportInput& input);

}  // namespace rorqual::kl
