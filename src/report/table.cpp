// SPDX-License-Identifier: Apache-2.0
#include "report/table.h"

#include <algorithm>

#include "report/characters.h"

namespace rorqual::report {
namespace {

size_t num_columns(const Table& table) {
  size_t columns = table.header.size();
  for (const auto& row : table.rows) columns = std::max(columns, row.size());
  return columns;
}

bool is_right(const Table& table, size_t column) {
  return column < table.align.size() && table.align[column] == Align::right;
}

/// Rows shorter than the widest are filled with empty cells.
std::string_view cell_of(const std::vector<std::string>& row, size_t column) {
  return column < row.size() ? std::string_view(row[column]) : std::string_view();
}

std::string spaces(int64_t count) {
  return std::string(static_cast<size_t>(std::max<int64_t>(count, 0)), ' ');
}

std::string padded(const std::string& text, int64_t width, bool right) {
  const auto fill = spaces(width - display_width(text));
  return right ? fill + text : text + fill;
}

std::string markdown_cell(std::string_view text) {
  std::string out;
  for (const char c : visible(text)) {
    if (c == '|' || c == '<' || c == '\\') out += '\\';
    out += c;
  }
  return out;
}

/// Every row of the table, header first, each cell changed by `change`.
template <class Change>
std::vector<std::vector<std::string>> changed_rows(const Table& table, const Change& change) {
  const size_t columns = num_columns(table);
  std::vector<std::vector<std::string>> rows;
  const auto add = [&](const std::vector<std::string>& row) {
    auto& cells = rows.emplace_back();
    for (size_t c = 0; c < columns; ++c) cells.push_back(change(cell_of(row, c)));
  };
  add(table.header);
  for (const auto& row : table.rows) add(row);
  return rows;
}

std::vector<int64_t> widths_of(const std::vector<std::vector<std::string>>& rows, int64_t at_least) {
  std::vector<int64_t> widths(rows.front().size(), at_least);
  for (const auto& row : rows) {
    for (size_t c = 0; c < row.size(); ++c) widths[c] = std::max(widths[c], display_width(row[c]));
  }
  return widths;
}

std::string csv_cell(std::string_view text) {
  if (text.find_first_of(",\"\r\n") == std::string_view::npos) return std::string(text);
  std::string out = "\"";
  for (const char c : text) {
    if (c == '"') out += '"';
    out += c;
  }
  return out + "\"";
}

}  // namespace

std::string to_text(const Table& table) {
  const auto rows = changed_rows(table, [](std::string_view cell) { return visible(cell); });
  const auto widths = widths_of(rows, 0);
  std::string out;
  for (size_t r = table.header.empty() ? 1 : 0; r < rows.size(); ++r) {
    std::string line;
    for (size_t c = 0; c < widths.size(); ++c) {
      if (c > 0) line += "  ";
      line += padded(rows[r][c], widths[c], is_right(table, c));
    }
    line.erase(line.find_last_not_of(' ') + 1);
    out += line + "\n";
  }
  return out;
}

std::string to_markdown(const Table& table) {
  const auto rows = changed_rows(table, markdown_cell);
  if (rows.front().empty()) return {};
  const auto widths = widths_of(rows, 3);
  std::string out;
  for (size_t r = 0; r < rows.size(); ++r) {
    out += "|";
    for (size_t c = 0; c < widths.size(); ++c)
      out += " " + padded(rows[r][c], widths[c], is_right(table, c)) + " |";
    out += "\n";
    if (r > 0) continue;
    out += "|";
    for (size_t c = 0; c < widths.size(); ++c) {
      const std::string dashes(static_cast<size_t>(widths[c] - 1), '-');
      out += is_right(table, c) ? " " + dashes + ": |" : " " + dashes + "- |";
    }
    out += "\n";
  }
  return out;
}

std::string to_csv(const Table& table) {
  const auto rows = changed_rows(table, csv_cell);
  std::string out;
  for (size_t r = table.header.empty() ? 1 : 0; r < rows.size(); ++r) {
    for (size_t c = 0; c < rows[r].size(); ++c) out += (c > 0 ? "," : "") + rows[r][c];
    out += "\r\n";
  }
  return out;
}

std::string to_html(const Table& table) {
  const auto rows = changed_rows(table, escaped);
  const auto number_class = [&](size_t column) { return is_right(table, column) ? " class=\"number\"" : ""; };
  std::string out = "<table class=\"data\">";
  if (!table.header.empty()) {
    out += "<thead><tr>";
    for (size_t c = 0; c < rows[0].size(); ++c) {
      out += "<th scope=\"col\"";
      out += number_class(c);
      out += ">" + rows[0][c] + "</th>";
    }
    out += "</tr></thead>";
  }
  out += "<tbody>\n";
  for (size_t r = 1; r < rows.size(); ++r) {
    out += "<tr>";
    for (size_t c = 0; c < rows[r].size(); ++c) {
      out += "<td";
      out += number_class(c);
      out += ">" + rows[r][c] + "</td>";
    }
    out += "</tr>\n";
  }
  return out + "</tbody></table>\n";
}

}  // namespace rorqual::report
