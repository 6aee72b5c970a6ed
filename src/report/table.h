// SPDX-License-Identifier: Apache-2.0
// A table as text for terminals, Markdown, CSV or HTML.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace rorqual::report {

enum class Align : uint8_t { left, right };

struct Table {
  std::vector<std::string> header;
  std::vector<Align> align;  // one per column; missing = left
  std::vector<std::vector<std::string>> rows;
};

/// Columns padded to their width, two spaces between; widths count characters, not bytes.
std::string to_text(const Table& table);

/// GitHub Markdown; '|' in cells is escaped.
std::string to_markdown(const Table& table);

/// RFC 4180.
std::string to_csv(const Table& table);

/// A <table class="data"> with escaped cells.
std::string to_html(const Table& table);

}  // namespace rorqual::report
