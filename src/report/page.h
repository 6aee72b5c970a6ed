// SPDX-License-Identifier: Apache-2.0
// One self-contained HTML file: head block, sections, tables that can be sorted, plots, data as JSON. It asks
// nothing of the network (a content security policy forbids it), reads well without script, on paper, in the
// dark and on narrow screens. Every text is escaped.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/result.h"
#include "report/table.h"

namespace rorqual::report {

/// What a reader must know before any number: ux rule "each report begins with".
struct PageHead {
  std::string title = {};
  std::string lead = {};                                        // one or two sentences: what was measured
  std::vector<std::pair<std::string, std::string>> facts = {};  // on what, which build, model, options
  std::vector<std::string> limits = {};                         // what the numbers do not show
};

enum class Tone : uint8_t { plain, good, bad };

/// Built from top to bottom. One thread.
class Page {
 public:
  explicit Page(PageHead head) : head_(std::move(head)) {}

  /// A heading, listed in the contents. Ids are made from the order: "s1", "s2", …
  void section(std::string_view title);
  void subsection(std::string_view title);
  void paragraph(std::string_view text);

  /// A boxed sentence: a verdict or a warning.
  void notice(Tone tone, std::string_view text);
  void table(const Table& table, std::string_view caption);

  /// `svg` from report/svg.h.
  void figure(const std::string& svg, std::string_view caption);

  /// Markup of the caller's own, already escaped.
  void markup(std::string_view html) { body_ += html; }

  /// Style rules for the caller's own markup.
  void style(std::string_view css) { css_ += css; }

  /// JSON text, kept as <script type="application/json" id="data">; at most one.
  void data(std::string json) { json_ = std::move(json); }

  std::string html() const;

 private:
  PageHead head_;
  std::vector<std::string> section_titles_;
  std::string body_, css_, json_;
};

/// Temp file + rename, as base/file.h. Errors: io.
Status write_page(const std::string& path, const Page& page);

}  // namespace rorqual::report
