// SPDX-License-Identifier: Apache-2.0
// Many captures at a glance: configurations as rows, corpora as columns. docs/fidelity.md#table.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "base/result.h"
#include "report/table.h"

namespace rorqual::kl {

/// All dumps behind `path`: a file, a folder (its .npz and .safetensors files, sorted) or a pattern with *
/// and ?. not_found when there is none.
Result<std::vector<std::string>> find_dumps(const std::string& path);

struct TableCell {
  double mean_kl = 0;  // nats, mean of the runs
  double top1 = 0;     // share, likewise
  int64_t runs = 0;    // 0 = no capture of this corpus
};

struct TableRow {
  std::string name;
  std::map<std::string, TableCell> cells;  // by corpus
};

struct KlTable {
  std::vector<std::string> corpora;  // columns
  std::vector<TableRow> rows;
  std::vector<std::string> notes;  // "2 files of 'x' have no reference: panel"
};

struct TableRowFiles {
  std::string name;
  std::vector<std::string> files;
};

/// Compares every file with the reference of its corpus; several files of one corpus in a row are runs of one
/// configuration. Columns: the corpora of the references, neutral, code and agentic first.
Result<KlTable> make_kl_table(const std::vector<std::string>& references,
                              const std::vector<TableRowFiles>& rows);

/// Cells "0.0522 · 92.8%"; names get ", mean of 3 runs" where runs are several; an absent cell is a dash.
report::Table layout(const KlTable& table);

}  // namespace rorqual::kl
