// SPDX-License-Identifier: Apache-2.0
// Text out of the files of packages: help pages, manuals, compiled translations and program sources. Small
// readers for exactly what the recipe names: no general XML or HTML. Whatever looks like an address of a
// person or a site is left out.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "kl/corpus_recipe.h"

namespace rorqual::kl {

/// Titles and paragraphs of a page, blanks collapsed, entities resolved. `kind` is mallard or html.
std::vector<std::string> markup_paragraphs(std::string_view page, ExtractKind kind);

/// Translations of the messages with at least `min_bytes` of English text, in the file's order, without
/// plural forms, placeholders and markup. Errors: corrupt_data when the file is no catalog or an entry lies
/// outside it.
Result<std::vector<std::string>> catalog_messages(std::string_view file, size_t min_bytes);

/// Program text without its leading comment, without lines that name authors or hold addresses, with one kind
/// of line end. Empty when it is not UTF-8 or reads like generated text (long lines, tables of numbers).
std::string clean_source(std::string_view file);

/// At least half of the letters are in `script`; kana accepts Han letters beside a few kana. Texts without
/// letters are in none.
bool is_in_script(std::string_view text, Script script);

/// Holds an e-mail address or a URL?
bool holds_address(std::string_view text);

}  // namespace rorqual::kl
