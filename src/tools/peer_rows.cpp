// SPDX-License-Identifier: Apache-2.0
#include "tools/peer_rows.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <optional>

namespace rorqual::tools {
namespace {

/// Fields of one line; quotes as RFC 4180 has them, but no line breaks inside.
std::vector<std::string> fields_of(std::string_view line) {
  std::vector<std::string> fields(1);
  bool quoted = false;
  for (size_t i = 0; i < line.size(); ++i) {
    const char c = line[i];
    if (c == '"' && quoted && i + 1 < line.size() && line[i + 1] == '"') {
      fields.back() += c;
      ++i;
    } else if (c == '"') {
      quoted = !quoted;
    } else if (c == ',' && !quoted) {
      fields.emplace_back();
    } else {
      fields.back() += c;
    }
  }
  return fields;
}

template <class Number>
std::optional<Number> number_of(std::string_view text) {
  Number value{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return value;
}

/// The number behind "key=" in "threads=16;E=384;iters=300".
int64_t note_number(std::string_view note, std::string_view key) {
  for (size_t begin = 0; begin < note.size();) {
    const size_t end = std::min(note.find(';', begin), note.size());
    const std::string_view part = note.substr(begin, end - begin);
    if (part.size() > key.size() && part.starts_with(key) && part[key.size()] == '=') {
      return number_of<int64_t>(part.substr(key.size() + 1)).value_or(0);
    }
    begin = end + 1;
  }
  return 0;
}

/// 16 for "moe_mxfp4_t16".
int64_t threads_of_op(std::string_view op) {
  const size_t at = op.rfind("_t");
  return at == std::string_view::npos ? 0 : number_of<int64_t>(op.substr(at + 2)).value_or(0);
}

struct Columns {
  size_t peer = 0, op = 0, tokens = 0, time = 0, note = 0;

  size_t last() const { return std::max({peer, op, tokens, time, note}); }
};

Result<Columns> columns_of(std::string_view name, const std::vector<std::string>& header) {
  Columns columns;
  const std::pair<size_t*, std::string_view> wanted[] = {{&columns.peer, "peer"},
                                                         {&columns.op, "op"},
                                                         {&columns.tokens, "M"},
                                                         {&columns.time, "us_median"},
                                                         {&columns.note, "note"}};
  for (const auto& [place, title] : wanted) {
    const auto found = std::find(header.begin(), header.end(), title);
    if (found == header.end()) {
      return Error(Code::corrupt_data, fmt::format("{}: line 1: no column '{}'", name, title),
                   "expected the columns peer, op, M, us_median, note");
    }
    *place = static_cast<size_t>(found - header.begin());
  }
  return columns;
}

}  // namespace

Result<std::vector<PeerRow>> parse_peer_rows(std::string_view name, std::string_view csv) {
  std::vector<PeerRow> rows;
  Columns columns;
  int64_t line_number = 0;
  for (size_t begin = 0; begin < csv.size();) {
    const size_t end = std::min(csv.find('\n', begin), csv.size());
    std::string_view line = csv.substr(begin, end - begin);
    begin = end + 1;
    ++line_number;
    if (line.ends_with('\r')) line.remove_suffix(1);
    if (line.empty()) continue;
    const std::vector<std::string> fields = fields_of(line);
    if (line_number == 1) {
      RORQUAL_TRY_ASSIGN(columns, columns_of(name, fields));
      continue;
    }
    if (fields.size() <= columns.last()) {
      return Error(Code::corrupt_data, fmt::format("{}: line {}: {} fields, expected at least {}", name,
                                                   line_number, fields.size(), columns.last() + 1));
    }
    if (fields[columns.time].empty()) continue;
    const auto tokens = number_of<int64_t>(fields[columns.tokens]);
    const auto time = number_of<double>(fields[columns.time]);
    if (!tokens || !time || !std::isfinite(*time) || *time <= 0) {
      return Error(Code::corrupt_data,
                   fmt::format("{}: line {}: M '{}' and us_median '{}' are no numbers", name, line_number,
                               fields[columns.tokens], fields[columns.time]));
    }
    PeerRow row{
        .peer = fields[columns.peer], .op = fields[columns.op], .tokens = *tokens, .us_median = *time};
    row.threads = note_number(fields[columns.note], "threads");
    if (row.threads == 0) row.threads = threads_of_op(row.op);
    row.experts = note_number(fields[columns.note], "E");
    rows.push_back(std::move(row));
  }
  if (line_number == 0) return Error(Code::corrupt_data, fmt::format("{}: empty", name));
  return rows;
}

}  // namespace rorqual::tools
