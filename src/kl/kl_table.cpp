// SPDX-License-Identifier: Apache-2.0
#include "kl/kl_table.h"

#include <fmt/format.h>
#include <glob.h>

#include <algorithm>
#include <filesystem>

#include "base/file.h"
#include "kl/compare.h"
#include "kl/dump.h"

namespace rorqual::kl {
namespace {

bool is_dump_name(const std::filesystem::path& path) {
  return path.extension() == ".npz" || path.extension() == ".safetensors";
}

/// Known names in the order that published tables use, then the rest by name.
void sort_corpora(std::vector<std::string>& corpora) {
  const auto rank = [](const std::string& name) {
    constexpr std::string_view kKnown[] = {"neutral", "code", "agentic", "panel"};
    return std::find(std::begin(kKnown), std::end(kKnown), name) - std::begin(kKnown);
  };
  std::sort(corpora.begin(), corpora.end(), [&](const std::string& a, const std::string& b) {
    return std::pair(rank(a), a) < std::pair(rank(b), b);
  });
}

Status add_run(const Dump& reference, const Dump& candidate, const std::string& file, TableRow& row) {
  auto result = compare(reference, candidate);
  if (!result.ok()) return std::move(result).error().at(file);
  TableCell& cell = row.cells[candidate.info.corpus];
  cell.mean_kl += result->summary.mean_kl;
  cell.top1 += result->summary.top1;
  ++cell.runs;
  return Ok();
}

}  // namespace

Result<std::vector<std::string>> find_dumps(const std::string& path) {
  std::vector<std::string> files;
  if (is_directory(path)) {
    std::error_code error;
    for (const auto& entry : std::filesystem::directory_iterator(path, error)) {
      if (is_dump_name(entry.path())) files.push_back(entry.path().string());
    }
    std::sort(files.begin(), files.end());
    if (error) return Error(Code::io, fmt::format("cannot list '{}': {}", path, error.message()));
  } else if (path.find_first_of("*?[") != std::string::npos) {
    glob_t found{};
    if (::glob(path.c_str(), 0, nullptr, &found) == 0)
      files.assign(found.gl_pathv, found.gl_pathv + found.gl_pathc);
    ::globfree(&found);
    std::erase_if(files, [](const std::string& file) { return !is_dump_name(file); });
  } else {
    files.push_back(path);
  }
  if (files.empty()) {
    return Error(Code::not_found, fmt::format("no captures at '{}'", path),
                 "a capture is a .npz or .safetensors file; give a file, its folder or a quoted pattern");
  }
  return files;
}

Result<KlTable> make_kl_table(const std::vector<std::string>& references,
                              const std::vector<TableRowFiles>& rows) {
  KlTable table;
  for (const auto& row : rows) table.rows.push_back({row.name, {}});
  std::map<std::string, std::vector<std::pair<size_t, std::string>>> by_corpus;  // (row, file)
  for (size_t i = 0; i < rows.size(); ++i) {
    for (const auto& file : rows[i].files) {
      RORQUAL_TRY_ASSIGN(const Dump dump, read_dump(file));
      by_corpus[dump.info.corpus].emplace_back(i, file);
    }
  }
  for (const auto& file : references) {  // one reference in memory at a time
    RORQUAL_TRY_ASSIGN(const Dump reference, read_dump(file));
    const std::string& corpus = reference.info.corpus;
    if (std::find(table.corpora.begin(), table.corpora.end(), corpus) != table.corpora.end()) {
      return Error(Code::invalid_argument,
                   fmt::format("two references for corpus '{}', the second is {}", corpus, file),
                   "give one reference per corpus");
    }
    table.corpora.push_back(corpus);
    for (const auto& [row, candidate_file] : by_corpus[corpus]) {
      RORQUAL_TRY_ASSIGN(const Dump candidate, read_dump(candidate_file));
      RORQUAL_TRY(add_run(reference, candidate, candidate_file, table.rows[row]));
    }
  }
  for (const auto& [corpus, files] : by_corpus) {
    if (std::find(table.corpora.begin(), table.corpora.end(), corpus) != table.corpora.end()) continue;
    table.notes.push_back(
        fmt::format("{} capture(s) of corpus '{}' have no reference", files.size(), corpus));
  }
  for (auto& row : table.rows) {
    for (auto& [corpus, cell] : row.cells) {
      cell.mean_kl /= static_cast<double>(cell.runs);
      cell.top1 /= static_cast<double>(cell.runs);
    }
  }
  sort_corpora(table.corpora);
  return table;
}

report::Table layout(const KlTable& table) {
  report::Table out;
  out.header = {"Model"};
  out.align = {report::Align::left};
  for (const auto& corpus : table.corpora) {
    std::string title = corpus;
    if (!title.empty() && title[0] >= 'a' && title[0] <= 'z')
      title[0] = static_cast<char>(title[0] - 'a' + 'A');
    out.header.push_back(std::move(title));
    out.align.push_back(report::Align::right);
  }
  for (const auto& row : table.rows) {
    int64_t most = 0, least = INT64_MAX;
    for (const auto& [corpus, cell] : row.cells) {
      most = std::max(most, cell.runs);
      least = std::min(least, cell.runs);
    }
    std::vector<std::string> cells = {row.name};
    if (most > 1)
      cells[0] += fmt::format(", mean of {} runs",
                              least == most ? fmt::format("{}", most) : fmt::format("{} to {}", least, most));
    for (const auto& corpus : table.corpora) {
      const auto found = row.cells.find(corpus);
      cells.push_back(found == row.cells.end() ? "\xe2\x80\x94"
                                               : fmt::format("{:.4f} \xc2\xb7 {:.1f}%", found->second.mean_kl,
                                                             100 * found->second.top1));
    }
    out.rows.push_back(std::move(cells));
  }
  return out;
}

}  // namespace rorqual::kl
